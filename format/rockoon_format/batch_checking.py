"""Checks a batch before it is stored: rules, faults, and the layout of a checked batch.

The check must accept exactly the records that recovery accepts, and compute the tags codes of a
ConsumeQueue that is rebuilt from the log: no later step checks the batch again.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rockoon_format import kernel
from rockoon_format.checksums import room_of
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
    PROPERTY_TAGS,
    decode,
    find_value,
)
from rockoon_format.record import (
    AT_BODY_V4,
    AT_PREPARED_OFFSET_V4,
    AT_STORE_TIMESTAMP_V4,
    CRC_MASK,
    HOST_V6_EXTRA_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTY_CRC_BYTES,
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

# A transaction type would make an ordinary send a half message or a rollback; an inner batch would
# hide messages that no queue entry counts; an IPv6 store host moves the fields behind it.
SYS_FLAGS_ALLOWED = (
    SYS_FLAG_COMPRESSED | SYS_FLAG_MULTI_TAGS | SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_COMPRESSION
)
"""Flags allowed for an ordinary producer: no transaction type, inner batch or IPv6 store host."""


class BatchRules(NamedTuple):
    """Requirements for every record of a batch; the fields are those of `check_batch`."""

    topic: bytes
    queue_id: int
    body_bytes_max: int
    properties_bytes_max: int
    record_bytes_max: int
    sys_flags_allowed: int
    sources_allowed: bool
    delay_levels_ms: Sequence[int]


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
    """A refused batch; `index` is the number of the first bad record, 0 for the batch itself."""

    def __init__(self, reason: BatchFault, index: int, message: str) -> None:
        super().__init__(f"record {index}: {message}")
        self.reason = reason
        self.index = index


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Result of `check_batch`: enough to patch and index the batch without reading its bytes."""

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
    """Records with space for a checksum, bool[n]."""
    total_bytes: int
    delays_ms: NDArray[np.int64] | None = None
    """SCHEDULE_TOPIC_XXXX only: delay of each record, int64[n]; 0: the tags code is used."""

    @property
    def count(self) -> int:
        return len(self.starts)


FEW_RECORDS_MAX = 24
"""For at most this many records, a loop is faster than column operations."""

_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
_TIMER_TOPIC = TIMER_TOPIC.encode()
DELAYED_TOPICS = frozenset((_SCHEDULE_TOPIC, _TIMER_TOPIC))
"""Topics whose queue entries may hold times instead of tags codes."""

_PREFIX = struct.Struct(">iiiiiqqiq")
_PREPARED_AND_BODY_BYTES = struct.Struct(">qi")
_SHORT = struct.Struct(">h")
assert _PREFIX.size == PREFIX.itemsize
# Columns of the kernel's result.
_COLUMNS = 5


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
    """Check that a batch may be stored, and compute its queue entries.

    Args:
        frames: back-to-back records, as from `encode_batch`.
        lengths: size of each record in bytes, n integers.
        topic, queue_id: topic and queue that every record must have.
        body_bytes_max, properties_bytes_max, record_bytes_max: limits for each record; the space
            for a checksum does not count.
        sys_flags_allowed: bits that a system flag may have. Prepared and rolled-back records
            have no queue entry and cannot be allowed; committed ones (0x8) can.
        sources_allowed: a record may name its source (prepared transaction offset). This ends the
            source's transaction or delay, so only the broker itself may set it.
        delay_levels_ms: delays of levels 1, 2, ... for records of SCHEDULE_TOPIC_XXXX.

    Returns:
        The layout for `patch_batch` and `queue_entries`.

    Raises:
        BatchError: with the reason, and the index of the first record with this fault.
    """
    if sys_flags_allowed & (TRANSACTION_PREPARED | SYS_FLAG_STORE_HOST_V6):
        raise ValueError(f"system flags {sys_flags_allowed:#x} cannot be allowed in a batch")
    sizes = np.asarray(lengths)
    if sizes.ndim != 1 or len(sizes) == 0:
        raise BatchError(BatchFault.EMPTY, 0, "the batch has no records")
    sizes = sizes.astype(np.int64)
    rules = BatchRules(
        topic,
        queue_id,
        body_bytes_max,
        properties_bytes_max,
        record_bytes_max,
        sys_flags_allowed,
        sources_allowed,
        delay_levels_ms,
    )
    # Entries of delayed messages hold times instead of tags codes; only the columns compute them.
    if topic not in DELAYED_TOPICS:
        layout = _check_by_kernel(frames, sizes, rules)
        if layout is None and len(sizes) <= FEW_RECORDS_MAX:
            layout = _check_few(frames, sizes, rules)
        if layout is not None:
            return layout
    return _check_columns(frames, sizes, rules)


def _check_columns(frames: bytes, sizes: NDArray[np.int64], rules: BatchRules) -> BatchLayout:
    """Check all records, column by column."""
    starts, total = _starts(frames, sizes)
    parts = locate(frames, starts)
    prefix = parts.prefix
    magics, flags = prefix["magic"], prefix["sys_flag"]
    _refuse(BatchFault.MAGIC, (magics != MAGIC_V1) & (magics != MAGIC_V2), "unknown magic")
    _refuse(BatchFault.STORE_HOST, flags & SYS_FLAG_STORE_HOST_V6 != 0, "the store host is IPv6")
    _refuse(BatchFault.SYS_FLAG, flags & ~rules.sys_flags_allowed != 0, "a forbidden system flag")
    wrong_size = (
        (prefix["size"] != sizes)
        | (parts.computed_sizes != sizes)
        | (parts.body_lengths < 0)
        | (parts.topic_lengths < 0)
        | (parts.properties_lengths < 0)
    )
    _refuse(BatchFault.SIZE, wrong_size, "the parts do not add up to the record's size")
    _refuse(
        BatchFault.QUEUE, prefix["queue_id"] != rules.queue_id, f"not of queue {rules.queue_id}"
    )
    _refuse(BatchFault.TOPIC, _other_topic(frames, parts, rules.topic), "of another topic")
    has_room = _rooms(frames, starts + sizes, parts)
    properties_lengths = parts.properties_lengths - PROPERTY_CRC_BYTES * has_room
    for fault, found_bytes, limit in (
        (BatchFault.BODY_TOO_LARGE, parts.body_lengths, rules.body_bytes_max),
        (BatchFault.PROPERTIES_TOO_LARGE, properties_lengths, rules.properties_bytes_max),
        (BatchFault.RECORD_TOO_LARGE, sizes, rules.record_bytes_max),
    ):
        _refuse(fault, found_bytes > limit, f"more than {limit} bytes")
    _refuse_wrong_bodies(frames, parts)
    if not rules.sources_allowed:
        _refuse_sources(frames, parts)
    return BatchLayout(
        starts=starts,
        lengths=sizes,
        tag_codes=(tags_codes if rules.topic != _TIMER_TOPIC else _timer_codes)(frames, parts),
        store_positions=starts + AT_STORE_TIMESTAMP_V4 + parts.born_extra_bytes,
        properties_lengths=parts.properties_lengths,
        has_room=has_room,
        total_bytes=total,
        delays_ms=_delays_ms(frames, parts, rules.delay_levels_ms)
        if rules.topic == _SCHEDULE_TOPIC
        else None,
    )


def _starts(frames: bytes, sizes: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Start of each record, and the total size; the sizes must add up to the frames."""
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


def _refuse(reason: BatchFault, wrong: NDArray[Any], message: str) -> None:
    if wrong.any():
        raise BatchError(reason, int(wrong.argmax()), message)


def _other_topic(frames: bytes, parts: Parts, topic: bytes) -> NDArray[np.bool_]:
    other: NDArray[np.bool_] = parts.topic_lengths != len(topic)
    if not topic or other.any():
        return other
    # For nearly every batch, one comparison of all names as bytes is enough. Only a batch with
    # another topic pays for the search of the first such record.
    found = sliding(frames, f"V{len(topic)}")[parts.topic_starts]
    if found.tobytes() == topic * len(other):
        return other
    letters = found.view(np.uint8).reshape(len(other), len(topic))
    differs = letters != np.frombuffer(topic, np.uint8)
    wrong: NDArray[np.bool_] = differs.any(1)
    return wrong


def _rooms(frames: bytes, ends: NDArray[np.int64], parts: Parts) -> NDArray[np.bool_]:
    """Records that have space for a checksum."""
    has_room, mangled = room_of(frames, ends, parts.properties_lengths)
    _refuse(BatchFault.CHECKSUM, mangled, "its last property resembles a checksum and is not one")
    return has_room


def _refuse_wrong_bodies(frames: bytes, parts: Parts) -> None:
    found = crcs(frames, parts.body_starts, parts.body_lengths) & CRC_MASK
    wrong = found != parts.prefix["body_crc"]
    _refuse(BatchFault.BODY_CRC, wrong, "the CRC does not match the body")


def _refuse_sources(frames: bytes, parts: Parts) -> None:
    at = parts.starts + AT_PREPARED_OFFSET_V4 + parts.hosts_extra_bytes
    # A comparison with zero does not depend on the byte order.
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


def _check_few(frames: bytes, sizes: NDArray[np.int64], rules: BatchRules) -> BatchLayout | None:
    """Check records one by one; None in a doubtful case, so that the column check names the reason.

    Accepts no batch that the column check would refuse. The topic is not one of delayed messages.
    """
    topic, queue_id, body_bytes_max, properties_bytes_max, record_bytes_max = rules[:5]
    topic_parts = _topic_parts(topic)
    codes = []
    store_positions = []
    properties_lengths = []
    at = 0
    for size in sizes.tolist():
        if not RECORD_BYTES_MIN <= size <= record_bytes_max or at + size > len(frames):
            return None
        own_size, magic, crc, own_queue_id, _, _, _, sys_flag, _ = _PREFIX.unpack_from(frames, at)
        if own_size != size or own_queue_id != queue_id or sys_flag & ~rules.sys_flags_allowed:
            return None
        topic_part = topic_parts.get(magic)
        if topic_part is None:
            return None
        extra = HOST_V6_EXTRA_BYTES if sys_flag & SYS_FLAG_BORN_HOST_V6 else 0
        body_start = at + AT_BODY_V4 + extra
        end = at + size
        # An IPv6 host raises the minimum size; a shorter record would read fields of the next one.
        if body_start > end:
            return None
        prepared_offset, body_bytes = _PREPARED_AND_BODY_BYTES.unpack_from(
            frames, body_start - _PREPARED_AND_BODY_BYTES.size
        )
        if prepared_offset and not rules.sources_allowed:
            return None
        properties_start = body_start + body_bytes + len(topic_part) + _SHORT.size
        # Checked before the next read: a wrong length may lead out of the frames.
        if not 0 <= body_bytes <= body_bytes_max or properties_start > end:
            return None
        body_end = body_start + body_bytes
        (properties_bytes,) = _SHORT.unpack_from(frames, properties_start - _SHORT.size)
        if (
            # A longer section is valid if the rest is the checksum's space; the columns check that.
            not 0 <= properties_bytes <= properties_bytes_max
            # Bytes after the properties would be stored, and no reader decodes them.
            or properties_start + properties_bytes != end
            or not frames.startswith(topic_part, body_end)
            or zlib.crc32(frames[body_start:body_end]) & CRC_MASK != crc
        ):
            return None
        codes.append(tags_code(find_value(frames[properties_start:end], PROPERTY_TAGS) or ""))
        store_positions.append(at + AT_STORE_TIMESTAMP_V4 + extra)
        properties_lengths.append(properties_bytes)
        at = end
    ends = np.cumsum(sizes)
    lengths_of_properties = np.array(properties_lengths, np.int64)
    has_room, mangled = room_of(frames, ends, lengths_of_properties)
    if at != len(frames) or mangled.any():
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


def _topic_parts(topic: bytes) -> dict[int, bytes]:
    """Return the encoded topic field of a record (length, then name), by the record's magic. A
    magic whose length field is too small for the topic is left out."""
    parts = {}
    if len(topic) <= TOPIC_V1_BYTES_MAX:
        parts[MAGIC_V1] = len(topic).to_bytes() + topic
    if len(topic) <= TOPIC_V2_BYTES_MAX:
        parts[MAGIC_V2] = len(topic).to_bytes(2) + topic
    return parts


def _check_by_kernel(
    frames: bytes, sizes: NDArray[np.int64], rules: BatchRules
) -> BatchLayout | None:
    """`_check_few` for any number of records."""
    found = kernel.native.check_batch(bytes(frames), sizes.tobytes(), *rules[:7])
    if found is None:
        return None
    count = len(sizes)
    columns = np.frombuffer(found, np.int64, _COLUMNS * count).reshape(_COLUMNS, count)
    return BatchLayout(
        starts=columns[0],
        lengths=columns[1],
        tag_codes=columns[2],
        store_positions=columns[3],
        properties_lengths=columns[4],
        has_room=np.frombuffer(found, np.bool_, count, _COLUMNS * count * columns.itemsize),
        total_bytes=len(frames),
    )
