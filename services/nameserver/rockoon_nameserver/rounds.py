"""Rounds: moments at which a nameserver has done together what is done now and then.

What wakes a process costs more than what is then done, here, in etcd and in every node. So leases
are renewed, watchers given a sign of life, and etcd asked for one at the same moments, and all of
it costs little more than one of them.
"""

from collections.abc import Callable

# Of the time between two: who comes sooner before a round is told of the one after it.
SHARE_MIN = 0.25


class Rounds:
    """Moments that are so far apart by a clock that all of this process go by.

    Args:
        apart_seconds: 0 for always.
        clock: monotonic seconds.
    """

    def __init__(self, apart_seconds: float, clock: Callable[[], float]) -> None:
        self._apart_seconds = apart_seconds
        self._clock = clock

    def seconds_left(self) -> float:
        """Until the next one that is not too near: a quarter of their distance at least, five
        quarters at most."""
        if not self._apart_seconds:
            return 0.0
        left = self._apart_seconds - self._clock() % self._apart_seconds
        is_near = left < SHARE_MIN * self._apart_seconds
        return left + self._apart_seconds if is_near else left
