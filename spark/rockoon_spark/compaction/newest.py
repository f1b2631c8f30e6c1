"""Newest record of each key, found with a row of 24 bytes per record.

    hash (16 bytes) | mark (8 bytes): physical offset * 2 + 1 for an expired tombstone, else 0

On one broker a physical offset identifies one record, and higher offsets are newer. An expired
tombstone supersedes older records and is then dropped itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rockoon_format.frames import IntArray
from rockoon_spark.compaction.key_hash import Hashes

ROW_BYTES = 24


@dataclass(frozen=True, slots=True)
class KeyRows:
    """Hash of the key and mark (physical offset and expiry) of each of n records."""

    hashes: Hashes
    marks: IntArray
    """Marks of the records, int64[n]."""

    @classmethod
    def of(
        cls, hashes: Hashes, physical_offsets: IntArray, are_expired: NDArray[np.bool_]
    ) -> "KeyRows":
        return cls(hashes, (physical_offsets << 1) | are_expired)

    @classmethod
    def joined(cls, rows: Sequence["KeyRows"]) -> "KeyRows":
        """Concatenate the rows of several sources."""
        return cls(
            np.concatenate([np.zeros((0, 2), np.uint64), *(each.hashes for each in rows)]),
            np.concatenate([np.zeros(0, np.int64), *(each.marks for each in rows)]),
        )

    def __len__(self) -> int:
        return len(self.marks)

    def __getitem__(self, chosen: slice | IntArray) -> "KeyRows":
        return KeyRows(self.hashes[chosen], self.marks[chosen])

    @property
    def physical_offsets(self) -> IntArray:
        return self.marks >> 1

    @property
    def are_expired(self) -> NDArray[np.bool_]:
        return (self.marks & 1).astype(np.bool_)

    def encode(self) -> bytes:
        """Encode the rows in ROW_BYTES per row, column by column."""
        return self.hashes.astype("<u8").tobytes() + self.marks.astype("<i8").tobytes()

    @classmethod
    def decode(cls, content: bytes) -> "KeyRows":
        count = len(content) // ROW_BYTES
        hashes = np.frombuffer(content, "<u8", 2 * count).reshape(count, 2)
        return cls(hashes, np.frombuffer(content, "<i8", count, 16 * count))


def newest(rows: KeyRows) -> IntArray:
    """Return the index of the newest row of each hash, ascending by hash."""
    if not len(rows):
        return np.zeros(0, np.int64)
    order = np.argsort(rows.hashes[:, 0])
    hashes = rows.hashes[order]
    same_first = hashes[1:, 0] == hashes[:-1, 0]
    if (same_first & (hashes[1:, 1] != hashes[:-1, 1])).any():
        # Two keys share the first half of the hash: rare, so both halves are sorted only then.
        order = np.lexsort((rows.hashes[:, 1], rows.hashes[:, 0]))
        hashes = rows.hashes[order]
    is_first = np.append(True, (hashes[1:] != hashes[:-1]).any(axis=1))
    firsts = np.flatnonzero(is_first)
    marks = rows.marks[order]
    highest = np.maximum.reduceat(marks, firsts)
    counts = np.diff(np.append(firsts, len(order)))
    found: IntArray = order[marks == np.repeat(highest, counts)]
    return found


def in_buckets(rows: KeyRows, buckets: int) -> Iterator[tuple[int, KeyRows]]:
    """Divide rows by their hash; yield the number and the rows of each bucket that has rows.

    Args:
        rows: ascending by hash, the order of `newest`.
        buckets: number of buckets; at most 2**32.
    """
    numbers = ((rows.hashes[:, 0] >> np.uint64(32)) * np.uint64(buckets)) >> np.uint64(32)
    bounds = np.searchsorted(numbers, np.arange(buckets + 1, dtype=np.uint64)).tolist()
    for bucket in range(buckets):
        if bounds[bucket] < bounds[bucket + 1]:
            yield bucket, rows[bounds[bucket] : bounds[bucket + 1]]
