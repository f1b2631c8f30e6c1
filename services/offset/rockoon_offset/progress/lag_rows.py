"""Lag of one reader on one queue, from progress, positions and queue ends. Pure.

The ledger has the committed offset, the broker has the queue's ends and the expected deletion, and
the owner has its pulled position. A value that was not reported is unknown, never guessed.

Every message from the committed offset to the end of the queue counts once:

    lag = lost + settled_above + in_flight + ready

Retention deleted a lost message before a reader settled it. An owner reports the number of
unfinished messages, not their offsets. So for an owner all deleted messages count as lost.
"""

from typing import NamedTuple

from rockoon_core.errors import RockoonError
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import QueueState
from rockoon_offset.in_flight.window import WindowCopy
from rockoon_offset.members.membership import MemberLease, PulledPosition
from rockoon_offset.progress.records import Progress


class QueueLag(NamedTuple):
    """Lag of one reader on one queue, as in QueueLag of offset.proto. None: unknown, or not
    applicable.
    """

    queue: MessageQueue
    owner: str = ""
    unknown_because: str = ""
    min_offset: int = 0
    max_offset: int = 0
    committed: int | None = None
    lag: int | None = None
    lag_ms: int | None = None
    in_flight: int | None = None
    ready: int | None = None
    queueing_ms: int | None = None
    """Age of the oldest message that no reader has pulled."""
    in_flight_as_of_ms: int = 0
    lost: int = 0
    lost_because: int = 0
    """Reason why messages were lost: DeletionReason on the wire."""
    loss_ms: int | None = None
    loss_cause: int = 0
    filter: str = ""
    filters_differ: bool = False
    as_of_ms: int = 0
    member: str = ""
    absent: bool = False
    settled_above: int = 0


class ReceivedQueue(NamedTuple):
    """Messages of a queue that receivers read, counted by state."""

    in_flight: int
    settled_above: int
    # Smallest offset that a receiver may acquire.
    first_ready: int
    as_of_ms: int
    window: WindowCopy

    def kept_below(self, offset: int) -> int:
        """Return the number of messages below an offset that are settled or in flight."""
        return self.window.kept_below(offset)


class LagParts(NamedTuple):
    """Number of messages in each part of the lag, from committed offset to the queue's end."""

    lost: int
    settled_above: int
    in_flight: int
    ready: int


def filled(
    row: QueueLag,
    progress: Progress | None,
    state: QueueState | RockoonError,
    owner: MemberLease | None,
    unpulled: QueueState | RockoonError | None = None,
    received: ReceivedQueue | None = None,
) -> QueueLag:
    """Return the lag of a reader on a queue: the row with its values.

    Args:
        row: row with queue and reader.
        progress: read before `state`; ends only grow, so no difference is negative.
        state: state of the queue with the message at the committed offset, or the broker's error.
        owner: lease of the owner; None: no live member owns the queue.
        unpulled: state of the queue with the message at `pulled_offset`, if there is one.
        received: state by receivers; None: no receivers, or a member reads the queue.
    """
    row = row._replace(owner="" if progress is None else progress.owner)
    if isinstance(state, RockoonError):
        return row._replace(unknown_because=str(state))
    row = row._replace(
        min_offset=state.min_offset, max_offset=state.max_offset, as_of_ms=state.as_of_ms
    )
    if progress is None:
        return row
    # Negative only if the broker lost the end of its log: then there is no message to read.
    lag = max(0, state.max_offset - progress.offset)
    deleted = min(lag, max(0, state.min_offset - progress.offset))
    row = row._replace(
        committed=progress.offset,
        lag=lag,
        lag_ms=_lag_ms(progress.offset, state),
        lost=deleted,
        lost_because=state.asked_deletion,
    )
    if state.asked_loss is not None:
        row = row._replace(
            loss_ms=max(0, state.asked_loss.at_ms - state.as_of_ms),
            loss_cause=state.asked_loss.cause,
        )
    if received is not None:
        parts = received_parts(lag, deleted, progress, received)
        next_offset, as_of_ms = received.first_ready, received.as_of_ms
    elif owner is None:
        return row._replace(
            in_flight=0, ready=lag - deleted, queueing_ms=row.lag_ms if lag > deleted else 0
        )
    else:
        position = _position(row.queue, progress, owner)
        if position is None:
            return row
        parts = pulled_parts(lag, deleted, progress, position)
        next_offset, as_of_ms = position.next_offset, owner.heard_at_ms
    queueing_ms = row.lag_ms
    if not parts.ready:
        queueing_ms = 0
    elif next_offset > progress.offset:
        queueing_ms = None
        if isinstance(unpulled, QueueState):
            queueing_ms = _lag_ms(next_offset, unpulled)
    return row._replace(**parts._asdict(), in_flight_as_of_ms=as_of_ms, queueing_ms=queueing_ms)


def received_parts(lag: int, deleted: int, progress: Progress, received: ReceivedQueue) -> LagParts:
    """Divide the lag of a queue that receivers read into its parts.

    Args:
        lag: number of messages from the committed offset on.
        deleted: how many of them, the first ones, retention has deleted.
    """
    kept = received.kept_below(progress.offset + deleted) if deleted else 0
    lost = max(0, deleted - kept)
    settled_above = min(received.settled_above, lag - lost)
    in_flight = min(received.in_flight, lag - lost - settled_above)
    return LagParts(lost, settled_above, in_flight, lag - lost - settled_above - in_flight)


def pulled_parts(lag: int, deleted: int, progress: Progress, position: PulledPosition) -> LagParts:
    """Divide the lag of a queue that an owner pulls into its parts.

    Args:
        lag, deleted, progress: see `received_parts`.
        position: pulled position of the owner.
    """
    pulled = min(lag, max(deleted, position.next_offset - progress.offset)) - deleted
    in_flight = pulled if position.unfinished is None else min(pulled, position.unfinished)
    return LagParts(deleted, pulled - in_flight, in_flight, lag - deleted - pulled)


def pulled_offset(
    queue: MessageQueue,
    progress: Progress | None,
    owner: MemberLease | None,
    received: ReceivedQueue | None = None,
) -> int | None:
    """Return the first offset not pulled or acquired, if above the committed offset."""
    if progress is not None and received is not None:
        ready = received.first_ready
        return ready if ready > progress.offset else None
    if progress is None or owner is None:
        return None
    position = _position(queue, progress, owner)
    if position is None or position.next_offset <= progress.offset:
        return None
    return position.next_offset


def _position(queue: MessageQueue, progress: Progress, owner: MemberLease) -> PulledPosition | None:
    """Return the pulled position of a queue's owner; None: not reported, or of a former epoch."""
    position = owner.positions.get(queue)
    return None if position is None or position.epoch != progress.epoch else position


def _lag_ms(committed: int, state: QueueState) -> int | None:
    """Return the age of the oldest unread message that is not deleted, by the broker's clock."""
    if committed >= state.max_offset or state.min_offset == state.max_offset:
        return 0
    if state.asked_store_ms is None:
        return None
    return max(0, state.as_of_ms - state.asked_store_ms)
