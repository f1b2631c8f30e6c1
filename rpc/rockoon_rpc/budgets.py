"""Rate limit of the events that a peer may cause."""


class Budget:
    """A leaky bucket: a burst, and a rate beyond it.

    Args:
        burst: number of events that are allowed together.
        per_second: rate at which the budget recovers.
    """

    __slots__ = ("_at", "_burst", "_per_second", "_spent")

    def __init__(self, burst: float, per_second: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._spent = 0.0
        self._at = 0.0

    def spend(self, count: float, now: float) -> bool:
        """Count events; return whether the budget covers them.

        Args:
            count: of events; a negative count gives budget back.
            now: seconds of a clock that is the same in each call.
        """
        recovered = (now - self._at) * self._per_second
        self._spent = max(max(self._spent - recovered, 0.0) + count, 0.0)
        self._at = now
        return self._spent <= self._burst
