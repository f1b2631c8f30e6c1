"""Pieces and properties of many records, by the compiled kernel; `properties` has the rules."""

from functools import cached_property

import numpy as np
import pyarrow as pa

from rockoon_format import kernel
from rockoon_format.frames import IntArray
from rockoon_format.properties import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from rockoon_spark.records.properties import text

# Whoever wants one of these mostly wants the others: one search finds all.
_TOGETHER = (PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY)


def gathered(content: bytes, starts: IntArray, lengths: IntArray) -> pa.BinaryArray | None:
    """One piece for each record; None where the kernel leaves it open.

    Args:
        content: the bytes.
        starts, lengths: of the pieces, int64[n].
    """
    assert kernel.native is not None
    found = kernel.native.gather(content, starts.tobytes(), lengths.tobytes())
    return None if found is None else _laid(len(starts), found)


def distinct(
    content: bytes, starts: IntArray, lengths: IntArray
) -> tuple[list[bytes], pa.Array] | None:
    """Distinct pieces, and which of them each one is; None where the kernel leaves it open.

    The arguments are those of `gathered`.
    """
    assert kernel.native is not None
    found = kernel.native.distinct(content, starts.tobytes(), lengths.tobytes())
    return None if found is None else (found[0], pa.array(np.frombuffer(found[1], np.int64)))


def offset_ids(content: bytes, host_starts: IntArray, offsets: IntArray) -> pa.StringArray | None:
    """The offsetMsgId of each record with an IPv4 store host.

    Args:
        content: the bytes.
        host_starts: positions of the hosts, int64[n].
        offsets: physical ones, int64[n].
    """
    assert kernel.native is not None
    digits = kernel.native.offset_ids(content, host_starts.tobytes(), offsets.tobytes())
    if digits is None:
        return None
    bounds = np.arange(0, len(digits) + 1, 32, dtype=np.int32)
    return pa.StringArray.from_buffers(len(offsets), pa.py_buffer(bounds), pa.py_buffer(digits))


class CompiledProperties:
    """The properties of n records, as `properties.Properties` gives them.

    Args:
        content: bytes.
        starts, lengths: where in them each record's properties are, int64[n].
    """

    def __init__(self, content: bytes, starts: IntArray, lengths: IntArray) -> None:
        self._count = len(starts)
        self._places = content, starts.tobytes(), lengths.tobytes()

    def values(self, name: str) -> pa.StringArray:
        """One property of each record, null where there is none."""
        if name in _TOGETHER:
            return self._common[_TOGETHER.index(name)]
        return self._values((name,))[0]

    @cached_property
    def _common(self) -> list[pa.StringArray]:
        return self._values(_TOGETHER)

    def _values(self, names: tuple[str, ...]) -> list[pa.StringArray]:
        assert kernel.native is not None
        wanted = [name.encode() for name in names]
        found = kernel.native.property_values(*self._places, wanted)
        assert found is not None, "records are within their bytes"
        return [_text(self._count, column, may_be_missing=True) for column in found]

    def maps(self) -> pa.MapArray:
        """All properties of each record."""
        assert kernel.native is not None
        found = kernel.native.property_maps(*self._places)
        assert found is not None, "records are within their bytes"
        rows, names, values = found
        bounds = np.frombuffer(rows, np.int32)
        pairs = int(bounds[-1])
        return pa.MapArray.from_arrays(pa.array(bounds), _text(pairs, names), _text(pairs, values))


def _text(
    count: int, column: tuple[bytes, bytes, bool], *, may_be_missing: bool = False
) -> pa.StringArray:
    """Bounds, content and whether all is UTF-8; what is empty is missing, if anything may be."""
    bounds, data, is_utf8 = column
    valid = None
    if may_be_missing:
        missing = np.diff(np.frombuffer(bounds, np.int32)) == 0
        if missing.any():
            valid = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    buffers = [valid, pa.py_buffer(bounds), pa.py_buffer(data)]
    if is_utf8:
        return pa.Array.from_buffers(pa.string(), count, buffers)
    return text(pa.BinaryArray.from_buffers(pa.binary(), count, buffers))


def _laid(count: int, column: tuple[bytes, bytes]) -> pa.BinaryArray:
    """Bounds and content as an Arrow array."""
    buffers = [None, *map(pa.py_buffer, column)]
    return pa.BinaryArray.from_buffers(pa.binary(), count, buffers)
