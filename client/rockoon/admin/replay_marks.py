"""Marks of the dead letters that have been replayed. Pure.

An offset below which all are, and ranges above it: what was picked out by its id is not replayed
again when all the others are. Kept as the progress of a group, with the ranges as its metadata:

    offset 7, metadata "9,12-40"        0 to 6, 9, and 12 to 40 are replayed
"""

from collections.abc import Iterable

TEXT_BYTES_MAX = 4096
"""What the offset service keeps with an offset."""


class MarksFull(ValueError):
    """Marks that take more room than there is: too many scattered messages were picked."""


class ReplayMarks:
    """Args:
    low: every offset below it is marked.
    ranges: further marked offsets, [first, last] each, in any order.
    """

    def __init__(self, low: int, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self.low = low
        self._ranges: list[tuple[int, int]] = []
        for first, last in sorted(ranges):
            self._add(first, last)
        self._complete()

    @classmethod
    def parse(cls, low: int, *texts: str) -> "ReplayMarks":
        """Read what `text` gave; marks of several texts are united.

        Raises:
            ValueError: it is not of that form.
        """
        ranges = []
        for part in filter(None, ",".join(texts).split(",")):
            first, dash, last = part.partition("-")
            if not first.isdecimal() or (dash and not last.isdecimal()):
                raise ValueError(f"{part!r} is no range of offsets")
            ranges.append((int(first), int(last or first)))
        return cls(low, ranges)

    def text(self) -> str:
        """The ranges above `low`.

        Raises:
            MarksFull: they do not fit.
        """
        said = ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in self._ranges)
        if len(said) > TEXT_BYTES_MAX:
            raise MarksFull(f"{len(self._ranges)} scattered messages do not fit: replay the rest")
        return said

    def __contains__(self, offset: int) -> bool:
        return offset < self.low or any(a <= offset <= b for a, b in self._ranges)

    def add(self, offset: int) -> None:
        """Mark one."""
        if offset not in self:
            self._ranges.append((offset, offset))
            ranges, self._ranges = sorted(self._ranges), []
            for first, last in ranges:
                self._add(first, last)
            self._complete()

    def count(self, first: int, stop: int) -> int:
        """How many offsets of [first, stop) are marked."""
        below = max(0, min(self.low, stop) - first)
        return below + sum(
            max(0, min(b + 1, stop) - max(a, first, self.low)) for a, b in self._ranges
        )

    def _add(self, first: int, last: int) -> None:
        """Append a range that begins at or behind the last one's beginning."""
        if self._ranges and first <= self._ranges[-1][1] + 1:
            before, end = self._ranges[-1]
            self._ranges[-1] = (before, max(end, last))
        else:
            self._ranges.append((first, last))

    def _complete(self) -> None:
        while self._ranges and self._ranges[0][0] <= self.low:
            self.low = max(self.low, self._ranges.pop(0)[1] + 1)
