"""Batches: back-to-back records of one message queue, handled a column at a time.

A producer encodes a batch in its final stored form, with zeros in the fields that only the broker
knows: queue offset, physical offset, store timestamp and store host (always IPv4). The broker
checks every record, writes those fields into all of them at once, and appends the bytes as they
are. Consumers get the same bytes back.

What `check_batch` accepts must be what recovery accepts, and the tags codes it computes must be
those that a ConsumeQueue rebuilt from the log would hold: nothing is checked again later.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rockoon_format.batch_encoding import encode_batch
from rockoon_format.checksums import (
    AT_DIGITS,
    PROPERTIES_CHECKED_BYTES_MAX,
    digits_of,
    room_of,
)
from rockoon_format.columns import Columns, decode_columns
from rockoon_format.consume_queue import EntryArray, encode_entries
from rockoon_format.delay_levels import (
    DELAY_LEVELS_MS,
    delay_of_level_ms,
    parse_java_int,
    timer_deliver_ms,
)
from rockoon_format.frames import PREFIX, Parts, crcs, locate, slices, sliding, tags_codes
from rockoon_format.hashes import tags_code
from rockoon_format.names import SCHEDULE_TOPIC, TIMER_TOPIC
from rockoon_format.properties import (
    PROPERTIES_BYTES_MAX,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_SEPARATOR,
    PROPERTY_TAGS,
    decode,
    find_value,
)
from rockoon_format.record import (
    AT_BODY_V4,
    AT_PREPARED_OFFSET_V4,
    AT_QUEUE_OFFSET,
    AT_STORE_TIMESTAMP_V4,
    CRC_MASK,
    HOST_V4_BYTES,
    HOST_V6_EXTRA_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTY_CRC_BYTES,
    PROPERTY_CRC_DIGITS,
    PROPERTY_CRC_ROOM,
    RECORD_BYTES_MIN,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_COMPRESSION,
    SYS_FLAG_MULTI_TAGS,
    SYS_FLAG_STORE_HOST_V6,
    TOPIC_V1_BYTES_MAX,
    TOPIC_V2_BYTES_MAX,
    TRANSACTION_PREPARED,
)
from rockoon_format.scan import Scan, ScanEnd, scan

__all__ = [
    "SYS_FLAGS_ALLOWED",
    "BatchError",
    "BatchFault",
    "BatchLayout",
    "Columns",
    "Scan",
    "ScanEnd",
    "check_batch",
    "decode_columns",
    "encode_batch",
    "patch_batch",
    "queue_entries",
    "scan",
    "with_checksums",
]

# A transaction type would make an ordinary send a half message or a rollback; an inner batch would
# hide messages that no queue entry counts; an IPv6 store host moves the fields behind it.
SYS_FLAGS_ALLOWED = (
    SYS_FLAG_COMPRESSED | SYS_FLAG_MULTI_TAGS | SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_COMPRESSION
)
"""What an ordinary producer may set: no transaction type, no inner batch, no IPv6 store host."""

FEW_RECORDS_MAX = 24
"""Up to here a loop over the records is faster than the columns' fixed costs."""

_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
_TIMER_TOPIC = TIMER_TOPIC.encode()
_DELAYED_TOPICS = frozenset((_SCHEDULE_TOPIC, _TIMER_TOPIC))
_PREFIX = struct.Struct(">iiiiiqqiq")
_PREPARED_AND_BODY_BYTES = struct.Struct(">qi")
_SHORT = struct.Struct(">h")
assert _PREFIX.size == PREFIX.itemsize


_OFFSETS = np.dtype([("queue_offset", ">i8"), ("physical_offset", ">i8")])
_STORE = np.dtype([("timestamp", ">i8"), ("host", f"V{HOST_V4_BYTES}")])


class BatchFault(Enum):
    """Why a batch is refused."""

    EMPTY = "empty"
    LENGTHS = "lengths"
    MAGIC = "magic"
    SIZE = "size"
    QUEUE = "queue"
    TOPIC = "topic"
    SYS_FLAG = "sys flag"
    STORE_HOST = "store host"
    BODY_TOO_LARGE = "body too large"
    PROPERTIES_TOO_LARGE = "properties too large"
    RECORD_TOO_LARGE = "record too large"
    BODY_CRC = "body crc"
    CHECKSUM = "checksum"
    DELAY_LEVEL = "delay level"
    SOURCE = "source"


class BatchError(ValueError):
    """A batch that must not be stored; `index` is the first bad record's, 0 for the whole."""

    def __init__(self, reason: BatchFault, index: int, message: str) -> None:
        super().__init__(f"record {index}: {message}")
        self.reason = reason
        self.index = index


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """What `check_batch` learnt about a batch, enough to patch and index it without its bytes."""

    starts: NDArray[np.int64]
    """Position of each record in the frames, int64[n]."""
    lengths: NDArray[np.int64]
    """Size of each record in bytes, int64[n]."""
    tag_codes: NDArray[np.int64]
    """ConsumeQueue tags code of each record, int64[n]."""
    store_positions: NDArray[np.int64]
    """Position of each record's store timestamp, int64[n]; the store host follows it."""
    properties_lengths: NDArray[np.int64]
    """Bytes of each record's properties, int64[n]."""
    has_room: NDArray[np.bool_]
    """Which records have room for a checksum, bool[n]."""
    total_bytes: int
    delays_ms: NDArray[np.int64] | None = None
    """SCHEDULE_TOPIC_XXXX only: each record's delay, int64[n]; 0 means that its tags count."""

    @property
    def count(self) -> int:
        return len(self.starts)


def check_batch(
    frames: bytes,
    lengths: ArrayLike,
    *,
    topic: bytes,
    queue_id: int,
    body_bytes_max: int,
    properties_bytes_max: int = PROPERTIES_BYTES_MAX,
    record_bytes_max: int,
    sys_flags_allowed: int = SYS_FLAGS_ALLOWED,
    sources_allowed: bool = False,
    delay_levels_ms: Sequence[int] = DELAY_LEVELS_MS,
) -> BatchLayout:
    """Prove that a batch may be stored, and compute its queue entries.

    Args:
        frames: back-to-back records, as `encode_batch` makes them.
        lengths: size of each record in bytes, n integers.
        topic, queue_id: the topic and the queue that every record must name.
        body_bytes_max, properties_bytes_max, record_bytes_max: of each; without room for checksums.
        sys_flags_allowed: bits that a system flag may have. Prepared and rolled-back records
            have no queue entry and cannot be allowed; committed ones (0x8) can.
        sources_allowed: whether a record may name the one it was made out of (prepared
            transaction offset). That settles the other one, so it is for the broker to say.
        delay_levels_ms: delays of levels 1, 2, ... for records of SCHEDULE_TOPIC_XXXX.

    Returns:
        The layout that `patch_batch` and `queue_entries` need.

    Raises:
        BatchError: with the reason, and the index of the first record that is wrong for it.
    """
    if sys_flags_allowed & (TRANSACTION_PREPARED | SYS_FLAG_STORE_HOST_V6):
        raise ValueError(f"system flags {sys_flags_allowed:#x} cannot be allowed in a batch")
    sizes = np.asarray(lengths)
    if sizes.ndim != 1 or len(sizes) == 0:
        raise BatchError(BatchFault.EMPTY, 0, "the batch has no records")
    sizes = sizes.astype(np.int64)
    if len(sizes) <= FEW_RECORDS_MAX and topic not in _DELAYED_TOPICS:
        layout = _layout_of_few(
            frames,
            sizes,
            topic=topic,
            queue_id=queue_id,
            body_bytes_max=body_bytes_max,
            properties_bytes_max=properties_bytes_max,
            record_bytes_max=record_bytes_max,
            sys_flags_allowed=sys_flags_allowed,
            sources_allowed=sources_allowed,
        )
        if layout is not None:
            return layout
    return _layout_of_many(
        frames,
        sizes,
        topic=topic,
        queue_id=queue_id,
        body_bytes_max=body_bytes_max,
        properties_bytes_max=properties_bytes_max,
        record_bytes_max=record_bytes_max,
        sys_flags_allowed=sys_flags_allowed,
        sources_allowed=sources_allowed,
        delay_levels_ms=delay_levels_ms,
    )


def _layout_of_many(
    frames: bytes,
    sizes: NDArray[np.int64],
    *,
    topic: bytes,
    queue_id: int,
    body_bytes_max: int,
    properties_bytes_max: int,
    record_bytes_max: int,
    sys_flags_allowed: int,
    sources_allowed: bool,
    delay_levels_ms: Sequence[int],
) -> BatchLayout:
    """Check all records at once, column by column."""
    starts, total = _starts(frames, sizes)
    parts = locate(frames, starts)
    prefix = parts.prefix
    magics, flags = prefix["magic"], prefix["sys_flag"]
    _refuse(BatchFault.MAGIC, (magics != MAGIC_V1) & (magics != MAGIC_V2), "unknown magic")
    _refuse(BatchFault.STORE_HOST, flags & SYS_FLAG_STORE_HOST_V6 != 0, "the store host is IPv6")
    _refuse(BatchFault.SYS_FLAG, flags & ~sys_flags_allowed != 0, "a forbidden system flag")
    wrong_size = (
        (prefix["size"] != sizes)
        | (parts.computed_sizes != sizes)
        | (parts.body_lengths < 0)
        | (parts.topic_lengths < 0)
        | (parts.properties_lengths < 0)
    )
    _refuse(BatchFault.SIZE, wrong_size, "the parts do not add up to the record's size")
    _refuse(BatchFault.QUEUE, prefix["queue_id"] != queue_id, f"not of queue {queue_id}")
    _refuse(BatchFault.TOPIC, _other_topic(frames, parts, topic), "of another topic")
    has_room = _rooms(frames, starts + sizes, parts)
    properties_lengths = parts.properties_lengths - PROPERTY_CRC_BYTES * has_room
    for fault, found_bytes, limit in (
        (BatchFault.BODY_TOO_LARGE, parts.body_lengths, body_bytes_max),
        (BatchFault.PROPERTIES_TOO_LARGE, properties_lengths, properties_bytes_max),
        (BatchFault.RECORD_TOO_LARGE, sizes, record_bytes_max),
    ):
        _refuse(fault, found_bytes > limit, f"more than {limit} bytes")
    _refuse_wrong_bodies(frames, parts)
    if not sources_allowed:
        _refuse_sources(frames, parts)
    return BatchLayout(
        starts=starts,
        lengths=sizes,
        tag_codes=(tags_codes if topic != _TIMER_TOPIC else _timer_codes)(frames, parts),
        store_positions=starts + AT_STORE_TIMESTAMP_V4 + parts.born_extra_bytes,
        properties_lengths=parts.properties_lengths,
        has_room=has_room,
        total_bytes=total,
        delays_ms=_delays_ms(frames, parts, delay_levels_ms) if topic == _SCHEDULE_TOPIC else None,
    )


def _starts(frames: bytes, sizes: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Where each record begins, and the bytes of all: sizes must add up to the frames."""
    _refuse(BatchFault.LENGTHS, sizes < RECORD_BYTES_MIN, "shorter than any record")
    ends = np.cumsum(sizes)
    total = int(ends[-1])
    # Sizes above 2^31 could wrap the sum.
    _refuse(BatchFault.LENGTHS, sizes > len(frames), "longer than the batch")
    if total != len(frames):
        raise BatchError(
            BatchFault.LENGTHS, 0, f"lengths add up to {total}, the batch has {len(frames)} bytes"
        )
    return ends - sizes, total


def _layout_of_few(
    frames: bytes,
    sizes: NDArray[np.int64],
    *,
    topic: bytes,
    queue_id: int,
    body_bytes_max: int,
    properties_bytes_max: int,
    record_bytes_max: int,
    sys_flags_allowed: int,
    sources_allowed: bool,
) -> BatchLayout | None:
    """Check a few records one by one; None at any doubt, for `check_batch` to name the reason."""
    codes = []
    store_positions = []
    properties_lengths = []
    at = 0
    for size in sizes.tolist():
        if not RECORD_BYTES_MIN <= size <= record_bytes_max or at + size > len(frames):
            return None
        own_size, magic, crc, own_queue_id, _, _, _, sys_flag, _ = _PREFIX.unpack_from(frames, at)
        if own_size != size or own_queue_id != queue_id or sys_flag & ~sys_flags_allowed:
            return None
        if magic == MAGIC_V1 and len(topic) <= TOPIC_V1_BYTES_MAX:
            topic_part = len(topic).to_bytes() + topic
        elif magic == MAGIC_V2 and len(topic) <= TOPIC_V2_BYTES_MAX:
            topic_part = len(topic).to_bytes(2) + topic
        else:
            return None
        extra = HOST_V6_EXTRA_BYTES if sys_flag & SYS_FLAG_BORN_HOST_V6 else 0
        body_start = at + AT_BODY_V4 + extra
        end = at + size
        if body_start > end:
            return None
        prepared_offset, body_bytes = _PREPARED_AND_BODY_BYTES.unpack_from(
            frames, body_start - _PREPARED_AND_BODY_BYTES.size
        )
        if prepared_offset and not sources_allowed:
            return None
        properties_start = body_start + body_bytes + len(topic_part) + _SHORT.size
        if not 0 <= body_bytes <= body_bytes_max or properties_start > end:
            return None
        body_end = body_start + body_bytes
        (properties_bytes,) = _SHORT.unpack_from(frames, properties_start - _SHORT.size)
        if properties_bytes > properties_bytes_max:
            # Unless that is the room for a checksum; whoever sends so much is in no hurry.
            return None
        if (
            properties_bytes < 0
            # Bytes behind the properties would be stored, and no reader decodes them.
            or properties_start + properties_bytes != end
            or not frames.startswith(topic_part, body_end)
            or zlib.crc32(frames[body_start:body_end]) & CRC_MASK != crc
        ):
            return None
        codes.append(tags_code(find_value(frames[properties_start:end], PROPERTY_TAGS) or ""))
        store_positions.append(at + AT_STORE_TIMESTAMP_V4 + extra)
        properties_lengths.append(properties_bytes)
        at = end
    if at != len(frames):
        return None
    ends = np.cumsum(sizes)
    lengths_of_properties = np.array(properties_lengths, np.int64)
    has_room, mangled = room_of(frames, ends, lengths_of_properties)
    if mangled.any():
        return None
    return BatchLayout(
        starts=ends - sizes,
        lengths=sizes,
        tag_codes=np.array(codes, np.int64),
        store_positions=np.array(store_positions, np.int64),
        properties_lengths=lengths_of_properties,
        has_room=has_room,
        total_bytes=at,
    )


def _refuse(reason: BatchFault, wrong: NDArray[Any], message: str) -> None:
    if wrong.any():
        raise BatchError(reason, int(wrong.argmax()), message)


def _other_topic(frames: bytes, parts: Parts, topic: bytes) -> NDArray[np.bool_]:
    other: NDArray[np.bool_] = parts.topic_lengths != len(topic)
    if not topic or other.any():
        return other
    # One comparison of all names as bytes is enough for nearly every batch; only a batch that has
    # another topic in it pays for finding out which record that is.
    found = sliding(frames, f"V{len(topic)}")[parts.topic_starts]
    if found.tobytes() == topic * len(other):
        return other
    letters = found.view(np.uint8).reshape(len(other), len(topic))
    differs = letters != np.frombuffer(topic, np.uint8)
    wrong: NDArray[np.bool_] = differs.any(1)
    return wrong


def _rooms(frames: bytes, ends: NDArray[np.int64], parts: Parts) -> NDArray[np.bool_]:
    """Which records have room for a checksum."""
    has_room, mangled = room_of(frames, ends, parts.properties_lengths)
    _refuse(BatchFault.CHECKSUM, mangled, "its last property resembles a checksum and is none")
    return has_room


def _refuse_wrong_bodies(frames: bytes, parts: Parts) -> None:
    found = crcs(frames, parts.body_starts, parts.body_lengths) & CRC_MASK
    wrong = found != parts.prefix["body_crc"]
    _refuse(BatchFault.BODY_CRC, wrong, "the body does not have its CRC")


def _refuse_sources(frames: bytes, parts: Parts) -> None:
    at = parts.starts + AT_PREPARED_OFFSET_V4 + parts.hosts_extra_bytes
    # Zero looks the same in any byte order.
    prepared = sliding(frames, np.int64)[at]
    if prepared.any():
        _refuse(BatchFault.SOURCE, prepared != 0, "it names another record as its source")


def _timer_codes(frames: bytes, parts: Parts) -> NDArray[np.int64]:
    codes = tags_codes(frames, parts)
    sections = slices(frames, parts.properties_starts, parts.properties_lengths)
    for index, section in enumerate(sections):
        codes[index] = timer_deliver_ms(section) or codes[index]
    return codes


def _delays_ms(frames: bytes, parts: Parts, delay_levels_ms: Sequence[int]) -> NDArray[np.int64]:
    sections = slices(frames, parts.properties_starts, parts.properties_lengths)
    delays = np.zeros(len(sections), np.int64)
    for index, section in enumerate(sections):
        level = decode(section).get(PROPERTY_DELAY_TIME_LEVEL)
        if level is None:
            continue
        try:
            delays[index] = delay_of_level_ms(parse_java_int(level), delay_levels_ms)
        except ValueError as error:
            raise BatchError(BatchFault.DELAY_LEVEL, index, str(error)) from error
    return delays


def with_checksums(frames: bytes, layout: BatchLayout) -> tuple[bytes, BatchLayout]:
    """Make room for a checksum in every record that has none, and is not too long for it.

    The records become longer by it: where each is in the log is not what their sender can tell.

    Args:
        frames: what was checked.
        layout: from `check_batch` of it.

    Returns:
        The frames and their layout, the same if all have room.
    """
    if layout.has_room.all():
        return frames, layout
    ends = layout.starts + layout.lengths
    short = ~layout.has_room & (layout.properties_lengths <= PROPERTIES_CHECKED_BYTES_MAX)
    last = np.frombuffer(frames, np.uint8)[ends - 1]
    # A record without properties ends with their length: its last byte says nothing about them.
    unfinished = short & (layout.properties_lengths > 0) & (last != PROPERTY_SEPARATOR[0])
    tails = (b"", PROPERTY_CRC_ROOM, PROPERTY_SEPARATOR + PROPERTY_CRC_ROOM)
    kinds = short.astype(np.int64) + unfinished
    added = np.array(list(map(len, tails)), np.int64)[kinds]
    pieces: list[bytes] = [b""] * (2 * layout.count)
    pieces[0::2] = slices(frames, layout.starts, layout.lengths)
    pieces[1::2] = map(tails.__getitem__, kinds.tolist())
    lengths = layout.lengths + added
    properties_lengths = layout.properties_lengths + added
    ends = np.cumsum(lengths)
    starts = ends - lengths
    longer = bytearray().join(pieces)
    data = np.frombuffer(longer, np.uint8)
    # The checksum covers both lengths, so they change here, before `patch_batch` works it out.
    sliding(data, ">i4")[starts] = lengths
    sliding(data, ">i2")[ends - properties_lengths - _SHORT.size] = properties_lengths
    return bytes(longer), replace(
        layout,
        starts=starts,
        lengths=lengths,
        store_positions=layout.store_positions - layout.starts + starts,
        properties_lengths=properties_lengths,
        has_room=layout.has_room | short,
        total_bytes=len(longer),
    )


def patch_batch(
    buffer: NDArray[np.uint8],
    layout: BatchLayout,
    *,
    first_queue_offset: int,
    first_physical_offset: int,
    store_timestamp_ms: int,
    store_host: bytes,
) -> None:
    """Write the fields that only the broker knows into every record, in place.

    Then the checksum is known too: it is written where there is room for one.

    Args:
        buffer: the frames that were checked, writable, uint8[total_bytes].
        layout: from `check_batch` of the same frames.
        first_queue_offset: queue offset of the first record; the rest count up from it.
        first_physical_offset: CommitLog position of the first record.
        store_timestamp_ms: epoch milliseconds.
        store_host: 8 bytes (`record.encode_host` of an IPv4 address).
    """
    if len(store_host) != HOST_V4_BYTES:
        raise ValueError(f"a store host of {len(store_host)} bytes, not {HOST_V4_BYTES}")
    if len(buffer) != layout.total_bytes:
        raise ValueError(f"a buffer of {len(buffer)} bytes for a batch of {layout.total_bytes}")
    count = layout.count
    offsets = np.empty(count, _OFFSETS)
    offsets["queue_offset"] = np.arange(first_queue_offset, first_queue_offset + count)
    offsets["physical_offset"] = layout.starts + first_physical_offset
    # Plain void items of 16 bytes are copied whole; structured ones would go field by field.
    items = sliding(buffer, "V16")
    # Queue offset and physical offset are neighbours in every record, and so are store timestamp
    # and store host: one copy for each pair.
    items[layout.starts + AT_QUEUE_OFFSET] = offsets.view("V16")
    store = np.zeros((), _STORE)
    store["timestamp"] = store_timestamp_ms
    store["host"] = np.void(store_host)
    items[layout.store_positions] = np.void(store.tobytes())
    # Last: the checksum covers what was just written.
    _write_checksums(buffer, layout)


def _write_checksums(buffer: NDArray[np.uint8], layout: BatchLayout) -> None:
    starts, lengths = layout.starts, layout.lengths
    if not layout.has_room.all():
        starts, lengths = starts[layout.has_room], lengths[layout.has_room]
    if not len(starts):
        return
    lengths = lengths - PROPERTY_CRC_BYTES
    digits = digits_of(crcs(buffer, starts, lengths) & CRC_MASK)
    items = sliding(buffer, f"V{PROPERTY_CRC_DIGITS}")
    items[starts + lengths + AT_DIGITS] = digits.view(items.dtype)[:, 0]


def queue_entries(
    layout: BatchLayout, first_physical_offset: int, store_timestamp_ms: int | None = None
) -> EntryArray:
    """Return the batch's ConsumeQueue entries, structured, n of 20 bytes.

    Args:
        layout: from `check_batch`.
        first_physical_offset: CommitLog position of the first record.
        store_timestamp_ms: needed for SCHEDULE_TOPIC_XXXX, whose entries hold deliver times.
    """
    codes = layout.tag_codes
    if layout.delays_ms is not None:
        if store_timestamp_ms is None:
            raise ValueError("entries of delayed messages need the store timestamp")
        # As in RocketMQ, whose schedule reads from the entry when a message is due.
        codes = np.where(layout.delays_ms > 0, store_timestamp_ms + layout.delays_ms, codes)
    return encode_entries(layout.starts + first_physical_offset, layout.lengths, codes)
