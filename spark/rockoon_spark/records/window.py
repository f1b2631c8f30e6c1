"""Window: records of one piece of a log, found by the compiled kernel in one pass.

The kernel keeps where they and their parts are; columns that are asked for it writes as Arrow has
them. `columns` and `properties` do the same with NumPy, and have the rules.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rockoon_format import kernel
from rockoon_format.frames import IntArray
from rockoon_format.properties import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from rockoon_spark.records.properties import text

_TIME = pa.timestamp("us", tz="UTC")
# By columns of `columns.COLUMNS`, with the kernel's numbers (`window.rs`).
_FIELDS: Mapping[str, tuple[int, pa.DataType]] = {
    "physical_offset": (2, pa.int64()),
    "queue_offset": (3, pa.int64()),
    "born_time": (4, _TIME),
    "store_time": (5, _TIME),
    "prepared_offset": (6, pa.int64()),
    "queue": (7, pa.int32()),
    "flag": (8, pa.int32()),
    "sys_flag": (9, pa.int32()),
    "reconsume_times": (10, pa.int32()),
    "size": (11, pa.int32()),
}
_START, _SIZE, _TOPIC = 0, 1, 12
_PROPERTIES = {"keys": PROPERTY_KEYS, "tags": PROPERTY_TAGS, "unique_key": PROPERTY_UNIQ_KEY}
_MAPS = "properties"


class Window:
    """Records of some bytes, n of them.

    Args:
        native: the kernel's.
    """

    def __init__(self, native: Any) -> None:
        self._native = native
        self._count, self.stop, self.has_more = native.extent()

    @classmethod
    def following(cls, content: bytes, base: int, end: int) -> "Window | None":
        """The whole records in their places that some bytes begin with; with the kernel only.

        `stop` is where they end, and `has_more` whether what is there has more bytes than these.

        Args:
            content: bytes of a CommitLog file, from a record's start on.
            base: physical offset of the first of them.
            end: how many bytes the file has from there on, these and others.
        """
        assert kernel.native is not None
        found = kernel.native.Window.following(content, base, end)
        return None if found is None else cls(found)

    @classmethod
    def at(cls, content: bytes, starts: IntArray, sizes: IntArray) -> "Window | None":
        """Records at some positions, int64[n]; None if one is not whole, or without the kernel."""
        if kernel.native is None:
            return None
        found = kernel.native.Window.at(content, starts.tobytes(), sizes.tobytes())
        return None if found is None else cls(found)

    def __len__(self) -> int:
        return int(self._count)

    @cached_property
    def starts(self) -> IntArray:
        """Positions in the bytes, int64[n]."""
        return np.frombuffer(self._native.field(_START), np.int64)

    @cached_property
    def sizes(self) -> IntArray:
        """Bytes of each, int64[n]."""
        return np.frombuffer(self._native.field(_SIZE), np.int64)

    def topics(self) -> tuple[list[bytes], NDArray[np.int32]]:
        """Distinct topics, and which of them each record names, int32[n]."""
        return self._native.topics(), np.frombuffer(self._native.field(_TOPIC), np.int32)

    def sys_flags(self) -> NDArray[np.int32]:
        """System flags, int32[n]."""
        return np.frombuffer(self._native.field(_FIELDS["sys_flag"][0]), np.int32)

    def are_damaged(self) -> NDArray[np.bool_]:
        """Which records are not what was stored, bool[n]."""
        found = self._native.damaged()
        return np.frombuffer(found, np.bool_) if found else np.zeros(len(self), np.bool_)

    def bodies(self) -> pa.BinaryArray:
        """Each record's body as it is stored."""
        bounds, data, _ = self._native.bodies()
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
        return pa.BinaryArray.from_buffers(pa.binary(), len(self), buffers)

    def values(self, name: str) -> pa.StringArray:
        """A property of each record, null where there is none."""
        return self._properties((name,), with_maps=False)[0][0]

    def maps(self) -> pa.MapArray:
        """All properties of each record."""
        return self._properties((), with_maps=True)[1]

    def columns(self, wanted: Sequence[str]) -> Mapping[str, pa.Array]:
        """Those of some columns that are had here, by their names."""
        found: dict[str, pa.Array] = {}
        for name in wanted:
            if name in _FIELDS:
                number, kind = _FIELDS[name]
                buffers = [None, pa.py_buffer(self._native.field(number))]
                found[name] = pa.Array.from_buffers(kind, len(self), buffers)
        if "topic" in wanted:
            found["topic"] = _text(len(self), self._native.topic_names())
        named = [name for name in wanted if name in _PROPERTIES]
        if named or _MAPS in wanted:
            names = tuple(_PROPERTIES[name] for name in named)
            values, maps = self._properties(names, with_maps=_MAPS in wanted)
            found |= zip(named, values, strict=True)
            if _MAPS in wanted:
                found[_MAPS] = maps
        return found

    def _properties(
        self, names: tuple[str, ...], *, with_maps: bool
    ) -> tuple[list[pa.StringArray], pa.MapArray]:
        columns, maps = self._native.properties([name.encode() for name in names], with_maps)
        values = [_text(len(self), column, may_be_missing=True) for column in columns]
        if maps is None:
            return values, None
        rows, *pairs = maps
        bounds = np.frombuffer(rows, np.int32)
        inner = [_text(int(bounds[-1]), column) for column in pairs]
        return values, pa.MapArray.from_arrays(pa.array(bounds), *inner)


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
