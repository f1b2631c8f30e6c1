"""The time that goes into the store: the machine's, unless it has just jumped ahead.

Store times never go back within a log, since searches by time need that. So a wrong reading would
stay: after one year ahead, every message of the coming year bears that time. And retention would
take every file for expired. Therefore a jump ahead is not followed before it has lasted; until then
time goes on from before it, by the clock that never jumps. A clock that comes back meanwhile has
done no harm. What goes back is followed at once: the store itself keeps the order.
"""

import logging

from rockoon_broker.clock import Clock

log = logging.getLogger(__name__)

# More than what clocks that are disciplined are set by at once.
JUMP_MS = 60_000
# As long as an operator, or a time server that was wrong, may take.
BELIEVED_AFTER_MS = 600_000


class SteadyClock:
    """Owned by the event loop's thread.

    Args:
        clock: the machine's.
        newest_ms: store time of the newest message, epoch milliseconds; 0 if there is none.
    """

    def __init__(self, clock: Clock, newest_ms: int) -> None:
        self._clock = clock
        self._newest_ms = newest_ms
        self._wall_ms = clock.now_ms()
        self._at_ms = self._monotonic_ms()
        # When the jump began that is not believed yet, by the clock that never jumps.
        self._jumped_at_ms: int | None = None
        self._is_behind = False

    def now_ms(self) -> int:
        """Epoch milliseconds."""
        wall_ms, at_ms = self._clock.now_ms(), self._monotonic_ms()
        expected_ms = self._wall_ms + at_ms - self._at_ms
        ahead_ms = wall_ms - expected_ms
        if ahead_ms > JUMP_MS:
            if self._jumped_at_ms is None:
                self._jumped_at_ms = at_ms
                log.error(
                    "the clock has jumped %d s ahead: store times and retention follow it in %d s",
                    ahead_ms // 1000,
                    BELIEVED_AFTER_MS // 1000,
                )
            if at_ms - self._jumped_at_ms < BELIEVED_AFTER_MS:
                self._look_behind(expected_ms)
                return expected_ms
            log.error("the clock has been %d s ahead for long: it is right", ahead_ms // 1000)
        elif self._jumped_at_ms is not None:
            log.warning("the clock has come back: no message bears a time of its jump")
        self._jumped_at_ms = None
        self._wall_ms, self._at_ms = wall_ms, at_ms
        self._look_behind(wall_ms)
        return wall_ms

    def _look_behind(self, now_ms: int) -> None:
        """Say once when the clock is behind what was stored by it."""
        self._newest_ms = max(self._newest_ms, now_ms)
        behind_ms = self._newest_ms - now_ms
        if behind_ms > JUMP_MS and not self._is_behind:
            log.error(
                "the clock is %d s behind the newest message: until it gets there, messages "
                "that are stored bear that one's time",
                behind_ms // 1000,
            )
        self._is_behind = behind_ms > JUMP_MS

    def _monotonic_ms(self) -> int:
        return int(self._clock.monotonic_seconds() * 1000)
