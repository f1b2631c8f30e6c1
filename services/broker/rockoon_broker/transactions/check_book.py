"""Check book: open half messages, and when a producer is asked about each. Pure.

Times are monotonic seconds, so that a wall clock that jumps neither asks about all of them at once
nor puts off asking. Only the age of what an earlier process has stored is told by the wall clock.

Invariants:
1. Half messages are added in the order of the log, so the oldest is always the first.
2. One waits in exactly one place: in `_due` for its time, or in `_parked` for a producer of its
   group. Entries of `_due` whose half message has ended, or has another time, mean nothing.
"""

import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckRules:
    """When to ask, and for how long. All seconds."""

    timeout_seconds: float
    """Age at which a half message is first asked about, unless it says otherwise itself."""
    interval_seconds: float
    """From one check to the next."""
    checks_max: int
    """After so many checks it is given up."""
    age_seconds_max: float
    """At this age as well."""


@dataclass(slots=True)
class WaitingHalf:
    """A half message that waits. Treat it as read-only outside the book."""

    position: int
    """Physical offset of its record."""
    queue_offset: int
    group: str
    give_up_at: float
    due_at: float
    checks: int = 0


class CheckBook:
    """The half messages of one broker that wait. Pure.

    Args:
        rules: when to ask.
        earlier: called when something is due earlier than `next_due_at` said.
    """

    def __init__(self, rules: CheckRules, earlier: Callable[[], None]) -> None:
        self._rules = rules
        self._earlier = earlier
        self._waiting: dict[int, WaitingHalf] = {}
        self._due: list[tuple[float, int]] = []
        self._parked: dict[str, set[int]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[WaitingHalf]:
        return iter(self._waiting.values())

    @property
    def next_due_at(self) -> float | None:
        """When something is due, None while nothing waits for its time; never too late."""
        times = [half.give_up_at for half in itertools.islice(self._waiting.values(), 1)]
        times += [due_at for due_at, _ in self._due[:1]]
        return min(times, default=None)

    def find(self, position: int) -> WaitingHalf | None:
        """The half message at a physical offset, if it waits."""
        return self._waiting.get(position)

    def add(
        self,
        position: int,
        queue_offset: int,
        group: str,
        *,
        age_seconds: float,
        immunity_seconds: float | None,
        checks: int,
        now: float,
    ) -> None:
        """Let a half message wait.

        Args:
            position, queue_offset: where it is.
            group: whose producers can be asked.
            age_seconds: by the wall clock; what that cannot be counts as 0.
            immunity_seconds: the age at which it may first be asked about, None for the rule's.
            checks: how often it has been asked about.
            now: monotonic seconds.
        """
        rules = self._rules
        age_seconds = max(age_seconds, 0.0)
        first = rules.timeout_seconds if immunity_seconds is None else immunity_seconds
        # Asked before: an interval has begun that nobody remembers, so it is due.
        wait = 0.0 if checks else max(first - age_seconds, 0.0)
        half = WaitingHalf(
            position=position,
            queue_offset=queue_offset,
            group=group,
            give_up_at=now + max(rules.age_seconds_max - age_seconds, 0.0),
            due_at=now + wait,
            checks=checks,
        )
        if not self._waiting:
            self._earlier()
        self._waiting[position] = half
        self._push(half)

    def remove(self, position: int) -> WaitingHalf | None:
        """A half message has ended; None if it did not wait."""
        half = self._waiting.pop(position, None)
        if half is not None:
            self._unpark(half)
        if len(self._due) > 2 * len(self._waiting) + 64:
            # Mostly of ended ones: they would pile up until their times come.
            self._due = [
                (each.due_at, each.position)
                for each in self._waiting.values()
                if each.position not in self._parked.get(each.group, ())
            ]
            heapq.heapify(self._due)
        return half

    def take_due(self, now: float, count_max: int) -> list[WaitingHalf]:
        """Half messages to ask about now, each once: `asked`, `put_off` or `park` each of them."""
        taken: list[WaitingHalf] = []
        while self._due and self._due[0][0] <= now and len(taken) < count_max:
            due_at, position = heapq.heappop(self._due)
            half = self._waiting.get(position)
            if half is not None and half.due_at == due_at:
                taken.append(half)
        return taken

    def is_over(self, half: WaitingHalf, now: float) -> bool:
        """Whether a half message that is due is given up instead."""
        return half.checks >= self._rules.checks_max or now >= half.give_up_at

    def over_age(self, now: float, count_max: int) -> list[WaitingHalf]:
        """The oldest half messages whose time is over, whether anybody can be asked or not."""
        found: list[WaitingHalf] = []
        for half in self._waiting.values():
            if now < half.give_up_at or len(found) == count_max:
                break
            found.append(half)
        return found

    def asked(self, half: WaitingHalf, now: float) -> None:
        """A producer was asked."""
        half.checks += 1
        self.put_off(half, now + self._rules.interval_seconds)

    def not_asked(self, half: WaitingHalf, now: float) -> None:
        """A producer that was to be asked went away before."""
        half.checks -= 1
        self.put_off(half, now)

    def put_off(self, half: WaitingHalf, until: float) -> None:
        """Nothing can be done about a half message for a while."""
        half.due_at = until
        self._push(half)

    def park(self, half: WaitingHalf) -> None:
        """Nobody of its group can be asked: wait until somebody comes. Not a check."""
        self._parked.setdefault(half.group, set()).add(half.position)

    def producer_came(self, group: str, now: float) -> None:
        """A producer can be asked: what waits for one of its group is due."""
        for position in sorted(self._parked.pop(group, ())):
            self.put_off(self._waiting[position], now)

    def _push(self, half: WaitingHalf) -> None:
        if not self._due or half.due_at < self._due[0][0]:
            self._earlier()
        heapq.heappush(self._due, (half.due_at, half.position))

    def _unpark(self, half: WaitingHalf) -> None:
        parked = self._parked.get(half.group)
        if parked is not None:
            parked.discard(half.position)
            if not parked:
                del self._parked[half.group]
