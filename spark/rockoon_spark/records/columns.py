"""Records as Arrow columns: only requested columns, without Python code per record.

Columns of variable length are views of the file's bytes: a binary array is created over the buffer
with items for all values and for all gaps between them, and then every second item is selected.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rockoon.compression import unpack
from rockoon.errors import InvalidArgument
from rockoon_format import kernel
from rockoon_format.checksums import checks_of, room_of
from rockoon_format.frames import IntArray, Parts, locate, sliding
from rockoon_format.message_id import encode_offset_id
from rockoon_format.properties import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from rockoon_format.record import (
    AT_BORN_HOST,
    AT_STORE_TIMESTAMP_V4,
    CRC_MASK,
    HOST_V4_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTY_CRC_BYTES,
    SYS_FLAG_COMPRESSED,
    decode_host,
)
from rockoon_spark.records.properties import (
    Properties,
    binaries,
    cut,
    integers,
    integers_of,
    repeated,
    text,
)
from rockoon_spark.records.window import RecordWindow, touch_pages

Bytes = NDArray[np.uint8]

_AT_RECONSUME_TIMES_V4 = 72
_AT_PREPARED_OFFSET_V4 = 76
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_TIME = pa.timestamp("us", tz="UTC")
_PROPERTIES = pa.map_(pa.string(), pa.string())


@dataclass(frozen=True)
class LogRecords:
    """Records of a log in one buffer, with their positions.

    Args:
        buffer: the bytes, uint8[n], at most 2 GiB from the first to the last record.
        base: physical offset of the buffer's first byte.
        starts, sizes: position in the buffer and size in bytes of each record.
        broker: name of the broker of the log.
    """

    buffer: Bytes
    base: int
    starts: IntArray
    sizes: IntArray
    broker: str
    content: bytes | None = None
    """Copy of the buffer for the compiled kernel, which needs immutable bytes."""
    window: RecordWindow | None = None
    """The kernel's view of the records in `content`."""

    @classmethod
    def of(
        cls, data: Bytes | bytes, base: int, starts: IntArray, sizes: IntArray, broker: str
    ) -> "LogRecords":
        """Create from the records at `starts`; see the attributes. Only `data` of the type `bytes`
        is not copied for the compiled kernel."""
        if not len(starts):
            return cls(np.zeros(128, np.uint8), base, starts, sizes, broker)
        if isinstance(data, bytes):
            content, buffer = data, np.frombuffer(data, np.uint8)
        else:
            first, stop = int(starts[0]), int(starts[-1] + sizes[-1])
            buffer, base, starts = data[first:stop], base + first, starts - first
            content = buffer.tobytes() if kernel.is_compiled() else b""
        if kernel.is_compiled():
            window = RecordWindow.at(content, starts, sizes)
            return cls(
                np.frombuffer(content, np.uint8), base, starts, sizes, broker, content, window
            )
        touch_pages(buffer, len(starts))
        return cls(buffer, base, starts, sizes, broker)

    @classmethod
    def of_window(
        cls, content: bytes, base: int, window: RecordWindow, broker: str
    ) -> "LogRecords":
        """Create from the records that the kernel found in `content`."""
        buffer = np.frombuffer(content, np.uint8)
        return cls(buffer, base, window.starts, window.sizes, broker, content, window)

    @cached_property
    def parts(self) -> Parts:
        """Position of each field of the records."""
        return locate(self.buffer if self.content is None else self.content, self.starts)

    def __len__(self) -> int:
        return len(self.sizes)

    def chosen(self, wanted: NDArray[np.bool_]) -> "LogRecords":
        """Return the records that a mask selects, bool[n]."""
        if wanted.all():
            return self
        index = np.flatnonzero(wanted)
        starts, sizes = self.starts[index], self.sizes[index]
        data = self.buffer if self.content is None else self.content
        return LogRecords.of(data, self.base, starts, sizes, self.broker)

    def prefix(self, name: str) -> IntArray:
        """Return a field of the fixed-length prefix of each record, int64[n]."""
        found = None if self.window is None else self.window.prefix(name)
        if found is not None:
            return found
        column: IntArray = self.parts.prefix[name].astype(np.int64)
        return column

    @property
    def sys_flags(self) -> NDArray[np.integer[Any]]:
        """System flags of each record, int[n]."""
        return self.prefix("sys_flag") if self.window is None else self.window.sys_flags()

    @property
    def store_timestamps_ms(self) -> IntArray:
        """Store time of each record in epoch milliseconds, int64[n]."""
        return self._gather(AT_STORE_TIMESTAMP_V4, self.parts.born_extra_bytes, ">i8")

    def after_hosts(self, at_v4: int, dtype: str) -> IntArray:
        """Return a field of each record that follows its two host addresses, int64[n].

        Args:
            at_v4: its position in a record with IPv4 hosts.
        """
        return self._gather(at_v4, self.parts.hosts_extra_bytes, dtype)

    def _gather(self, at: int, extra: IntArray, dtype: str) -> IntArray:
        found: IntArray = sliding(self.buffer, dtype)[self.parts.starts + at + extra]
        return found.astype(np.int64)

    def slices(self, starts: IntArray, lengths: IntArray) -> pa.BinaryArray:
        """Return the bytes of each record from `starts`, `lengths` long; both are int64[n]."""
        return cut(self.buffer, starts, starts + lengths)

    @cached_property
    def properties(self) -> Properties | RecordWindow:
        """Properties of each record, without the checksum property."""
        if self.window is not None:
            return self.window
        lengths = np.maximum(self.parts.properties_lengths, 0)
        data = self.buffer if self.content is None else self.content
        has_room, _ = room_of(data, self.parts.starts + self.sizes, lengths)
        lengths = lengths - PROPERTY_CRC_BYTES * has_room
        return Properties(self.slices(self.parts.properties_starts, lengths))

    @cached_property
    def stored_bodies(self) -> pa.BinaryArray:
        """Stored body of each record, possibly compressed."""
        if self.window is not None:
            return self.window.bodies()
        return self.slices(self.parts.body_starts, np.maximum(self.parts.body_lengths, 0))

    def are_damaged(self) -> NDArray[np.bool_]:
        """Return a mask of the records with wrong checksums, bool[n].

        For records without a checksum, the CRC of the body is checked.
        """
        if self.window is not None:
            return self.window.are_damaged()
        checks = checks_of(self.buffer, self.parts, self.sizes)
        # An array of bytes objects is four times as fast as a list.
        covered = self.slices(checks.starts, checks.lengths).to_numpy(zero_copy_only=False)
        crcs = np.fromiter(map(zlib.crc32, covered), np.int64, len(self)) & CRC_MASK
        return checks.wrong(crcs)

    def few(self, starts: IntArray, lengths: IntArray) -> tuple[list[bytes], pa.Array]:
        """Return one slice of each record, dictionary-encoded: the distinct values, and each
        record's index.
        """
        if self.window is not None:
            found = kernel.native.distinct(self.content, starts.tobytes(), lengths.tobytes())
            if found is not None:
                return found[0], integers(np.frombuffer(found[1], np.int64))
        encoded = self.slices(starts, lengths).dictionary_encode()
        return encoded.dictionary.to_pylist(), encoded.indices

    @cached_property
    def topics(self) -> tuple[list[bytes], NDArray[np.integer[Any]]]:
        """The distinct topics, and the index of each record's topic, int[n]."""
        if self.window is not None:
            return self.window.topics()
        stored = self.slices(self.parts.topic_starts, self.parts.topic_lengths)
        encoded = stored.dictionary_encode()
        return encoded.dictionary.to_pylist(), integers_of(encoded.indices)


def are_whole(records: LogRecords, physical_offsets: IntArray) -> NDArray[np.bool_]:
    """Return which records have consistent lengths and the given physical offsets, bool[n]."""
    magics, stated = records.parts.prefix["magic"], records.parts.prefix["size"]
    good: NDArray[np.bool_] = (magics == MAGIC_V1) | (magics == MAGIC_V2)
    good &= (stated == records.sizes) & (records.parts.computed_sizes == records.sizes)
    good &= records.parts.topic_lengths >= 0
    good &= records.prefix("physical_offset") == physical_offsets
    return good


def hosts(records: LogRecords, at: IntArray, lengths: IntArray) -> pa.StringArray:
    """Return addresses as "host:port"; each distinct address is decoded once."""
    found, numbers = records.few(at, lengths)
    names = []
    for raw in found:
        host, port = decode_host(raw)
        names.append(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    return text(binaries([name.encode() for name in names])).take(numbers)


def _born_hosts(records: LogRecords) -> pa.StringArray:
    extra = records.parts.born_extra_bytes
    return hosts(records, records.parts.starts + AT_BORN_HOST, extra + HOST_V4_BYTES)


def _store_hosts(records: LogRecords) -> pa.StringArray:
    at, lengths = _store_host_positions(records)
    return hosts(records, at, lengths)


def _store_host_positions(records: LogRecords) -> tuple[IntArray, IntArray]:
    parts = records.parts
    at = parts.starts + AT_STORE_TIMESTAMP_V4 + parts.born_extra_bytes + 8
    return at, parts.hosts_extra_bytes - parts.born_extra_bytes + HOST_V4_BYTES


def _message_ids(records: LogRecords) -> pa.StringArray:
    """Return the offsetMsgId of each record: store host and physical offset in hex."""
    at, lengths = _store_host_positions(records)
    positions = records.prefix("physical_offset")
    if (lengths != HOST_V4_BYTES).any():
        raw = records.slices(at, lengths).to_pylist()
        return pa.array(list(map(encode_offset_id, raw, positions.tolist())), pa.string())
    count = len(records)
    bounds = np.arange(0, 32 * count + 1, 32, dtype=np.int32)
    if records.window is not None:
        ids = kernel.native.offset_ids(records.content, at.tobytes(), positions.tobytes())
        if ids is not None:
            buffers = pa.py_buffer(bounds), pa.py_buffer(ids)
            return pa.StringArray.from_buffers(count, *buffers)
    content = np.empty((count, 16), np.uint8)
    content[:, :8] = sliding(records.buffer, "V8")[at].view(np.uint8).reshape(count, 8)
    content[:, 8:] = positions.astype(">i8").view(np.uint8).reshape(count, 8)
    digits = np.empty((count, 32), np.uint8)
    digits[:, 0::2], digits[:, 1::2] = _HEX[content >> 4], _HEX[content & 15]
    return pa.StringArray.from_buffers(count, pa.py_buffer(bounds), pa.py_buffer(digits))


def _bodies(records: LogRecords) -> pa.BinaryArray:
    """Return the uncompressed body of each record."""
    stored = records.stored_bodies
    flags = records.sys_flags
    compressed = np.flatnonzero(flags & SYS_FLAG_COMPRESSED)
    if not len(compressed):
        return stored
    bodies = stored.to_pylist()
    for index in compressed.tolist():
        bodies[index] = _unpacked(bodies[index], int(flags[index]))
    return pa.array(bodies, pa.binary())


def _unpacked(body: bytes, sys_flag: int) -> bytes:
    """Decompress a record's body; return it unchanged if the compressed data is invalid."""
    try:
        return unpack(body, sys_flag)
    except InvalidArgument:
        return body


def _topics(records: LogRecords) -> pa.StringArray:
    found, numbers = records.few(records.parts.topic_starts, records.parts.topic_lengths)
    return text(binaries(found)).take(numbers)


def _times(ms: IntArray) -> pa.TimestampArray:
    return integers(ms * 1000).view(_TIME)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the rows: its type, and the function that computes it."""

    type: pa.DataType
    of: Callable[[LogRecords], pa.Array]


def _prefix(name: str, kind: pa.DataType) -> Column:
    return Column(kind, lambda records: integers(records.prefix(name)).cast(kind, safe=False))


COLUMNS: Mapping[str, Column] = {
    "topic": Column(pa.string(), _topics),
    "broker": Column(pa.string(), lambda records: repeated(records.broker, len(records))),
    "queue": _prefix("queue_id", pa.int32()),
    "queue_offset": _prefix("queue_offset", pa.int64()),
    "physical_offset": _prefix("physical_offset", pa.int64()),
    "keys": Column(pa.string(), lambda records: records.properties.values(PROPERTY_KEYS)),
    "tags": Column(pa.string(), lambda records: records.properties.values(PROPERTY_TAGS)),
    "body": Column(pa.binary(), _bodies),
    "properties": Column(_PROPERTIES, lambda records: records.properties.maps()),
    "born_time": Column(_TIME, lambda records: _times(records.prefix("born_timestamp"))),
    "store_time": Column(_TIME, lambda records: _times(records.store_timestamps_ms)),
    "born_host": Column(pa.string(), _born_hosts),
    "store_host": Column(pa.string(), _store_hosts),
    "reconsume_times": Column(
        pa.int32(),
        lambda records: integers(records.after_hosts(_AT_RECONSUME_TIMES_V4, ">i4")).cast(
            pa.int32()
        ),
    ),
    "prepared_offset": Column(
        pa.int64(),
        lambda records: integers(records.after_hosts(_AT_PREPARED_OFFSET_V4, ">i8")),
    ),
    "flag": _prefix("flag", pa.int32()),
    "sys_flag": _prefix("sys_flag", pa.int32()),
    "size": Column(pa.int32(), lambda records: integers(records.sizes).cast(pa.int32())),
    "message_id": Column(pa.string(), _message_ids),
    "unique_key": Column(
        pa.string(),
        lambda records: records.properties.values(PROPERTY_UNIQ_KEY),
    ),
}
"""All columns, in their default order."""

CHECKED = frozenset({"body", "properties", "keys", "tags", "unique_key"})
"""Columns with data of the producer: if one is read, the checksums of the records are verified."""


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of some columns of COLUMNS."""
    return _schema(tuple(columns))


@cache
def _schema(columns: tuple[str, ...]) -> pa.Schema:
    return pa.schema([pa.field(name, COLUMNS[name].type) for name in columns])


def to_batch(records: LogRecords, columns: Sequence[str]) -> pa.RecordBatch:
    """Return the named columns of the records, in this order."""
    ready = {} if records.window is None else records.window.columns(columns)
    arrays = [ready[name] if name in ready else COLUMNS[name].of(records) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))
