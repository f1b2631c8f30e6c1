"""Pace of syncs: whether they are short enough for the thread for which everybody waits. Pure."""

SHORT_SECONDS_MAX = 0.001
"""A sync that took longer is for the other thread: handing it over costs a tenth of that."""
IN_A_ROW = 16
"""So many short ones make the next one believed to be short."""
IN_A_ROW_MAX = 4096
"""So many have to be, of a disk that disappointed again and again."""


class SyncPace:
    """What the last syncs took.

    A disk that is slow now and then holds the owner up once each time. Then it has to be quick
    twice as often as before, in the other thread, until it is believed again.
    """

    def __init__(self) -> None:
        self._short = 0
        self._wanted = IN_A_ROW

    @property
    def is_short(self) -> bool:
        """Whether the next sync can be expected to be short."""
        return self._short >= self._wanted

    def note(self, seconds: float, *, inline: bool) -> None:
        """A sync took so long; `inline`: the owner made it by itself."""
        if seconds <= SHORT_SECONDS_MAX:
            self._short += 1
            if self._short >= IN_A_ROW_MAX:
                self._wanted = IN_A_ROW
            return
        self._short = 0
        if inline:
            self._wanted = min(2 * self._wanted, IN_A_ROW_MAX)
