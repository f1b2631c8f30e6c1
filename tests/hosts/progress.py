"""Rules of progress that was read while clients worked. Pure."""

from collections.abc import Mapping


class Progress:
    """Reads of stored progress, in their order."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        # (group, queue) → (epoch, offset), as last seen.
        self._last: dict[tuple[str, str], tuple[int, int]] = {}
        self._looks: list[tuple[str, str, int, int]] = []

    def note(self, group: str, queue: str, epoch: int, offset: int, at_ns: int) -> None:
        """Record progress that was stored before a time; neither epoch nor offset ever
        decreases."""
        now = epoch, offset
        before = self._last.setdefault((group, queue), now)
        if epoch < before[0] or offset < before[1]:
            self.faults.append(f"{group} {queue}: {before} went back to {now}")
        self._last[group, queue] = now
        self._looks.append((group, queue, offset, at_ns))

    def skipped(self, handled_ns: Mapping[str, Mapping[tuple[str, int], int]]) -> list[str]:
        """Return progress that was stored before all messages before it were handled.

        Args:
            handled_ns: group → (queue, offset) → time of the first handling.
        """
        found: list[str] = []
        checked: dict[tuple[str, str], int] = {}
        for group, queue, offset, at_ns in self._looks:
            handled = handled_ns[group]
            before = checked.setdefault((group, queue), 0)
            # Below `before` all messages were handled even earlier.
            found += [
                f"{group} {queue}: {offset} was stored before {each} was handled"
                for each in range(before, offset)
                if handled.get((queue, each), at_ns + 1) > at_ns
            ]
            checked[group, queue] = max(before, offset)
        return found
