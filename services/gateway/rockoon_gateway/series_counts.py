"""Counts by the labels of a metric's series, with a limit of series. Pure."""

from collections.abc import Iterator

# The limit of topics and groups of a broker: clients that may create topics could create series
# without limit, and each uses memory of the metrics' collector.
SERIES_MAX = 10_000
OTHERS = "(others)"


class SeriesCounts:
    """Counts by the labels of a metric's series. Series beyond the limit are counted as
    `OTHERS`.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, ...], int] = {}

    def add(self, *labels: str, count: int = 1) -> None:
        """Add to the count of a series.

        Args:
            labels: of the series, always the same number.
            count: to add.
        """
        if labels not in self._counts and len(self._counts) >= SERIES_MAX:
            labels = (OTHERS,) * len(labels)
        self._counts[labels] = self._counts.get(labels, 0) + count

    def __iter__(self) -> Iterator[tuple[tuple[str, ...], int]]:
        return iter(self._counts.items())
