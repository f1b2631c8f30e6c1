"""Walking a CommitLog file as recovery does.

The rules are those of CommitLog#checkMessageAndReturnSize: stop at the first bytes that are not a
whole, undamaged record. PHYSICALOFFSET is not compared with the real position.
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
# Behind so many records of one size, a run of equal ones is looked for, so far.
_RUN_RECORDS_MIN = 16
_RUN_RECORDS_MAX = 512
RECORDS_MAX_DEFAULT = 4096
# A call looks at no more than this beyond its first record, however many records were asked for.
CHUNK_BYTES_MAX = 8 * 2**20


# The compiled kernel copies before it walks: at first for so long records, so many bytes at least.
_RECORD_BYTES_GUESS = 320
_WINDOW_BYTES_MIN = 1 << 16
_SCAN_COLUMNS = 10


class ScanEnd(Enum):
    """Why a scan stopped at its position."""

    LIMIT = "limit"
    """More may follow: call again from the position."""
    END = "end"
    """Every byte up to the given end belongs to a record."""
    BLANK = "blank"
    """The file is closed: the next record is in the next file."""
    ZERO = "zero"
    """Size and magic are zero: nothing was ever written here."""
    BAD_MAGIC = "bad magic"
    TRUNCATED = "truncated"
    """The record says more bytes than there are, or fewer than 8 are left."""
    SIZE_MISMATCH = "size mismatch"
    """The parts do not add up to the record's size: a half-written record."""
    BAD_CRC = "bad crc"
    """The record is not what its checksum is of, or its body not what its CRC is of."""
    NO_CHECKSUM = "no checksum"
    """The record should have a checksum and has none: the end of it was not written."""
    BAD_DELAY_LEVEL = "bad delay level"
    """A record of SCHEDULE_TOPIC_XXXX whose DELAY is no number; a Java broker stops here too."""


_WALK_ENDS = (
    ScanEnd.LIMIT,
    ScanEnd.END,
    ScanEnd.BLANK,
    ScanEnd.ZERO,
    ScanEnd.BAD_MAGIC,
    ScanEnd.TRUNCATED,
    ScanEnd.SIZE_MISMATCH,
    None,
)
"""What the compiled kernel's numbers mean; the last one that it has to see more bytes."""


@dataclass(frozen=True, slots=True)
class Scan:
    """Whole records in order, as columns of n items; nothing in it refers to the buffer."""

    offsets: NDArray[np.int64]
    """Position of each record in the buffer that was scanned."""
    sizes: NDArray[np.int64]
    topics: list[bytes]
    """Distinct topics, in order of appearance."""
    topic_numbers: NDArray[np.int64]
    """Which of `topics` each record names."""
    queue_ids: NDArray[np.int64]
    queue_offsets: NDArray[np.int64]
    physical_offsets: NDArray[np.int64]
    """As stored in the record, not verified."""
    store_timestamps_ms: NDArray[np.int64]
    sys_flags: NDArray[np.int64]
    tag_codes: NDArray[np.int64]
    """What a queue entry holds: hash of the tags, or the deliver time of a delayed record.

    Empty if the scan was not asked for them.
    """
    has_queue_entry: NDArray[np.bool_]
    """False for prepared and rolled-back records: no ConsumeQueue lists them."""
    properties_starts: NDArray[np.int64]
    """Position of each record's properties in the buffer."""
    properties_lengths: NDArray[np.int64]
    end: ScanEnd
    position: int
    """Where the scan stopped: the byte behind the last whole record."""

    @property
    def count(self) -> int:
        return len(self.offsets)

    def between(self, first: int, end: int) -> "Scan":
        """Some of the records, by their indices; where the scan stopped, and why, stays."""
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
        position: where the first record starts.
        end: where the file, or what is known of it, ends; `position <= end <= len(buffer)`.
        check_crc: compare checksums, and body CRCs where there is none.
        checksums: without, body CRCs alone, as RocketMQ does it unless told otherwise.
        checksums_from: every record from this position on has a checksum if it has room for one;
            None when that is not known of any.
        with_tag_codes: work out what the queue entries hold, which takes half of the time. Without,
            delay levels are not looked at either: for records that were scanned before.
        records_max: bound of one call; with `ScanEnd.LIMIT`, call again from `Scan.position`.
        delay_levels_ms: delays of levels 1, 2, ... for SCHEDULE_TOPIC_XXXX.

    Returns:
        The records before the first byte that belongs to none, and why it stopped. Never raises
        for anything the bytes hold.
    """
    view = memoryview(buffer)
    if not 0 <= position <= end <= len(view) or records_max < 1:
        raise ValueError(f"cannot scan {position} to {end} of {len(view)} bytes")
    walk = _walk if kernel.native is None else _walk_compiled
    window, lengths, why, stop = walk(buffer, position, end, records_max)
    if not len(lengths):
        return _result(b"", position, _no_parts(), lengths, why, stop, None)
    if kernel.native is not None and checksums_from is None:
        check = checksums if check_crc else None
        levels_ms = delay_levels_ms if with_tag_codes else None
        made = _scan_compiled(window, position, lengths, why, stop, check, levels_ms)
        if made is not None:
            return made
    parts = locate(window, np.cumsum(lengths) - lengths)
    good, fault = _leading_whole(parts, lengths)
    if check_crc and good:
        since = None if checksums_from is None else checksums_from - position
        good, wrong = _leading_right(window, parts, lengths, good, checksums, since)
        fault = wrong or fault
    if fault is not None:
        why, stop = fault, position + int(parts.starts[good])
        parts = locate(window, parts.starts[:good])
    levels_ms = delay_levels_ms if with_tag_codes else None
    return _result(window, position, parts, lengths[:good], why, stop, levels_ms)


def _walk(
    buffer: Buffer, position: int, end: int, records_max: int
) -> tuple[bytes, NDArray[np.int64], ScanEnd, int]:
    """Follow the records' own sizes; their other fields are checked afterwards, all at once.

    Returns:
        The records' bytes, their sizes, why it stopped, and where.
    """
    view = memoryview(buffer)
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
        # A wrong size leads to a place where no record begins. That does not end the walk for sure;
        # the checks of what was walked do, which go up to the first record that fails.
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
    # A copy is one pass over bytes that are read several times, and what the file's writer does
    # meanwhile cannot come between two checks.
    return bytes(view[position:at]), np.array(sizes, np.int64), why, at


def _walk_compiled(
    buffer: Buffer, position: int, end: int, records_max: int
) -> tuple[bytes, NDArray[np.int64], ScanEnd, int]:
    """As `_walk`; it copies first, and more if that was not enough. Bytes are not copied: nobody
    changes them, and the records are what they begin with."""
    assert kernel.native is not None
    walk, left = kernel.native.walk, end - position
    if position == 0 and isinstance(buffer, bytes) and end == len(buffer):
        sizes, number, stop = walk(buffer, left, CHUNK_BYTES_MAX, records_max)
        why = _WALK_ENDS[number]
        assert why is not None, "there are no more bytes"
        return buffer, np.frombuffer(sizes, np.int64), why, stop
    view = memoryview(buffer)
    count = max(min(records_max * _RECORD_BYTES_GUESS, CHUNK_BYTES_MAX), _WINDOW_BYTES_MIN)
    while True:
        window = bytes(view[position : min(position + count, end)])
        sizes, number, stop = walk(window, left, CHUNK_BYTES_MAX, records_max)
        why = _WALK_ENDS[number]
        if why is not None:
            return window[:stop], np.frombuffer(sizes, np.int64), why, position + stop
        count *= 2


def _scan_compiled(
    window: bytes,
    position: int,
    sizes: NDArray[np.int64],
    why: ScanEnd,
    stop: int,
    check: bool | None,
    delay_levels_ms: Sequence[int] | None,
) -> Scan | None:
    """The columns of records that are all right, in one pass; None at any doubt.

    Args:
        window: begins with the records, of `sizes`.
        position, why, stop: as of `_result`.
        check: whether checksums are compared, and those of whole records too; None: neither.
        delay_levels_ms: as of `_result`.
    """
    assert kernel.native is not None
    found = kernel.native.scan(window, sizes.tobytes(), check, delay_levels_ms is not None)
    if found is None:
        return None
    topics, made = found
    columns = np.frombuffer(made, np.int64).reshape(_SCAN_COLUMNS, len(sizes))
    starts, numbers, queue_ids, queue_offsets, physical = columns[:5]
    stored_ms, flags, codes, at, lengths = columns[5:]
    if delay_levels_ms is None:
        codes = codes[:0]
    elif (
        _set_delayed(window, at, lengths, topics, numbers, codes, stored_ms, delay_levels_ms)
        is not None
    ):
        return None
    return Scan(
        offsets=starts + position,
        sizes=sizes,
        topics=topics,
        topic_numbers=numbers,
        queue_ids=queue_ids,
        queue_offsets=queue_offsets,
        physical_offsets=physical,
        store_timestamps_ms=stored_ms,
        sys_flags=flags,
        tag_codes=codes,
        has_queue_entry=flags & SYS_FLAGS_UNLISTED == 0,
        properties_starts=at + position,
        properties_lengths=lengths,
        end=why,
        position=stop,
    )


def _run(view: memoryview, at: int, end: int) -> int:
    """How many whole records follow the one at a position with its very size and magic."""
    (size,) = _SIZE.unpack_from(view, at)
    count = min((end - at) // size, _RUN_RECORDS_MAX)
    heads = np.ndarray((count,), f"V{_SIZE_AND_MAGIC.size}", view, at, (size,))
    words = np.ascontiguousarray(heads).view(np.uint64)
    other = words != words[0]
    return int(other.argmax()) - 1 if other.any() else count - 1


def _leading_whole(parts: Parts, sizes: NDArray[np.int64]) -> tuple[int, ScanEnd | None]:
    """How many records are whole before the first that is not, and what is wrong with it."""
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
    """How many of the first records are right before the first that is not, and what is wrong.

    Args:
        count: so many are whole.
        checksums, checksums_from: of `scan`, the position in the window.
    """
    if count < len(sizes):
        parts, sizes = locate(window, parts.starts[:count]), sizes[:count]
    wrong, whole = compare(window, parts, sizes, checksums=checksums)
    missing = np.zeros(count, np.bool_)
    if checksums_from is not None:
        missing = ~whole & (parts.starts >= checksums_from)
        # Those that are too long for one were stored without, and are no torn writes.
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
    """The columns; without tag codes if there are no delay levels."""
    count = len(sizes)
    prefix = parts.prefix
    store_at = parts.starts + AT_STORE_TIMESTAMP_V4 + parts.born_extra_bytes
    stored_ms = (
        sliding(window, ">i8")[store_at].astype(np.int64) if count else np.zeros(0, np.int64)
    )
    topics, topic_numbers = _topics(window, parts)
    codes = np.zeros(0, np.int64)
    if delay_levels_ms is not None:
        codes, bad = _queue_codes(window, parts, topics, topic_numbers, stored_ms, delay_levels_ms)
        if bad is not None:
            kept = locate(window, parts.starts[:bad])
            at = position + int(parts.starts[bad])
            return _result(
                window, position, kept, sizes[:bad], ScanEnd.BAD_DELAY_LEVEL, at, delay_levels_ms
            )
    flags = prefix["sys_flag"].astype(np.int64)
    return Scan(
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
        properties_lengths=np.maximum(parts.properties_lengths, 0),
        end=why,
        position=stop,
    )


def _topics(window: bytes, parts: Parts) -> tuple[list[bytes], NDArray[np.int64]]:
    """Distinct topics, in order of appearance, and which of them each record names."""
    count = len(parts.starts)
    if kernel.native is not None:
        found = kernel.native.topics(
            window, parts.topic_starts.tobytes(), parts.topic_lengths.tobytes()
        )
        if found is not None:
            return found[0], np.frombuffer(found[1], np.int64)
    names = slices(window, parts.topic_starts, parts.topic_lengths)
    if count and names.count(names[0]) == count:
        return names[:1], np.zeros(count, np.int64)
    numbers: dict[bytes, int] = {}
    each = (numbers.setdefault(name, len(numbers)) for name in names)
    topic_numbers = np.fromiter(each, np.int64, count)
    return list(numbers), topic_numbers


def _queue_codes(
    window: bytes,
    parts: Parts,
    topics: list[bytes],
    topic_numbers: NDArray[np.int64],
    stored_ms: NDArray[np.int64],
    delay_levels_ms: Sequence[int],
) -> tuple[NDArray[np.int64], int | None]:
    """What queue entries hold; and the first record whose delay level is no number, if any."""
    codes = tags_codes(window, parts)
    lengths = np.maximum(parts.properties_lengths, 0)
    places = (parts.properties_starts, lengths)
    bad = _set_delayed(window, *places, topics, topic_numbers, codes, stored_ms, delay_levels_ms)
    return codes, bad


def _set_delayed(
    window: bytes,
    properties_starts: NDArray[np.int64],
    properties_lengths: NDArray[np.int64],
    topics: list[bytes],
    topic_numbers: NDArray[np.int64],
    codes: NDArray[np.int64],
    stored_ms: NDArray[np.int64],
    delay_levels_ms: Sequence[int],
) -> int | None:
    """Replace codes of records that wait for a time; return the first one whose level is no number,
    if any."""

    def properties(index: int) -> bytes:
        start = int(properties_starts[index])
        return window[start : start + int(properties_lengths[index])]

    def indices_of(topic: str) -> list[int]:
        if topic.encode() not in topics:
            return []
        found: list[int] = np.flatnonzero(topic_numbers == topics.index(topic.encode())).tolist()
        return found

    for index in indices_of(SCHEDULE_TOPIC):
        level = decode(properties(index)).get(PROPERTY_DELAY_TIME_LEVEL)
        if level is None:
            continue
        try:
            delay_ms = delay_of_level_ms(parse_java_int(level), delay_levels_ms)
        except ValueError:
            return index
        if delay_ms:
            codes[index] = stored_ms[index] + delay_ms
    for index in indices_of(TIMER_TOPIC):
        codes[index] = timer_deliver_ms(properties(index)) or codes[index]
    return None


def _no_parts() -> Parts:
    return locate(bytes(RECORD_BYTES_MIN), np.zeros(0, np.int64))
