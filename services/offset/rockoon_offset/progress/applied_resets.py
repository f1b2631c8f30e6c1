"""Applied resets, kept in a bounded number so that they can be undone. Pure."""

from collections.abc import Iterator

from rockoon_core.errors import ResetNotFound
from rockoon_offset.progress.records import ResetApplied

RESETS_MAX = 1000
# Sum of the steps of all kept resets.
RESET_STEPS_MAX = 100_000


class AppliedResets:
    """Applied resets of all groups."""

    def __init__(self) -> None:
        # The oldest first.
        self._resets: dict[str, ResetApplied] = {}
        self._steps = 0

    def find(self, reset_id: str) -> ResetApplied:
        """Return an applied reset. Raises ResetNotFound if it was never applied, or is too old."""
        found = self.get(reset_id)
        if found is None:
            raise ResetNotFound(reset=reset_id)
        return found

    def get(self, reset_id: str) -> ResetApplied | None:
        return self._resets.get(reset_id)

    def has_any(self, group: str) -> bool:
        return any(reset.group == group for reset in self._resets.values())

    def __iter__(self) -> Iterator[ResetApplied]:
        return iter(tuple(self._resets.values()))

    def apply(self, reset: ResetApplied) -> None:
        """Add or replace a reset; beyond a bound, the oldest resets are removed."""
        before = self._resets.get(reset.reset_id)
        self._resets[reset.reset_id] = reset
        self._steps += len(reset.steps) - (len(before.steps) if before else 0)
        while len(self._resets) > 1 and (
            len(self._resets) > RESETS_MAX or self._steps > RESET_STEPS_MAX
        ):
            oldest = self._resets.pop(next(iter(self._resets)))
            self._steps -= len(oldest.steps)

    def drop_group(self, group: str) -> None:
        kept = {name: reset for name, reset in self._resets.items() if reset.group != group}
        self._resets = kept
        self._steps = sum(len(reset.steps) for reset in kept.values())
