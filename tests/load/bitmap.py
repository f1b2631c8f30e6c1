"""A set of numbers from 0, one bit for each: 12.5 MB for a hundred million."""

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

_BYTES_AT_FIRST = 1 << 10
_CHUNK_BYTES = 1 << 20


class Bitmap:
    """Grows as numbers are added.

    Attributes:
        end: one more than the largest number in it, 0 if it is empty.
    """

    def __init__(self) -> None:
        self._bytes = np.zeros(_BYTES_AT_FIRST, np.uint8)
        self.end = 0

    @property
    def size_bytes(self) -> int:
        return self._bytes.nbytes

    def __len__(self) -> int:
        """Return how many numbers are in it."""
        return _count(self._bytes)

    def add_run(self, first: int, end: int) -> None:
        """Add the numbers from `first` up to, not including, `end`."""
        if end <= first:
            return
        self._reach(end)
        whole_first, whole_end = (first + 7) >> 3, end >> 3
        if whole_first > whole_end:
            self._bytes[whole_end] |= _mask(first & 7, end & 7)
            return
        if first & 7:
            self._bytes[whole_first - 1] |= _mask(first & 7, 8)
        self._bytes[whole_first:whole_end] = 0xFF
        if end & 7:
            self._bytes[whole_end] |= _mask(0, end & 7)

    def add(self, numbers: Numbers) -> None:
        """Add numbers in any order; one may occur several times."""
        if len(numbers):
            self._reach(int(numbers.max()) + 1)
            bits = np.left_shift(1, numbers & 7).astype(np.uint8)
            np.bitwise_or.at(self._bytes, numbers >> 3, bits)

    def has(self, numbers: Numbers) -> NDArray[np.bool_]:
        """Return, for each number, whether it is in the set."""
        at = numbers >> 3
        found = self._bytes[np.minimum(at, len(self._bytes) - 1)] >> (numbers & 7)
        there: NDArray[np.bool_] = ((found & 1) == 1) & (at < len(self._bytes))
        return there

    def count_beyond(self, end: int) -> int:
        """Return how many numbers are `end` or more."""
        if end >= self.end:
            return 0
        rest = np.unpackbits(self._bytes[end >> 3 : (self.end + 7) >> 3], bitorder="little")
        return int(np.count_nonzero(rest[end & 7 :]))

    def missing_in(self, other: "Bitmap", examples_max: int = 0) -> tuple[int, list[int]]:
        """Return how many of these numbers the other set lacks, and the first of them."""
        count, examples = 0, list[int]()
        used = (self.end + 7) >> 3
        for at in range(0, used, _CHUNK_BYTES):
            mine = self._bytes[at : min(at + _CHUNK_BYTES, used)]
            theirs = other._bytes[at : at + len(mine)]
            missing = mine.copy()
            missing[: len(theirs)] &= ~theirs
            found = _count(missing)
            if found and len(examples) < examples_max:
                numbers = np.flatnonzero(np.unpackbits(missing, bitorder="little")) + at * 8
                examples += numbers[: examples_max - len(examples)].tolist()
            count += found
        return count, examples

    def _reach(self, end: int) -> None:
        self.end = max(self.end, end)
        if end > len(self._bytes) * 8:
            # Untouched pages of zeros use no memory.
            grown = np.zeros(max(len(self._bytes) * 2, (end + 7) >> 3), np.uint8)
            grown[: len(self._bytes)] = self._bytes
            self._bytes = grown


def _mask(first: int, end: int) -> np.uint8:
    """Return a byte with the bits from `first` up to, not including, `end`."""
    return np.uint8((1 << end) - (1 << first))


def _count(packed: NDArray[np.uint8]) -> int:
    return int(np.bitwise_count(packed).sum(dtype=np.int64))
