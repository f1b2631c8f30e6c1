"""Clocks of the broker."""

import time
from typing import Protocol

from rockoon_broker.store.clock import SystemWallClock, WallClock


class Clock(WallClock, Protocol):
    """Wall-clock time for what is stored, monotonic time for how long things take."""

    def monotonic_seconds(self) -> float:
        """Seconds since some moment; never goes back."""


class SystemClock(SystemWallClock):
    """The machine's clocks."""

    # Asked several times for each message: a function of its own would cost more than the clock.
    monotonic_seconds = staticmethod(time.monotonic)
