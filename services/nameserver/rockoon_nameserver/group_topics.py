"""The topics that belong to a group: %RETRY%GROUP and %DLQ%GROUP.

They are created on first need: the retry topic when a consumer starts, on each live broker, and
either topic when a broker that has no queue for it must store a message. So a broker that joins
later gets its queues with the first message that fails there.
"""

from rockoon_core.errors import Busy, GroupNotFound, InvalidArgument
from rockoon_core.group_settings import RETRY_QUEUES_DEFAULT
from rockoon_format.names import dlq_topic, retry_topic
from rockoon_nameserver.etcd_data import DeleteKey, PutKey, exists, unchanged
from rockoon_nameserver.keyspace import (
    PATH_PART,
    BlockKey,
    GroupKey,
    Keyspace,
    TopicKey,
    read_group,
    topic_value,
)
from rockoon_nameserver.request_checks import (
    PLACEMENTS_MAX,
    QUEUES_PER_BLOCK_MAX,
    READ_AND_WRITE,
    refuse_impossible_group,
)
from rockoon_nameserver.route_store import RouteStore
from rockoon_nameserver.topics import TopicRecords, existing, new_blocks, next_queue_id, sort_blocks
from rockoon_proto.v1.nameserver_pb2 import (
    GROUP_DEAD_LETTERS,
    GROUP_RETRY,
    GroupConfig,
    GroupTopic,
    Placement,
    ProvideGroupTopicRequest,
    Topic,
    TopicConfig,
    TopicReply,
)

DEAD_LETTER_QUEUES = 1
ATTEMPTS_MAX = 8


class GroupTopics:
    """Creates the retry and dead-letter topics of consumer groups in etcd."""

    def __init__(self, etcd: RouteStore, keyspace: Keyspace, topics: TopicRecords) -> None:
        self._etcd = etcd
        self._keyspace = keyspace
        self._topics = topics

    async def provide(self, request: ProvideGroupTopicRequest) -> TopicReply:
        """Create a topic of a group, or add the queues that the topic lacks on the requested
        brokers.

        Raises:
            GroupNotFound: the group does not exist.
            InvalidArgument: the topic is neither of the two, the broker's name is invalid, or the
                number of queues is out of range.
            Busy: concurrent changes of the topic won `ATTEMPTS_MAX` times.
        """
        refuse_impossible_group(request.group)
        name = name_of(request.group, request.topic)
        if request.broker and not PATH_PART.fullmatch(request.broker):
            raise InvalidArgument(reason=f"{request.broker!r} is not a broker's name")
        if not 0 <= request.queues <= QUEUES_PER_BLOCK_MAX:
            raise InvalidArgument(reason=f"queues {request.queues}: 0 to {QUEUES_PER_BLOCK_MAX}")
        brokers = [request.broker] if request.broker else sorted(await self._topics.live_brokers())
        group, topic_key = GroupKey(request.group), TopicKey(name)
        for _ in range(ATTEMPTS_MAX):
            groups, items, blocks = await self._etcd.read_at_once(
                self._keyspace.one(group),
                self._keyspace.one(topic_key),
                self._keyspace.blocks(name),
            )
            if not groups:
                raise GroupNotFound(group=request.group)
            topic = Topic(config=TopicConfig(name=name, permissions=READ_AND_WRITE))
            if items:
                topic = self._topics.stored(topic_key, [items, blocks])
            config = read_group(group, groups[0].value)
            queues = max(request.queues, queues_of(config, request.topic))
            missing = missing_placements(topic, brokers, queues)
            if items and not missing:
                return existing(topic)
            new = [
                BlockKey(name, each.broker, next_queue_id(topic, each.broker)) for each in missing
            ]
            key = self._keyspace.key(topic_key)
            outcome = await self._etcd.transaction(
                [exists(self._keyspace.key(group)), unchanged(key, topic.modified_revision)],
                [PutKey(key, topic_value(topic.config)), *self._topics.puts(new, missing)],
            )
            if outcome.succeeded:
                topic.incarnation = topic.incarnation or outcome.revision
                topic.modified_revision = outcome.revision
                topic.blocks.extend(new_blocks(new, missing, outcome.revision))
                sort_blocks(topic)
                return TopicReply(topic=topic, revision=outcome.revision, created=not items)
        raise Busy(reason=f"topic {name!r} keeps changing: try again")


def name_of(group: str, topic: GroupTopic) -> str:
    if topic == GROUP_RETRY:
        return retry_topic(group)
    if topic == GROUP_DEAD_LETTERS:
        return dlq_topic(group)
    raise InvalidArgument(reason=f"{topic} is not a topic of a group")


def queues_of(config: GroupConfig, topic: GroupTopic) -> int:
    """Return the number of queues that a retry or dead-letter topic should have on each broker."""
    if topic == GROUP_DEAD_LETTERS:
        return DEAD_LETTER_QUEUES
    return config.retry_queues if config.HasField("retry_queues") else RETRY_QUEUES_DEFAULT


def missing_placements(topic: Topic, brokers: list[str], queues: int) -> list[Placement]:
    """Return the queues to add so that each broker has at least `queues`.

    At most as many as fit into one transaction: the other brokers get theirs when they need them.
    """
    missing = []
    for broker in brokers:
        lacks = queues - next_queue_id(topic, broker)
        if lacks > 0:
            missing.append(Placement(broker=broker, queues=lacks))
    return missing[:PLACEMENTS_MAX]


def deletions(keyspace: Keyspace, group: str) -> list[DeleteKey]:
    """Return the operations that delete the retry and dead-letter topics of a group."""
    return [
        DeleteKey(key_range)
        for topic in (retry_topic(group), dlq_topic(group))
        for key_range in (
            keyspace.one(TopicKey(topic)),
            keyspace.blocks(topic),
            keyspace.subscriptions_to(topic),
        )
    ]
