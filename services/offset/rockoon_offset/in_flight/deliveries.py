"""Deliveries to receivers: the rules by which messages are acquired and settled. Pure.

As of the ledger's operations, each returns the records that make its change, and has applied them.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rockoon_core.message_queue import MessageQueue
from rockoon_offset.in_flight.holders import ClientName
from rockoon_offset.in_flight.message_order import next_in_order
from rockoon_offset.in_flight.window import Acquisition, Grant, Window, first_bit, lowest, shifted
from rockoon_offset.progress.ledger_state import LedgerState
from rockoon_offset.progress.records import Acquired, Extended, Put, Record, Settled, WindowPut

# How long receivers may keep messages to themselves.
INVISIBLE_MS_MAX = 12 * 3_600_000
LEASE_MS = 60_000
# If this share of a lease is left, a report does not extend it: not each report writes records.
FRESH_SHARE = 3 / 4
# Entries of settled acquisitions are removed when their number has doubled since the last removal.
# Below this number, none is removed.
UNDELIVERED_MIN = 4096


class Candidates(NamedTuple):
    """Message groups of a queue's messages, as a receiver has read them."""

    first: int
    groups: Sequence[int]


class Holder(NamedTuple):
    """A receiver that gets messages, and for how long they are its own.

    Attributes:
        name, key_id: the client's id and access key.
        held_until_ms: its reports extend the messages until then, epoch milliseconds; 0: they do
            not.
        call_id: name of the call that acquires them.
    """

    name: str = ""
    key_id: str = ""
    held_until_ms: int = 0
    call_id: str = ""


NOBODY = Holder()


class VisibilityChange(NamedTuple):
    """A wish to have messages visible at another time."""

    visible_at_ms: int
    # The delivery that ends counts as an attempt.
    counted: bool
    # The holder keeps them, and its number.
    extend: bool
    # Why the delivery failed; empty: the former reason stays.
    reason: str = ""
    # The receiver that has them from now on, by the same delivery; None: as before.
    to: Holder | None = None


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
        lease_ms: how long a client holds messages without being heard.
    """

    def __init__(self, state: LedgerState, lease_ms: int = LEASE_MS) -> None:
        self._state = state
        self.lease_ms = lease_ms
        # Held acquisitions whose gateway has not reported that it delivered them, with group and
        # queue. They are not journaled: after a start, all acquisitions count as delivered.
        self._undelivered: dict[int, tuple[str, MessageQueue]] = {}
        self._undelivered_max = UNDELIVERED_MIN

    def service_started(self, now_ms: int) -> list[Record]:
        """Correct the times at which messages become visible, after the service was away.

        Held messages are extended to one lease from now: their holders may have called gateways all
        the time. Messages that would be visible later than any receiver may ask for become visible
        now: they were acquired by a wrong clock.
        """
        latest_ms, until_ms = now_ms + INVISIBLE_MS_MAX, now_ms + self.lease_ms
        records: list[Record] = []
        for group, queue, window in self._state.windows:
            for each in window:
                records += self._extended(group, queue, each, until_ms, until_ms)
                records += [
                    Extended(group, queue, each.number, *trimmed(each.first, messages), now_ms)
                    for at_ms, messages in each.parts.items()
                    if at_ms > latest_ms
                ]
        return self._state.apply_all(records)

    def delivered(self, numbers: Iterable[int]) -> None:
        """Let reports extend acquisitions that were delivered to their holders."""
        for number in numbers:
            self._undelivered.pop(number, None)

    def extend_held(self, client: ClientName, heard_at_ms: int) -> list[Record]:
        """Extend a client's messages to one lease after it was heard, if `FRESH_SHARE` of the lease
        is not left. This includes messages that are visible already and not acquired again, and
        excludes acquisitions that were not delivered: the client may not have them."""
        fresh_ms = heard_at_ms + round(FRESH_SHARE * self.lease_ms)
        records: list[Record] = []
        for queue, each in self._state.held.of(client):
            if each.number in self._undelivered:
                continue
            until_ms = heard_at_ms + self.lease_ms
            records += self._extended(client.group, queue, each, fresh_ms, until_ms)
        return self._state.apply_all(records)

    def release_held(self, client: ClientName, now_ms: int) -> list[Record]:
        """Make the messages of a client visible that ends; the deliveries count as attempts."""
        return [
            self._acquired(
                client.group,
                queue,
                Grant(each.number, each.first, each.messages, each.attempt, each.reason),
                now_ms,
                Holder(each.holder, each.holder_key),
            )
            for queue, each in self._state.held.of(client)
        ]

    def release_lost(self, client: ClientName, call_id: str, now_ms: int) -> list[Record]:
        """Make the messages visible that a client was to get by the answer of a call, which was
        lost; the deliveries do not count as attempts."""
        return [
            self._acquired(
                client.group,
                queue,
                Grant(each.number, each.first, each.messages, each.attempt - 1, each.reason),
                now_ms,
                Holder(each.holder, each.holder_key),
            )
            for queue, each in self._state.held.of(client)
            if each.call_id == call_id
        ]

    @staticmethod
    def _extended(
        group: str, queue: MessageQueue, acquisition: Acquisition, before_ms: int, until_ms: int
    ) -> list[Record]:
        """Parts of an acquisition that are visible before a time, extended as far as may be."""
        until_ms = min(until_ms, acquisition.held_until_ms)
        messages = 0
        for at_ms, part in acquisition.parts.items():
            if at_ms < before_ms and at_ms < until_ms:
                messages |= part
        if not messages:
            return []
        where = trimmed(acquisition.first, messages)
        return [Extended(group, queue, acquisition.number, *where, until_ms)]

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
        holder: Holder = NOBODY,
    ) -> list[Acquired]:
        """Acquire messages of an open queue: those that are visible again, then new ones.

        Args:
            group, queue: whose, of what.
            count: messages at most, 1 or more.
            end: of the queue.
            now_ms: what time it is.
            visible_at_ms: when they are visible to others, later than now.
            holder: the receiver.
        """
        window = self._state.windows.of(group, queue)
        records: list[Acquired] = []
        while count > 0 and (grant := window.next_grant(count, end, now_ms)) is not None:
            records.append(self._acquired(group, queue, grant, visible_at_ms, holder))
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
        holder: Holder = NOBODY,
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
            self._acquired(group, queue, grant, visible_at_ms, holder, attempt_id)
            for grant in found.grants
        ]
        return records

    def acquire_again(
        self,
        group: str,
        queue: MessageQueue,
        grant: Grant,
        count: int,
        now_ms: int,
        visible_at_ms: int,
        attempt_id: str,
        holder: Holder,
    ) -> list[Acquired]:
        """Acquire messages of a former acquisition by the same delivery, up to a count; the rest
        becomes visible, and its delivery does not count as an attempt."""
        own = lowest(grant.messages, count) if count > 0 else 0
        rest = grant.messages & ~own
        records = []
        if own:
            part = grant._replace(messages=own)
            record = self._acquired(group, queue, part, visible_at_ms, holder, attempt_id)
            records.append(record)
        if rest:
            part = grant._replace(messages=rest, attempt=grant.attempt - 1)
            records.append(self._acquired(group, queue, part, now_ms, NOBODY))
        return records

    def acknowledge(
        self,
        group: str,
        queue: MessageQueue,
        number: int,
        first: int,
        messages: int,
        now_ms: int,
        receiver: str = "",
    ) -> tuple[list[Record], int]:
        """Settle messages of an acquisition; returns those that were refused beside the records.

        Its time may be over: what nobody else has acquired is still its own.

        Args:
            receiver: acknowledges them; empty: the holder of the acquisition.
        """
        window = self._state.windows.find(group, queue)
        if window is None or not self._is_of(window, number):
            return [], messages
        own = owned(window, number, first, messages)
        refused = messages & ~own & ~window.settled_of(first, messages)
        if not own:
            return [], refused
        acquisition = window.find(number)
        assert acquisition is not None, "messages are its own"
        # The holder is in the record of the acquisition.
        other = receiver if receiver != acquisition.holder else ""
        settled = Settled(group, queue, number, *trimmed(first, own), now_ms, other)
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
        if change.extend and change.to is None:
            extended = Extended(group, queue, number, *trimmed(first, own), change.visible_at_ms)
            return ChangedVisibility(self._state.apply_all([extended]), refused, number)
        acquisition = window.find(number)
        assert acquisition is not None, "messages are its own"
        attempt = acquisition.attempt - (0 if change.counted or change.to is not None else 1)
        grant = Grant(number, first, own, attempt, change.reason or acquisition.reason)
        # If it stays the receiver's, its time is that one's own choice: reports do not extend it.
        holder = change.to or Holder(acquisition.holder, acquisition.holder_key)
        acquired = self._acquired(group, queue, grant, change.visible_at_ms, holder)
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
        holder: Holder,
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
            holder.name,
            holder.key_id,
            holder.held_until_ms,
            holder.call_id,
        )
        self._state.apply(record)
        if record.held_until_ms:
            self._await_delivery(record)
        return record

    def _await_delivery(self, record: Acquired) -> None:
        self._undelivered[record.number] = record.group, record.queue
        if len(self._undelivered) > self._undelivered_max:
            self._undelivered = {
                number: (group, queue)
                for number, (group, queue) in self._undelivered.items()
                if (window := self._state.windows.find(group, queue)) is not None
                and window.find(number) is not None
            }
            self._undelivered_max = max(2 * len(self._undelivered), UNDELIVERED_MIN)


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
