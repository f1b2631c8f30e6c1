"""Deliveries to receivers: the rules by which messages are acquired and settled. Pure.

As of the ledger's operations, each returns the records that make its change, and has applied them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from rockoon_core.message_queue import MessageQueue
from rockoon_offset.in_flight.message_order import next_in_order
from rockoon_offset.in_flight.window import Grant, Window, first_bit, shifted
from rockoon_offset.progress.ledger_state import LedgerState
from rockoon_offset.progress.records import Acquired, Extended, Put, Record, Settled, WindowPut

# How long receivers may keep messages to themselves.
INVISIBLE_MS_MAX = 12 * 3_600_000


class Candidates(NamedTuple):
    """Message groups of a queue's messages, as a receiver has read them."""

    first: int
    groups: Sequence[int]


class VisibilityChange(NamedTuple):
    """A wish to have messages visible at another time."""

    visible_at_ms: int
    # The delivery that ends counts as an attempt.
    counted: bool
    # The holder keeps them, and its number.
    extend: bool
    # Why the delivery failed; empty: the former reason stays.
    reason: str = ""


class ChangedVisibility(NamedTuple):
    """What became of it."""

    records: list[Record]
    # Its messages that were refused.
    refused: int
    # Of the others; 0: there are none.
    number: int


class Deliveries:
    """Operations on the windows of a ledger.

    Args:
        state: of the ledger, which it changes.
    """

    def __init__(self, state: LedgerState) -> None:
        self._state = state

    def service_started(self, now_ms: int) -> list[Record]:
        """Make visible what would be later than any receiver may ask for: the clock that said when
        was wrong, and nobody would get it for as long as that."""
        latest_ms = now_ms + INVISIBLE_MS_MAX
        return self._state.apply_all(
            [
                Extended(group, queue, each.number, *trimmed(each.first, messages), now_ms)
                for group, queue, window in self._state.windows
                for each in window
                for at_ms, messages in each.parts.items()
                if at_ms > latest_ms
            ]
        )

    def open(self, group: str, queue: MessageQueue) -> list[Record]:
        """Let receivers have a queue that the group has progress on, and no live member holds.

        A member that held it and was not heard any more must not commit below what receivers
        settle, nor go on without asking: it is fenced, as by a member that takes over.
        """
        progress = self._state.table.of(group)[queue]
        records: list[Record] = []
        if progress.owner:
            epoch = self._state.counters.epoch + 1
            records = self._state.apply_all([Put(progress._replace(owner="", epoch=epoch))])
        self._state.windows.open(group, queue, progress.offset)
        return records

    def begin_anew(self, group: str, queue: MessageQueue) -> list[Record]:
        """Forget what receivers have of a queue, and what they have settled above the floor."""
        progress = self._state.table.find(group, queue)
        if progress is None:
            return []
        epoch = self._state.counters.epoch + 1
        return self._state.apply_all([Put(progress._replace(epoch=epoch))])

    def acquire(
        self,
        group: str,
        queue: MessageQueue,
        count: int,
        end: int,
        now_ms: int,
        visible_at_ms: int,
    ) -> list[Acquired]:
        """Acquire messages of an open queue: those that are visible again, then new ones.

        Args:
            group, queue: whose, of what.
            count: messages at most, 1 or more.
            end: of the queue.
            now_ms: what time it is.
            visible_at_ms: when they are visible to others, later than now.
        """
        window = self._state.windows.of(group, queue)
        records: list[Acquired] = []
        while count > 0 and (grant := window.next_grant(count, end, now_ms)) is not None:
            records.append(self._acquired(group, queue, grant, visible_at_ms))
            count -= grant.messages.bit_count()
        return records

    def acquire_in_order(
        self,
        group: str,
        queue: MessageQueue,
        count: int,
        group_count: int,
        candidates: Candidates,
        redeliveries_max: int,
        now_ms: int,
        visible_at_ms: int,
        attempt_id: str,
    ) -> list[WindowPut | Acquired]:
        """As `acquire`, the next messages of each message group, in their order.

        What was settled behind a message that comes again is settled no more.

        Args:
            group_count: messages of one message group at most.
            redeliveries_max: if a message is delivered more often, it becomes a dead letter.
        """
        window = self._state.windows.of(group, queue)
        found = next_in_order(window, *candidates, count, group_count, redeliveries_max, now_ms)
        records: list[WindowPut | Acquired] = []
        if found.reopened:
            settled, skipped = window.settled & ~found.reopened, window.skipped | found.reopened
            put = WindowPut(group, queue, window.acquired_to, window.since, settled, skipped)
            self._state.apply(put)
            records.append(put)
        records += [
            self._acquired(group, queue, grant, visible_at_ms, attempt_id) for grant in found.grants
        ]
        return records

    def acknowledge(
        self, group: str, queue: MessageQueue, number: int, first: int, messages: int, now_ms: int
    ) -> tuple[list[Record], int]:
        """Settle messages of an acquisition; returns those that were refused beside the records.

        Its time may be over: what nobody else has acquired is still its own.
        """
        window = self._state.windows.find(group, queue)
        if window is None or not self._is_of(window, number):
            return [], messages
        own = owned(window, number, first, messages)
        refused = messages & ~own & ~window.settled_of(first, messages)
        if not own:
            return [], refused
        settled = Settled(group, queue, number, *trimmed(first, own), now_ms)
        return self._state.apply_all([settled]), refused

    def change_visibility(
        self,
        group: str,
        queue: MessageQueue,
        number: int,
        first: int,
        messages: int,
        change: VisibilityChange,
    ) -> ChangedVisibility:
        """Have messages of an acquisition visible at another time."""
        window = self._state.windows.find(group, queue)
        own = 0
        if window is not None and self._is_of(window, number):
            own = owned(window, number, first, messages)
        if window is None or not own:
            return ChangedVisibility([], messages, 0)
        refused = messages & ~own
        if change.extend:
            extended = Extended(group, queue, number, *trimmed(first, own), change.visible_at_ms)
            return ChangedVisibility(self._state.apply_all([extended]), refused, number)
        acquisition = window.find(number)
        assert acquisition is not None, "messages are its own"
        attempt = acquisition.attempt - (0 if change.counted else 1)
        grant = Grant(number, first, own, attempt, change.reason or acquisition.reason)
        acquired = self._acquired(group, queue, grant, change.visible_at_ms)
        return ChangedVisibility([acquired], refused, acquired.number)

    @staticmethod
    def _is_of(window: Window, number: int) -> bool:
        """Whether an acquisition may be of this window, and not of one before it."""
        return 0 < window.since <= number

    def _acquired(
        self,
        group: str,
        queue: MessageQueue,
        grant: Grant,
        visible_at_ms: int,
        attempt_id: str = "",
    ) -> Acquired:
        first, messages = trimmed(grant.first, grant.messages)
        record = Acquired(
            group,
            queue,
            self._state.counters.acquisition + 1,
            grant.former,
            first,
            messages,
            grant.attempt,
            visible_at_ms,
            attempt_id,
            grant.reason,
        )
        self._state.apply(record)
        return record


def owned(window: Window, number: int, first: int, messages: int) -> int:
    """Which of some messages an acquisition has."""
    acquisition = window.find(number)
    # As in `Window.settled_of`, the distance is bounded first.
    if acquisition is None or acquisition.first - first >= messages.bit_length():
        return 0
    return messages & shifted(acquisition.messages, acquisition.first - first)


def trimmed(first: int, messages: int) -> tuple[int, int]:
    """The same set from its lowest offset on."""
    zeros = first_bit(messages)
    return first + zeros, messages >> zeros
