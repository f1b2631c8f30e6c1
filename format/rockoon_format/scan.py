"""Walks a CommitLog file with the rules of recovery.

The rules are those of CommitLog#checkMessageAndReturnSize: stop at the first bytes that are not a
whole, undamaged record. The physical offset in a record is not compared with its real position.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rockoon_format import kernel
from rockoon_format.checksums import PROPERTIES_CHECKED_BYTES_MAX, compare
from rockoon_format.delay_levels import (
    DELAY_LEVELS_MS,
    delay_of_level_ms,
    parse_java_int,
    timer_deliver_ms,
)
from rockoon_format.frames import Parts, locate, slices, sliding, tags_codes
from rockoon_format.names import SCHEDULE_TOPIC, TIMER_TOPIC
from rockoon_format.properties import PROPERTY_DELAY_TIME_LEVEL, decode
from rockoon_format.record import (
    AT_STORE_TIMESTAMP_V4,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SYS_FLAGS_UNLISTED,
    Buffer,
)

_SIZE = struct.Struct(">i")
_SIZE_AND_MAGIC = struct.Struct(">ii")
# After this many records of one size, up to this many more of the same size are found together.
_RUN_RECORDS_MIN = 16
_RUN_RECORDS_MAX = 512
RECORDS_MAX_DEFAULT = 4096
# A call reads at most this many bytes after its first record, for any `records_max`.
CHUNK_BYTES_MAX = 8 * 2**20
# The kernel reads a copy, whose size is estimated with this minimum for a record, and this margin.
_RECORD_BYTES_GUESS = 320
_WINDOW_BYTES_MIN = 1 << 16


class ScanEnd(Enum):
    """Why a scan stopped at its position."""

    LIMIT = "limit"
    """More records may follow: call again from the position."""
    END = "end"
    """Every byte up to the given end belongs to a record."""
    BLANK = "blank"
    """The file is closed: the next record is in the next file."""
    ZERO = "zero"
    """Size and magic are zero: nothing was written here."""
    BAD_MAGIC = "bad magic"
    TRUNCATED = "truncated"
    """The record's size exceeds the remaining bytes, or fewer than 8 bytes are left."""
    SIZE_MISMATCH = "size mismatch"
    """The parts do not add up to the record's size: a half-written record."""
    BAD_CRC = "bad crc"
    """The checksum does not match the record, or the CRC does not match the body."""
    NO_CHECKSUM = "no checksum"
    """The record should have a checksum and has none: its end was not written."""
    BAD_DELAY_LEVEL = "bad delay level"
    """A record of SCHEDULE_TOPIC_XXXX whose DELAY is not a number; RocketMQ stops here too."""


_COMPILED_ENDS = (
    ScanEnd.LIMIT,
    ScanEnd.END,
    ScanEnd.BLANK,
    ScanEnd.ZERO,
    ScanEnd.BAD_MAGIC,
    ScanEnd.TRUNCATED,
    ScanEnd.SIZE_MISMATCH,
    ScanEnd.BAD_CRC,
    ScanEnd.NO_CHECKSUM,
    None,
)
"""Meanings of the kernel's end numbers; the last one means that it needs more bytes."""
_COMPILED_FIELDS = 11


@dataclass(frozen=True, slots=True)
class Scan:
    """Whole records in order, as columns of n items; does not refer to the buffer."""

    offsets: NDArray[np.int64]
    """Position of each record in the scanned buffer."""
    sizes: NDArray[np.int64]
    topics: list[bytes]
    """Distinct topics, in order of appearance."""
    topic_numbers: NDArray[np.int64]
    """Index in `topics` of each record's topic."""
    queue_ids: NDArray[np.int64]
    queue_offsets: NDArray[np.int64]
    physical_offsets: NDArray[np.int64]
    """As stored in the record, not verified."""
    store_timestamps_ms: NDArray[np.int64]
    sys_flags: NDArray[np.int64]
    tag_codes: NDArray[np.int64]
    """Codes of queue entries: hash of the tags, or the deliver time of a delayed record.

    Empty if the scan was called without `with_tag_codes`.
    """
    has_queue_entry: NDArray[np.bool_]
    """False for prepared and rolled-back records: no ConsumeQueue lists them."""
    properties_starts: NDArray[np.int64]
    """Position of each record's properties in the buffer."""
    properties_lengths: NDArray[np.int64]
    end: ScanEnd
    position: int
    """Position at which the scan stopped: the end of the last whole record."""

    @property
    def count(self) -> int:
        return len(self.offsets)

    def between(self, first: int, end: int) -> "Scan":
        """Return the records with the given indices; `end` and `position` are unchanged."""
        columns: dict[str, Any] = {
            each.name: column[first:end]
            for each in fields(self)
            if isinstance(column := getattr(self, each.name), np.ndarray)
        }
        return replace(self, **columns)


def scan(
    buffer: Buffer,
    position: int,
    end: int,
    *,
    check_crc: bool = True,
    checksums: bool = True,
    checksums_from: int | None = None,
    with_tag_codes: bool = True,
    records_max: int = RECORDS_MAX_DEFAULT,
    delay_levels_ms: Sequence[int] = DELAY_LEVELS_MS,
) -> Scan:
    """Read consecutive records from `position`, at most `records_max`.

    Args:
        buffer: a file, or a part of one; wrap an mmap in a memoryview.
        position: start of the first record.
        end: end of the file or of its known part; `position <= end <= len(buffer)`.
        check_crc: compare checksums, or body CRCs of records without a checksum.
        checksums: False: compare body CRCs only, which is RocketMQ's default.
        checksums_from: from this position on, every record with space for a checksum must have one;
            None if no such position is known.
        with_tag_codes: compute the codes of queue entries, which needs half of the time. False also
            skips the check of delay levels, for records that were scanned before.
        records_max: limit of one call; after `ScanEnd.LIMIT`, call again from `Scan.position`.
        delay_levels_ms: delays of levels 1, 2, ... for SCHEDULE_TOPIC_XXXX.

    Returns:
        The records before the first byte that is not part of one, and why the scan stopped. Damaged
        bytes never raise an error.
    """
    view = memoryview(buffer)
    if not 0 <= position <= end <= len(view) or records_max < 1:
        raise ValueError(f"cannot scan {position} to {end} of {len(view)} bytes")
    levels_ms = delay_levels_ms if with_tag_codes else None
    since = None if checksums_from is None else checksums_from - position
    checks = (check_crc, checksums, since, with_tag_codes)
    found = _scan_by_kernel(buffer, position, end, records_max, checks, levels_ms)
    if found is not None:
        return found
    window, lengths, why, stop = _walk(view, position, end, records_max)
    if not len(lengths):
        return _result(b"", position, _no_parts(), lengths, why, stop, None)
    parts = locate(window, np.cumsum(lengths) - lengths)
    good, fault = _leading_whole(parts, lengths)
    if check_crc and good:
        good, wrong = _leading_right(window, parts, lengths, good, checksums, since)
        fault = wrong or fault
    if fault is not None:
        why, stop = fault, position + int(parts.starts[good])
        parts = locate(window, parts.starts[:good])
    return _result(window, position, parts, lengths[:good], why, stop, levels_ms)


def _walk(
    view: memoryview, position: int, end: int, records_max: int
) -> tuple[bytes, NDArray[np.int64], ScanEnd, int]:
    """Follow the records' size fields; other fields are checked later, for all records together.
    Returns the records' bytes, their sizes, why the walk stopped, and where."""
    sizes: list[int] = []
    unpack = _SIZE_AND_MAGIC.unpack_from
    bytes_end = position + CHUNK_BYTES_MAX
    last_size = alike = 0
    at = position
    while True:
        if at == end:
            why = ScanEnd.END
            break
        if len(sizes) == records_max or at >= bytes_end:
            why = ScanEnd.LIMIT
            break
        if end - at < _SIZE_AND_MAGIC.size:
            why = ScanEnd.TRUNCATED
            break
        size, magic = unpack(view, at)
        if size > end - at:
            why = ScanEnd.TRUNCATED
            break
        if magic not in (MAGIC_V1, MAGIC_V2):
            if magic == MAGIC_BLANK:
                why = ScanEnd.BLANK
            else:
                why = ScanEnd.ZERO if size == 0 and magic == 0 else ScanEnd.BAD_MAGIC
            break
        if size < RECORD_BYTES_MIN:
            why = ScanEnd.SIZE_MISMATCH
            break
        # A wrong size leads to a position without a record. The walk may continue there; the later
        # checks stop at the first record that fails.
        sizes.append(size)
        at += size
        alike = alike + 1 if size == last_size else 0
        last_size = size
        if alike >= _RUN_RECORDS_MIN:
            more = min(_run(view, at - size, end), records_max - len(sizes))
            more = min(more, max(bytes_end - at, 0) // size)
            sizes.extend(repeat(size, more))
            at += more * size
            alike = 0
    # A copy costs one pass over bytes that are read several times, and the file's writer cannot
    # change it between two checks.
    return bytes(view[position:at]), np.array(sizes, np.int64), why, at


def _scan_by_kernel(
    buffer: Buffer,
    position: int,
    end: int,
    records_max: int,
    checks: tuple[bool, bool, int | None, bool],
    delay_levels_ms: Sequence[int] | None,
) -> Scan | None:
    """`scan` by the kernel; None: use the general path. `checks`: compare records; compare
    checksums of whole records; position in the window from which records must have a checksum;
    compute tags codes."""
    view = memoryview(buffer)
    # The kernel reads bytes that no other thread can write: a copy, sized as if all records were as
    # long as the first. If the buffer is bytes and all of it is scanned, no copy is needed.
    whole = buffer if isinstance(buffer, bytes) and position == 0 and end == len(view) else None
    first = _SIZE.unpack_from(view, position)[0] if end - position >= _SIZE.size else 0
    count = records_max * max(first, _RECORD_BYTES_GUESS) + _WINDOW_BYTES_MIN
    count = min(count, CHUNK_BYTES_MAX + _WINDOW_BYTES_MIN)
    while True:
        window = bytes(view[position : min(position + count, end)]) if whole is None else whole
        found = kernel.native.scan(window, end - position, CHUNK_BYTES_MAX, records_max, *checks)
        if found is None:
            return None
        packed, topics, number, stop = found
        why = _COMPILED_ENDS[number]
        if why is not None:
            break
        count *= 2
    columns = np.frombuffer(packed, np.int64).reshape(_COMPILED_FIELDS, -1)
    starts, sizes, topic_numbers, queues, numbers, places, stored_ms, flags = columns[:8]
    codes, properties_starts, properties_lengths = columns[8:]
    records = Scan(
        offsets=starts + position,
        sizes=sizes,
        topics=topics,
        topic_numbers=topic_numbers,
        queue_ids=queues,
        queue_offsets=numbers,
        physical_offsets=places,
        store_timestamps_ms=stored_ms,
        sys_flags=flags,
        tag_codes=codes if delay_levels_ms is not None else np.zeros(0, np.int64),
        has_queue_entry=flags & SYS_FLAGS_UNLISTED == 0,
        properties_starts=properties_starts + position,
        properties_lengths=properties_lengths,
        end=why,
        position=position + stop,
    )
    if delay_levels_ms is None:
        return records
    sections = _Sections(window, properties_starts, properties_lengths)
    bad = _set_due_times(sections, topics, topic_numbers, codes, stored_ms, delay_levels_ms)
    return records if bad is None else _ended_by_delay_level(records, bad)


def sizes_in_place(window: bytes, base: int, end: int, stop: int) -> tuple[NDArray[np.int64], bool]:
    """Follow whole records whose physical offset is their real position; needs the compiled
    kernel.

    Args:
        window: bytes of a file, from a record's start on.
        base: physical offset of the window's first byte.
        end: number of bytes in the file from there on, inside and after the window.
        stop: position in the window; records from here on are not wanted.

    Returns:
        Sizes of the records before the first invalid one, int64[n]; True if that one may continue
        after the window.
    """
    packed, number, _ = kernel.native.chain(window, base, end, stop)
    return np.frombuffer(packed, np.int64), _COMPILED_ENDS[number] is None


def extent_in_place(window: bytes, base: int, end: int) -> tuple[int, bool]:
    """Follow records like `sizes_in_place`, to the last one that is whole in the window. Returns
    its end; True if the next record may continue after the window."""
    position, more = kernel.native.extent(window, base, end)
    return position, more


def _ended_by_delay_level(records: Scan, bad: int) -> Scan:
    """Return the records before one whose delay level is not a number."""
    position = int(records.offsets[bad])
    left = replace(records.between(0, bad), end=ScanEnd.BAD_DELAY_LEVEL, position=position)
    # Topics are numbered in order of appearance.
    return replace(left, topics=records.topics[: int(left.topic_numbers.max(initial=-1)) + 1])


def _run(view: memoryview, at: int, end: int) -> int:
    """Number of whole records that follow the one at a position with equal size and magic."""
    (size,) = _SIZE.unpack_from(view, at)
    count = min((end - at) // size, _RUN_RECORDS_MAX)
    heads = np.ndarray((count,), f"V{_SIZE_AND_MAGIC.size}", view, at, (size,))
    words = np.ascontiguousarray(heads).view(np.uint64)
    other = words != words[0]
    return int(other.argmax()) - 1 if other.any() else count - 1


def _leading_whole(parts: Parts, sizes: NDArray[np.int64]) -> tuple[int, ScanEnd | None]:
    """Number of whole records before the first one that is not, and its fault."""
    mismatch = (parts.computed_sizes != sizes) | (parts.topic_lengths < 0)
    if mismatch.any():
        return int(mismatch.argmax()), ScanEnd.SIZE_MISMATCH
    return len(sizes), None


def _leading_right(
    window: bytes,
    parts: Parts,
    sizes: NDArray[np.int64],
    count: int,
    checksums: bool,
    checksums_from: int | None,
) -> tuple[int, ScanEnd | None]:
    """Number of undamaged records before the first damaged one, and its fault.

    Args:
        count: number of records that are whole.
        checksums, checksums_from: as in `scan`, but a position in the window.
    """
    if count < len(sizes):
        parts, sizes = locate(window, parts.starts[:count]), sizes[:count]
    wrong, whole = compare(window, parts, sizes, checksums=checksums)
    missing = np.zeros(count, np.bool_)
    if checksums_from is not None:
        missing = ~whole & (parts.starts >= checksums_from)
        # Records too long for a checksum were stored without one, and are not torn writes.
        missing &= parts.properties_lengths <= PROPERTIES_CHECKED_BYTES_MAX
    bad = wrong | missing
    if not bad.any():
        return count, None
    first = int(bad.argmax())
    return first, ScanEnd.BAD_CRC if wrong[first] else ScanEnd.NO_CHECKSUM


def _result(
    window: bytes,
    position: int,
    parts: Parts,
    sizes: NDArray[np.int64],
    why: ScanEnd,
    stop: int,
    delay_levels_ms: Sequence[int] | None,
) -> Scan:
    """Return the columns; without tag codes if there are no delay levels."""
    count = len(sizes)
    prefix = parts.prefix
    store_at = parts.starts + AT_STORE_TIMESTAMP_V4 + parts.born_extra_bytes
    stored_ms = (
        sliding(window, ">i8")[store_at].astype(np.int64) if count else np.zeros(0, np.int64)
    )
    topics, topic_numbers = _topics(window, parts)
    codes, bad = np.zeros(0, np.int64), None
    properties_lengths = np.maximum(parts.properties_lengths, 0)
    if delay_levels_ms is not None:
        codes = tags_codes(window, parts)
        sections = _Sections(window, parts.properties_starts, properties_lengths)
        bad = _set_due_times(sections, topics, topic_numbers, codes, stored_ms, delay_levels_ms)
    flags = prefix["sys_flag"].astype(np.int64)
    records = Scan(
        offsets=parts.starts + position,
        sizes=sizes,
        topics=topics,
        topic_numbers=topic_numbers,
        queue_ids=prefix["queue_id"].astype(np.int64),
        queue_offsets=prefix["queue_offset"].astype(np.int64),
        physical_offsets=prefix["physical_offset"].astype(np.int64),
        store_timestamps_ms=stored_ms,
        sys_flags=flags,
        tag_codes=codes,
        has_queue_entry=flags & SYS_FLAGS_UNLISTED == 0,
        properties_starts=parts.properties_starts + position,
        properties_lengths=properties_lengths,
        end=why,
        position=stop,
    )
    return records if bad is None else _ended_by_delay_level(records, bad)


def _topics(window: bytes, parts: Parts) -> tuple[list[bytes], NDArray[np.int64]]:
    """Distinct topics, in order of appearance, and the index of each record's topic."""
    count = len(parts.starts)
    names = slices(window, parts.topic_starts, parts.topic_lengths)
    if count and names.count(names[0]) == count:
        return names[:1], np.zeros(count, np.int64)
    numbers: dict[bytes, int] = {}
    each = (numbers.setdefault(name, len(numbers)) for name in names)
    topic_numbers = np.fromiter(each, np.int64, count)
    return list(numbers), topic_numbers


@dataclass(frozen=True, slots=True)
class _Sections:
    """Properties of n records; starts are positions in the window."""

    window: bytes
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def of(self, record: int) -> bytes:
        start = int(self.starts[record])
        return self.window[start : start + int(self.lengths[record])]


def _set_due_times(
    sections: _Sections,
    topics: list[bytes],
    topic_numbers: NDArray[np.int64],
    codes: NDArray[np.int64],
    stored_ms: NDArray[np.int64],
    delay_levels_ms: Sequence[int],
) -> int | None:
    """Replace the codes of delayed records by their due times. Returns the first record whose delay
    level is not a number, if any."""
    bad = None
    if SCHEDULE_TOPIC.encode() in topics:
        delayed = np.flatnonzero(topic_numbers == topics.index(SCHEDULE_TOPIC.encode()))
        for index in delayed.tolist():
            level = decode(sections.of(index)).get(PROPERTY_DELAY_TIME_LEVEL)
            if level is None:
                continue
            try:
                delay_ms = delay_of_level_ms(parse_java_int(level), delay_levels_ms)
            except ValueError:
                bad = int(index)
                break
            if delay_ms:
                codes[index] = stored_ms[index] + delay_ms
    if TIMER_TOPIC.encode() in topics:
        timed = topic_numbers == topics.index(TIMER_TOPIC.encode())
        for index in np.flatnonzero(timed).tolist():
            codes[index] = timer_deliver_ms(sections.of(index)) or codes[index]
    return bad


def _no_parts() -> Parts:
    return locate(bytes(RECORD_BYTES_MIN), np.zeros(0, np.int64))
