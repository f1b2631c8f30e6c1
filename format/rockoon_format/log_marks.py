"""Records of a log about itself, in their own topic: starts of epochs and topics.

They are ordinary records of queue 0 of LOG_TOPIC, which RocketMQ stores like any topic. Only a log
that has, or had, several copies contains them. Their bodies are JSON in UTF-8.

Tag EPOCH: written at the start of each epoch, and then first in each CommitLog file, so that
retention never deletes the last one.

    epoch     epoch in which the record was written
    leader    id of the replica that leads the epoch
    begun     [[epoch, physical offset], ...] of the newest epochs that started before the record,
              ascending. If the record's epoch is not the last entry, it starts with this record.
    topics    topics whose messages are in the log: an object like that of the tag TOPIC, without
              `anew`; missing in logs of former versions
    numbers   {topic: [[queue id, number], ...]}: the next number of each queue with messages
              before the record; missing in logs of former versions, and if it would exceed its
              share of a file

Tag TOPIC: written at each change of the topics.

    revision  revision of the routes with this change; 0 if no routes were known
    history   identity of the etcd that counts the revisions; 0 if unknown
    topics    {name: incarnation}: etcd's revision at the topic's creation, 0 if unknown, null if
              the log no longer contains the topic. Topics that are not listed are unchanged.
    anew      [name, ...] of recreated topics: all their earlier records are ignored, and their
              queues start again at offset 0
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
# Only the newest epochs are kept, so that many short epochs do not make the records grow.
BEGUN_MAX = 64


class EpochBegin(NamedTuple):
    """An epoch, and the physical offset of its first record."""

    epoch: int
    first: int


class TopicChange(NamedTuple):
    """Change of the log's topics: content of a record of the log itself with the tag TOPIC."""

    revision: int
    history: int
    incarnations: Mapping[str, int | None]
    restarted: tuple[str, ...] = ()
    """Recreated topics (`anew` in the body)."""


class LogTopics(NamedTuple):
    """The topics in a log, up to one of its records."""

    revision: int = 0
    history: int = 0
    incarnations: Mapping[str, int] = MappingProxyType({})

    def after(self, change: TopicChange) -> "LogTopics":
        """Return the topics after a change."""
        changed = {**self.incarnations, **change.incarnations}
        known = {name: number for name, number in changed.items() if number is not None}
        return LogTopics(change.revision, change.history, known)


NO_TOPICS = LogTopics()


class EpochMark(NamedTuple):
    """Content of a record with the tag EPOCH."""

    epoch: int
    leader: str
    begun: tuple[EpochBegin, ...]
    topics: LogTopics = NO_TOPICS
    numbers: Mapping[str, Mapping[int, int]] = MappingProxyType({})

    def begun_with(self, physical_offset: int) -> tuple[EpochBegin, ...]:
        """Return all known epochs, the record's own included. `physical_offset`: physical offset of
        the record."""
        if self.begun and self.begun[-1].epoch == self.epoch:
            return self.begun
        return (*self.begun, EpochBegin(self.epoch, physical_offset))


def encode_epoch_mark(mark: EpochMark) -> bytes:
    """Return the body of a record with the tag EPOCH, with the newest BEGUN_MAX epochs."""
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
    """Decode the body of a record with the tag EPOCH. Raises ValueError if it is invalid."""
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
        raise ValueError(f"not a mark of an epoch: {error}") from error
    epochs = [each.epoch for each in mark.begun]
    firsts = [each.first for each in mark.begun]
    if mark.epoch < 1 or epochs != sorted({*epochs}) or firsts != sorted({*firsts}):
        raise ValueError(f"not a mark of an epoch: epoch {mark.epoch}, {mark.begun}")
    if epochs and epochs[-1] > mark.epoch:
        raise ValueError(f"epoch {epochs[-1]} started before epoch {mark.epoch}")
    return mark


def encode_topic_change(change: TopicChange) -> bytes:
    """Return the body of a record with the tag TOPIC."""
    return _encoded(_topics_content(*change[:3]) | {"anew": change.restarted})


def decode_topic_change(body: bytes) -> TopicChange:
    """Decode the body of a record with the tag TOPIC. Raises ValueError if it is invalid."""
    try:
        return _topic_change(json.loads(body))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a change of topics: {error}") from error


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
