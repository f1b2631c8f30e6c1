"""Rounds: fixed times at which all periodic tasks of a nameserver run together.

Waking a process costs more than the work itself, here, in etcd and in each node. So renewals of
leases, heartbeats to watchers and probes of etcd happen at the same moments, and cost little more
than one alone.
"""

from collections.abc import Callable

# Share of the interval: a caller closer than this to a round waits for the one after it.
SHARE_MIN = 0.25


class Rounds:
    """Common times for the periodic tasks of a nameserver: a process that wakes once for all uses
    less CPU.

    Args:
        interval_seconds: time between rounds; 0: no waits.
        clock: monotonic seconds.
    """

    def __init__(self, interval_seconds: float, clock: Callable[[], float]) -> None:
        self._interval_seconds = interval_seconds
        self._clock = clock

    def seconds_left(self) -> float:
        """Return the seconds until the next common time at which periodic tasks run: 0.25 to 1.25
        intervals. A nearer one is skipped.
        """
        if not self._interval_seconds:
            return 0.0
        left = self._interval_seconds - self._clock() % self._interval_seconds
        is_near = left < SHARE_MIN * self._interval_seconds
        return left + self._interval_seconds if is_near else left
