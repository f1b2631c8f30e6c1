"""Check book: waiting half messages, and when to ask a producer about each. Pure.

Times are monotonic seconds, so that a wall clock jump neither makes all checks due at once
nor delays them. Only the age of half messages from an earlier process uses the wall clock.

Invariants:
1. Half messages are added in log order, so the oldest is always the first.
2. Each one is either in `_due` until its time, or in `_parked` until a producer of its
   group registers. Entries of `_due` whose half message has ended or has another time are ignored.
"""

import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckRules:
    """Rules for checks: when to ask, and for how long. All durations in seconds."""

    timeout_seconds: float
    """Age at which a half message is first checked, unless its producer has set another age."""
    interval_seconds: float
    """Time between two checks."""
    checks_max: int
    """Number of checks after which the broker abandons a half message."""
    age_seconds_max: float
    """Age at which the broker abandons a half message."""


@dataclass(slots=True)
class WaitingHalf:
    """A half message whose transaction has not ended. Read-only outside the book."""

    position: int
    """Physical offset of the half message's record."""
    queue_offset: int
    group: str
    abandon_at: float
    due_at: float
    checks: int = 0


class CheckBook:
    """Waiting half messages of one broker, with the time of each one's next check. Pure.

    Args:
        rules: when to check, and when to abandon.
        earlier: called when `next_due_at` becomes earlier.
    """

    def __init__(self, rules: CheckRules, earlier: Callable[[], None]) -> None:
        self._rules = rules
        self._earlier = earlier
        self._waiting: dict[int, WaitingHalf] = {}
        self._due: list[tuple[float, int]] = []
        self._parked: dict[str, set[int]] = {}

    def use_rules(self, rules: CheckRules) -> None:
        """Use other rules from the next check of each half message on."""
        self._rules = rules

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[WaitingHalf]:
        return iter(self._waiting.values())

    @property
    def next_due_at(self) -> float | None:
        """Time at which the next half message is due; None if there is none. May be too early,
        never too late."""
        times = [half.abandon_at for half in itertools.islice(self._waiting.values(), 1)]
        times += [due_at for due_at, _ in self._due[:1]]
        return min(times, default=None)

    def find(self, position: int) -> WaitingHalf | None:
        """Return the waiting half message at a physical offset; None if there is none."""
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
        """Add a waiting half message.

        Args:
            position, queue_offset: its physical and queue offset.
            group: group whose producers can be asked.
            age_seconds: by the wall clock; negative counts as 0.
            immunity_seconds: age at which the first check is due; None: as in the rules.
            checks: number of checks so far.
            now: monotonic seconds.
        """
        rules = self._rules
        age_seconds = max(age_seconds, 0.0)
        first = rules.timeout_seconds if immunity_seconds is None else immunity_seconds
        # If it was checked before, the time of the last check is unknown, so it is due.
        wait = 0.0 if checks else max(first - age_seconds, 0.0)
        half = WaitingHalf(
            position=position,
            queue_offset=queue_offset,
            group=group,
            abandon_at=now + max(rules.age_seconds_max - age_seconds, 0.0),
            due_at=now + wait,
            checks=checks,
        )
        if not self._waiting:
            self._earlier()
        self._waiting[position] = half
        self._push(half)

    def remove(self, position: int) -> WaitingHalf | None:
        """Remove an ended half message; return it, or None if it did not wait."""
        half = self._waiting.pop(position, None)
        if half is not None:
            self._unpark(half)
        if len(self._due) > 2 * len(self._waiting) + 64:
            # Mostly of ended ones, which would accumulate until their times.
            self._due = [
                (each.due_at, each.position)
                for each in self._waiting.values()
                if each.position not in self._parked.get(each.group, ())
            ]
            heapq.heapify(self._due)
        return half

    def pop_due(self, now: float, count_max: int) -> list[WaitingHalf]:
        """Return half messages to ask about now; call `asked`, `postpone` or `park` for each."""
        taken: list[WaitingHalf] = []
        while self._due and self._due[0][0] <= now and len(taken) < count_max:
            due_at, position = heapq.heappop(self._due)
            half = self._waiting.get(position)
            if half is not None and half.due_at == due_at:
                taken.append(half)
        return taken

    def must_abandon(self, half: WaitingHalf, now: float) -> bool:
        """Return whether the broker must abandon a due half message instead of asking."""
        return half.checks >= self._rules.checks_max or now >= half.abandon_at

    def over_max_age(self, now: float, count_max: int) -> list[WaitingHalf]:
        """Return the oldest half messages above the maximum age, also those without a producer."""
        found: list[WaitingHalf] = []
        for half in self._waiting.values():
            if now < half.abandon_at or len(found) == count_max:
                break
            found.append(half)
        return found

    def asked(self, half: WaitingHalf, now: float) -> None:
        """Record that a producer was asked about a half message."""
        half.checks += 1
        self.postpone(half, now + self._rules.interval_seconds)

    def not_asked(self, half: WaitingHalf, now: float) -> None:
        """Record that a producer disconnected before it was asked."""
        half.checks -= 1
        self.postpone(half, now)

    def postpone(self, half: WaitingHalf, until: float) -> None:
        """Make a half message due later."""
        half.due_at = until
        self._push(half)

    def park(self, half: WaitingHalf) -> None:
        """Delay a half message until a producer of its group registers. Does not count as a
        check."""
        self._parked.setdefault(half.group, set()).add(half.position)

    def on_producer(self, group: str, now: float) -> None:
        """A producer of this group has registered: make the half messages due that wait for one."""
        for position in sorted(self._parked.pop(group, ())):
            self.postpone(self._waiting[position], now)

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
