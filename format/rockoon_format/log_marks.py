"""Records of a log about itself, in a topic of its own: where epochs and topics began.

They are ordinary records of queue 0 of LOG_TOPIC, which RocketMQ keeps as it keeps any topic. Only
a log that has, or had, several copies holds some. Their bodies are JSON in UTF-8.

Tag EPOCH: one whenever an epoch begins, and one first in each CommitLog file from then on, so that
retention never takes the last.

    epoch     the one in which the record was written
    leader    id of the replica that leads it
    begun     [[epoch, physical offset], ...] of the newest epochs that began before the record, in
              their order. If its own epoch is not the last of them, it begins with this record.
    topics    whose messages the log holds: an object as of the tag TOPIC, without `anew`; missing
              in logs of former versions
    numbers   {topic: [[queue id, number], ...]}: the next number of each queue that has had
              messages before the record; missing in logs of former versions, and where it would
              take more than its share of a file

Tag TOPIC: one whenever that changes.

    revision  of the routes in which it was so; 0 if none were seen
    history   identity of the etcd that counts revisions; 0 while it is not known
    topics    {name: incarnation}: etcd's revision when the topic was created, 0 if that is not
              known, null for one that the log has nothing of any more. Others are as before.
    anew      [name, ...] of topics of which everything before this record is as if it had never
              been; their queues begin at offset 0
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from rockoon_format.properties import PROPERTY_TAGS, encode

LOG_TOPIC = "rmq_sys_rockoon_log"
LOG_QUEUE = 0
EPOCH_TAG = "EPOCH"
TOPIC_TAG = "TOPIC"
EPOCH_PROPERTIES = encode({PROPERTY_TAGS: EPOCH_TAG})
TOPIC_PROPERTIES = encode({PROPERTY_TAGS: TOPIC_TAG})
# So many epochs, the newest ones, or short reigns would make records grow without end.
BEGUN_MAX = 64


class EpochBegin(NamedTuple):
    """An epoch, and the physical offset of the record that it began with."""

    epoch: int
    first: int


class TopicChange(NamedTuple):
    """What a record tagged TOPIC says."""

    revision: int
    history: int
    incarnations: Mapping[str, int | None]
    anew: tuple[str, ...] = ()


class LogTopics(NamedTuple):
    """Whose messages a log holds, up to some record of it."""

    revision: int = 0
    history: int = 0
    incarnations: Mapping[str, int] = MappingProxyType({})

    def after(self, change: TopicChange) -> "LogTopics":
        """What holds from the record of a change on."""
        changed = {**self.incarnations, **change.incarnations}
        known = {name: number for name, number in changed.items() if number is not None}
        return LogTopics(change.revision, change.history, known)


NO_TOPICS = LogTopics()


class EpochMark(NamedTuple):
    """What a record tagged EPOCH says."""

    epoch: int
    leader: str
    begun: tuple[EpochBegin, ...]
    topics: LogTopics = NO_TOPICS
    numbers: Mapping[str, Mapping[int, int]] = MappingProxyType({})

    def begun_with(self, physical_offset: int) -> tuple[EpochBegin, ...]:
        """Every epoch that is known, the record's own included.

        Args:
            physical_offset: of the record.
        """
        if self.begun and self.begun[-1].epoch == self.epoch:
            return self.begun
        return (*self.begun, EpochBegin(self.epoch, physical_offset))


def encode_epoch_mark(mark: EpochMark) -> bytes:
    """The body; of what has begun the newest BEGUN_MAX."""
    content = {
        "epoch": mark.epoch,
        "leader": mark.leader,
        "begun": mark.begun[-BEGUN_MAX:],
        "topics": _topics_content(*mark.topics),
    }
    if mark.numbers:
        content["numbers"] = {topic: [*of.items()] for topic, of in mark.numbers.items()}
    return _encoded(content)


def decode_epoch_mark(body: bytes) -> EpochMark:
    """Raises ValueError for a body that says something else than it may."""
    try:
        content = json.loads(body)
        topics = _topic_change(content["topics"]) if "topics" in content else TopicChange(0, 0, {})
        mark = EpochMark(
            int(content["epoch"]),
            str(content["leader"]),
            tuple(EpochBegin(int(epoch), int(first)) for epoch, first in content["begun"]),
            NO_TOPICS.after(topics),
            {
                str(topic): {_natural(queue): _natural(number) for queue, number in numbers}
                for topic, numbers in content.get("numbers", {}).items()
            },
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"this is no epoch's mark: {error}") from error
    epochs = [each.epoch for each in mark.begun]
    firsts = [each.first for each in mark.begun]
    if mark.epoch < 1 or epochs != sorted({*epochs}) or firsts != sorted({*firsts}):
        raise ValueError(f"this is no epoch's mark: epoch {mark.epoch}, {mark.begun}")
    if epochs and epochs[-1] > mark.epoch:
        raise ValueError(f"epoch {epochs[-1]} has begun before epoch {mark.epoch}")
    return mark


def encode_topic_change(change: TopicChange) -> bytes:
    """The body of a record tagged TOPIC."""
    return _encoded(_topics_content(*change[:3]) | {"anew": change.anew})


def decode_topic_change(body: bytes) -> TopicChange:
    """Raises ValueError for a body that says something else than it may."""
    try:
        return _topic_change(json.loads(body))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"this is no change of topics: {error}") from error


def _natural(number: Any) -> int:
    if int(number) < 0:
        raise ValueError(f"{number} is negative")
    return int(number)


def _encoded(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def _topics_content(
    revision: int, history: int, incarnations: Mapping[str, int | None]
) -> dict[str, Any]:
    return {"revision": revision, "history": history, "topics": dict(incarnations)}


def _topic_change(content: Mapping[str, Any]) -> TopicChange:
    return TopicChange(
        int(content["revision"]),
        int(content["history"]),
        {
            str(name): None if number is None else int(number)
            for name, number in content["topics"].items()
        },
        tuple(str(name) for name in content.get("anew", ())),
    )
