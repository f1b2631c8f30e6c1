"""The log as its followers read it: whole records in the order they were stored.

A follower keeps something that is worked out of the log, such as an index by key or what of a queue
is completed, together with the physical offset up to which it has seen the log.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.store.log.commit_log import CommitLog
from rockoon_format.checksums import damaged_records
from rockoon_format.frames import locate
from rockoon_format.record import MAGIC_BLANK, RECORD_BYTES_MIN
from rockoon_format.record_search import HEAD_BYTES, record_heads, whole_record_bytes
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
    next_at_record: bool = True
    """Whether a record starts at `next_offset`, or the file ends there; if not, one has to be
    looked for (`find_record`)."""
    checked: bool = False
    """Whether all records were compared with their checksums."""

    def intact(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of some records that are what was stored, by their checksums; int64[m] both."""
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
    """Where the search for a record came to."""

    offset: int
    """Physical offset of the record, or where its file, or what is visible of it, ends; if it is
    not `found`, where to search on."""
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
        log: open; used by its owner's thread.
        position: where a record starts, or a file: 0, a former `next_offset`, or an end that an
            append gave. Below the log's beginning means there.
        end: physical offset behind the last record wanted, at most the log's end.
        bytes_max: length of `frames`, at most; the first record always fits.
        search_bytes_max: how far behind a damaged place a record is looked for, at most;
            None means to the file's end.
        delay_levels_ms: as of `scan`, with which tag codes are worked out; None: without them.

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
    """Whether a file is closed here: a scan can only tell when it is given all that remains."""
    if len(head) < _SIZE_AND_MAGIC.size:
        return False
    size, magic = _SIZE_AND_MAGIC.unpack_from(head)
    return bool(magic == MAGIC_BLANK and size <= remaining)


def _record_bytes(log: CommitLog, position: int, end: int) -> int:
    """Size of the whole record at a physical offset that lies before `end`, 0 without one."""
    return whole_record_bytes(lambda at, count: log.read(position + at, count), end - position)


def find_record(log: CommitLog, position: int, end: int, bytes_max: int | None) -> Sought:
    """Look for the first whole record at or behind a position, in one file.

    Reading on from record to record does not look at bodies, so neither must who is to begin
    where such a reader stops: a damaged body is for those who want it.

    Args:
        log: open; used by its owner's thread.
        position: any physical offset; below the log's beginning means there.
        end: physical offset at which a record starts or the log ends.
        bytes_max: how far to look: where records start, not their ends; None means to the end.

    Raises:
        OSError: the disk.
    """
    position = max(position, log.min_offset)
    end = min(end, position - position % log.file_bytes + log.file_bytes)
    stop = end if bytes_max is None else min(end, position + bytes_max)
    at = position
    while at < stop:
        # A head may lie across the window's end, and across the place where the search stops.
        data = log.read(at, min(_WINDOW_BYTES, stop - at + HEAD_BYTES - 1, end - at))
        for head in record_heads(data, at):
            if _record_bytes(log, head, end):
                return Sought(head, found=True)
        if not data or at + len(data) >= end:
            return Sought(end, found=True)
        at += len(data) - HEAD_BYTES + 1
    return Sought(min(at, end), found=at >= end)
