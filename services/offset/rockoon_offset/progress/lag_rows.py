"""Lag of one reader on one queue, from progress, positions and queue ends. Pure.

The ledger says what is committed, the broker where the queue ends and what retention may do, the
owner how far it has pulled. What one of them did not say is unknown here, never guessed.
"""

from typing import NamedTuple

from rockoon_core.errors import RockoonError
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import QueueState
from rockoon_offset.members.membership import Lease, Position
from rockoon_offset.progress.records import Progress


class QueueLag(NamedTuple):
    """As QueueLag in offset.proto; None is unknown, or without meaning there."""

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
    """Age of the oldest message that is not pulled."""
    in_flight_as_of_ms: int = 0
    lost: int = 0
    lost_because: int = 0
    """DeletionReason on the wire."""
    loss_ms: int | None = None
    loss_cause: int = 0
    filter: str = ""
    as_of_ms: int = 0
    member: str = ""
    absent: bool = False
    settled_above: int = 0


class Received(NamedTuple):
    """What receivers have of a queue, message by message."""

    in_flight: int
    settled_above: int
    # The smallest offset that one may get.
    first_ready: int
    as_of_ms: int


def filled(
    row: QueueLag,
    progress: Progress | None,
    state: QueueState | RockoonError,
    owner: Lease | None,
    unpulled: QueueState | RockoonError | None = None,
    received: Received | None = None,
) -> QueueLag:
    """Fill in a row.

    Args:
        row: what is known of queue and reader.
        progress: taken before `state`: an end only grows, so no difference is negative.
        state: of the queue, asked about the message at the committed offset; or why it is not told.
        owner: of the progress; None when no live member has the queue.
        unpulled: of the queue, asked about the message at `pulled_offset`, if there is one.
        received: by receivers; None: there are none, or a member reads the queue.
    """
    row = row._replace(owner="" if progress is None else progress.owner)
    if isinstance(state, RockoonError):
        return row._replace(unknown_because=str(state))
    row = row._replace(
        min_offset=state.min_offset, max_offset=state.max_offset, as_of_ms=state.as_of_ms
    )
    if progress is None:
        return row
    # Below zero only when the log has lost its tail: then nothing is left to read.
    lag = max(0, state.max_offset - progress.offset)
    row = row._replace(
        committed=progress.offset,
        lag=lag,
        lag_ms=_lag_ms(progress.offset, state),
        lost=max(0, state.min_offset - progress.offset),
        lost_because=state.asked_deletion,
    )
    if state.asked_loss is not None:
        row = row._replace(
            loss_ms=max(0, state.asked_loss.at_ms - state.as_of_ms),
            loss_cause=state.asked_loss.cause,
        )
    if received is not None:
        settled_above = min(received.settled_above, lag)
        in_flight = min(received.in_flight, lag - settled_above)
        next_offset, as_of_ms = received.first_ready, received.as_of_ms
    elif owner is None:
        return row._replace(in_flight=0, ready=lag, queueing_ms=row.lag_ms)
    else:
        position = _position(row.queue, progress, owner)
        if position is None:
            return row
        in_flight, settled_above = min(max(0, position.next_offset - progress.offset), lag), 0
        next_offset, as_of_ms = position.next_offset, owner.heard_at_ms
    ready = lag - settled_above - in_flight
    queueing_ms = row.lag_ms
    if not ready:
        queueing_ms = 0
    elif next_offset > progress.offset:
        queueing_ms = None
        if isinstance(unpulled, QueueState):
            queueing_ms = _lag_ms(next_offset, unpulled)
    return row._replace(
        in_flight=in_flight,
        ready=ready,
        in_flight_as_of_ms=as_of_ms,
        queueing_ms=queueing_ms,
        settled_above=settled_above,
    )


def pulled_offset(
    queue: MessageQueue,
    progress: Progress | None,
    owner: Lease | None,
    received: Received | None = None,
) -> int | None:
    """Up to where all is taken, when that is beyond what is committed; None otherwise."""
    if progress is not None and received is not None:
        ready = received.first_ready
        return ready if ready > progress.offset else None
    if progress is None or owner is None:
        return None
    position = _position(queue, progress, owner)
    if position is None or position.next_offset <= progress.offset:
        return None
    return position.next_offset


def _position(queue: MessageQueue, progress: Progress, owner: Lease) -> Position | None:
    """How far an owner has pulled, unless it is of a reading before this one."""
    position = owner.positions.get(queue)
    return None if position is None or position.epoch != progress.epoch else position


def _lag_ms(committed: int, state: QueueState) -> int | None:
    """Age of the oldest unread message that is kept, by the broker's clock."""
    if committed >= state.max_offset or state.min_offset == state.max_offset:
        return 0
    if state.asked_store_ms is None:
        return None
    return max(0, state.as_of_ms - state.asked_store_ms)
