"""Telling a damaged CommitLog from one that a crash tore.

A power cut writes what was not synced in any order, so whole records may stand behind a torn one:
nobody was ever told that those are durable. Before what was known to be durable, nothing can be
torn: bytes there that are no record are damage.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rockoon_broker.store.log.scan import LogScan
from rockoon_broker.store.recovery.proof import LogFiles
from rockoon_core.disk import Disk
from rockoon_format.batch import ScanEnd
from rockoon_format.record_search import HEAD_BYTES, record_heads

_WINDOW_BYTES = 4 << 20
# Counting goes on behind so many breaks; it is for a message to the operator.
_BREAKS_MAX = 16


@dataclass(frozen=True, slots=True)
class KnownDurable:
    """What of a log was certainly on disk when its last broker stopped."""

    end: int = 0
    """Everything below this physical offset."""
    before_ms: int = 0
    """Every record that was stored earlier than this."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A place in a log that was durable and is no record any more."""

    position: int
    """Physical offset of the first byte that belongs to no record."""
    next_record: int
    """Physical offset of the next whole record."""


def find_damage(log: LogFiles, boundary: int, durable: KnownDurable, disk: Disk) -> Damage | None:
    """Read from `boundary` to the first break, and say if it can be no torn end; changes nothing.

    Args:
        log: the files.
        boundary: physical offset at which a record starts.
        durable: a break is damage only if a record of this stands behind it.
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
    # Older than what precedes it in its file: left by a broker that does not clear
    # what it cuts off.
    # Whole files it does not leave there, and one that follows may begin with an earlier time.
    newest_ms = before[1] if before[0] == behind // log.file_bytes else 0
    if behind < durable.end or newest_ms <= stored_ms < durable.before_ms:
        return Damage(walk.end, behind)
    # It may bear a time that was wrong: then a later file that bears the right one tells.
    for start in log.starts:
        first = log.record(start) if start > behind else None
        if first is not None and int(first.store_timestamps_ms[0]) < durable.before_ms:
            return Damage(walk.end, behind)
    return None


def count_records(log: LogFiles, walked: LogScan, disk: Disk) -> int:
    """How many whole records stand behind the end of a walk, at least, whatever is between them."""
    count = 0
    # A torn end is no record, whatever its body says.
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
    """Physical offset of the first whole record at or behind `position`, None if there is none.

    A record counts only with its size, body CRC and a PHYSICALOFFSET that is its place: a body can
    hold the bytes of a record, but not know where it will be stored.
    """
    for start in log.starts:
        if start + log.file_bytes <= position:
            continue
        for offset in _candidates(log, start, max(position - start, 0), disk):
            if log.record(offset) is not None:
                return offset
    return None


def _candidates(log: LogFiles, start: int, position: int, disk: Disk) -> Iterator[int]:
    """Physical offsets in one file at which a head says that it belongs there, ascending."""
    fd = disk.open_reading(log.path_of(start))
    try:
        # All ranges before the first read, which would fill holes in the page cache.
        for first, last in list(disk.data_ranges(fd, position, log.file_bytes)):
            for at in range(first, last, _WINDOW_BYTES):
                head_start = max(at - HEAD_BYTES, position)
                count = min(_WINDOW_BYTES, last - at) + at - head_start
                window = disk.pread(fd, count, head_start)
                yield from record_heads(window, start + head_start)
    finally:
        disk.close(fd)
