"""Deliveries to receivers: the rules by which messages are acquired and settled, and the order of
the messages in a FIFO group. Pure.

Like the operations of the ledger, each operation applies its change and returns its records.
`window` states the invariants. A position is an offset minus the window's floor.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rockoon_core.message_queue import MessageQueue
from rockoon_offset.in_flight.window import (
    Acquisition,
    ClientName,
    Grant,
    Window,
    first_bit,
    lowest,
    shifted,
)
from rockoon_offset.progress.ledger_state import LedgerState
from rockoon_offset.progress.records import (
    Acquired,
    Extended,
    ProgressPut,
    Record,
    Settled,
    WindowPut,
)


class InOrder(NamedTuple):
    """Messages of a FIFO group that a receiver may acquire next."""

    # The order of the grants, and of the offsets in each grant, is the order of each message group.
    grants: list[Grant]
    # Settled messages after a message that is granted again: they are delivered again with it. A
    # set whose bit 0 is the floor.
    reopened: int


def next_in_order(
    window: Window,
    candidates_from: int,
    candidates: Sequence[int],
    count: int,
    group_count: int,
    redeliveries_max: int,
    now_ms: int,
) -> InOrder:
    """Return the next messages of each message group that a receiver may acquire.

    Args:
        candidates_from: offset of the first candidate. If it is above the floor, nothing is
            granted.
        group_count: maximum number of messages of one message group.
        redeliveries_max: a message with more redeliveries becomes a dead letter.
        now_ms: the current time, epoch milliseconds.
    """
    if candidates_from > window.floor:
        return InOrder([], 0)
    groups = candidates[window.floor - candidates_from :]
    runs = _Runs(window, groups, min(count, group_count), redeliveries_max, now_ms)
    # Round-robin: a long backlog of one message group does not fill the batch.
    turns = sorted(
        (turn, position) for run in runs.of.values() for turn, position in enumerate(run)
    )
    chosen = sorted((position, turn == 0) for turn, position in turns[:count])
    grants: list[Grant] = []
    # (former acquisition, attempt) → index of the newest grant; message group → index of the grant
    # with its last message. A grant is ordered by offset only, so a message that must follow a
    # later grant starts a new grant.
    newest: dict[tuple[int, int], int] = {}
    last: dict[int, int] = {}
    for position, is_first in chosen:
        former, attempt = runs.next_delivery(position, is_first=is_first)
        number, reason = (former.number, former.reason) if former else (0, "")
        at = newest.get((number, attempt), -1)
        if at < last.get(groups[position], 0):
            at = newest[number, attempt] = len(grants)
            grants.append(Grant(number, window.floor, 0, attempt, reason))
        grants[at] = grants[at]._replace(messages=grants[at].messages | 1 << position)
        last[groups[position]] = at
    reopened = 0
    for position, is_first in chosen:
        if is_first:
            reopened |= runs.settled_behind.get(groups[position], 0)
    return InOrder(grants, reopened)


class _Runs:
    """Runs: consecutive messages of one message group that a receiver may acquire together.

    Args:
        groups: message group of each position.
        length_max: bound on the length of a run.
        window, redeliveries_max, now_ms: see `next_in_order`.

    Attributes:
        of: message group → positions, ascending.
        settled_behind: message group whose first message failed → settled messages after it.
    """

    def __init__(
        self,
        window: Window,
        groups: Sequence[int],
        length_max: int,
        redeliveries_max: int,
        now_ms: int,
    ) -> None:
        self.of: dict[int, list[int]] = {}
        self.settled_behind: dict[int, int] = {}
        self._redeliveries_max = redeliveries_max
        known = (1 << len(groups)) - 1
        self._visible: dict[int, Acquisition] = {}
        in_flight = 0
        for acquisition in window:
            for visible_at_ms, part in acquisition.parts.items():
                messages = shifted(part, acquisition.first - window.floor)
                if visible_at_ms > now_ms:
                    in_flight |= messages
                else:
                    positions = _positions(messages & known)
                    self._visible.update(dict.fromkeys(positions, acquisition))
        # The message group of a message in flight after the candidates is unknown. A message above
        # `acquired_to` has no message in flight after it. A message below it may have been
        # acknowledged and be delivered again, while a later message of its group is in flight.
        self._is_cut = in_flight > known
        self._acquired = window.acquired_to - window.floor
        self._ended = {groups[position] for position in _positions(in_flight & known)}
        settled = window.settled & known
        for position, group in enumerate(groups):
            if settled >> position & 1:
                if group not in self.settled_behind:
                    continue
                self.settled_behind[group] |= 1 << position
            if group not in self._ended:
                self._add(position, group, length_max)

    def next_delivery(self, position: int, *, is_first: bool) -> tuple[Acquisition | None, int]:
        """Return the former acquisition of a message visible again, and its next attempt.

        Args:
            is_first: the message is the first unsettled one of its message group.
        """
        former = self._visible.get(position)
        if former is None:
            return None, 1
        return former, former.attempt + 1 if is_first else max(former.attempt, 1)

    def _add(self, position: int, group: int, length_max: int) -> None:
        """Append a message to its message group's run, or end the run if it may not be acquired."""
        run = self.of.setdefault(group, [])
        former, attempt = self.next_delivery(position, is_first=not run)
        is_dead = attempt - 1 > self._redeliveries_max
        waits = not run and self._is_cut and position < self._acquired
        if (run and is_dead) or len(run) == length_max or waits:
            self._ended.add(group)
            return
        if is_dead:
            self._ended.add(group)
        elif former and not run:
            self.settled_behind[group] = 0
        run.append(position)


def _positions(messages: int) -> Iterator[int]:
    """Yield the positions of the bits of a set, ascending."""
    while messages:
        lowest = messages & -messages
        yield lowest.bit_length() - 1
        messages ^= lowest


# Bound on the time for which a receiver may hold messages.
INVISIBLE_MS_MAX = 12 * 3_600_000
LEASE_MS = 60_000
# While more than this share of a lease is left, a report does not extend it. So most reports write
# no records.
FRESH_SHARE = 3 / 4
# Entries of settled acquisitions are removed when the number of entries has doubled since the last
# removal, and not below this number.
UNDELIVERED_MIN = 4096


class FifoCandidates(NamedTuple):
    """Message groups of consecutive messages that a receiver of a FIFO group has read."""

    first: int
    groups: Sequence[int]


class Holder(NamedTuple):
    """A receiver that acquires messages, and so holds them.

    Attributes:
        held_until_ms: reports of the client extend its messages until then at most, epoch
            milliseconds; 0: reports do not extend them.
    """

    name: str = ""
    key_id: str = ""
    held_until_ms: int = 0
    call_id: str = ""


NO_HOLDER = Holder()


class VisibilityChange(NamedTuple):
    """Request to change when acquired messages become visible."""

    visible_at_ms: int
    # The delivery that ends counts as an attempt.
    counted: bool
    # The holder keeps the messages, under the same acquisition number.
    extend: bool
    # Why the delivery failed; empty: the former reason stays.
    reason: str = ""
    # Receiver that holds the messages from now on, in the same delivery; None: no change.
    to: Holder | None = None


class ChangedVisibility(NamedTuple):
    """Result of a VisibilityChange."""

    records: list[Record]
    # Set of the messages that were refused.
    refused: int
    # Acquisition of the changed messages; 0: no message was changed.
    number: int


class Deliveries:
    """Acquires and settles messages for receivers: changes the windows of a ledger, and returns
    records.

    Args:
        lease_ms: how long a client holds messages after its last call to a gateway.
    """

    def __init__(self, state: LedgerState, lease_ms: int = LEASE_MS) -> None:
        self._state = state
        self.lease_ms = lease_ms
        # Number → (group, queue) of held acquisitions that no gateway has reported as delivered.
        # Not in the journal: after a start, all acquisitions count as delivered.
        self._undelivered: dict[int, tuple[str, MessageQueue]] = {}
        self._undelivered_max = UNDELIVERED_MIN

    def service_started(self, now_ms: int) -> list[Record]:
        """Correct the visibility times of held messages after a start of the service.

        Held messages are extended to one lease from now, because their holders may have called
        gateways while the service was down. Messages with a visibility time beyond the maximum
        become visible now: they were acquired with a wrong clock.
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
        """Record that receivers have the messages of acquisitions; reports extend them now."""
        for number in numbers:
            self._undelivered.pop(number, None)

    def extend_held(self, client: ClientName, heard_at_ms: int) -> list[Record]:
        """Extend a client's messages to one lease after its last call, unless more than
        `FRESH_SHARE` of the lease is left.

        Messages that are visible again and not acquired again are extended too. Acquisitions that
        were not delivered are not extended, because the client may not have them.
        """
        fresh_ms = heard_at_ms + round(FRESH_SHARE * self.lease_ms)
        records: list[Record] = []
        for queue, each in self._state.held.of(client):
            if each.number in self._undelivered:
                continue
            until_ms = heard_at_ms + self.lease_ms
            records += self._extended(client.group, queue, each, fresh_ms, until_ms)
        return self._state.apply_all(records)

    def release_held(self, client: ClientName, now_ms: int) -> list[Record]:
        """Make all messages of a closing client visible. The deliveries count as attempts."""
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
        """Make the messages visible that a client acquired by a call whose reply was lost. The
        deliveries do not count as attempts."""
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
        """Extend the parts of an acquisition that become visible before `before_ms`, to `until_ms`
        but not beyond `held_until_ms`.
        """
        until_ms = min(until_ms, acquisition.held_until_ms)
        messages = 0
        for at_ms, part in acquisition.parts.items():
            if at_ms < before_ms and at_ms < until_ms:
                messages |= part
        if not messages:
            return []
        first, messages = trimmed(acquisition.first, messages)
        return [Extended(group, queue, acquisition.number, first, messages, until_ms)]

    def open(self, group: str, queue: MessageQueue) -> list[Record]:
        """Create a window for a queue, so that receivers can acquire from it. The group has
        progress on the queue, and no live member owns it.

        A former owner without a lease must not commit below the offsets that receivers settle, nor
        resume without Resolve. So a new epoch fences it, as at a takeover by another member.
        """
        progress = self._state.table.of(group)[queue]
        records: list[Record] = []
        if progress.owner:
            epoch = self._state.counters.epoch + 1
            records = self._state.apply_all([ProgressPut(progress._replace(owner="", epoch=epoch))])
        self._state.windows.open(group, queue, progress.offset)
        return records

    def restart(self, group: str, queue: MessageQueue) -> list[Record]:
        """Discard a queue's window: acquisitions, and messages settled above the floor."""
        progress = self._state.table.find(group, queue)
        if progress is None:
            return []
        epoch = self._state.counters.epoch + 1
        return self._state.apply_all([ProgressPut(progress._replace(epoch=epoch))])

    def acquire(
        self,
        group: str,
        queue: MessageQueue,
        count: int,
        end: int,
        now_ms: int,
        visible_at_ms: int,
        holder: Holder = NO_HOLDER,
    ) -> list[Acquired]:
        """Acquire messages of an open queue for a receiver: first messages that are visible again,
        then new ones.

        Args:
            count: maximum number of messages, 1 or more.
            now_ms: current time, epoch milliseconds.
            visible_at_ms: when the messages become visible again, later than now.
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
        candidates: FifoCandidates,
        redeliveries_max: int,
        now_ms: int,
        visible_at_ms: int,
        attempt_id: str,
        holder: Holder = NO_HOLDER,
    ) -> list[WindowPut | Acquired]:
        """Acquire the next messages of each message group for a receiver, in order; see also
        `acquire`.

        Settled messages after a redelivered message of the same message group become unsettled.

        Args:
            group_count: maximum number of messages of one message group.
            redeliveries_max: a message with more redeliveries becomes a dead letter.
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
        """Acquire again up to `count` messages of a former acquisition, as the same delivery.

        The other messages become visible, and their delivery does not count as an attempt.
        """
        own = lowest(grant.messages, count) if count > 0 else 0
        rest = grant.messages & ~own
        records = []
        if own:
            part = grant._replace(messages=own)
            record = self._acquired(group, queue, part, visible_at_ms, holder, attempt_id)
            records.append(record)
        if rest:
            part = grant._replace(messages=rest, attempt=grant.attempt - 1)
            records.append(self._acquired(group, queue, part, now_ms, NO_HOLDER))
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
        """Settle messages of an acquisition. Returns the records and the set of refused messages.

        Messages that are visible again are accepted as long as no other receiver acquired them.

        Args:
            receiver: receiver that acknowledges; empty: the holder of the acquisition.
        """
        window = self._state.windows.find(group, queue)
        if window is None or not self._is_of(window, number):
            return [], messages
        own = owned(window, number, first, messages)
        refused = messages & ~own & ~window.settled_of(first, messages)
        if not own:
            return [], refused
        acquisition = window.find(number)
        assert acquisition is not None, "`own` is not empty"
        # The record of the acquisition names the holder.
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
        """Change when messages of an acquisition become visible."""
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
        assert acquisition is not None, "`own` is not empty"
        attempt = acquisition.attempt - (0 if change.counted or change.to is not None else 1)
        grant = Grant(number, first, own, attempt, change.reason or acquisition.reason)
        # Without `to`, the receiver has chosen the time itself, so reports do not extend it.
        holder = change.to or Holder(acquisition.holder, acquisition.holder_key)
        acquired = self._acquired(group, queue, grant, change.visible_at_ms, holder)
        return ChangedVisibility([acquired], refused, acquired.number)

    @staticmethod
    def _is_of(window: Window, number: int) -> bool:
        """True if an acquisition belongs to this window, and not to a former one of the queue."""
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
    """Return the subset of `messages` that an acquisition still has."""
    acquisition = window.find(number)
    # As in `Window.settled_of`, check the distance before the shift.
    if acquisition is None or acquisition.first - first >= messages.bit_length():
        return 0
    return messages & shifted(acquisition.messages, acquisition.first - first)


def trimmed(first: int, messages: int) -> tuple[int, int]:
    """Shift a bit set until its lowest message is bit 0; return its first offset and the bits."""
    zeros = first_bit(messages)
    return first + zeros, messages >> zeros
