"""Clocks of the broker.

A wrong time would stay in the log, and affect searches by time and the expiry of files. So after a
jump, ahead or back, the time of a store continues by the monotonic clock, and follows the machine's
clock only when that has kept its new time for a while. If the clock returns before, no store time
is affected. If the clock is behind the newest message at a start, the time continues from that
message: machines without a battery start in the past and get the right time a little later.
"""

import logging
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


log = logging.getLogger(__name__)
# More than a time service changes a running clock in one step.
JUMP_MS = 60_000
# Time in which an operator or a time server may correct a wrong time.
BELIEVED_AFTER_MS = 600_000


class SteadyClock:
    """Clock of store times, which follows a jump of the machine's clock only after a delay.

    Owned by the event loop's thread.

    Args:
        newest_ms: store time of the newest message, epoch milliseconds; 0 if there is none.
    """

    def __init__(self, clock: Clock, newest_ms: int) -> None:
        self._clock = clock
        self.begin(newest_ms)

    def lead_from(self, newest_ms: int) -> None:
        """Continue from the newest message, which another broker has stored.

        A jump since this clock was created is handled like any later jump. So if a machine's clock
        is wrong when it is elected leader, its first records do not get wrong store times.
        """
        if newest_ms - self.now_ms() > JUMP_MS:
            self._believed_ms = newest_ms - self._monotonic_ms()

    def begin(self, newest_ms: int) -> None:
        """Start from the machine's clock, or from the newest message if the clock is behind it."""
        clock = self._clock
        now_ms, at_ms = clock.now_ms(), self._monotonic_ms()
        # Wall clock minus monotonic clock: the accepted difference, and the last one read.
        self._believed_ms = self._shown_ms = now_ms - at_ms
        if newest_ms - now_ms > JUMP_MS:
            self._believed_ms = newest_ms - at_ms
        # Monotonic time of the start of a jump that is not accepted yet.
        self._jumped_at_ms: int | None = None

    def now_ms(self) -> int:
        """Epoch milliseconds."""
        # Without `_monotonic_ms`: each append reads this clock.
        at_ms = int(self._clock.monotonic_seconds() * 1000)
        shown_before_ms, shown_ms = self._shown_ms, self._clock.now_ms() - at_ms
        self._shown_ms = shown_ms
        ahead_ms = shown_ms - self._believed_ms
        if -JUMP_MS <= ahead_ms <= JUMP_MS:
            if self._jumped_at_ms is not None:
                log.warning("clock jump is over; no message was stored with the wrong time")
                self._jumped_at_ms = None
            self._believed_ms = shown_ms
            return shown_ms + at_ms
        if self._jumped_at_ms is None or abs(self._shown_ms - shown_before_ms) > JUMP_MS:
            if self._jumped_at_ms is None:
                log.error(
                    "the clock has jumped and is %d s %s: store times will follow it in %d s",
                    abs(ahead_ms) // 1000,
                    "ahead" if ahead_ms > 0 else "behind",
                    BELIEVED_AFTER_MS // 1000,
                )
            self._jumped_at_ms = at_ms
        elif at_ms - self._jumped_at_ms >= BELIEVED_AFTER_MS:
            log.error(
                "the clock has been %d s %s for long: store times follow it now",
                abs(ahead_ms) // 1000,
                "ahead" if ahead_ms > 0 else "behind",
            )
            self._jumped_at_ms = None
            self._believed_ms = self._shown_ms
        return self._believed_ms + at_ms

    def _monotonic_ms(self) -> int:
        return int(self._clock.monotonic_seconds() * 1000)
