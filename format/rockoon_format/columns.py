"""Fields of many stored records as columns, each computed at its first use."""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rockoon_format import kernel
from rockoon_format.checksums import DAMAGED, WHOLE, damaged_records, is_damaged, room_of
from rockoon_format.frames import IntArray, Parts, locate, locate_whole, slices, sliding, tags_codes
from rockoon_format.properties import (
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    decode,
    find_value,
)
from rockoon_format.record import (
    AT_BORN_HOST,
    AT_STORE_TIMESTAMP_V4,
    HOST_V4_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTY_CRC_BYTES,
    RECORD_BYTES_MIN,
    Buffer,
    Record,
    RecordError,
    RecordFault,
    decode_record,
)

# The body of a longer record is copied only when it is used.
_ONLY_BYTES_MAX = 64 << 10


class Columns:
    """Records of any topics and queues, in the order of the frames.

    Integer columns are native int64[n]; list columns have n items. Bodies have their stored form:
    `sys_flags` says which are compressed. Only `damaged` checks the records.
    """

    def __init__(
        self,
        frames: bytes,
        parts: Parts,
        lengths: IntArray,
        states: bytes | None = None,
    ) -> None:
        self._frames = frames
        self._parts = parts
        # State byte of each record from `locate_whole`, if known.
        self._states = states
        self.lengths = lengths
        """Size of each record in bytes."""

    def __len__(self) -> int:
        return len(self.lengths)

    def _field(self, name: str) -> IntArray:
        column: IntArray = self._parts.prefix[name].astype(np.int64)
        return column

    @property
    def body_lengths(self) -> IntArray:
        """Bytes of each body as stored."""
        return self._parts.body_lengths

    @property
    def properties_lengths(self) -> IntArray:
        """Bytes of each record's properties."""
        return self._parts.properties_lengths

    @property
    def sent_properties_lengths(self) -> IntArray:
        """Bytes of each record's properties, without the checksum or the space for one."""
        parts, lengths = self._parts, self._parts.properties_lengths
        room, _ = room_of(self._frames, parts.starts + self.lengths, lengths)
        return lengths - PROPERTY_CRC_BYTES * room

    @cached_property
    def queue_ids(self) -> IntArray:
        return self._field("queue_id")

    @cached_property
    def flags(self) -> IntArray:
        return self._field("flag")

    @cached_property
    def queue_offsets(self) -> IntArray:
        return self._field("queue_offset")

    @cached_property
    def physical_offsets(self) -> IntArray:
        return self._field("physical_offset")

    @cached_property
    def sys_flags(self) -> IntArray:
        return self._field("sys_flag")

    @cached_property
    def born_timestamps_ms(self) -> IntArray:
        return self._field("born_timestamp")

    @cached_property
    def store_timestamps_ms(self) -> IntArray:
        return self._gather(AT_STORE_TIMESTAMP_V4, self._parts.born_extra_bytes, ">i8")

    @cached_property
    def reconsume_times(self) -> IntArray:
        return self._gather(72, self._parts.hosts_extra_bytes, ">i4")

    @cached_property
    def prepared_transaction_offsets(self) -> IntArray:
        return self._gather(76, self._parts.hosts_extra_bytes, ">i8")

    def _gather(self, at: int, extra: IntArray, dtype: str) -> IntArray:
        found: IntArray = sliding(self._frames, dtype)[self._parts.starts + at + extra].astype(
            np.int64
        )
        return found

    @cached_property
    def born_hosts(self) -> list[bytes]:
        extra = self._parts.born_extra_bytes
        return slices(self._frames, self._parts.starts + AT_BORN_HOST, extra + HOST_V4_BYTES)

    @cached_property
    def store_hosts(self) -> list[bytes]:
        parts = self._parts
        starts = parts.starts + AT_STORE_TIMESTAMP_V4 + parts.born_extra_bytes + 8
        extra = parts.hosts_extra_bytes - parts.born_extra_bytes
        return slices(self._frames, starts, extra + HOST_V4_BYTES)

    @cached_property
    def bodies(self) -> list[bytes]:
        lengths = np.maximum(self._parts.body_lengths, 0)
        return slices(self._frames, self._parts.body_starts, lengths)

    @cached_property
    def damaged(self) -> IntArray:
        """Indices of damaged records, ascending.

        A record with a checksum is compared with it; for other records, the body is compared with
        its CRC (`rockoon_format.checksums`).
        """
        if self._states is not None:
            if DAMAGED not in self._states and DAMAGED | WHOLE not in self._states:
                return np.zeros(0, np.int64)
            return np.flatnonzero(np.frombuffer(self._states, np.uint8) & DAMAGED)
        if len(self.lengths) == 1:
            return np.zeros(int(is_damaged(self._frames, self._parts, self.lengths)), np.int64)
        return np.flatnonzero(damaged_records(self._frames, self._parts, self.lengths))

    def is_damaged(self, index: int) -> bool:
        """True if one record is damaged; see `damaged`."""
        return len(self.damaged) > 0 and bool((self.damaged == index).any())

    @cached_property
    def topics(self) -> list[bytes]:
        return slices(self._frames, self._parts.topic_starts, self._parts.topic_lengths)

    @cached_property
    def properties_bytes(self) -> list[bytes]:
        lengths = np.maximum(self._parts.properties_lengths, 0)
        return slices(self._frames, self._parts.properties_starts, lengths)

    @cached_property
    def properties(self) -> list[dict[str, str]]:
        return list(map(decode, self.properties_bytes))

    @cached_property
    def tag_codes(self) -> IntArray:
        """Hashes of the tags, as ConsumeQueue entries hold them (delayed records too)."""
        return tags_codes(self._frames, self._parts)

    @cached_property
    def tags(self) -> list[str | None]:
        return self._property(PROPERTY_TAGS)

    @cached_property
    def keys(self) -> list[str | None]:
        """The KEYS values as stored; `properties.split_keys` splits one."""
        return self._property(PROPERTY_KEYS)

    @cached_property
    def unique_keys(self) -> list[str | None]:
        return self._property(PROPERTY_UNIQ_KEY)

    def _property(self, name: str) -> list[str | None]:
        if "properties" in self.__dict__:
            return [properties.get(name) for properties in self.properties]
        return [find_value(raw, name) for raw in self.properties_bytes]

    def places(self, indices: Sequence[int]) -> tuple[bytes, bytes, bytes]:
        """Return the frames, and start and size of the given records in them: native int64."""
        chosen = slice(indices.start, indices.stop) if isinstance(indices, range) else list(indices)
        starts, sizes = self._parts.starts[chosen], self.lengths[chosen]
        return self._frames, starts.astype(np.int64).tobytes(), sizes.tobytes()

    def frame(self, index: int) -> bytes:
        """Return one record's bytes."""
        start = int(self._parts.starts[index])
        return self._frames[start : start + int(self.lengths[index])]

    def record(self, index: int) -> Record:
        """Return one record with all its fields, its CRC not checked."""
        return decode_record(self.frame(index), check_crc=False)


def decode_columns(
    frames: Buffer,
    lengths: ArrayLike | None = None,
    bounds: tuple[int, int] | None = None,
    *,
    compared: bool = False,
) -> Columns:
    """Prepare columns over back-to-back records.

    Args:
        frames: the records, V1 and V2, with any hosts.
        lengths: size of each in bytes, n integers; None means the records' own size fields.
        bounds: start and end of the records in `frames`, with `lengths`; None: all of `frames`.
        compared: the caller will read `damaged`: the records may be compared in the same step.

    Raises:
        RecordError: TRUNCATED, MAGIC or SIZE if lengths and records do not agree.
    """
    sizes = record_sizes(frames) if lengths is None else np.asarray(lengths).astype(np.int64)
    start, end = bounds or (0, len(frames))
    size = end - start
    if len(sizes) == 0:
        if size:
            raise RecordError(RecordFault.SIZE, f"{size} bytes but no record lengths")
        return Columns(b"", _no_parts(), sizes)
    frames = bytes(frames)
    if (found := locate_whole(frames, sizes, (start, end), compared=compared)) is not None:
        parts, states = found
        return Columns(frames, parts, sizes, states if compared else None)
    ends = np.cumsum(sizes)
    if (sizes < RECORD_BYTES_MIN).any() or (sizes > size).any() or ends[-1] != size:
        raise RecordError(RecordFault.TRUNCATED, "the lengths do not add up to the frames")
    parts = locate(frames, ends - sizes + start)
    magics = parts.prefix["magic"]
    if ((magics != MAGIC_V1) & (magics != MAGIC_V2)).any():
        raise RecordError(RecordFault.MAGIC, "a record with an unknown magic")
    if (parts.prefix["size"] != sizes).any():
        raise RecordError(RecordFault.SIZE, "a record of another size than its length")
    if (parts.computed_sizes != sizes).any() or (parts.topic_lengths < 0).any():
        raise RecordError(RecordFault.SIZE, "a record whose parts do not add up to its size")
    return Columns(frames, parts, sizes)


class OnlyRecord(NamedTuple):
    """The fields of a single record that a consumer needs first."""

    queue_offset: int
    sys_flag: int
    body: bytes
    """As stored."""
    is_damaged: bool


def only_record(frames: Buffer, start: int, end: int, *, compared: bool) -> OnlyRecord | None:
    """Return the single record between two positions, without an array for each field.

    None if `decode_columns` must handle it, for example because the record is not whole or is long.

    Args:
        frames: contains the record.
        start, end: position of the record.
        compared: compare the record with its checksum.
    """
    if end - start > _ONLY_BYTES_MAX or not isinstance(frames, bytes):
        return None
    found = kernel.native.only_record(frames, start, end, compared)
    if found is None:
        return None
    queue_offset, sys_flag, body, state = found
    # Equal to `OnlyRecord(...)`, without the call of a Python function.
    return tuple.__new__(OnlyRecord, (queue_offset, sys_flag, body, bool(state & DAMAGED)))


def record_sizes(frames: Buffer) -> NDArray[np.int64]:
    """Walk back-to-back records and return the size field of each.

    Raises:
        RecordError: TRUNCATED if the last one is incomplete, SIZE if one is below the minimum.
    """
    view = memoryview(frames)
    sizes = []
    position = 0
    while position < len(view):
        size = int.from_bytes(view[position : position + 4], signed=True)
        if size < RECORD_BYTES_MIN:
            raise RecordError(RecordFault.SIZE, f"a record of {size} bytes at {position}")
        position += size
        sizes.append(size)
    if position != len(view):
        raise RecordError(RecordFault.TRUNCATED, "the last record is cut off")
    return np.array(sizes, np.int64)


def _no_parts() -> Parts:
    return locate(bytes(RECORD_BYTES_MIN), np.zeros(0, np.int64))
