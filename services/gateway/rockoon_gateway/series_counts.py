"""Counts by the labels of a metric's series, of which there is an end. Pure."""

from collections.abc import Iterator

# As many as a broker has of topics and groups: whoever may create topics could make series without
# end, and each stays in the memory of whatever collects metrics.
SERIES_MAX = 10_000
OTHERS = "(others)"


class SeriesCounts:
    """Since the process began. What comes beyond the bound is counted together, as `OTHERS`."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, ...], int] = {}

    def add(self, *labels: str, count: int = 1) -> None:
        """Count something.

        Args:
            labels: the series' values, always as many.
            count: how many.
        """
        if labels not in self._counts and len(self._counts) >= SERIES_MAX:
            labels = (OTHERS,) * len(labels)
        self._counts[labels] = self._counts.get(labels, 0) + count

    def __iter__(self) -> Iterator[tuple[tuple[str, ...], int]]:
        return iter(self._counts.items())
