"""Reaches: how far queues go, as an ask for messages names them."""

from collections.abc import Mapping, Sequence

from rockoon.receiving.tails import QueueTail
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.in_flight_pb2 import QueueReach


def new_reach(tail: QueueTail) -> QueueReach:
    """A queue as far as it is known; the caller's own."""
    return QueueReach(
        queue=tail.ref,
        min_offset=tail.min_offset,
        end_offset=tail.end_offset or 0,
        create_revision=tail.create_revision,
    )


def reach_of(tail: QueueTail) -> QueueReach:
    """Likewise, the same one as long as nothing has changed: every ask names all queues."""
    known = tail.reach
    if (
        known is None
        or known.end_offset != (tail.end_offset or 0)
        or known.min_offset != tail.min_offset
    ):
        known = tail.reach = new_reach(tail)
    return known


def with_backlog(
    tails: Sequence[QueueTail], reached: Mapping[MessageQueue, int], wanted: int
) -> list[QueueTail]:
    """The first queues that hold enough together; none when all do not.

    Args:
        tails: in the order of preference.
        reached: one past what a group has acquired of each here. Where it says nothing the group's
            progress may be anywhere: such a queue is named in its turn, and counts for nothing.
        wanted: how many messages.
    """
    found = []
    for tail in tails:
        if not tail.end_offset:
            continue
        at = reached.get(tail.queue)
        if at is None:
            found.append(tail)
        elif tail.end_offset > at:
            found.append(tail)
            wanted -= tail.end_offset - at
            if wanted <= 0:
                return found
    return []
