"""From records to what the key index holds of them: of each key a hash, a place and a time.

`index_keys` says it of one record, `key_hashes` and `index_entries` of many at once: properties are
copied next to each other in rows of one width, cut into segments at their separators, and those
that are wanted are told by their first bytes.

Source: IndexService#buildIndex.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rockoon_format import kernel
from rockoon_format.frames import IntArray, sliding
from rockoon_format.hashes import java_hash_code, joined_key_hashes
from rockoon_format.properties import (
    KEY_SEPARATOR,
    PROPERTY_KEYS,
    PROPERTY_SEPARATOR,
    PROPERTY_UNIQ_KEY,
    decode_text,
    find_value,
    split_keys,
)
from rockoon_format.record import SYS_FLAG_TRANSACTION, TRANSACTION_ROLLBACK
from rockoon_format.scan import Scan, scan

FEW_RECORDS_MAX = 24
"""Up to here a loop over the records is faster than the columns' fixed costs."""

# Properties are copied into rows of a power of two of bytes, from this one on.
_ROW_BYTES_MIN = 128
# So much goes at once: what stays in a processor's cache.
_STEP_BYTES = 1 << 20

_SEPARATOR = PROPERTY_SEPARATOR[0]
_UNIQUE_HEAD = f"{PROPERTY_UNIQ_KEY}\x01".encode()
_KEYS_HEAD = f"{PROPERTY_KEYS}\x01".encode()
_WORD_BYTES = 8

Bytes = NDArray[np.uint8]
Pieces = tuple[IntArray, IntArray, IntArray]
"""Rows, and where in the rows' bytes a piece of each starts and ends; rows ascend."""


@dataclass(frozen=True, slots=True)
class KeyEntries:
    """Keys in the order in which they are put, as columns of k items."""

    hashes: NDArray[np.int64]
    offsets: NDArray[np.int64]
    """Physical offset of each key's record, never descending."""
    timestamps_ms: NDArray[np.int64]
    """Its store time."""

    def __len__(self) -> int:
        return len(self.hashes)

    def first(self, count: int) -> "KeyEntries":
        """The first `count`."""
        return KeyEntries(self.hashes[:count], self.offsets[:count], self.timestamps_ms[:count])

    def behind(self, count: int) -> "KeyEntries":
        """All but the first `count`."""
        return KeyEntries(self.hashes[count:], self.offsets[count:], self.timestamps_ms[count:])


class PackedKeys(NamedTuple):
    """Keys as they are kept in memory until they are put."""

    hashes: bytes
    """int64[k]."""
    offsets: bytes
    """Physical offset of each key's record, int64[k]."""


def packed_keys(frames: bytes, start: int) -> PackedKeys | None:
    """Return the keys of whole records of one store time; None where it is left to `index_entries`.

    Args:
        frames: bytes, one record behind the other.
        start: physical offset of the first byte.
    """
    found = keys_within(frames, len(frames), start)
    if found is None and kernel.native is None:
        records = scan(frames, 0, len(frames), check_crc=False, with_tag_codes=False)
        found = index_entries(frames, records, start)
    if found is None:
        return None
    return PackedKeys(found.hashes.tobytes(), found.offsets.tobytes())


def joined(parts: Sequence[KeyEntries]) -> KeyEntries:
    """One behind the other, at least one."""
    if len(parts) == 1:
        return parts[0]
    return KeyEntries(
        np.concatenate([each.hashes for each in parts]),
        np.concatenate([each.offsets for each in parts]),
        np.concatenate([each.timestamps_ms for each in parts]),
    )


def index_keys(topic: str, properties: bytes, sys_flag: int) -> list[str]:
    """Return the keys under which a record is indexed, in order: `topic#key`.

    The unique key comes first, then each token of KEYS. Prepared records are indexed, rolled-back
    ones are not.
    """
    if sys_flag & SYS_FLAG_TRANSACTION == TRANSACTION_ROLLBACK:
        return []
    keys = split_keys(find_value(properties, PROPERTY_KEYS) or "")
    unique = find_value(properties, PROPERTY_UNIQ_KEY)
    if unique:
        keys.insert(0, unique)
    return [f"{topic}#{key}" for key in keys]


def index_entries(frames: bytes | Bytes, records: Scan, start: int) -> KeyEntries:
    """Return the keys of records as putting one record after another would put them.

    Args:
        frames: what was scanned, from its first byte on.
        records: what the scan found.
        start: physical offset of the first byte of `frames`.
    """
    topics = [decode_text(topic) for topic in records.topics]
    numbers, hashes = key_hashes(
        frames,
        records.properties_starts,
        records.properties_lengths,
        records.sys_flags,
        topics,
        records.topic_numbers,
    )
    return KeyEntries(
        hashes=hashes,
        offsets=records.offsets[numbers] + start,
        timestamps_ms=records.store_timestamps_ms[numbers],
    )


def keys_within(frames: bytes, stop: int, start: int) -> KeyEntries | None:
    """Return what `index_entries` gives of the records that `frames` begins with; None where the
    compiled kernel leaves it open, or there is none.

    Args:
        frames: bytes.
        stop: where in them the last record ends.
        start: physical offset of the first byte.
    """
    if kernel.native is None or (found := kernel.native.index_keys(frames, stop, start)) is None:
        return None
    return KeyEntries(*(np.frombuffer(column, np.int64) for column in found))


def key_hashes(
    data: bytes | Bytes,
    starts: IntArray,
    lengths: IntArray,
    sys_flags: IntArray,
    topics: Sequence[str],
    topic_numbers: IntArray,
) -> tuple[IntArray, IntArray]:
    """Return the index hashes of many records, in the records' order and as `index_keys` orders.

    Args:
        data: bytes that hold the properties of all n records.
        starts, lengths: where those of each record lie, int64[n]; every piece lies within `data`.
        sys_flags: system flag of each record, int64[n].
        topics: distinct ones.
        topic_numbers: which of them each record names, int64[n].

    Returns:
        For each of k keys, the number of its record and its `hashes.index_key_hash`, int64[k].
    """
    fronts = [f"{topic}#" for topic in topics]
    if kernel.native is not None:
        piece, at = (data, starts) if isinstance(data, bytes) else _copied(data, starts, lengths)
        made = _key_hashes_compiled(piece, at, lengths, sys_flags, fronts, topic_numbers)
        if made is not None:
            return made
    wanted = np.flatnonzero(
        (sys_flags & SYS_FLAG_TRANSACTION != TRANSACTION_ROLLBACK) & (lengths > 0)
    )
    found: list[tuple[IntArray, IntArray]] = []
    for numbers, rows in _rows_of(data, starts, lengths, wanted):
        which, hashes = rows.key_hashes(fronts, topic_numbers[numbers])
        found.append((numbers[which], hashes))
    if len(found) == 1:
        return found[0]
    together = np.concatenate([np.zeros(0, np.int64), *(numbers for numbers, _ in found)])
    order = np.argsort(together, kind="stable")
    hashes = np.concatenate([np.zeros(0, np.int64), *(each for _, each in found)])
    return together[order], hashes[order]


def _copied(data: Bytes, starts: IntArray, lengths: IntArray) -> tuple[bytes, IntArray]:
    """The bytes that pieces lie in, which nobody else can write, and where they start in those."""
    if not len(starts):
        return b"", starts
    first = int(starts.min())
    return data[first : int((starts + lengths).max())].tobytes(), starts - first


def _key_hashes_compiled(
    data: bytes,
    starts: IntArray,
    lengths: IntArray,
    sys_flags: IntArray,
    fronts: Sequence[str],
    topic_numbers: IntArray,
) -> tuple[IntArray, IntArray] | None:
    """As `key_hashes`; None at any doubt."""
    assert kernel.native is not None
    # A record without properties has no keys.
    bytes_looked_at = np.where(sys_flags & SYS_FLAG_TRANSACTION != TRANSACTION_ROLLBACK, lengths, 0)
    codes = np.array([java_hash_code(front) for front in fronts], np.int64)
    found = kernel.native.key_hashes(
        data, starts.tobytes(), bytes_looked_at.tobytes(), codes[topic_numbers].tobytes()
    )
    if found is None:
        return None
    numbers, hashes = found
    return np.frombuffer(numbers, np.int64), np.frombuffer(hashes, np.int64)


def have_keys(data: bytes | Bytes, starts: IntArray, lengths: IntArray) -> NDArray[np.bool_]:
    """Tell which records have a key: a KEYS property that is not blank.

    Args:
        data, starts, lengths: as for `key_hashes`.

    Returns:
        bool[n].
    """
    found = np.zeros(len(starts), np.bool_)
    if len(starts) <= FEW_RECORDS_MAX:
        pieces = zip(starts.tolist(), lengths.tolist(), strict=True)
        for number, (start, length) in enumerate(pieces):
            keys = find_value(bytes(data[start : start + length]), PROPERTY_KEYS)
            found[number] = bool(split_keys(keys or ""))
        return found
    for numbers, rows in _rows_of(data, starts, lengths, np.flatnonzero(lengths > 0)):
        found[numbers[rows.with_keys()]] = True
    return found


def whole_keys(
    data: bytes | Bytes, starts: IntArray, lengths: IntArray
) -> Iterator[tuple[IntArray, Bytes, IntArray, IntArray]]:
    """Find the value of KEYS of many records, some at a time, uncut: what a topic is compacted by.

    Args:
        data: bytes that hold the properties of all n records.
        starts, lengths: where those of each record lie, int64[n]; every piece lies within `data`.

    Yields:
        Numbers of k records that have keys, int64[k], ascending within one yield only; an array of
        bytes; and where in it the keys of each start, and how many bytes they are, int64[k]. The
        value is the one `find_value` gives; at least eight bytes follow each.
    """
    for numbers, rows in _rows_of(data, starts, lengths, np.flatnonzero(lengths > 0)):
        which, found, ends = rows.last_values(_KEYS_HEAD)
        yield numbers[which], rows.data, found, ends - found


def _rows_of(
    data: bytes | Bytes, starts: IntArray, lengths: IntArray, wanted: IntArray
) -> Iterator[tuple[IntArray, "_Rows"]]:
    """Copy the wanted records' properties into rows; with the numbers of those that are in them."""
    content = np.frombuffer(data, np.uint8)
    width = _ROW_BYTES_MIN
    while len(wanted):
        # One byte of a row is for a separator.
        fits = lengths[wanted] < width
        fitting, wanted = wanted[fits], wanted[~fits]
        step = max(_STEP_BYTES // width, 1)
        for first in range(0, len(fitting), step):
            numbers = fitting[first : first + step]
            yield numbers, _Rows(content, starts[numbers], lengths[numbers], width)
        width *= 2


class _Rows:
    """Properties of some records in rows of one width, and their segments between separators.

    Positions are those in all rows, one behind the other. A row starts with its record's
    properties and a separator; what stands behind is of no meaning.
    """

    def __init__(self, content: Bytes, starts: IntArray, lengths: IntArray, width: int) -> None:
        count = len(starts)
        self.data = np.empty(count * width + _WORD_BYTES, np.uint8)
        """Longer than the rows, so that a word can be read at every position."""
        self._rows = self.data[: count * width]
        self._row_shift = width.bit_length() - 1
        _copy(content, starts, self._rows.view(f"V{width}"))
        self._rows[(np.arange(count) << self._row_shift) + lengths] = _SEPARATOR

        ends = np.flatnonzero(self._rows == _SEPARATOR)
        rows = ends >> self._row_shift
        inside = np.flatnonzero(ends - (rows << self._row_shift) <= lengths[rows])
        self._ends, self._segment_rows = ends[inside], rows[inside]
        self._starts = _starts_behind(self._ends, self._segment_rows << self._row_shift)
        self._words = sliding(self.data, "<u8")[self._starts]

    def key_hashes(self, fronts: list[str], which: IntArray) -> tuple[IntArray, IntArray]:
        """Rows and hashes of all keys, in order; `which` of the fronts each row has."""
        # Not together: unique keys are mostly of one length, and the others of another.
        pieces = (self.last_values(_UNIQUE_HEAD), self._tokens(*self.last_values(_KEYS_HEAD)))
        hashes = [
            joined_key_hashes(fronts, which[rows], self._rows, starts, ends - starts)
            for rows, starts, ends in pieces
        ]
        if len(hashes[1]) == 0:
            return pieces[0][0], hashes[0]
        rows = np.concatenate([pieces[0][0], pieces[1][0]])
        order = np.argsort(rows, kind="stable")
        return rows[order], np.concatenate(hashes)[order]

    def with_keys(self) -> IntArray:
        """Rows that have a key, perhaps more than once."""
        return self._tokens(*self.last_values(_KEYS_HEAD))[0]

    def last_values(self, head: bytes) -> Pieces:
        """Of each row that has it, the last value of a property that is not empty."""
        told = head[:_WORD_BYTES]
        mask = np.uint64((1 << 8 * len(told)) - 1)
        chosen = np.flatnonzero((self._words & mask) == int.from_bytes(told, "little"))
        for position in range(len(told), len(head)):
            chosen = chosen[self.data[self._starts[chosen] + position] == head[position]]
        starts, ends = self._starts[chosen] + len(head), self._ends[chosen]
        rows = self._segment_rows[chosen]
        if (ends <= starts).any():
            filled = ends > starts
            rows, starts, ends = rows[filled], starts[filled], ends[filled]
        if (rows[1:] == rows[:-1]).any():
            is_last = np.append(rows[1:] != rows[:-1], True)
            rows, starts, ends = rows[is_last], starts[is_last], ends[is_last]
        return rows, starts, ends

    def _tokens(self, rows: IntArray, starts: IntArray, ends: IntArray) -> Pieces:
        """Cut values of KEYS, at most one of each row, into those between spaces."""
        if len(rows) == 0:
            return rows, starts, ends
        row_starts = np.zeros(len(self._rows) >> self._row_shift, np.int64)
        row_ends = row_starts.copy()
        row_starts[rows], row_ends[rows] = starts, ends
        spaces = np.flatnonzero(self._rows == ord(KEY_SEPARATOR))
        space_rows = spaces >> self._row_shift
        spaces = spaces[(spaces >= row_starts[space_rows]) & (spaces < row_ends[space_rows])]
        if len(spaces) == 0:
            return rows, starts, ends
        token_ends = np.sort(np.concatenate([ends, spaces]), kind="stable")
        token_rows = token_ends >> self._row_shift
        token_starts = _starts_behind(token_ends, row_starts[token_rows])
        filled = np.flatnonzero(token_ends > token_starts)
        return token_rows[filled], token_starts[filled], token_ends[filled]


def _copy(content: Bytes, starts: IntArray, rows: NDArray[np.void]) -> None:
    """Fill each row with the bytes from its position on, as far as there are any."""
    width = rows.itemsize
    limit = len(content) - width
    near_end = np.flatnonzero(starts > limit)
    if limit >= 0:
        rows[:] = sliding(content, rows.dtype)[np.minimum(starts, limit)]
    if len(near_end):
        tail_start = max(limit, 0)
        tail = np.append(content[tail_start:], np.zeros(width, np.uint8))
        rows[near_end] = sliding(tail, rows.dtype)[starts[near_end] - tail_start]


def _starts_behind(ends: IntArray, lowest: IntArray) -> IntArray:
    """Where what ends there starts: behind the end before, but not below its lowest start."""
    starts = lowest.copy()
    np.maximum(starts[1:], ends[:-1] + 1, out=starts[1:])
    return starts
