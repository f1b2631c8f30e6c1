"""Entries of the key index, computed from records, and the slots of an index file in memory.

An entry has hash, offset and store time of a key.

`index_keys` handles one record, `key_hashes` and `index_entries` many together: properties are
copied into rows of one width, cut into segments at their separators, and the wanted ones are
recognised by their first bytes.

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
from rockoon_format.index_file import SLOTS_PER_PAGE, UNIT, IndexHeader, first_place, header_with
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
from rockoon_format.scan import Scan

FEW_RECORDS_MAX = 24
"""For at most this many records, a loop is faster than column operations."""

# The smallest row for properties; wider rows are powers of two.
_ROW_BYTES_MIN = 128
# Rows of one step: they should fit in a processor's cache.
_STEP_BYTES = 1 << 20

_SEPARATOR = PROPERTY_SEPARATOR[0]
_UNIQUE_HEAD = f"{PROPERTY_UNIQ_KEY}\x01".encode()
_KEYS_HEAD = f"{PROPERTY_KEYS}\x01".encode()
_WORD_BYTES = 8

Bytes = NDArray[np.uint8]
Pieces = tuple[IntArray, IntArray, IntArray]
"""Row numbers, and start and end of one segment per row in the rows' bytes; rows ascend."""


@dataclass(frozen=True, slots=True)
class KeyEntries:
    """Keys in the order of the index, as columns of k items."""

    hashes: NDArray[np.int64]
    offsets: NDArray[np.int64]
    """Physical offset of each key's record, ascending with repeats."""
    timestamps_ms: NDArray[np.int64]
    """Store time of each key's record."""

    def __len__(self) -> int:
        return len(self.hashes)

    def first(self, count: int) -> "KeyEntries":
        """Return the first `count` entries."""
        return KeyEntries(self.hashes[:count], self.offsets[:count], self.timestamps_ms[:count])

    def without_first(self, count: int) -> "KeyEntries":
        """Return all entries after the first `count`."""
        return KeyEntries(self.hashes[count:], self.offsets[count:], self.timestamps_ms[count:])


class PackedKeys(NamedTuple):
    """Keys in memory that are not yet in the index."""

    hashes: bytes
    """int64[k]."""
    offsets: bytes
    """Physical offset of each key's record, int64[k]."""


def packed_keys(frames: bytes, start: int) -> PackedKeys | None:
    """Return the keys of whole records with one store time; None: `index_entries` must do it.

    Args:
        frames: records back to back.
        start: physical offset of the first byte.
    """
    found = keys_within(frames, len(frames), start)
    return None if found is None else PackedKeys(found.hashes.tobytes(), found.offsets.tobytes())


def joined(parts: Sequence[KeyEntries]) -> KeyEntries:
    """Return the entries of several parts, one part after the other; at least one part."""
    if len(parts) == 1:
        return parts[0]
    return KeyEntries(
        np.concatenate([each.hashes for each in parts]),
        np.concatenate([each.offsets for each in parts]),
        np.concatenate([each.timestamps_ms for each in parts]),
    )


def index_keys(topic: str, properties: bytes, sys_flag: int) -> list[str]:
    """Return the index keys of a record, in order: `topic#key`.

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
    """Return the keys of records, in the order of the index.

    Args:
        frames: the scanned bytes.
        records: result of the scan.
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
    """`index_entries` of the records at the start of `frames`; None: use `index_entries`.

    Args:
        frames: bytes.
        stop: end of the last record in `frames`.
        start: physical offset of the first byte.
    """
    found = kernel.native.index_keys(frames, stop, start)
    if found is None:
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
    """Return the index hashes of many records, by record and in the order of `index_keys`.

    Args:
        data: bytes that contain the properties of all n records.
        starts, lengths: position and length of each record's properties, int64[n]; within `data`.
        sys_flags: system flag of each record, int64[n].
        topics: distinct topics.
        topic_numbers: index in `topics` of each record, int64[n].

    Returns:
        For each of k keys, the number of its record and its `hashes.index_key_hash`, int64[k].
    """
    fronts = [f"{topic}#" for topic in topics]
    piece, at = (data, starts) if isinstance(data, bytes) else _copied(data, starts, lengths)
    # A length of 0 makes the kernel skip a record.
    read_bytes = np.where(sys_flags & SYS_FLAG_TRANSACTION != TRANSACTION_ROLLBACK, lengths, 0)
    codes = np.array([java_hash_code(front) for front in fronts], np.int64)[topic_numbers]
    made = kernel.native.key_hashes(piece, at.tobytes(), read_bytes.tobytes(), codes.tobytes())
    if made is not None:
        return np.frombuffer(made[0], np.int64), np.frombuffer(made[1], np.int64)
    wanted = np.flatnonzero(read_bytes > 0)
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
    """Return a private copy of the given ranges as bytes, and the starts in it."""
    if not len(starts):
        return b"", starts
    first = int(starts.min())
    return data[first : int((starts + lengths).max())].tobytes(), starts - first


def have_keys(data: bytes | Bytes, starts: IntArray, lengths: IntArray) -> NDArray[np.bool_]:
    """Return which records have a key: a KEYS property that is not blank. `data`, `starts`,
    `lengths`: as for `key_hashes`. Returns bool[n]."""
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
    """Find the whole KEYS value of many records, in steps: the key of compaction.

    Args:
        data: bytes that contain the properties of all n records.
        starts, lengths: position and length of each record's properties, int64[n]; within `data`.

    Yields:
        Numbers of k records that have keys, int64[k], ascending only within one yield; an array of
        bytes; and the start of each value in the array, and its length, int64[k]. The value is that
        of `find_value`; at least eight bytes follow each value.
    """
    for numbers, rows in _rows_of(data, starts, lengths, np.flatnonzero(lengths > 0)):
        which, found, ends = rows.last_values(_KEYS_HEAD)
        yield numbers[which], rows.data, found, ends - found


def _rows_of(
    data: bytes | Bytes, starts: IntArray, lengths: IntArray, wanted: IntArray
) -> Iterator[tuple[IntArray, "_PropertyRows"]]:
    """Copy the properties of the wanted records into rows; yields their numbers and the rows."""
    content = np.frombuffer(data, np.uint8)
    width = _ROW_BYTES_MIN
    while len(wanted):
        # One byte of a row is reserved for a separator.
        fits = lengths[wanted] < width
        fitting, wanted = wanted[fits], wanted[~fits]
        step = max(_STEP_BYTES // width, 1)
        for first in range(0, len(fitting), step):
            numbers = fitting[first : first + step]
            yield numbers, _PropertyRows(content, starts[numbers], lengths[numbers], width)
        width *= 2


class _PropertyRows:
    """Properties of some records in rows of one width, and their segments between separators.

    Positions are indexes into the bytes of all rows. A row starts with its record's properties and
    a separator; the bytes after it are undefined.
    """

    def __init__(self, content: Bytes, starts: IntArray, lengths: IntArray, width: int) -> None:
        count = len(starts)
        self.data = np.empty(count * width + _WORD_BYTES, np.uint8)
        """Longer than the rows, so that a word can be read from every position."""
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
        """Rows and hashes of all keys, in order; `which` is the front of each row."""
        # Unique keys mostly have one length, and other keys another; hashing sorts by length.
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
        """Rows that have a key; may contain duplicates."""
        return self._tokens(*self.last_values(_KEYS_HEAD))[0]

    def last_values(self, head: bytes) -> Pieces:
        """In each row that has it, the last value of a property that is not empty."""
        first_word = head[:_WORD_BYTES]
        mask = np.uint64((1 << 8 * len(first_word)) - 1)
        chosen = np.flatnonzero((self._words & mask) == int.from_bytes(first_word, "little"))
        for position in range(len(first_word), len(head)):
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
        """Cut values of KEYS, at most one per row, at spaces."""
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
    """Fill each row with the bytes from its position, as far as the content reaches."""
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
    """Start of each segment: after the previous end, and not before its row starts."""
    starts = lowest.copy()
    np.maximum(starts[1:], ends[:-1] + 1, out=starts[1:])
    return starts


@dataclass(frozen=True, slots=True)
class PutKeys:
    """Keys with their positions in the file."""

    first_unit: int
    """Number of the first of `units`."""
    units: NDArray[np.void]
    """UNIT[n], consecutive in the file."""
    header: IndexHeader
    """The new header."""


class Slots:
    """The slots of one file, initially empty; untouched slots need no memory.

    Only one thread at a time may change them. `count`: number of slots, at least one.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._stored = kernel.native.IndexSlots(count)

    def put(self, header: IndexHeader, keys: KeyEntries) -> PutKeys:
        """Compute the positions of keys, as if they were added one by one, and update the slots.

        Args:
            header: the file's current header.
            keys: at least one; they must fit.

        Raises:
            ValueError: a hash is not from `hashes.index_key_hash`.
        """
        times = keys.timestamps_ms
        units, used = self._stored.link(
            *first_place(header, int(times[0])),
            keys.hashes.tobytes(),
            keys.offsets.tobytes(),
            times.tobytes(),
        )
        after = header_with(header, keys.offsets, times, used)
        return PutKeys(header.next_unit, np.frombuffer(units, UNIT), after)

    def newest(self, key_hash: int) -> int:
        """Number of the newest unit in a hash's chain, 0 if there is none."""
        return int(self._stored.newest(key_hash % self.count))

    def stored(self, first: int, count: int) -> bytes:
        """Bytes of the file for the slots from `first`, at most `count` slots."""
        return bytes(self._stored.stored(first, count))

    def load(self, first: int, stored: bytes) -> None:
        """Replace slots by those of a file; their pages are not marked as changed."""
        self._stored.load(first, stored)

    def compare(self, first: int, stored: bytes) -> None:
        """Mark pages as changed whose slots differ from those of a file."""
        self._stored.compare(first, stored)

    def mark_used(self) -> None:
        """Mark all pages as changed that have a unit."""
        self._stored.mark_used()

    def changed_runs(self) -> list[tuple[int, int]]:
        """Ranges of changed pages as (first slot, number of slots), ascending."""
        changed = np.flatnonzero(np.frombuffer(self._stored.marks(), np.bool_))
        if not len(changed):
            return []
        runs = np.split(changed, np.flatnonzero(np.diff(changed) != 1) + 1)
        return [(int(run[0]) * SLOTS_PER_PAGE, len(run) * SLOTS_PER_PAGE) for run in runs]

    @property
    def is_changed(self) -> bool:
        """True if a page is marked as changed."""
        return 1 in self._stored.marks()

    def note_written(self) -> None:
        """Clear all marks after the slots were written to the file."""
        self._stored.unmark()
