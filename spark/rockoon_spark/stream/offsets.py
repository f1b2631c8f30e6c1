"""Offsets of a stream, as they stand in Spark's checkpoint. Pure.

    {"version": 1, "queues": {"orders": {"broker-a:0": {"offset": 17, "birth": 5, "first": 3}}}}

Invariants:
- An offset that Spark has logged says all that is needed to read its batch again: where a queue
  does not go on at the previous batch's end (it joined, or messages were lost), `first` says where
  the batch begins. So a batch that is run again after a crash is the same, whatever the options,
  the routes and the queues' ends say by then.
- A queue is known by its create revision as well as by its name: one that was deleted and created
  again is another one. (In the checkpoint that is `birth`: a stored name does not change.)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rockoon_core.message_queue import MessageQueue

_VERSION = 1


class CheckpointError(ValueError):
    """A checkpoint holds what this source cannot have written."""


@dataclass(frozen=True, slots=True)
class Place:
    """How far one queue is read.

    Args:
        offset: queue offset of the next message.
        create_revision: etcd revision at which the queue was created.
        first: queue offset at which the batch that ends here begins; None means at the end of the
            batch before.
    """

    offset: int
    create_revision: int
    first: int | None = None


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """How far each queue is read.

    Args:
        queues: the queues that are read.
        is_initial: nothing was ever planned, so starting options count.
    """

    queues: Mapping[MessageQueue, Place] = field(default_factory=dict)
    is_initial: bool = False

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> "StreamOffsets":
        """Read what `to_json` wrote.

        Raises:
            CheckpointError: it is something else.
        """
        if content.get("version") != _VERSION:
            raise CheckpointError(
                f"the checkpoint's offsets are not of version {_VERSION} of this source: {content}"
            )
        try:
            found = {
                _queue(topic, name): Place(each["offset"], each["birth"], each.get("first"))
                for topic, queues in content["queues"].items()
                for name, each in queues.items()
            }
        except (KeyError, ValueError, AttributeError, TypeError) as error:
            raise CheckpointError(f"the checkpoint's offsets cannot be read: {content}") from error
        return cls(found, bool(content.get("initial")))

    def of_topics(self, is_wanted: Callable[[str], bool]) -> "StreamOffsets":
        """These without the queues of other topics."""
        queues = {queue: place for queue, place in self.queues.items() if is_wanted(queue.topic)}
        return StreamOffsets(queues, self.is_initial)

    def to_json(self) -> dict[str, Any]:
        """What Spark stores; the same offsets always make the same text."""
        queues: dict[str, dict[str, dict[str, int]]] = {}
        for queue, place in sorted(self.queues.items()):
            entry = {"offset": place.offset, "birth": place.create_revision}
            if place.first is not None:
                entry["first"] = place.first
            queues.setdefault(queue.topic, {})[f"{queue.broker}:{queue.queue_id}"] = entry
        content: dict[str, Any] = {"version": _VERSION, "queues": queues}
        return {**content, "initial": True} if self.is_initial else content


INITIAL = StreamOffsets(is_initial=True)


def _queue(topic: str, name: str) -> MessageQueue:
    broker, _, number = name.rpartition(":")
    return MessageQueue(topic, broker, int(number))
