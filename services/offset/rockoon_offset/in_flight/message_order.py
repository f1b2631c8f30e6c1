"""Order in a FIFO group: selects the messages of a queue that a receiver may acquire next. Pure.

`window` states the invariants. A position is an offset minus the window's floor.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rockoon_offset.in_flight.window import Acquisition, Grant, Window, shifted


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
        window: the window of the queue.
        candidates_from: offset of the first candidate. If it is above the floor, nothing is
            granted.
        candidates: message groups of the messages from `candidates_from` on.
        count: maximum number of messages.
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
        """Return the former acquisition of a message that is visible again, and the number of its
        next attempt.

        Args:
            position: position of the message.
            is_first: the message is the first unsettled one of its message group.
        """
        former = self._visible.get(position)
        if former is None:
            return None, 1
        return former, former.attempt + 1 if is_first else max(former.attempt, 1)

    def _add(self, position: int, group: int, length_max: int) -> None:
        """Append a message to the run of its message group. If the message may not be acquired with
        the run, end the run.
        """
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
