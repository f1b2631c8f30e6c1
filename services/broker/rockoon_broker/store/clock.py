"""Wall clock of the store, for calls without a time argument."""

import time
from typing import Protocol


class WallClock(Protocol):
    """Wall-clock time; tests provide their own."""

    def now_ms(self) -> int:
        """Epoch milliseconds."""

    def local_hour(self, at_ms: int) -> int:
        """Hour of the day, 0 to 23, in the machine's time zone."""


class SystemWallClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def local_hour(self, at_ms: int) -> int:
        return time.localtime(at_ms / 1000).tm_hour
