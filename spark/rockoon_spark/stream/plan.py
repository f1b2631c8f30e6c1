"""Plan of a stream's next batch, and offsets of a stream in Spark's checkpoint. No I/O.

    {"version": 2, "queues": {"orders": {"broker-a": [
        {"birth": 5, "queue": 0, "offsets": [17, 4], "first": [3, null]}]}}}

A block has consecutive queues of one create revision, which it calls `birth`; `queue` is the first
queue id. `first` is omitted if it is null for all queues. In version 1, each queue had an entry:

    {"version": 1, "queues": {"orders": {"broker-a:0": {"offset": 17, "birth": 5, "first": 3}}}}

Invariants:
- The offsets of two consecutive batches in the checkpoint determine the later batch. If a queue
  does not continue at the end of the batch before (it is new, or messages were lost), `first` is
  the offset at which the batch begins. So a batch that is repeated after a crash is the same, even
  if options, routes or the ends of queues have changed.
- A queue is identified by its name and its create revision: a recreated queue is another one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from rockoon_core.message_queue import MessageQueue
from rockoon_spark.source.queue_partition import BatchRange

_VERSION = 2
_SHOWN_CHARACTERS = 500


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
        version = content.get("version")
        if version not in (1, _VERSION):
            raise CheckpointError(
                f"the checkpoint's offsets have version {version}, which this source does not know;"
                f" it knows 1 to {_VERSION}: {_shortened(content)}"
            )
        decode = _of_version_1 if version == 1 else _of_blocks
        try:
            found = dict(decode(content["queues"]))
        except (KeyError, ValueError, AttributeError, TypeError) as error:
            raise CheckpointError(
                f"the checkpoint's offsets cannot be read: {_shortened(content)}"
            ) from error
        return cls(found, bool(content.get("initial")))

    def of_queues(self, is_wanted: Callable[[str, str, int], bool]) -> "StreamOffsets":
        """Return the offsets of some queues, which are chosen by topic, broker and queue id."""
        queues = {queue: each for queue, each in self.queues.items() if is_wanted(*queue)}
        return StreamOffsets(queues, self.is_initial)

    def to_json(self) -> dict[str, Any]:
        """Encode for Spark's checkpoint; equal offsets have equal texts."""
        topics: dict[str, dict[str, list[dict[str, Any]]]] = {}
        block: dict[str, Any] = {}
        following: tuple[MessageQueue, int] | None = None
        for queue, position in sorted(self.queues.items()):
            if (queue, position.create_revision) != following:
                block = {"birth": position.create_revision, "queue": queue.queue_id}
                block |= {"offsets": [], "first": []}
                topics.setdefault(queue.topic, {}).setdefault(queue.broker, []).append(block)
            block["offsets"].append(position.offset)
            block["first"].append(position.first)
            following = queue._replace(queue_id=queue.queue_id + 1), position.create_revision
        for block in chain.from_iterable(own for each in topics.values() for own in each.values()):
            if all(first is None for first in block["first"]):
                del block["first"]
        content: dict[str, Any] = {"version": _VERSION, "queues": topics}
        return {**content, "initial": True} if self.is_initial else content


INITIAL = StreamOffsets(is_initial=True)


def _of_blocks(topics: Mapping[str, Any]) -> Iterator[tuple[MessageQueue, QueuePosition]]:
    for topic, brokers in topics.items():
        for broker, blocks in brokers.items():
            for block in blocks:
                offsets = block["offsets"]
                firsts = block.get("first", [None] * len(offsets))
                numbers = range(block["queue"], block["queue"] + len(offsets))
                for number, offset, first in zip(numbers, offsets, firsts, strict=True):
                    queue = MessageQueue(topic, broker, number)
                    yield queue, QueuePosition(offset, block["birth"], first)


def _of_version_1(topics: Mapping[str, Any]) -> Iterator[tuple[MessageQueue, QueuePosition]]:
    for topic, queues in topics.items():
        for name, each in queues.items():
            broker, _, number = name.rpartition(":")
            queue = MessageQueue(topic, broker, int(number))
            yield queue, QueuePosition(each["offset"], each["birth"], each.get("first"))


def _shortened(content: Mapping[str, Any]) -> str:
    text = str(content)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


@dataclass(frozen=True, slots=True)
class StreamQueue:
    """State of a queue when a batch is planned, from its broker and the routes.

    Args:
        create_revision: etcd revision at which it was created.
        min_offset: offset of the oldest message.
        end: offset after the newest message.
    """

    create_revision: int
    min_offset: int
    end: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """Number of messages that can be read now, before limits are applied.

    Args:
        begins: start of the next batch in each queue; `first` is set if the queue does not continue
            at the end of the batch before.
        messages: number of messages of each queue, 0 or more.
        losses: a sentence for each queue with messages that can no longer be read.
    """

    begins: Mapping[MessageQueue, QueuePosition]
    messages: Mapping[MessageQueue, int]
    losses: Sequence[str]


def backlog(
    start: StreamOffsets,
    now: Mapping[MessageQueue, StreamQueue],
    starting: Mapping[MessageQueue, int],
) -> Backlog:
    """Return the messages that a stream can read: compare its offsets with the present queues.

    Args:
        start: offsets of the stream.
        now: all queues that it reads.
        starting: start offset of each queue; used only if `start` is initial.
    """
    losses = []
    begins: dict[MessageQueue, QueuePosition] = {}
    for queue, position in start.queues.items():
        if queue not in now:
            losses.append(f"queue {queue} was deleted; it was read up to offset {position.offset}")
        elif now[queue].create_revision != position.create_revision:
            losses.append(
                f"queue {queue} was deleted and created again; the old one was read up to offset"
                f" {position.offset}"
            )
    for queue, found in sorted(now.items()):
        known = start.queues.get(queue)
        if known is not None and known.create_revision == found.create_revision:
            position = QueuePosition(known.offset, known.create_revision)
        else:
            # A queue that was created after the first batch is read from its beginning. The
            # starting options apply only to the first batch, so no message of the queue is lost.
            first = starting[queue] if start.is_initial else 0
            position = QueuePosition(first, found.create_revision, first)
        begins[queue] = _within(queue, position, found, losses)
    messages = {queue: now[queue].end - position.offset for queue, position in begins.items()}
    return Backlog(begins, messages, losses)


def _within(
    queue: MessageQueue, position: QueuePosition, now: StreamQueue, losses: list[str]
) -> QueuePosition:
    """Return the position of the stream in a queue or, if the queue no longer has it, the nearest
    position that exists.
    """
    at = position.offset
    if at < now.min_offset:
        losses.append(
            f"offsets {at} to {now.min_offset} of queue {queue} were deleted before they were read"
        )
        return QueuePosition(now.min_offset, position.create_revision, now.min_offset)
    if at > now.end:
        losses.append(
            f"queue {queue} ends at offset {now.end}: offsets from there to {at} are lost"
        )
        return QueuePosition(now.end, position.create_revision, now.end)
    return position


def ends_after(
    start: StreamOffsets, found: Backlog, counts: Mapping[MessageQueue, int]
) -> StreamOffsets:
    """Return the offsets of the stream after `counts` messages of each queue.

    Returns:
        `start` itself if nothing changes: then there is no batch.
    """
    queues = {
        queue: QueuePosition(begin.offset + counts[queue], begin.create_revision, begin.first)
        for queue, begin in found.begins.items()
    }
    is_changed = start.is_initial or queues.keys() != start.queues.keys()
    is_changed |= any(begin.first is not None for begin in found.begins.values())
    return StreamOffsets(queues) if is_changed or any(counts.values()) else start


def share(
    messages: Mapping[MessageQueue, int], messages_max: int, turn: int
) -> dict[MessageQueue, int]:
    """Divide the messages of a batch among the queues, in proportion to their numbers of messages.

    Args:
        messages: number of messages of each queue.
        messages_max: maximum number of messages in the batch, 1 or more.
        turn: a number that differs from batch to batch: it rotates the order of the queues that
            get one of the remaining messages.
    """
    total = sum(messages.values())
    if total <= messages_max:
        return dict(messages)
    counts = {queue: count * messages_max // total for queue, count in messages.items()}
    rest = messages_max - sum(counts.values())
    order = sorted(messages)
    at = turn % len(order)
    order = order[at:] + order[:at]
    # Queues without a share come first.
    for queue in sorted(order, key=lambda each: counts[each] > 0):
        if rest and counts[queue] < messages[queue]:
            counts[queue] += 1
            rest -= 1
    return counts


def messages_of_bytes(
    messages: Mapping[MessageQueue, int], message_bytes: Mapping[MessageQueue, int], bytes_max: int
) -> int:
    """Return the number of messages in a batch of at most `bytes_max`; at least one. `share`
    divides them among the queues.

    Args:
        messages: number of messages of each queue.
        message_bytes: mean message size of each queue that has messages.
        bytes_max: size of the batch.
    """
    total = sum(messages.values())
    total_bytes = sum(count * message_bytes[queue] for queue, count in messages.items() if count)
    if total_bytes <= bytes_max:
        return max(total, 1)
    return max(total * bytes_max // total_bytes, 1)


def ranges(start: StreamOffsets, end: StreamOffsets) -> list[BatchRange]:
    """Return the nonempty ranges between two checkpointed offsets, queue by queue."""
    found = []
    for queue, position in sorted(end.queues.items()):
        # A new queue is not in `start`, so `first` has precedence.
        first = start.queues[queue].offset if position.first is None else position.first
        if first < position.offset:
            found.append(BatchRange(queue, first, position.offset, position.create_revision))
    return found


def cut(whole: Iterable[BatchRange], partitions_min: int) -> list[BatchRange]:
    """Divide ranges into at least `partitions_min`, if there are as many messages."""
    given = list(whole)
    total = sum(each.stop - each.start for each in given)
    if len(given) >= partitions_min:
        return given
    length_max = max(total // partitions_min, 1)
    return [
        replace(each, start=at, stop=min(at + length, each.stop))
        for each in given
        for length in [_even(each.stop - each.start, length_max)]
        for at in range(each.start, each.stop, length)
    ]


def _even(count: int, length_max: int) -> int:
    """Return the length of the fewest equal ranges, at most `length_max`, that cover `count`."""
    return -(-count // -(-count // length_max))
