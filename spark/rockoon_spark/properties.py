"""The properties of many records at once.

They are stored as `name 0x01 value 0x02 …`; the last 0x02 may be missing. Pairs with an empty name
or value do not count, and of equal names the last does. Source: MessageDecoder.
"""

from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rockoon_format.frames import IntArray, sliding
from rockoon_format.properties import decode_text

Bytes = NDArray[np.uint8]

_EQUALS = 1
_SEPARATOR = 2


def cut(data: Bytes, starts: IntArray, ends: IntArray) -> pa.BinaryArray:
    """Pieces of some bytes as an Arrow array, cut without a copy of each.

    Args:
        data: the bytes, less than 2 GiB.
        starts, ends: positions, ascending, of pieces that do not overlap.
    """
    count = len(starts)
    # An item for each piece and for each gap behind one; every second is taken.
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[0:-1:2], bounds[1::2] = starts, ends
    bounds[-1] = bounds[-2] if count else 0
    laid = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    return laid.take(pa.array(np.arange(0, 2 * count, 2)))


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
        raw: as stored, one item for each record.
    """

    def __init__(self, raw: pa.BinaryArray) -> None:
        _, bounds, data = raw.buffers()
        positions = np.frombuffer(bounds, np.int32)[raw.offset : raw.offset + len(raw) + 1]
        first, behind = int(positions[0]), int(positions[-1])
        content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        self._bounds: IntArray = positions.astype(np.int64) - first
        # A separator at the end spares every search below a special case.
        self._data: Bytes = np.append(content[first:behind], np.uint8(_SEPARATOR))

    @cached_property
    def _segments(self) -> tuple[IntArray, IntArray]:
        """Where segments between separators begin and end, empty ones too."""
        separators = np.flatnonzero(self._data == _SEPARATOR)
        ends = np.union1d(separators, self._bounds[1:])
        starts = np.append(0, ends[:-1])
        starts[1:] += self._data[ends[:-1]] == _SEPARATOR
        # A record that begins with a separator has an empty segment in front of it; so has one
        # that begins behind a record without the last separator.
        return starts, np.maximum(ends, starts)

    def values(self, name: str) -> pa.StringArray:
        """One property of each record, null where there is none."""
        starts, ends = self._segments
        marker = np.frombuffer(name.encode() + b"\x01", np.uint8)
        width = len(marker)
        candidates = np.flatnonzero(ends - starts > width)
        at = starts[candidates]
        heads = sliding(self._data, f"V{width}")[at] if len(at) else np.zeros(0, f"V{width}")
        candidates = candidates[heads == np.void(marker.tobytes())]
        rows = self._rows(starts[candidates])
        # Ascending, so that the last of equal names stays.
        chosen = np.full(len(self._bounds) - 1, -1, np.int64)
        chosen[rows] = np.arange(len(candidates))
        found = text(cut(self._data, starts[candidates] + width, ends[candidates]))
        return found.take(pa.array(chosen, mask=chosen < 0))

    def maps(self) -> pa.MapArray:
        """All properties of each record."""
        starts, ends = self._segments
        equals = np.append(np.flatnonzero(self._data == _EQUALS), len(self._data) + 1)
        middle = equals[np.searchsorted(equals, starts)]
        good = (middle > starts) & (middle + 1 < ends)
        starts, middle, ends = starts[good], middle[good], ends[good]
        rows = self._rows(starts)
        names, values = cut(self._data, starts, middle), cut(self._data, middle + 1, ends)
        kept = _last_of_equal(rows, names)
        if kept is not None:
            rows, chosen = rows[kept], pa.array(kept)
            names, values = names.take(chosen), values.take(chosen)
        offsets = np.searchsorted(rows, np.arange(len(self._bounds))).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(offsets), text(names), text(values))

    def _rows(self, positions: IntArray) -> IntArray:
        """Which record each position is of."""
        rows: IntArray = np.searchsorted(self._bounds, positions, side="right") - 1
        return rows


def _last_of_equal(rows: IntArray, names: pa.BinaryArray) -> IntArray | None:
    """Indices of pairs whose name does not come again in their row; None when that is all."""
    encoded = names.dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    pairs = rows * max(len(encoded.dictionary), 1) + codes
    distinct, last = np.unique(pairs[::-1], return_index=True)
    if len(distinct) == len(pairs):
        return None
    kept: IntArray = np.sort(len(pairs) - 1 - last)
    return kept
