"""Pace of syncs: whether they are short enough for the thread for which everybody waits. Pure.

To hand a sync to the other thread costs some 100 µs of CPU, however short it is. So the owner makes
syncs itself as long as what long ones hold it up for is less than that on average.
"""

SHORT_SECONDS_MAX = 0.001
"""A sync that took longer held the owner up."""
IN_A_ROW = 4
"""So many short ones make the next one believed to be short."""
EARNED_SECONDS = 50e-6
"""What a short sync makes up for of what long ones took."""
OWED_SECONDS_MAX = 0.01
"""With more than that not made up for, the other thread makes them."""
OWED_SECONDS_MOST = 0.2
"""More is not counted: a disk that was gone for a minute is believed after 4,000 short ones."""


class SyncPace:
    """What the last syncs took."""

    def __init__(self) -> None:
        self._short = 0
        self._owed_seconds = 0.0

    @property
    def is_short(self) -> bool:
        """Whether the next sync can be expected to be short."""
        return self._short >= IN_A_ROW and self._owed_seconds <= OWED_SECONDS_MAX

    def note(self, seconds: float, *, inline: bool) -> None:
        """A sync took so long; `inline`: the owner made it by itself."""
        if seconds <= SHORT_SECONDS_MAX:
            self._short += 1
            self._owed_seconds = max(self._owed_seconds - EARNED_SECONDS, 0.0)
            return
        self._short = 0
        if inline:
            self._owed_seconds = min(self._owed_seconds + seconds, OWED_SECONDS_MOST)
