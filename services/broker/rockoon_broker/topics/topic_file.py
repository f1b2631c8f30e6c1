"""`config/topics.json`, in RocketMQ's format: topics to serve while no nameserver answers.

Besides RocketMQ's fields, each topic has its `incarnation` and the progress of the routes:
`routeRevision`, of which the largest counts, and `routeHistory`, the etcd that counts it. RocketMQ
ignores them. Fields and attributes of RocketMQ that Rockoon does not use are kept.
"""

from dataclasses import replace
from pathlib import Path

from rockoon_broker.config_files import read_config
from rockoon_broker.store.errors import StoreLayoutError
from rockoon_broker.topics.topics import INCARNATION_UNKNOWN, ServedTopic, TopicTable
from rockoon_core.disk import Disk
from rockoon_format.config_json import (
    PERM_INHERIT,
    ConfigError,
    DataVersion,
    TopicConfig,
    TopicConfigs,
    join_topics,
    read_topics,
    topic_text,
)
from rockoon_format.names import (
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_OP_TOPIC,
    topic_fault,
)
from rockoon_format.topic_attributes import BATCH_QUEUES, QUEUE_TYPE, ROCKETMQ_ATTRIBUTES

FILE = "topics.json"
INCARNATION = "incarnation"
REVISION = "routeRevision"
HISTORY = "routeHistory"

TOPICS_ASIDE = frozenset(
    {SCHEDULE_TOPIC, TIMER_TOPIC, TRANSACTION_HALF_TOPIC, TRANSACTION_OP_TOPIC}
)

# RocketMQ stores numbers of queues in a Java int.
QUEUES_MAX = 2**31 - 1


class TopicFile:
    """The topic file, and its last content."""

    def __init__(self, config: Path, disk: Disk) -> None:
        self._path = config / FILE
        self._disk = disk
        self._content = TopicConfigs({})
        # Per topic, the last written value and its text.
        self._written: dict[str, ServedTopic] = {}
        self._texts: dict[str, str] = {}

    def read(self) -> TopicTable:
        """Read the topics that the broker served last; an empty table if there is no file.

        Raises:
            StoreLayoutError: the file or an entry is invalid. A start without it would refuse
                existing topics as unknown.
        """
        content = read_config(self._path)
        if content is None:
            return TopicTable()
        try:
            self._content = read_topics(content)
            self._written, self._texts = {}, {}
            entries = [entry for entry in self._content.topics.values() if not not_served(entry)]
            return TopicTable(
                revision=max((extra_number(entry, REVISION) for entry in entries), default=0),
                history=max((extra_number(entry, HISTORY) for entry in entries), default=0),
                topics={entry.topic: served(entry) for entry in entries},
            )
        except ConfigError as failure:
            raise StoreLayoutError(f"{self._path} cannot be read: {failure}") from failure

    def left_in_batches(self) -> set[str]:
        """Return the topics of a RocketMQ broker whose queues are stored in batches. Raises
        StoreLayoutError: the file cannot be read."""
        self.read()
        return {
            entry.topic
            for entry in self._content.topics.values()
            if entry.attributes.get(QUEUE_TYPE) == BATCH_QUEUES
            and extra_number(entry, INCARNATION) == INCARNATION_UNKNOWN
        }

    def write(self, table: TopicTable, now_ms: int) -> None:
        """Replace the file durably. Raises OSError: the old file is unchanged."""
        version = DataVersion(self._content.data_version.counter + 1, 0, now_ms)
        topics = {name: entry for name, entry in self._content.topics.items() if not_served(entry)}
        served = table.served
        topics |= {topic.name: self._entry(topic, table) for topic in served}
        told = max((extra_number(topics[topic.name], REVISION) for topic in served), default=0)
        if served and told != table.revision:
            topics[served[0].name] = self._entry_made(served[0], table)
        texts = {
            name: self._texts[name]
            if entry is self._content.topics.get(name) and name in self._texts
            else topic_text(entry)
            for name, entry in topics.items()
        }
        for changed in self._disk.make_directory(self._path.parent):
            self._disk.sync_directory(changed)
        self._disk.replace_file(self._path, join_topics(texts, version))
        self._content = TopicConfigs(topics, version)
        self._texts = texts
        self._written = {topic.name: topic for topic in served}

    def _entry(self, topic: ServedTopic, table: TopicTable) -> TopicConfig:
        """Return the file entry of a topic: the last written one if it is still correct, else a new
        one.

        Otherwise each new topic would cause the encoding of a thousand others.
        """
        before = self._content.topics.get(topic.name)
        if (
            before is not None
            and self._written.get(topic.name) == topic
            and extra_number(before, HISTORY) == table.history
            and extra_number(before, REVISION) <= table.revision
        ):
            return before
        return self._entry_made(topic, table)

    def _entry_made(self, topic: ServedTopic, table: TopicTable) -> TopicConfig:
        before = self._content.topics.get(topic.name) or TopicConfig(topic=topic.name)
        kept = {
            name: value for name, value in before.attributes.items() if name in ROCKETMQ_ATTRIBUTES
        }
        ours = {
            INCARNATION: topic.incarnation,
            REVISION: table.revision,
            HISTORY: table.history,
        }
        return replace(
            before,
            read_queues=topic.queues,
            write_queues=topic.queues,
            perm=topic.permissions,
            attributes=kept | dict(topic.attributes),
            extra={**before.extra, **ours},
        )


def not_served(entry: TopicConfig) -> bool:
    """Return whether an entry is only kept for RocketMQ and not served.

    In topics of waiting messages every record has a meaning for the broker, so clients
    may neither read nor write them.
    """
    return entry.topic in TOPICS_ASIDE or of_a_host(entry)


def of_a_host(entry: TopicConfig) -> bool:
    """Return whether RocketMQ made the entry for its own broker, after a host name with a dot.

    Such an entry is kept for RocketMQ but not served: no client can name the topic.
    """
    inherits, dotted = entry.perm & PERM_INHERIT, "." in entry.topic
    return bool(inherits and dotted and topic_fault(entry.topic.replace(".", "-")) is None)


def served(entry: TopicConfig) -> ServedTopic:
    """Return the topic that an entry describes; raises ConfigError if it is invalid."""
    if fault := topic_fault(entry.topic):
        raise ConfigError(f"topic {entry.topic!r}: {fault}")
    for name, queues in (
        ("readQueueNums", entry.read_queues),
        ("writeQueueNums", entry.write_queues),
    ):
        if not 0 <= queues <= QUEUES_MAX:
            raise ConfigError(f"topic {entry.topic!r}: {name} is {queues}, not a number of queues")
    return ServedTopic(
        name=entry.topic,
        queues=max(entry.read_queues, entry.write_queues),
        incarnation=extra_number(entry, INCARNATION),
        permissions=entry.perm,
        attributes=dict(entry.attributes),
    )


def extra_number(entry: TopicConfig, name: str) -> int:
    """Return a number that Rockoon added to an entry; 0 (also INCARNATION_UNKNOWN) if it is
    missing."""
    value = entry.extra.get(name, INCARNATION_UNKNOWN)
    if not isinstance(value, int):
        raise ConfigError(f"{name} of topic {entry.topic!r} is {value!r}")
    return value


BATCH_QUEUES_DIRECTORY = "batchconsumequeue"


def refuse_batch_queues(root: Path, topics: TopicFile) -> None:
    """Refuse a store with topics whose queues RocketMQ stores in batches; changes nothing.

    In a topic with the attribute queue.type = BatchCQ, each batch is one record with many messages,
    and its queues are in `batchconsumequeue`. Read as ordinary records, each batch would be one
    message with a wrong offset; and a `consumequeue` directory of the topic keeps RocketMQ from
    starting.
    Source: BatchConsumeQueue, ConsumeQueueStore#queueTypeShouldBe.

    Args:
        root: the store directory; need not exist.
        topics: its topic file.

    Raises:
        StoreLayoutError: there are such topics, listed in the text; or the file cannot be read.
    """
    directory = root / BATCH_QUEUES_DIRECTORY
    found = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    found |= topics.left_in_batches()
    if found:
        names = ", ".join(sorted(found))
        raise StoreLayoutError(
            f"{root} has topics that RocketMQ keeps in batches (queue.type = BatchCQ), which this "
            f"broker cannot read: {names}. Nothing was changed. Send their messages to other "
            "topics with RocketMQ and delete these there"
        )
