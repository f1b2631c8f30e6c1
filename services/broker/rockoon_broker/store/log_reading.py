"""The log as its followers read it: whole records in the order they were stored.

A follower keeps something that is worked out of the log, such as an index by key or what of a queue
is settled, together with the physical offset up to which it has seen the log.
"""

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.store.commit_log import CommitLog
from rockoon_broker.store.damage import HEAD_BYTES, record_heads
from rockoon_format.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
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
    """The records, back to back, as they are stored."""
    records: Scan
    """Their fields as columns, without tag codes; its offsets are positions in `frames`."""
    next_offset: int
    """Where to read on: a physical offset, the end given when there is no more."""
    skipped_bytes: int = 0
    """Length of what stands before `next_offset` and is damaged: no record can be made out."""

    @property
    def lengths(self) -> NDArray[np.uint32]:
        """Size of each record in bytes, uint32[n]."""
        return self.records.sizes.astype(np.uint32)


def read_chunk(log: CommitLog, position: int, end: int, bytes_max: int) -> LogChunk:
    """Read records from `position` on; see `Store.read_log`.

    Args:
        log: open; used by its owner's thread.
        position: where a record starts, or a file; below the log's beginning means there.
        end: physical offset behind the last record wanted, at most the log's end.
        bytes_max: length of `frames`, at most; the first record always fits.

    Raises:
        OSError: the disk.
    """
    position = max(position, log.min_offset)
    wanted = min(max(bytes_max, RECORD_BYTES_MIN), max(end - position, 0))
    data = log.read(position, wanted)
    if not data:
        return LogChunk(position, b"", scan(b"", 0, 0), max(position, min(end, log.end)))
    file_end = position - position % log.file_bytes + log.file_bytes
    records = scan(
        data, 0, len(data), check_crc=False, with_tag_codes=False, records_max=RECORDS_MAX
    )
    if records.count == 0:
        whole = _first_record_bytes(data, min(file_end, end) - position)
        if whole > len(data):
            data = log.read(position, whole)
            records = scan(data, 0, len(data), check_crc=False, with_tag_codes=False)
    at = position + records.position
    frames = data[: records.position]
    if records.end is ScanEnd.BLANK:
        at = file_end
    elif records.end not in (ScanEnd.END, ScanEnd.LIMIT) and records.count == 0:
        following = _following(log, position, min(file_end, end))
        return LogChunk(position, b"", records, following, following - position)
    return LogChunk(position, frames, records, min(at, end))


def _first_record_bytes(head: bytes, remaining: int) -> int:
    """How many bytes the record at `head` says it has; 0 if it cannot be one."""
    if len(head) < _SIZE_AND_MAGIC.size:
        return 0
    size, magic = _SIZE_AND_MAGIC.unpack_from(head)
    if magic == MAGIC_BLANK:
        return _SIZE_AND_MAGIC.size
    return int(size) if magic in (MAGIC_V1, MAGIC_V2) and size <= remaining else 0


def _following(log: CommitLog, position: int, end: int) -> int:
    """Physical offset of the next whole record behind a damaged place, `end` if there is none."""
    at = position + 1
    while at < end:
        data = log.read(at, min(_WINDOW_BYTES, end - at))
        for found in record_heads(data, at):
            size = _first_record_bytes(data[found - at :], end - found)
            record = log.read(found, size) if size else b""
            if record and scan(record, 0, len(record), records_max=1).count:
                return found
        if at + len(data) >= end:
            break
        # A head may lie across the window's end.
        at += len(data) - HEAD_BYTES
    return end
