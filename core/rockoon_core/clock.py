"""The wall clock: code that needs the time receives this function, or a test's own."""

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Returns epoch milliseconds."""


def wall_clock_ms() -> int:
    """Return the time now, epoch milliseconds."""
    return time.time_ns() // 1_000_000
