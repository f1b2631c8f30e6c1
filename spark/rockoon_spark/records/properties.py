"""Decoding of the properties of many records in array operations.

Properties are stored as `name 0x01 value 0x02 …`; the last 0x02 may be missing. Pairs with an empty
name or value are ignored. If a name occurs twice, the last pair is valid. Source: MessageDecoder.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rockoon_format.frames import IntArray, sliding
from rockoon_format.properties import decode_text

Bytes = NDArray[np.uint8]

_EQUALS = 1
_SEPARATOR = 2
_WORD_BYTES = 8
# If a record has more pairs, sorting all is faster than comparing each pair with the others.
_PAIRS_COMPARED_MAX = 24
# Odd, so that the multiplication is invertible; the mixed values are only compared.
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def cut(data: Bytes, starts: IntArray, ends: IntArray) -> pa.BinaryArray:
    """Return slices of some bytes as an Arrow array, without a Python object per slice.

    Args:
        data: the bytes, less than 2 GiB.
        starts, ends: positions of the slices, ascending and without overlaps.
    """
    count = len(starts)
    # An item for each slice and for each gap after one; then every second item is selected.
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[0:-1:2], bounds[1::2] = starts, ends
    bounds[-1] = bounds[-2] if count else 0
    laid = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    return laid.take(integers(np.arange(0, 2 * count, 2)))


# `pa.array`, `pa.scalar` and `to_numpy` import pandas if it is installed, which delays the first
# batch of a program by 0.3 seconds.


def integers(values: NDArray[np.integer[Any]]) -> pa.Array:
    """Return integers as an Arrow array, without a copy."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)


def integers_of(column: pa.Array) -> NDArray[np.integer[Any]]:
    """Return the values of an Arrow array of signed integers without nulls, without a copy."""
    if not len(column):
        return np.zeros(0, np.int64)
    width = column.type.bit_width // 8
    return np.frombuffer(column.buffers()[1], f"i{width}", len(column), column.offset * width)


def binaries(values: Sequence[bytes]) -> pa.BinaryArray:
    """Return some bytes objects as an Arrow array."""
    bounds = np.cumsum([0, *map(len, values)], dtype=np.int32)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def repeated(value: str, count: int) -> pa.StringArray:
    """Return an Arrow array with one text `count` times."""
    return text(binaries([value.encode()])).take(integers(np.zeros(count, np.int32)))


def text(raw: pa.BinaryArray) -> pa.StringArray:
    """Decode UTF-8 as Java does: malformed input is replaced."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [None if item is None else decode_text(item) for item in raw.to_pylist()]
        return pa.array(decoded, pa.string())


class Properties:
    """The properties of n records.

    Args:
        raw: the stored bytes, one item per record.
    """

    def __init__(self, raw: pa.BinaryArray) -> None:
        _, bounds, data = raw.buffers()
        positions = np.frombuffer(bounds, np.int32)[raw.offset : raw.offset + len(raw) + 1]
        first, stop = int(positions[0]), int(positions[-1])
        content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        self._bounds: IntArray = positions.astype(np.int64) - first
        # A separator at the end, and padding for the word of the last name: the searches below
        # need no special case for the end.
        padded = np.zeros(stop - first + 1 + _WORD_BYTES, np.uint8)
        padded[: stop - first] = content[first:stop]
        padded[stop - first] = _SEPARATOR
        self._words = sliding(padded, "<u8")
        self._data: Bytes = padded[: stop - first + 1]

    @cached_property
    def _segments(self) -> "_Segments":
        marks = self._data == _SEPARATOR
        filled = np.flatnonzero(np.diff(self._bounds))
        record_ends = self._bounds[filled + 1]
        marks[record_ends] = True
        ends = np.flatnonzero(marks)
        # A segment begins after a separator, or at the end of a record without a last separator.
        starts = np.append(0, ends[:-1] + (self._data[ends[:-1]] == _SEPARATOR))
        marks[:] = False
        marks[record_ends] = True
        counts = np.diff(np.flatnonzero(marks[ends]), prepend=-1)
        rows = np.repeat(filled, counts)
        full = np.flatnonzero(ends > starts)
        starts = starts[full]
        return _Segments(starts, ends[full], rows[full], self._words[starts])

    def values(self, name: str) -> pa.StringArray:
        """Return a property of each record; null if a record does not have it."""
        segments = self._segments
        marker = name.encode() + b"\x01"
        width = len(marker)
        matches = segments.words & _first_bytes(width) == int.from_bytes(
            marker[:_WORD_BYTES], "little"
        )
        found = np.flatnonzero(matches & (segments.ends - segments.starts > width))
        if width > _WORD_BYTES and len(found):
            heads = sliding(self._data, f"V{width}")[segments.starts[found]]
            found = found[heads == np.void(marker)]
        starts, ends, rows = segments.starts[found], segments.ends[found], segments.rows[found]
        values = text(cut(self._data, starts + width, ends))
        count = len(self._bounds) - 1
        if len(rows) == count and (np.diff(rows) > 0).all():
            return values
        # In ascending order, so that the last of equal names overwrites the others.
        chosen = np.full(count, -1, np.int64)
        chosen[rows] = np.arange(len(found))
        return values.take(pa.array(chosen, mask=chosen < 0))

    def maps(self) -> pa.MapArray:
        """Return all properties of each record."""
        segments = self._segments
        starts, ends = segments.starts, segments.ends
        rows, words = segments.rows, segments.words
        middle = np.flatnonzero(self._data == _EQUALS)
        if not (len(middle) == len(starts) and ((middle > starts) & (middle + 1 < ends)).all()):
            # Some pairs have no equals sign or several: the first one is the separator.
            equals = np.append(middle, len(self._data) + 1)
            middle = equals[np.searchsorted(equals, starts)]
            good = np.flatnonzero((middle > starts) & (middle + 1 < ends))
            starts, middle, ends = starts[good], middle[good], ends[good]
            rows, words = rows[good], words[good]
        names, values = cut(self._data, starts, middle), cut(self._data, middle + 1, ends)
        if _may_have_equal(rows, words, middle - starts):
            kept = _last_of_equal(rows, names)
            chosen = integers(kept)
            rows, names, values = rows[kept], names.take(chosen), values.take(chosen)
        counts = np.bincount(rows, minlength=len(self._bounds) - 1)
        offsets = np.append(0, np.cumsum(counts)).astype(np.int32)
        return pa.MapArray.from_arrays(integers(offsets), text(names), text(values))


@dataclass(frozen=True, slots=True)
class _Segments:
    """The nonempty byte ranges between separators in the properties, in the order of the
    records.
    """

    starts: IntArray
    ends: IntArray
    rows: IntArray
    """Index of the record to which each segment belongs."""
    words: NDArray[np.uint64]
    """The first eight bytes of each segment; after a shorter segment, the bytes that follow it."""


def _first_bytes(count: int) -> np.uint64:
    """Return a mask of the first bytes of a word."""
    return np.uint64((1 << 8 * min(count, _WORD_BYTES)) - 1)


_FIRST_BYTES = np.array([_first_bytes(count) for count in range(_WORD_BYTES + 1)])


def _may_have_equal(rows: IntArray, words: NDArray[np.uint64], lengths: IntArray) -> bool:
    """Return False only if no record has two pairs of the same name; compares hashes."""
    if not len(rows):
        return False
    heads = words & _FIRST_BYTES[np.minimum(lengths, _WORD_BYTES)]
    mixed = heads * _FACTOR + lengths.astype(np.uint64)
    mixed = mixed * _FACTOR + rows.astype(np.uint64)
    most = int(np.bincount(rows).max())
    if most > _PAIRS_COMPARED_MAX:
        mixed.sort()
        return bool((mixed[1:] == mixed[:-1]).any())
    # Pairs of a record are adjacent, so each is compared with the few after it.
    return any(bool((mixed[gap:] == mixed[:-gap]).any()) for gap in range(1, most))


def _last_of_equal(rows: IntArray, names: pa.BinaryArray) -> IntArray:
    """Return the indexes of pairs whose name does not occur later in their record, ascending."""
    encoded = names.dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    pairs = rows * max(len(encoded.dictionary), 1) + codes
    _, last = np.unique(pairs[::-1], return_index=True)
    kept: IntArray = np.sort(len(pairs) - 1 - last)
    return kept
