"""Scan of a partition: the records of any range of a CommitLog file, without an index.

A record contains its own physical offset, so a record start can be proved in the middle of a file:
magic at +4, physical offset at +28, lengths of the parts that add up to the size. So a file may be
divided anywhere: a partition has the records that *start* in it, and reports the damage that
follows one of them.

The chain of records of a partition without damage is found by walks from many positions at the same
time. Each walk begins at a proven record start and follows the sizes; all walks advance together,
in one NumPy operation per step. The result is verified: the records have no gap, the lengths of
their parts add up to their size, and each is at the physical offset that it names. If this fails,
the partition is scanned record by record. The compiled kernel does all this in one walk.

Bodies are not verified here: tasks that read bodies verify their checksums (`columns`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rockoon_format import kernel
from rockoon_format.frames import IntArray, locate, sliding
from rockoon_format.record import (
    AT_MAGIC,
    HEAD_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    record_heads,
)
from rockoon_format.scan import RECORDS_MAX_DEFAULT, ScanEnd, scan, sizes_in_place
from rockoon_spark.records.window import touch_pages

Bytes = NDArray[np.uint8]

# Size and magic of a blank, or as many zeros.
_END_BYTES = 8
_FIRST_WINDOW_BYTES = 4096
_WINDOW_BYTES_MAX = 1 << 20
# Windows of many searches in one array operation. Most records are shorter than the first window;
# if no record starts in the last one, that search continues alone.
_SHARED_WINDOWS_BYTES = (1024, 8192)
_MAGIC_FIRST_BYTE = MAGIC_V1.to_bytes(4, signed=True)[0]


assert MAGIC_V2.to_bytes(4, signed=True)[0] == _MAGIC_FIRST_BYTE


def first_record(
    buffer: Bytes, base: int, start: int, stop: int, *, has_more: bool = False
) -> int | None:
    """Return the position of the first record that starts in [start, stop); None if there is none.

    Args:
        buffer: bytes of a CommitLog file.
        base: physical offset of the buffer's first byte.
        has_more: True if the file continues after the buffer; then a record that is cut off by the
            end of the buffer is accepted.
    """
    view = buffer.data
    position, window_bytes = start, _FIRST_WINDOW_BYTES
    while position < stop:
        window = bytes(view[position : min(position + window_bytes, len(view))])
        for head in record_heads(window, base + position):
            candidate = head - base
            if candidate >= stop:
                return None
            if _is_record(buffer, candidate, has_more=has_more):
                return candidate
        if position + len(window) >= len(view):
            return None
        # Windows overlap, because a head may extend beyond a window's end.
        position += len(window) - HEAD_BYTES + 1
        window_bytes = min(window_bytes * 4, _WINDOW_BYTES_MAX)
    return None


def _is_record(buffer: Bytes, position: int, *, has_more: bool) -> bool:
    size = int.from_bytes(buffer[position : position + 4].tobytes(), signed=True)
    if size > len(buffer) - position:
        return has_more
    if size < RECORD_BYTES_MIN:
        return False
    parts = locate(buffer, np.array([position], np.int64))
    return int(parts.computed_sizes[0]) == size and int(parts.topic_lengths[0]) >= 0


def first_records(buffer: Bytes, base: int, bounds: IntArray, stop: int) -> IntArray:
    """Return the first record at or after each position, without duplicates, ascending.

    Args:
        bounds: positions, ascending.
        stop: position at which the search ends.
    """
    found = np.full(len(bounds), -1, np.int64)
    for window_bytes in _SHARED_WINDOWS_BYTES:
        missing = np.flatnonzero(found < 0)
        within = missing[bounds[missing] + window_bytes + RECORD_BYTES_MIN <= len(buffer)]
        if len(within):
            found[within] = _first_in_windows(buffer, base, bounds[within], window_bytes)
    starts: list[int] = []
    for bound, start in zip(bounds.tolist(), found.tolist(), strict=True):
        if starts and bound <= starts[-1]:
            continue
        first = start if start >= 0 else first_record(buffer, base, bound, stop)
        if first is None or first >= stop:
            break
        starts.append(first)
    return np.array(starts, np.int64)


def _first_in_windows(buffer: Bytes, base: int, bounds: IntArray, window_bytes: int) -> IntArray:
    """Return the position of the first record that starts in each window, int64[n]; -1 if there is
    none.
    """
    windows = sliding(buffer, f"V{window_bytes}")[bounds + AT_MAGIC].view(np.uint8)
    candidates = np.flatnonzero(windows == _MAGIC_FIRST_BYTE)
    windows_of = candidates // window_bytes
    starts = bounds[windows_of] + candidates % window_bytes
    magics = sliding(buffer, ">i4")[starts + AT_MAGIC]
    alike = (magics == MAGIC_V1) | (magics == MAGIC_V2)
    starts, windows_of = starts[alike], windows_of[alike]
    parts = locate(buffer, starts)
    sizes = parts.prefix["size"]
    good = (parts.prefix["physical_offset"] == starts + base) & (parts.topic_lengths >= 0)
    good &= (sizes >= RECORD_BYTES_MIN) & (parts.computed_sizes == sizes)
    good &= starts + sizes <= len(buffer)
    found = np.full(len(bounds), -1, np.int64)
    # Written in descending order, so that the first record of each window is written last.
    found[windows_of[good][::-1]] = starts[good][::-1]
    return found


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a log that belong to no record; physical offsets, `end` is exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class FoundRecords:
    """The records that start in a partition, with their positions."""

    starts: IntArray
    """Positions of the records in the buffer, ascending."""
    sizes: IntArray
    """Sizes of the records in bytes."""
    end: int
    """Position after the last record and the damage that follows it; the partition's start if there
    are no records."""
    at_log_end: bool = False
    """True if nothing was written after `end`, or the file is closed there."""
    damages: Sequence[Damage] = ()
    is_cut: bool = False
    """True if the buffer ends within a record or damage: more of the file must be read."""
    forgery: Damage | None = None
    """Number of bytes after `stop`, within the last record, that the next partition mistakes for a
    record.
    """


def find_records(
    buffer: Bytes,
    base: int,
    start: int,
    stop: int,
    *,
    proven: bool = False,
    has_more: bool = False,
) -> FoundRecords:
    """Return the whole records that start in [start, stop), and the damage after each of them.

    A damaged range is reported by one partition: the partition of the record before it, or the
    first of the file. The result also shows whether the next partition will begin where this one
    ends: a body may contain the bytes of a valid record, if its sender guessed the physical offset.

    Args:
        buffer: a CommitLog file from `base` on, up to the end of the last record and the head of
            the next.
        base: physical offset of the buffer's first byte.
        start, stop: positions in the buffer.
        proven: True if a record starts at `start`, or the file ends there: any other bytes are
            damage. False if the partition begins with the first record that can be proved.
        has_more: True if the file continues after the buffer.
    """
    first = start if proven else first_record(buffer, base, start, stop, has_more=has_more)
    if first is None or first >= stop:
        return FoundRecords(_none(), _none(), start)
    chain = walk(buffer, base, first, stop)
    # Records may follow zeros that a lost write left. The record-by-record scan finds them.
    if chain is None or (chain.at_log_end and buffer[chain.end + _END_BYTES :].any()):
        found = _one_by_one(buffer, base, first, stop)
    else:
        found = FoundRecords(chain.starts, chain.sizes, chain.end, chain.at_log_end)
    damages = list(found.damages)
    forgery = None
    if found.end > stop and not damages:
        forged = first_record(buffer, base, stop, min(found.end, len(buffer)), has_more=has_more)
        forgery = None if forged is None else Damage(base + forged, base + found.end)
    if found.end >= stop and not found.at_log_end:
        # Damage before the next partition's first record: that partition does not detect it.
        damages += _one_by_one(buffer, base, found.end, found.end + 1, records_max=1).damages
    last = max(found.end, damages[-1].end - base if damages else 0)
    is_cut = has_more and last >= len(buffer)
    return replace(found, damages=damages, is_cut=is_cut, forgery=forgery)


def _one_by_one(
    buffer: Bytes, base: int, first: int, stop: int, records_max: int = RECORDS_MAX_DEFAULT
) -> FoundRecords:
    """Scan the partition record by record with all checks; damage is skipped and reported."""
    starts: list[IntArray] = []
    sizes: list[IntArray] = []
    damages: list[Damage] = []
    view = buffer.data
    position, at_log_end = first, False
    while position < stop:
        found = scan(
            view,
            position,
            len(view),
            check_crc=False,
            with_tag_codes=False,
            records_max=records_max,
        )
        good = int((found.physical_offsets == found.offsets + base).cumprod().sum())
        own = min(int((found.offsets < stop).sum()), good)
        starts.append(found.offsets[:own])
        sizes.append(found.sizes[:own])
        if own:
            position = int(found.offsets[own - 1] + found.sizes[own - 1])
        if position >= stop:
            break
        if good == found.count:
            if found.end is ScanEnd.LIMIT:
                continue
            if found.end in (ScanEnd.BLANK, ScanEnd.ZERO, ScanEnd.END):
                at_log_end = not _has_later_record(buffer, base, position, found.end)
                if at_log_end:
                    break
        following = first_record(buffer, base, position + 1, len(view))
        resume = len(view) if following is None else following
        damages.append(Damage(base + position, base + resume))
        position = resume
    return FoundRecords(_joined(starts), _joined(sizes), position, at_log_end, damages)


def _has_later_record(buffer: Bytes, base: int, position: int, end: ScanEnd) -> bool:
    """True if a record follows bytes that look like the end of the log."""
    if end is ScanEnd.END:
        return False
    return first_record(buffer, base, position + 1, len(buffer)) is not None


def _none() -> IntArray:
    return np.zeros(0, np.int64)


def _joined(parts: list[IntArray]) -> IntArray:
    return np.concatenate(parts) if parts else _none()


_MAGIC_MASK = 0xFFFFFFFF
_WALKS_MAX = 4096
# Number of records verified in one step; they fit into the processor's cache.
_BLOCK_RECORDS = 4096
# Bytes copied for one call of the compiled kernel; they fit into the processor's cache.
_WINDOW_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Chain:
    """Contiguous records of a partition, with their positions."""

    starts: IntArray
    sizes: IntArray
    end: int
    """Position after the last record."""
    at_log_end: bool
    """True if nothing was written after `end`, or the file is closed there."""


def walk(buffer: Bytes, base: int, first: int, stop: int) -> Chain | None:
    """Return the records that start in [first, stop); None if one of them is unusual.

    Args:
        buffer: bytes of a CommitLog file.
        base: physical offset of the buffer's first byte.
        first: position of a record's start, or of the log's end.
        stop: position.
    """
    last = len(buffer) - RECORD_BYTES_MIN
    if first > last:
        return None
    if kernel.is_compiled():
        return _walk_compiled(buffer, base, first, stop)
    # A step costs almost the same for any number of walks, and each walk needs a proven start:
    # this number minimizes the sum.
    walks = min(math.isqrt((stop - first) // 32) + 1, _WALKS_MAX)
    bounds = np.linspace(first, stop, walks + 1)[1:-1].astype(np.int64)
    later = first_records(buffer, base, bounds[bounds > first], stop)
    walk_starts = np.append(first, later[later > first])
    starts = _follow(buffer, walk_starts, np.append(walk_starts[1:], stop))
    if int(starts[-1]) > last:
        return None
    head = int(sliding(buffer, ">i8")[starts[-1]])
    at_log_end = head == 0 or head & _MAGIC_MASK == MAGIC_BLANK & _MAGIC_MASK
    if at_log_end:
        end, starts = int(starts[-1]), starts[:-1]
    else:
        end = int(starts[-1]) + (head >> 32)
        if not stop <= end <= len(buffer):
            return None
    sizes = _proved_sizes(buffer, base, starts)
    if sizes is None or (np.append(starts, end) != np.append(first, starts + sizes)).any():
        return None
    return Chain(starts, sizes, end, at_log_end)


def _walk_compiled(buffer: Bytes, base: int, first: int, stop: int) -> Chain | None:
    """Find the records as `walk` does, with the compiled kernel, window by window."""
    found = [np.zeros(0, np.int64)]
    at, window_bytes = first, _WINDOW_BYTES
    last = len(buffer) - RECORD_BYTES_MIN
    while at < stop and at <= last:
        window = buffer[at : at + window_bytes].tobytes()
        sizes, more = sizes_in_place(window, base + at, len(buffer) - at, stop - at)
        if not len(sizes) and not more:
            break
        # If a record is longer than the window, the next window is larger.
        window_bytes = _WINDOW_BYTES if len(sizes) else window_bytes * 2
        found.append(sizes)
        at += int(sizes.sum())
    head = int(sliding(buffer, ">i8")[at]) if at <= last else -1
    at_log_end = at < stop and (head == 0 or head & _MAGIC_MASK == MAGIC_BLANK & _MAGIC_MASK)
    if at < stop and not at_log_end:
        return None
    sizes = np.concatenate(found)
    return Chain(np.cumsum(sizes) - sizes + first, sizes, at, at_log_end)


def _follow(buffer: Bytes, positions: IntArray, ends: IntArray) -> IntArray:
    """Follow the sizes of records from each position up to its end; return all visited positions,
    sorted.
    """
    heads = sliding(buffer, ">i8")
    ends = np.minimum(ends, len(heads))
    visited = []
    while len(positions):
        visited.append(positions)
        sizes = heads[positions] >> 32
        # A size below the minimum is no record: this walk stops here.
        following = np.where(sizes < RECORD_BYTES_MIN, ends, positions + sizes)
        going = following < ends
        if going.all():
            positions = following
        else:
            positions, ends = following[going], ends[going]
    # The positions of each step are sorted, so a stable sort merges them: eight times as fast.
    return np.sort(np.concatenate(visited), kind="stable")


def _proved_sizes(buffer: Bytes, base: int, starts: IntArray) -> IntArray | None:
    """Return the size of the record at each position; None if a record is incomplete or names
    another offset.
    """
    sizes = np.empty(len(starts), np.int64)
    for at in range(0, len(starts), _BLOCK_RECORDS):
        chosen = starts[at : at + _BLOCK_RECORDS]
        touch_pages(buffer[chosen[0] : chosen[-1]], len(chosen))
        parts = locate(buffer, chosen)
        magics, stated = parts.prefix["magic"], parts.prefix["size"]
        whole = (parts.computed_sizes == stated) & (parts.topic_lengths >= 0)
        whole &= parts.prefix["physical_offset"] == chosen + base
        whole &= (magics == MAGIC_V1) | (magics == MAGIC_V2)
        if not whole.all():
            return None
        sizes[at : at + len(chosen)] = stated
    return sizes
