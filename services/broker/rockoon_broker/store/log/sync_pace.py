"""Decides whether syncs are short enough to run on the event loop's thread. Pure.

If the syncer's thread syncs, the handover costs about 100 µs of CPU. If the owner syncs, a slow
sync delays the owner. So the owner syncs as long as this delay, averaged over recent syncs, is
smaller than the cost of a handover.
"""

SHORT_SECONDS_MAX = 0.001
"""Limit of a short sync in seconds; a longer sync counts as a delay of the owner."""
IN_A_ROW = 4
"""Number of consecutive short syncs after which the next one is expected to be short."""
EARNED_SECONDS = 50e-6
"""Seconds by which each short sync reduces the counted delay."""
OWED_SECONDS_MAX = 0.01
"""Limit of the counted delay in seconds; above it, the syncer's thread syncs."""
OWED_SECONDS_MOST = 0.2
"""Upper bound of the counted delay: after a disk stall of a minute, 4,000 short syncs reset it."""


class SyncPace:
    """Counts the delay by slow syncs, and decides which thread runs the next sync."""

    def __init__(self) -> None:
        self._short = 0
        self._owed_seconds = 0.0

    @property
    def is_short(self) -> bool:
        """True if the next sync is expected to be short."""
        return self._short >= IN_A_ROW and self._owed_seconds <= OWED_SECONDS_MAX

    def record(self, seconds: float, *, inline: bool) -> None:
        """Record the duration of a sync in seconds; `inline`: it ran on the owner's thread."""
        if seconds <= SHORT_SECONDS_MAX:
            self._short += 1
            self._owed_seconds = max(self._owed_seconds - EARNED_SECONDS, 0.0)
            return
        self._short = 0
        if inline:
            self._owed_seconds = min(self._owed_seconds + seconds, OWED_SECONDS_MOST)
