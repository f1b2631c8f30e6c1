"""Plan of a stream's next batch: its offsets and tasks. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rockoon_core.message_queue import MessageQueue
from rockoon_spark.stream.offsets import Place, StreamOffsets


@dataclass(frozen=True, slots=True)
class QueueNow:
    """A queue as its broker and the routes have it.

    Args:
        create_revision: etcd revision at which it was created.
        min_offset: oldest message kept.
        end: behind the newest.
    """

    create_revision: int
    min_offset: int
    end: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """What there is to read, before any limit.

    Args:
        begins: where each queue goes on, with `first` set where that is not where it ended.
        messages: how many there are of each queue, 0 or more.
        losses: one sentence for each queue of which messages cannot be read any more.
    """

    begins: Mapping[MessageQueue, Place]
    messages: Mapping[MessageQueue, int]
    losses: Sequence[str]


def backlog(
    start: StreamOffsets,
    now: Mapping[MessageQueue, QueueNow],
    starting: Mapping[MessageQueue, int],
) -> Backlog:
    """Compare how far a stream is with what there is.

    Args:
        start: how far it is.
        now: all queues that it is to read.
        starting: where queues begin when nothing was ever planned; then it has all of them.
    """
    losses = []
    begins: dict[MessageQueue, Place] = {}
    for queue, place in start.queues.items():
        if queue not in now:
            losses.append(f"queue {queue} was deleted; it was read up to offset {place.offset}")
        elif now[queue].create_revision != place.create_revision:
            losses.append(
                f"queue {queue} was deleted and created again; the old one was read up to offset"
                f" {place.offset}"
            )
    for queue, found in sorted(now.items()):
        known = start.queues.get(queue)
        if known is not None and known.create_revision == found.create_revision:
            begins[queue] = _within(
                queue, Place(known.offset, known.create_revision), found, losses
            )
        else:
            # A queue that came since is read from its beginning, whatever the starting options:
            # they were decided once, and what was sent to it while nobody looked is not lost.
            first = starting[queue] if start.is_initial else 0
            begins[queue] = _within(
                queue, Place(first, found.create_revision, first), found, losses
            )
    messages = {queue: now[queue].end - place.offset for queue, place in begins.items()}
    return Backlog(begins, messages, losses)


def _within(queue: MessageQueue, place: Place, now: QueueNow, losses: list[str]) -> Place:
    """The place itself or, if the queue no longer has it, the nearest one that it has."""
    at = place.offset
    if at < now.min_offset:
        losses.append(
            f"offsets {at} to {now.min_offset} of queue {queue} were deleted before they were read"
        )
        return Place(now.min_offset, place.create_revision, now.min_offset)
    if at > now.end:
        losses.append(
            f"queue {queue} ends at offset {now.end}: offsets from there to {at} are lost"
        )
        return Place(now.end, place.create_revision, now.end)
    return place


def ends_after(
    start: StreamOffsets, found: Backlog, taken: Mapping[MessageQueue, int]
) -> StreamOffsets:
    """Where the stream is when some messages of each queue have been read.

    Returns:
        `start` itself if that changes nothing: then there is no batch.
    """
    queues = {
        queue: Place(place.offset + taken[queue], place.create_revision, place.first)
        for queue, place in found.begins.items()
    }
    is_news = start.is_initial or queues.keys() != start.queues.keys()
    is_news |= any(place.first is not None for place in found.begins.values())
    return StreamOffsets(queues) if is_news or any(taken.values()) else start


def share(
    messages: Mapping[MessageQueue, int], messages_max: int, turn: int
) -> dict[MessageQueue, int]:
    """Divide what a batch may read among the queues, in proportion to what each has.

    Args:
        messages: how many each has.
        messages_max: how many a batch may have, 1 or more.
        turn: another number for each batch: queues too short for a share of their own take turns.
    """
    total = sum(messages.values())
    if total <= messages_max:
        return dict(messages)
    taken = {queue: count * messages_max // total for queue, count in messages.items()}
    rest = messages_max - sum(taken.values())
    order = sorted(messages)
    at = turn % len(order)
    order = order[at:] + order[:at]
    # Those that would get nothing come first.
    for queue in sorted(order, key=lambda each: taken[each] > 0):
        if rest and taken[queue] < messages[queue]:
            taken[queue] += 1
            rest -= 1
    return taken


def messages_of_bytes(
    messages: Mapping[MessageQueue, int], message_bytes: Mapping[MessageQueue, int], bytes_max: int
) -> int:
    """How many messages a batch of some size has if the queues share it as `share` does; at least
    one.

    Args:
        messages: how many each queue has.
        message_bytes: mean size of a message of each queue that has any.
        bytes_max: size of a batch.
    """
    total = sum(messages.values())
    total_bytes = sum(count * message_bytes[queue] for queue, count in messages.items() if count)
    if total_bytes <= bytes_max:
        return max(total, 1)
    return max(total * bytes_max // total_bytes, 1)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Queue offsets of one queue, the end exclusive."""

    queue: MessageQueue
    start: int
    stop: int
    create_revision: int = 0
    """etcd revision at which the queue was created; 0 when that is not known."""


def ranges(start: StreamOffsets, end: StreamOffsets) -> list[OffsetRange]:
    """What lies between two logged offsets, queue by queue."""
    found = []
    for queue, place in sorted(end.queues.items()):
        # `first` counts if it is there: of a queue that joined, the batch before says nothing.
        first = start.queues[queue].offset if place.first is None else place.first
        if first < place.offset:
            found.append(OffsetRange(queue, first, place.offset, place.create_revision))
    return found


def cut(whole: Iterable[OffsetRange], partitions_min: int) -> list[OffsetRange]:
    """Cut long ranges so that there are so many, if there are as many messages."""
    given = list(whole)
    total = sum(each.stop - each.start for each in given)
    if len(given) >= partitions_min:
        return given
    piece = max(total // partitions_min, 1)
    return [
        replace(each, start=at, stop=min(at + length, each.stop))
        for each in given
        for length in [_even(each.stop - each.start, piece)]
        for at in range(each.start, each.stop, length)
    ]


def _even(count: int, piece: int) -> int:
    """Length of pieces about as long as `piece`, no shorter one at the end than need be."""
    return -(-count // -(-count // piece))
