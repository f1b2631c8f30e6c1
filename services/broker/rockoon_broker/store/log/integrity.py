"""Checksum verification of CommitLog bytes, and repairs of CommitLog files."""

import struct
from pathlib import Path

import numpy as np

from rockoon_broker.store.log.commit_log import CommitLog
from rockoon_broker.store.log.reading import find_record
from rockoon_core.disk import Disk
from rockoon_format.file_names import offset_to_file_name
from rockoon_format.record import RECORD_BYTES_MIN
from rockoon_format.scan import ScanEnd, scan

# Larger than any record: at least one record begins within this distance before any position.
SEARCH_BYTES = 8 << 20
_SIZE = struct.Struct(">i")


def rewrite_closed(directory: Path, file_bytes: int, disk: Disk, offset: int, data: bytes) -> None:
    """Replace a damaged record of a closed log by bytes of another copy; durable on return.

    Args:
        directory: the CommitLog directory.
        file_bytes: size of each file.
        disk: the file layer.
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

    Raises:
        OSError: the disk.
    """
    file_begin = max(log.min_offset, position - position % log.file_bytes)
    begin = max(file_begin, position - SEARCH_BYTES)
    if begin == file_begin:
        return begin
    sought = find_record(log, begin, log.end, SEARCH_BYTES)
    return sought.offset if sought.found and sought.offset <= position else file_begin
