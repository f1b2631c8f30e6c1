"""Offsets of a stream, in the format of Spark's checkpoint. No I/O.

    {"version": 1, "queues": {"orders": {"broker-a:0": {"offset": 17, "birth": 5, "first": 3}}}}

Invariants:
- The offsets of two consecutive batches in the checkpoint determine the later batch. If a queue
  does not continue at the end of the batch before (it is new, or messages were lost), `first` is
  the offset at which the batch begins. So a batch that is repeated after a crash is the same, even
  if options, routes or the ends of queues have changed.
- A queue is identified by its name and its create revision: a recreated queue is another one. The
  checkpoint calls the create revision `birth`, because stored names do not change.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rockoon_core.message_queue import MessageQueue

_VERSION = 1


class CheckpointError(ValueError):
    """A checkpoint was not written by this source, or is damaged."""


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """Position of the stream in one queue: offset, and create revision of the queue.

    Args:
        offset: queue offset of the next message.
        create_revision: etcd revision at which the queue was created.
        first: queue offset at which the batch that ends here begins; None for the end of the batch
            before.
    """

    offset: int
    create_revision: int
    first: int | None = None


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """Position of the stream in each queue.

    Args:
        queues: the queues that are read.
        is_initial: True before the first batch is planned: then the starting options apply.
    """

    queues: Mapping[MessageQueue, QueuePosition] = field(default_factory=dict)
    is_initial: bool = False

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> "StreamOffsets":
        """Decode a stream's offsets from Spark's checkpoint, as `to_json` encoded them.

        Raises:
            CheckpointError: invalid content.
        """
        if content.get("version") != _VERSION:
            raise CheckpointError(
                f"the checkpoint's offsets do not have version {_VERSION} of this source: {content}"
            )
        try:
            found = {
                _queue(topic, name): QueuePosition(each["offset"], each["birth"], each.get("first"))
                for topic, queues in content["queues"].items()
                for name, each in queues.items()
            }
        except (KeyError, ValueError, AttributeError, TypeError) as error:
            raise CheckpointError(f"the checkpoint's offsets cannot be read: {content}") from error
        return cls(found, bool(content.get("initial")))

    def of_topics(self, is_wanted: Callable[[str], bool]) -> "StreamOffsets":
        """Return the offsets of the queues of some topics."""
        queues = {queue: each for queue, each in self.queues.items() if is_wanted(queue.topic)}
        return StreamOffsets(queues, self.is_initial)

    def to_json(self) -> dict[str, Any]:
        """Encode for Spark's checkpoint; equal offsets have equal texts."""
        queues: dict[str, dict[str, dict[str, int]]] = {}
        for queue, position in sorted(self.queues.items()):
            entry = {"offset": position.offset, "birth": position.create_revision}
            if position.first is not None:
                entry["first"] = position.first
            queues.setdefault(queue.topic, {})[f"{queue.broker}:{queue.queue_id}"] = entry
        content: dict[str, Any] = {"version": _VERSION, "queues": queues}
        return {**content, "initial": True} if self.is_initial else content


INITIAL = StreamOffsets(is_initial=True)


def _queue(topic: str, name: str) -> MessageQueue:
    broker, _, number = name.rpartition(":")
    return MessageQueue(topic, broker, int(number))
