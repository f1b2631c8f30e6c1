"""Newest record of each key, found with a row of 24 bytes per record.

    hash (16 bytes) | mark (8 bytes): physical offset * 4, + 2 for a tombstone, + 1 if it expired

On one broker a physical offset identifies one record, and higher offsets are newer. An expired
tombstone supersedes older records and is then dropped itself.

Hash of a key: it is read as 32-bit numbers, padded with zeros, plus its length. The numbers are
multiplied by 64-bit coefficients and summed modulo 2**64, four times with different coefficients;
the upper halves of the four sums are the hash ("multilinear" hashing, strongly universal). The
coefficients are derived from a secret that is random for each run, so a producer cannot choose keys
that collide: two different keys have the same hash with a probability of 2**-128. Among ten
thousand million keys a collision exists with a probability below 2 in 10**19, far below the error
rate of disks. Keys longer than 256 bytes are hashed one by one, with BLAKE2b and the same secret.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rockoon_format.frames import IntArray, sliding

SECRET_BYTES = 32
Hashes = NDArray[np.uint64]
"""Hashes of keys, uint64[n, 2]: 128 bits per key."""

_WIDTHS = (8, 16, 32, 64, 128, 256)
_WORD_BYTES = 4
_LANES = 4
_HALF = np.uint64(32)
_HASH_BYTES = 16

_MIX_1, _MIX_2, _MIX_3 = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)


class KeyHash:
    """Hash function of (topic, key); equal secrets give equal hashes on every machine.

    Args:
        secret: SECRET_BYTES random bytes.
    """

    def __init__(self, secret: bytes) -> None:
        assert len(secret) == SECRET_BYTES
        self._secret = secret
        words = _WIDTHS[-1] // _WORD_BYTES
        drawn = hashlib.shake_256(secret).digest((words + 2) * _LANES * 8)
        coefficients = np.frombuffer(drawn, "<u8").reshape(-1, _LANES)
        self._of_words, self._of_length, self._fixed = (
            coefficients[:words],
            coefficients[words],
            coefficients[words + 1],
        )
        self._topics: dict[str, Hashes] = {}

    def of_keys(
        self,
        data: NDArray[np.uint8],
        starts: IntArray,
        lengths: IntArray,
        topics: list[str],
        which: IntArray,
    ) -> Hashes:
        """Hash n keys.

        Args:
            data: bytes that contain the keys.
            starts, lengths: position and length of each key in `data`, int64[n].
            topics: distinct topics.
            which: index into `topics` for each key, int64[n].
        """
        found = np.empty((len(starts), 2), np.uint64)
        # Padded, so that a window of the full width exists at every position.
        padded = np.append(data, np.zeros(_WIDTHS[-1], np.uint8))
        classes = np.searchsorted(_WIDTHS, lengths)
        for number in np.unique(classes).tolist():
            rows = np.flatnonzero(classes == number)
            if number < len(_WIDTHS):
                width = _WIDTHS[number]
                found[rows] = self._of_width(padded, starts[rows], lengths[rows], width)
            else:
                for row in rows.tolist():
                    start = int(starts[row])
                    found[row] = self._exact(padded[start : start + int(lengths[row])].tobytes())
        if topics:
            found ^= np.concatenate([self._of_topic(topic) for topic in topics])[which]
        return found

    def of_offsets(self, physical_offsets: IntArray) -> Hashes:
        """Hash the physical offsets of records without a key: distinct offsets get distinct
        hashes.
        """
        value = physical_offsets.astype(np.uint64) + self._fixed[0]
        value += _MIX_1
        value = (value ^ (value >> np.uint64(30))) * _MIX_2
        value = (value ^ (value >> np.uint64(27))) * _MIX_3
        mixed = value ^ (value >> np.uint64(31))
        return np.stack([mixed, physical_offsets.astype(np.uint64) ^ self._fixed[1]], axis=1)

    def _of_width(
        self, data: NDArray[np.uint8], starts: IntArray, lengths: IntArray, width: int
    ) -> Hashes:
        """Hash keys of at most `width` bytes; the zeros of the padding do not change the sum."""
        rows = sliding(data, f"V{width}")[starts].view("<u8").reshape(len(starts), -1)
        # The mask of a key has ones for the key's bytes: a window of `width` bytes in
        # (ones, zeros), which begins at width - length.
        mask = np.repeat(np.array([0xFF, 0], np.uint8), width)
        rows &= sliding(mask, f"V{width}")[width - lengths].view("<u8").reshape(len(starts), -1)
        words = rows.view("<u4").astype(np.uint64)
        sums = words @ self._of_words[: words.shape[1]]
        sums += lengths.astype(np.uint64)[:, None] * self._of_length + self._fixed
        sums >>= _HALF
        hashes: Hashes = (sums[:, ::2] << _HALF) | sums[:, 1::2]
        return hashes

    def _of_topic(self, topic: str) -> Hashes:
        if topic not in self._topics:
            self._topics[topic] = self._exact(b"topic:" + topic.encode())
        return self._topics[topic]

    def _exact(self, text: bytes) -> Hashes:
        digest = hashlib.blake2b(text, digest_size=_HASH_BYTES, key=self._secret).digest()
        return np.frombuffer(digest, "<u8").reshape(1, 2).astype(np.uint64)


ROW_BYTES = 24


@dataclass(frozen=True, slots=True)
class KeyRows:
    """Hash of the key and mark (physical offset and kind of tombstone) of each of n records."""

    hashes: Hashes
    marks: IntArray
    """Marks of the records, int64[n]."""

    @classmethod
    def of(
        cls,
        hashes: Hashes,
        physical_offsets: IntArray,
        are_tombstones: NDArray[np.bool_],
        are_expired: NDArray[np.bool_],
    ) -> "KeyRows":
        return cls(hashes, (physical_offsets << 2) | (are_tombstones << np.int64(1)) | are_expired)

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
        return self.marks >> 2

    @property
    def are_tombstones(self) -> NDArray[np.bool_]:
        return (self.marks & 2).astype(np.bool_)

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
