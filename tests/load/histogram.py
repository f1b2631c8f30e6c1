"""Latencies counted in buckets of growing width: a percentile is exact to 1.4 %."""

from collections.abc import Iterable
from typing import Self

import numpy as np
from numpy.typing import NDArray

BUCKETS_PER_OCTAVE = 50
_OCTAVES = 36
BUCKETS = BUCKETS_PER_OCTAVE * _OCTAVES
"""The last one begins at 19 hours."""

PERCENTILES = (50.0, 90.0, 99.0, 99.9)


class Histogram:
    """Counts of latencies in microseconds."""

    def __init__(self, counts: NDArray[np.int64] | None = None) -> None:
        self.counts = counts if counts is not None else np.zeros(BUCKETS, np.int64)

    def __len__(self) -> int:
        return int(self.counts.sum())

    def add(self, latencies_us: NDArray[np.int64]) -> None:
        """Count latencies; less than a microsecond, from clocks that differ, counts as 1."""
        octaves = np.log2(np.maximum(latencies_us, 1).astype(np.float64))
        at = np.minimum((octaves * BUCKETS_PER_OCTAVE).astype(np.int64), BUCKETS - 1)
        self.counts += np.bincount(at, minlength=BUCKETS)

    def add_all(self, others: "Iterable[Histogram]") -> Self:
        for other in others:
            self.counts += other.counts
        return self

    def percentile_ms(self, percentile: float) -> float:
        """Return the upper end of the bucket of the percentile; 0 if nothing was counted.

        Args:
            percentile: 0 to 100; 100 is the largest latency.
        """
        total = len(self)
        if not total:
            return 0.0
        at = int(np.searchsorted(np.cumsum(self.counts), max(total * percentile / 100, 1)))
        return float(2.0 ** ((min(at, BUCKETS - 1) + 1) / BUCKETS_PER_OCTAVE)) / 1e3

    def by_ms(self) -> dict[float, int]:
        """Return counts by the middle of each bucket that is not empty, milliseconds."""
        used = np.flatnonzero(self.counts)
        middles = 2.0 ** ((used + 0.5) / BUCKETS_PER_OCTAVE) / 1e3
        return dict(zip(middles.tolist(), self.counts[used].tolist(), strict=True))

    def to_bytes(self) -> bytes:
        """Return pairs of bucket and count, for buckets that are not empty."""
        used = np.flatnonzero(self.counts)
        return np.stack([used, self.counts[used]]).astype("<i8").tobytes()

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Histogram":
        used, counts = np.frombuffer(raw, "<i8").reshape(2, -1)
        found = cls()
        found.counts[used] = counts
        return found

    def summary(self) -> dict[str, float]:
        """Return milliseconds by the names in profiles."""
        found = {f"p{each:g}": self.percentile_ms(each) for each in PERCENTILES}
        return {**found, "max": self.percentile_ms(100.0)}
