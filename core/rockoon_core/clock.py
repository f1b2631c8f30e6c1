"""Clocks, which code receives as functions so that a test can pass its own; waits with a time
limit; and back-off: growing, randomized pauses between tries."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

Clock = Callable[[], int]
"""Returns epoch milliseconds."""


def wall_clock_ms() -> int:
    """Return the time now, epoch milliseconds."""
    return time.time_ns() // 1_000_000


def steady_clock() -> Clock:
    """Return a clock in epoch milliseconds that never jumps: the wall clock now, plus elapsed time.

    If the wall clock were set back during a process, old signatures would be valid again. If it
    were set forward, all messages that receivers hold would become visible.
    """
    # Includes the machine's sleep, if the system has this clock.
    source = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    offset_ns = time.time_ns() - time.clock_gettime_ns(source)
    return lambda: (time.clock_gettime_ns(source) + offset_ns) // 1_000_000


async def wait_at_most(seconds: float | None, waiting: Awaitable[object]) -> None:
    """Wait for an event, at most for a time; its end is no error. None: no time limit."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await waiting


# Default limit of a pause.
PAUSE_SECONDS_MAX = 2.0


class Backoff:
    """Pauses that double up to a limit, each randomized, so that clients that failed at the same
    time do not retry at the same time.

    Args:
        first_seconds: limit of the first pause.
        seconds_max: limit of later pauses.
    """

    __slots__ = ("_bound", "_first", "_max")

    def __init__(self, first_seconds: float = 0.05, seconds_max: float = PAUSE_SECONDS_MAX) -> None:
        self._first = first_seconds
        self._max = seconds_max
        self._bound = first_seconds

    def next_seconds(self) -> float:
        """Return the next pause: between half its limit and the limit."""
        # Not a generator per object: seeding one costs more than most calls, which do not fail.
        pause = self._bound * (0.5 + random.random() / 2)
        self._bound = min(self._bound * 2, self._max)
        return pause

    def reset(self) -> None:
        """Start over, after a success."""
        self._bound = self._first
