"""Marks of replayed dead letters of one queue. No I/O.

All offsets below `low` are marked, and ranges of offsets above it (dead letters replayed by their
ids). The marks are stored as progress of a group, with the ranges as metadata:

    offset 7, metadata "9,12-40"        0 to 6, 9, and 12 to 40 are marked
"""

from collections.abc import Iterable

TEXT_BYTES_MAX = 4096
"""Maximum size of metadata in the offset service."""


class MarksFull(ValueError):
    """The ranges exceed the maximum size of metadata: too many scattered messages are marked."""


class ReplayMarks:
    """The set of marked offsets.

    Args:
        low: every offset below it is marked.
        ranges: further marked offsets, as (first, last), in any order.
    """

    def __init__(self, low: int, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self.low = low
        self._ranges: list[tuple[int, int]] = []
        for first, last in sorted(ranges):
            self._add(first, last)
        self._complete()

    @classmethod
    def parse(cls, low: int, *texts: str) -> "ReplayMarks":
        """Parse the result of `text`; the marks of several texts are merged.

        Raises:
            ValueError: a text does not have this form.
        """
        ranges = []
        for part in filter(None, ",".join(texts).split(",")):
            first, dash, last = part.partition("-")
            if not first.isdecimal() or (dash and not last.isdecimal()):
                raise ValueError(f"{part!r} is not a range of offsets")
            ranges.append((int(first), int(last or first)))
        return cls(low, ranges)

    def text(self) -> str:
        """Return the ranges above `low` as text.

        Raises:
            MarksFull: the text exceeds `TEXT_BYTES_MAX`.
        """
        ranges_text = ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in self._ranges)
        if len(ranges_text) > TEXT_BYTES_MAX:
            raise MarksFull(
                f"{len(self._ranges)} scattered messages do not fit: replay the others too"
            )
        return ranges_text

    def __contains__(self, offset: int) -> bool:
        return offset < self.low or any(a <= offset <= b for a, b in self._ranges)

    def add(self, offset: int) -> None:
        """Mark an offset."""
        if offset not in self:
            self._ranges.append((offset, offset))
            ranges, self._ranges = sorted(self._ranges), []
            for first, last in ranges:
                self._add(first, last)
            self._complete()

    def count(self, first: int, stop: int) -> int:
        """Return how many offsets in [first, stop) are marked."""
        below = max(0, min(self.low, stop) - first)
        return below + sum(
            max(0, min(b + 1, stop) - max(a, first, self.low)) for a, b in self._ranges
        )

    def _add(self, first: int, last: int) -> None:
        """Append a range that does not start before the last one; merge the two if they touch."""
        if self._ranges and first <= self._ranges[-1][1] + 1:
            before, end = self._ranges[-1]
            self._ranges[-1] = (before, max(end, last))
        else:
            self._ranges.append((first, last))

    def _complete(self) -> None:
        while self._ranges and self._ranges[0][0] <= self.low:
            self.low = max(self.low, self._ranges.pop(0)[1] + 1)
