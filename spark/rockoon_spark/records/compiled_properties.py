"""Pieces and properties of many records, by the compiled kernel; `properties` says the rules."""

from typing import Any

import numpy as np
import pyarrow as pa

from rockoon_format import kernel
from rockoon_format.frames import IntArray
from rockoon_spark.records.properties import text


def gathered(content: bytes, starts: IntArray, lengths: IntArray) -> pa.BinaryArray | None:
    """One piece for each record; None where the kernel leaves it open.

    Args:
        content: the bytes.
        starts, lengths: of the pieces, int64[n].
    """
    assert kernel.native is not None
    found = kernel.native.gather(content, starts.tobytes(), lengths.tobytes())
    return None if found is None else _laid(len(starts), found)


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
        assert kernel.native is not None
        bounds, data = kernel.native.property_values(*self._places, name.encode())
        # No value is empty: what is empty is missing.
        missing = np.diff(np.frombuffer(bounds, np.int32)) == 0
        if not missing.any():
            return text(_laid(self._count, (bounds, data)))
        valid = np.packbits(~missing, bitorder="little")
        return text(_laid(self._count, (bounds, data), pa.py_buffer(valid)))

    def maps(self) -> pa.MapArray:
        """All properties of each record."""
        assert kernel.native is not None
        rows, names, values = kernel.native.property_maps(*self._places)
        bounds = np.frombuffer(rows, np.int32)
        pairs = int(bounds[-1])
        return pa.MapArray.from_arrays(
            pa.array(bounds), text(_laid(pairs, names)), text(_laid(pairs, values))
        )


def _laid(count: int, column: tuple[bytes, bytes], valid: Any = None) -> pa.BinaryArray:
    """Bounds and content as an Arrow array."""
    bounds, data = column
    buffers = [valid, pa.py_buffer(bounds), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), count, buffers)
