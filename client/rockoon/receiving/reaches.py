"""Known ends of message queues, for acquire calls."""

from collections.abc import Mapping, Sequence

from rockoon.receiving.tail_reader import TrackedQueue
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.in_flight_pb2 import QueueReach


def new_known_end(tail: TrackedQueue) -> QueueReach:
    """Return a new message with the known ends of a queue."""
    return QueueReach(
        queue=tail.ref,
        min_offset=tail.min_offset,
        end_offset=tail.end_offset or 0,
        create_revision=tail.create_revision,
    )


def known_end_of(tail: TrackedQueue) -> QueueReach:
    """Like `new_known_end`. Unchanged ends return the same object, because most calls name all
    queues."""
    known = tail.known_end
    if (
        known is None
        or known.end_offset != (tail.end_offset or 0)
        or known.min_offset != tail.min_offset
    ):
        known = tail.known_end = new_known_end(tail)
    return known


def with_backlog(
    tails: Sequence[TrackedQueue], acquired_ends: Mapping[MessageQueue, int], wanted: int
) -> list[TrackedQueue]:
    """Return the first queues that have enough messages together; empty if all have too few.

    Args:
        tails: in the order of preference.
        reached: one past the largest acquired offset per queue. If a queue has no entry, its
            progress is unknown: it is included, and its messages are not counted.
        wanted: number of messages.
    """
    found = []
    for tail in tails:
        if not tail.end_offset:
            continue
        at = acquired_ends.get(tail.queue)
        if at is None:
            found.append(tail)
        elif tail.end_offset > at:
            found.append(tail)
            wanted -= tail.end_offset - at
            if wanted <= 0:
                return found
    return []
