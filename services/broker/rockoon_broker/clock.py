"""Clocks of the broker."""

import time
from typing import Protocol

from rockoon_broker.store.clock import SystemWallClock, WallClock


class Clock(WallClock, Protocol):
    """Wall-clock time for store times, monotonic time for durations."""

    def monotonic_seconds(self) -> float:
        """Seconds since an arbitrary start; never decreases."""


class SystemClock(SystemWallClock):
    # Called several times per message: a Python function would cost more than the clock.
    monotonic_seconds = staticmethod(time.monotonic)
