"""Sequential reads of the log: whole records in the order in which they were stored. Also
verification of their checksums, and repairs of files.

A component that follows the log, such as the index by key, keeps state derived from its records
and the physical offset up to which it has read.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.store.log.commit_log import CommitLog
from rockoon_core.disk import Disk
from rockoon_format.checksums import damaged_records
from rockoon_format.file_names import offset_to_file_name
from rockoon_format.frames import locate
from rockoon_format.record import (
    HEAD_BYTES,
    MAGIC_BLANK,
    RECORD_BYTES_MIN,
    record_heads,
    whole_record_bytes,
)
from rockoon_format.scan import Scan, ScanEnd, scan

_SIZE_AND_MAGIC = struct.Struct(">ii")
_WINDOW_BYTES = 4 << 20
RECORDS_MAX = 65_536


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Neighbouring records of one CommitLog file."""

    start: int
    """Physical offset of the first byte of `frames`."""
    frames: bytes
    """Stored records, back to back."""
    records: Scan
    """Fields of the records as columns, without tag codes; record offsets are positions in
    `frames`."""
    next_offset: int
    """Physical offset of the next read; the requested end if nothing is left."""
    skipped_bytes: int = 0
    """Length of the damaged bytes before `next_offset` in which no record was found."""
    next_at_record: bool = True
    """Whether a record starts at `next_offset`, or the file ends there; if not, the caller must
    search for one (`find_record`)."""
    checked: bool = False
    """Whether all records have been compared with their checksums."""

    def intact(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the given record indices whose checksums match; int64[m] -> int64[<=m]."""
        if self.checked or not len(indices):
            return indices
        parts = locate(self.frames, self.records.offsets[indices])
        return indices[~damaged_records(self.frames, parts, self.records.sizes[indices])]

    @property
    def lengths(self) -> NDArray[np.uint32]:
        """Size of each record in bytes, uint32[n]."""
        return self.records.sizes.astype(np.uint32)


@dataclass(frozen=True, slots=True)
class Sought:
    """Result of `find_record`."""

    offset: int
    """Physical offset of the record, or the end of the file or visible range. If not `found`, where
    the search continues."""
    found: bool


def read_chunk(
    log: CommitLog,
    position: int,
    end: int,
    bytes_max: int,
    search_bytes_max: int | None = None,
    delay_levels_ms: Sequence[int] | None = None,
) -> LogChunk:
    """Read records from `position` on; see `Store.read_log`.

    Args:
        log: open; called on its owner's thread.
        position: where a record or file starts: 0, a former `next_offset`, or an end returned
            by an append. Positions below the log's beginning mean the beginning.
        end: physical offset after the last wanted record, at most the log's end.
        bytes_max: maximum length of `frames`; the first record is always included.
        search_bytes_max: maximum distance to search for a record after damaged bytes; None
            means up to the end of the file.
        delay_levels_ms: see `scan`; computes tag codes with them. None: no tag codes.

    Raises:
        OSError: the disk.
    """

    def scanned(data: bytes) -> Scan:
        return scan(
            data,
            0,
            len(data),
            check_crc=False,
            with_tag_codes=delay_levels_ms is not None,
            records_max=RECORDS_MAX,
            delay_levels_ms=delay_levels_ms or (),
        )

    position = max(position, log.min_offset)
    wanted = min(max(bytes_max, RECORD_BYTES_MIN), max(end - position, 0))
    data = log.read(position, wanted)
    if not data:
        return LogChunk(position, b"", scan(b"", 0, 0), max(position, min(end, log.end)))
    file_end = position - position % log.file_bytes + log.file_bytes
    records = scanned(data)
    if records.count == 0:
        if _is_blank(data, file_end - position):
            return LogChunk(position, b"", records, min(file_end, end))
        whole = _record_bytes(log, position, min(file_end, end))
        if whole > len(data):
            data = log.read(position, whole)
            records = scanned(data)
    at = position + records.position
    frames = data[: records.position]
    if records.end is ScanEnd.BLANK:
        at = file_end
    elif records.end not in (ScanEnd.END, ScanEnd.LIMIT) and records.count == 0:
        sought = find_record(log, position + 1, end, search_bytes_max)
        skipped = sought.offset - position
        return LogChunk(position, b"", records, sought.offset, skipped, sought.found)
    return LogChunk(position, frames, records, min(at, end))


def _is_blank(head: bytes, remaining: int) -> bool:
    """Return whether a blank closes the file at `head`. `scan` detects a blank only in a buffer
    that contains all of it."""
    if len(head) < _SIZE_AND_MAGIC.size:
        return False
    size, magic = _SIZE_AND_MAGIC.unpack_from(head)
    return bool(magic == MAGIC_BLANK and size <= remaining)


def _record_bytes(log: CommitLog, position: int, end: int) -> int:
    """Return the size of the record at a physical offset; 0 if it does not end before `end`."""
    return whole_record_bytes(lambda at, count: log.read(position + at, count), end - position)


def find_record(log: CommitLog, position: int, end: int, bytes_max: int | None) -> Sought:
    """Search one file for the first whole record at or after a position.

    Bodies are not checked, because sequential reads do not check them either and both must
    agree where records begin. A reader that needs a body checks it.

    Args:
        position: any physical offset; below the log's beginning means the beginning.
        end: physical offset at which a record starts or the log ends.
        bytes_max: maximum distance in which a record may start; None means up to the end.

    Raises:
        OSError: the disk.
    """
    position = max(position, log.min_offset)
    end = min(end, position - position % log.file_bytes + log.file_bytes)
    stop = end if bytes_max is None else min(end, position + bytes_max)
    at = position
    while at < stop:
        # A record header may cross the end of the window or of the searched range.
        data = log.read(at, min(_WINDOW_BYTES, stop - at + HEAD_BYTES - 1, end - at))
        for head in record_heads(data, at):
            if _record_bytes(log, head, end):
                return Sought(head, found=True)
        if not data or at + len(data) >= end:
            return Sought(end, found=True)
        at += len(data) - HEAD_BYTES + 1
    return Sought(min(at, end), found=at >= end)


# Larger than any record: at least one record begins within this distance before any position.
SEARCH_BYTES = 8 << 20
_SIZE = struct.Struct(">i")


def rewrite_closed(directory: Path, file_bytes: int, disk: Disk, offset: int, data: bytes) -> None:
    """Replace a damaged record of a closed log by bytes of another copy; durable on return.

    Args:
        directory: the CommitLog directory.
        offset: physical offset of the record.
        data: whole records.

    Raises:
        ValueError: the data is not a sequence of intact records at this offset.
        OSError: the disk.
    """
    if not data or damaged_at(file_bytes, offset, data) is not None:
        raise ValueError(f"the given bytes are not an intact record of offset {offset}")
    start = offset - offset % file_bytes
    fd = disk.open(directory / offset_to_file_name(start))
    try:
        disk.write_all(fd, data, offset - start)
        disk.fdatasync(fd)
        disk.drop_clean(fd)
    finally:
        disk.close(fd)


def damaged_at(file_bytes: int, offset: int, data: bytes) -> int | None:
    """Return the physical offset of the first damaged record among log bytes; None if intact.

    Compares checksums (body CRCs of records without one), lengths, and the physical offset that
    each record states. After the header of a blank all bytes must be zero.

    Args:
        file_bytes: size of each CommitLog file.
        offset: physical offset of `data`, where a record or a blank begins.
        data: bytes of one file, up to the end of a record or blank.
    """
    records = scan(
        data,
        0,
        len(data),
        with_tag_codes=False,
        # One more than the data can hold: the scan must also check bytes after the last record.
        records_max=len(data) // RECORD_BYTES_MIN + 1,
    )
    misplaced = np.flatnonzero(records.physical_offsets != records.offsets + offset)
    if len(misplaced):
        return offset + int(records.offsets[misplaced[0]])
    if records.end is ScanEnd.BLANK:
        (size,) = _SIZE.unpack_from(data, records.position)
        room = file_bytes - (offset + records.position) % file_bytes
        is_whole = records.position + size == len(data) and size == room
        if is_whole and not any(data[records.position + 2 * _SIZE.size :]):
            return None
    return None if records.end is ScanEnd.END else offset + records.position


def record_before(log: CommitLog, position: int) -> int:
    """Return a physical offset <= `position` where a record begins, not always the nearest one.
    Raises OSError."""
    file_begin = max(log.min_offset, position - position % log.file_bytes)
    begin = max(file_begin, position - SEARCH_BYTES)
    if begin == file_begin:
        return begin
    sought = find_record(log, begin, log.end, SEARCH_BYTES)
    return sought.offset if sought.found and sought.offset <= position else file_begin
