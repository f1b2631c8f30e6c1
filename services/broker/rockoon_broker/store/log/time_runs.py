"""Time runs: neighbouring CommitLog files over which store times never decrease.

Within a file they never decrease. Between files they decrease where the clock was wrong (ahead)
for long and was corrected: the store then starts a new file with the right time. A search by
time looks in the newest run first, and in the one before it only if the time is not
found there: records of an earlier run were stored earlier, whatever their store time.

Runs are not stored on disk: they follow from the first and the last record of each file. Two files
are joined to one run only if that is proved; one run too many is harmless.
"""

import logging
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from rockoon_broker.store.log.commit_log import CommitLog, CommitLogFile
from rockoon_core.disk import Disk
from rockoon_format.record import (
    AT_STORE_TIMESTAMP_V4,
    AT_SYS_FLAG,
    HOST_V6_EXTRA_BYTES,
    MAGIC_BLANK,
    SYS_FLAG_BORN_HOST_V6,
    record_heads,
    whole_record_bytes,
)

# How far the clock must be behind the newest message before a run ends. If it is less, new messages
# get the store time of the newest one until the clock has caught up.
BEHIND_MS = 600_000

_log = logging.getLogger(__name__)

_STORE_TIMESTAMP = struct.Struct(">q")
_SYS_FLAG = struct.Struct(">i")
_SIZE_AND_MAGIC = struct.Struct(">ii")
STORE_TIME_HEAD_BYTES = AT_STORE_TIMESTAMP_V4 + HOST_V6_EXTRA_BYTES + _STORE_TIMESTAMP.size
# Ranges before a file's end that are searched for its last record, one after the other.
_WINDOWS_BYTES = (64 << 10, 1 << 20, 16 << 20)


@dataclass(frozen=True, slots=True)
class TimeRun:
    """Time run: neighbouring files with ascending store times."""

    start: int
    """Physical offset at which the run's first file begins."""
    first_ms: int
    """Store time of the run's first record, epoch milliseconds; 0 if it cannot be read."""


class TimeRuns:
    """The time runs of an open log; owned by the log's thread.

    Args:
        log: open and recovered.
        newest_ms: store time of its newest record, 0 if there is none.

    Attributes:
        newest_ms: store time of the newest record, epoch milliseconds.
    """

    def __init__(self, log: CommitLog, disk: Disk, newest_ms: int) -> None:
        self._log = log
        self.newest_ms = newest_ms
        # Newest store time of each closed file by start offset; None if it has no readable record.
        self._closed_ms: dict[int, int | None] = {}
        self._last_start = log.files[-1].start if log.files else 0
        self._runs = list(self._found(disk))

    def is_behind(self, now_ms: int) -> bool:
        """Return whether a time is more than BEHIND_MS earlier than the newest store time, so that
        a new run must begin."""
        return self.newest_ms - now_ms > BEHIND_MS

    def future_min_ms(self, now_ms: int) -> int | None:
        """Return a lower bound of all future store times if a new run must begin; None otherwise.

        The bound allows for small backward steps of a disciplined clock.
        """
        return now_ms - BEHIND_MS if self.is_behind(now_ms) else None

    def add(self, physical_offset: int, stored_ms: int) -> None:
        """Record the store time of a batch written at the log's end. If it is earlier than the
        newest store time, the batch is the first of a new file and of a new run."""
        start = physical_offset - physical_offset % self._log.file_bytes
        if start != self._last_start:
            self._closed_ms[self._last_start] = self.newest_ms
            self._last_start = start
        if stored_ms < self.newest_ms:
            self._start_run(physical_offset, stored_ms)
        self.newest_ms = stored_ms

    def newest_in(self, start: int) -> int | None:
        """Return the store time of the newest message of a file; None if it cannot be read.

        Args:
            start: physical offset at which the file begins.
        """
        return self.newest_ms if start == self._last_start else self._closed_ms.get(start)

    def remove(self, start: int) -> None:
        """Remove the recorded store time of a CommitLog file that was deleted."""
        self._closed_ms.pop(start, None)

    def _start_run(self, start: int, first_ms: int) -> None:
        _log.error(
            "store times decrease by %d s because the clock was ahead and was corrected: messages "
            "before physical offset %d may have wrong (late) times, later messages have right ones",
            (self.newest_ms - first_ms) // 1000,
            start,
        )
        self._runs = [run for run in self._runs if run.start < start]
        self._runs.append(TimeRun(start, first_ms))

    def _found(self, disk: Disk) -> Iterator[TimeRun]:
        log = self._log
        before_ms: int | None = None
        for file in log.files:
            try:
                first_ms = record_time_ms(log, file.start)
            except OSError:
                first_ms = None
            if first_ms is None or before_ms is None or first_ms < before_ms:
                yield TimeRun(file.start, first_ms or 0)
            if file is not log.files[-1]:
                try:
                    before_ms = _last_ms(log, disk, file)
                except OSError:
                    before_ms = None
                self._closed_ms[file.start] = before_ms

    def runs_after(self, physical_offset: int) -> list[TimeRun]:
        """Return the runs that begin after a physical offset, newest first."""
        kept = max(physical_offset, self._log.min_offset)
        return [run for run in reversed(self._runs) if run.start > kept]

    def least_ms(self, physical_offset: int, stored_ms: int) -> int:
        """Return a lower bound of the store times of all messages at or after a physical offset.

        Args:
            stored_ms: store time of the first message.
        """
        return min([stored_ms, *(run.first_ms for run in self.runs_after(physical_offset))])


def store_time_ms(head: bytes) -> int:
    """Return the store time from the first STORE_TIME_HEAD_BYTES bytes of a record."""
    (flag,) = _SYS_FLAG.unpack_from(head, AT_SYS_FLAG)
    extra = HOST_V6_EXTRA_BYTES if flag & SYS_FLAG_BORN_HOST_V6 else 0
    (time_ms,) = _STORE_TIMESTAMP.unpack_from(head, AT_STORE_TIMESTAMP_V4 + extra)
    return int(time_ms)


def record_time_ms(log: CommitLog, physical_offset: int) -> int | None:
    """Return the store time of the record at a physical offset; None if none can be read there.
    Raises OSError."""
    head = log.read(physical_offset, STORE_TIME_HEAD_BYTES)
    is_record = next(record_heads(head, physical_offset), None) == physical_offset
    return store_time_ms(head) if is_record and len(head) == STORE_TIME_HEAD_BYTES else None


def _last_ms(log: CommitLog, disk: Disk, file: CommitLogFile) -> int | None:
    """Return the store time of the last record of a closed file; None if none is found.

    The last record is the one before the blank. Reserved ranges that were never written are not
    read.
    """
    # A separate descriptor: listing the ranges switches off read-ahead.
    fd = disk.open_reading(file.path)
    try:
        ranges = list(disk.data_ranges(fd, 0, log.file_bytes))
    finally:
        disk.close(fd)
    data_end = low = file.start + (ranges[-1][1] if ranges else 0)
    for window in _WINDOWS_BYTES:
        high, low = low, max(data_end - window, file.start)
        # A record header may cross the end of this window.
        data = log.read(low, high - low + STORE_TIME_HEAD_BYTES)
        for head in sorted(record_heads(data, low), reverse=True):
            if _is_last(log, head):
                return store_time_ms(log.read(head, STORE_TIME_HEAD_BYTES))
    return None


def _is_last(log: CommitLog, head: int) -> bool:
    """Return whether a whole record begins at a physical offset and a blank follows it."""
    remaining = log.file_bytes - head % log.file_bytes
    size = whole_record_bytes(lambda at, count: log.read(head + at, count), remaining)
    following = log.read(head + size, _SIZE_AND_MAGIC.size) if size else b""
    if len(following) < _SIZE_AND_MAGIC.size:
        return False
    return _SIZE_AND_MAGIC.unpack(following) == (remaining - size, MAGIC_BLANK)
