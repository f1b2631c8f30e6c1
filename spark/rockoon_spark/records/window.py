"""Window: records of a range of a log, found by the compiled kernel in one pass.

The kernel stores the positions of the records and their parts, and writes requested columns in
Arrow's format. `columns` and `properties` do the same with NumPy, and document the rules.
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
from rockoon_format.record import SYS_FLAG_COMPRESSED
from rockoon_spark.records.properties import text

_RECORD_BYTES_MAX = 512
_WORD_BYTES = 8


def touch_pages(data: NDArray[np.uint8], records: int) -> None:
    """Load the bytes of records into the processor's cache if the records are short enough; they
    must fit into it.

    Args:
        data: the bytes, uint8[n], contiguous.
        records: number of records in them.
    """
    if 0 < len(data) <= records * _RECORD_BYTES_MAX:
        # The result is not used; `max` is the cheapest operation that reads every word.
        data[: len(data) // _WORD_BYTES * _WORD_BYTES].view(np.uint64).max(initial=0)


_TIME = pa.timestamp("us", tz="UTC")
# Columns of `columns.COLUMNS`, with the kernel's field numbers (`window.rs`).
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
# Fields of the prefix, as `rockoon_format.frames.PREFIX` names them.
_PREFIX: Mapping[str, tuple[int, type[np.integer[Any]]]] = {
    "physical_offset": (2, np.int64),
    "queue_offset": (3, np.int64),
    "queue_id": (7, np.int32),
}
_PROPERTIES = {
    "keys": PROPERTY_KEYS.encode(),
    "tags": PROPERTY_TAGS.encode(),
    "unique_key": PROPERTY_UNIQ_KEY.encode(),
}
_MAPS = "properties"


class RecordWindow:
    """Fields of n records in some bytes, found by the compiled kernel.

    Args:
        native: the kernel's object.
    """

    def __init__(self, native: Any) -> None:
        self._native = native
        self._count, self.stop, self.has_more = native.extent()

    @classmethod
    def following(cls, content: bytes, base: int, end: int) -> "RecordWindow | None":
        """Find the whole records at the beginning of some bytes; None: use `columns`.

        `stop` is the position after the last record. `has_more` is True if the record there needs
        more bytes than these.

        Args:
            content: bytes of a CommitLog file, from a record's start on.
            base: physical offset of the first byte.
            end: number of bytes of the file from there on.
        """
        found = kernel.native.Window.following(content, base, end)
        return None if found is None else cls(found)

    @classmethod
    def at(cls, content: bytes, starts: IntArray, sizes: IntArray) -> "RecordWindow | None":
        """Create a window from records at known positions, int64[n].

        None: use `columns`, for example because a record is incomplete.
        """
        found = kernel.native.Window.at(content, starts.tobytes(), sizes.tobytes())
        return None if found is None else cls(found)

    def __len__(self) -> int:
        return int(self._count)

    @cached_property
    def starts(self) -> IntArray:
        """Position of each record in the bytes, int64[n]."""
        return np.frombuffer(self._native.field(_START), np.int64)

    @cached_property
    def sizes(self) -> IntArray:
        """Size of each record in bytes, int64[n]."""
        return np.frombuffer(self._native.field(_SIZE), np.int64)

    def topics(self) -> tuple[list[bytes], NDArray[np.int32]]:
        """Return the distinct topics, and the index of each record's topic, int32[n]."""
        return self._native.topics(), np.frombuffer(self._native.field(_TOPIC), np.int32)

    def prefix(self, name: str) -> IntArray | None:
        """Return a field of the fixed-length prefix of each record, int64[n]; None: use
        `columns`."""
        if name not in _PREFIX:
            return None
        number, dtype = _PREFIX[name]
        return np.frombuffer(self._native.field(number), dtype).astype(np.int64, copy=False)

    def sys_flags(self) -> NDArray[np.int32]:
        """System flags of each record, int32[n]."""
        return np.frombuffer(self._native.field(_FIELDS["sys_flag"][0]), np.int32)

    def are_damaged(self) -> NDArray[np.bool_]:
        """Return a mask of the records with wrong checksums, bool[n]."""
        found = self._native.damaged()
        return np.frombuffer(found, np.bool_) if found else np.zeros(len(self), np.bool_)

    def bodies(self) -> pa.BinaryArray:
        """Return the stored body of each record, possibly compressed."""
        _, _, bodies, _, _ = self._native.columns([], False, True, [], False)
        return _binary(len(self), bodies)

    def values(self, name: str) -> pa.StringArray:
        """Return a property of each record; null if a record does not have it."""
        _, _, _, (values,), _ = self._native.columns([], False, False, [name.encode()], False)
        return _text(len(self), values)

    def maps(self) -> pa.MapArray:
        """Return all properties of each record."""
        return self.columns([_MAPS])[_MAPS]

    def columns(self, wanted: Sequence[str]) -> Mapping[str, pa.Array]:
        """Return those of the given columns that the kernel can compute, by name."""
        fields = [name for name in wanted if name in _FIELDS]
        named = [name for name in wanted if name in _PROPERTIES]
        # `columns` decompresses bodies, so the kernel returns them only if none is compressed.
        with_bodies = "body" in wanted and not self._native.sys_flags() & SYS_FLAG_COMPRESSED
        count = len(self)
        laid, topics, bodies, values, maps = self._native.columns(
            [_FIELDS[name][0] for name in fields],
            "topic" in wanted,
            with_bodies,
            [_PROPERTIES[name] for name in named],
            _MAPS in wanted,
        )
        found: dict[str, pa.Array] = {}
        for name, column in zip(fields, laid, strict=True):
            kind = _FIELDS[name][1]
            found[name] = pa.Array.from_buffers(kind, count, [None, pa.py_buffer(column)])
        if topics is not None:
            found["topic"] = _text(count, topics)
        if bodies is not None:
            found["body"] = _binary(count, bodies)
        for name, column in zip(named, values, strict=True):
            found[name] = _text(count, column)
        if maps is not None:
            rows, *pairs = maps
            names, texts = (_text(len(column[0]) // 4 - 1, column) for column in pairs)
            bounds = pa.Array.from_buffers(pa.int32(), count + 1, [None, pa.py_buffer(rows)])
            found[_MAPS] = pa.MapArray.from_arrays(bounds, names, texts)
        return found


def _binary(count: int, column: tuple[Any, ...]) -> pa.BinaryArray:
    bounds, data, *_ = column
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _text(count: int, column: tuple[Any, ...]) -> pa.StringArray:
    """Create a text array from the kernel's (bounds, content, is_utf8, validity bitmap or None)."""
    bounds, data, is_utf8, valid = column
    bitmap = None if valid is None else pa.py_buffer(valid)
    buffers = [bitmap, pa.py_buffer(bounds), pa.py_buffer(data)]
    if is_utf8:
        return pa.Array.from_buffers(pa.string(), count, buffers)
    return text(pa.Array.from_buffers(pa.binary(), count, buffers))
