"""Distinguishes a damaged CommitLog from one with an incomplete last write.

A power failure may persist unsynced pages in any order, so whole records may follow a torn one;
they were never acknowledged. Bytes below a known durable offset cannot be torn: if they
are not a record, they are damaged.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rockoon_broker.store.log.scan import LogScan
from rockoon_broker.store.recovery.proof import LogFiles
from rockoon_core.disk import Disk
from rockoon_format.batch import ScanEnd
from rockoon_format.record import HEAD_BYTES, record_heads

_WINDOW_BYTES = 4 << 20
# Maximum number of breaks to count past; the count is only for a message to the operator.
_BREAKS_MAX = 16


@dataclass(frozen=True, slots=True)
class KnownDurable:
    """The range of a log that was certainly on disk when the last broker process stopped."""

    end: int = 0
    """Everything below this physical offset is durable."""
    before_ms: int = 0
    """Every record with an earlier store time is durable."""


@dataclass(frozen=True, slots=True)
class LogDamage:
    """Damaged range of a log: bytes that were durable and are no longer a record."""

    position: int
    """Physical offset of the first byte that belongs to no record."""
    next_record: int
    """Physical offset of the first whole record after the damage."""


def find_damage(
    log: LogFiles, boundary: int, durable: KnownDurable, disk: Disk
) -> LogDamage | None:
    """Scan the log from `boundary` to the first bytes that are no record; return them if they are
    damage. Changes nothing.

    Args:
        log: the log files.
        boundary: physical offset at which a record starts.
        durable: a break is damage only if a durable record follows it.
    """
    if boundary >= durable.end and not durable.before_ms:
        return None
    before = (0, 0)
    walk = LogScan(log.directory, log.file_bytes, log.starts, disk, checksums=log.checksums)
    for chunk in walk.chunks(boundary):
        before = (chunk.base // log.file_bytes, int(chunk.records.store_timestamps_ms[-1]))
    behind = next_record(log, walk.end, disk)
    if behind is None:
        return None
    record = log.record(behind)
    stored_ms = 0 if record is None else int(record.store_timestamps_ms[0])
    # A record older than its predecessor in the same file is a remain that another broker did
    # not erase after the end. A whole file is never a remain, and a later file may begin
    # with an earlier time.
    newest_ms = before[1] if before[0] == behind // log.file_bytes else 0
    if behind < durable.end or newest_ms <= stored_ms < durable.before_ms:
        return LogDamage(walk.end, behind)
    # Its time may be wrong; then a later file with a right, earlier time proves it durable.
    for start in log.starts:
        first = log.record(start) if start > behind else None
        if first is not None and int(first.store_timestamps_ms[0]) < durable.before_ms:
            return LogDamage(walk.end, behind)
    return None


def count_records(log: LogFiles, walked: LogScan, disk: Disk) -> int:
    """Return the minimum number of whole records after the end of a scan, including records behind
    damaged bytes."""
    count = 0
    # A record without its checksum is an incomplete write, even if its body is intact.
    torn = walked.stopped_by is ScanEnd.NO_CHECKSUM
    found = next_record(log, walked.end + torn, disk)
    for _ in range(_BREAKS_MAX):
        if found is None:
            break
        walk = LogScan(log.directory, log.file_bytes, log.starts, disk, checksums=log.checksums)
        for chunk in walk.chunks(found):
            count += chunk.records.count
        found = next_record(log, max(walk.end, found + 1), disk)
    return count


def next_record(log: LogFiles, position: int, disk: Disk) -> int | None:
    """Return the physical offset of the first whole record at or after `position`; None if none.

    A record counts only with matching size, body CRC and physical offset: a body may contain the
    bytes of a record, but their physical offset does not match.
    """
    for start in log.starts:
        if start + log.file_bytes <= position:
            continue
        for offset in _candidates(log, start, max(position - start, 0), disk):
            if log.record(offset) is not None:
                return offset
    return None


def _candidates(log: LogFiles, start: int, position: int, disk: Disk) -> Iterator[int]:
    """Yield physical offsets in one file at which a record header states that offset, ascending."""
    fd = disk.open_reading(log.path_of(start))
    try:
        # List all ranges before the first read, which would fill holes in the page cache.
        for first, last in list(disk.data_ranges(fd, position, log.file_bytes)):
            for at in range(first, last, _WINDOW_BYTES):
                head_start = max(at - HEAD_BYTES, position)
                count = min(_WINDOW_BYTES, last - at) + at - head_start
                window = disk.pread(fd, count, head_start)
                yield from record_heads(window, start + head_start)
    finally:
        disk.close(fd)
