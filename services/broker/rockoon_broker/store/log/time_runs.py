"""Time runs: neighbouring CommitLog files over which store times never decrease.

Within a file they never do. From one file to the next they do where the clock came back from a
time that it had wrongly for long: the store ends the file there and begins the next with the right
time. Whoever finds messages by time looks into the newest run first, and into the one before it
only if everything there is late enough: what an earlier run holds was stored earlier, whatever
time it bears.

Nothing is written down of them: where a run begins follows from the first and the last record of
each file. Two files are of one run only if that is proved, since a run too many does no harm.
"""

import logging
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from rockoon_broker.store.log.commit_log import CommitLog, LogFile
from rockoon_core.disk import Disk
from rockoon_format.record import (
    AT_STORE_TIMESTAMP_V4,
    AT_SYS_FLAG,
    HOST_V6_EXTRA_BYTES,
    MAGIC_BLANK,
    SYS_FLAG_BORN_HOST_V6,
)
from rockoon_format.record_search import record_heads, whole_record_bytes

# How far behind the newest message the clock has to be before a run ends. Less than that, messages
# bear the newest one's time until the clock gets there.
BEHIND_MS = 600_000

_log = logging.getLogger(__name__)

_STORE_TIMESTAMP = struct.Struct(">q")
_SYS_FLAG = struct.Struct(">i")
_SIZE_AND_MAGIC = struct.Struct(">ii")
STORE_TIME_HEAD_BYTES = AT_STORE_TIMESTAMP_V4 + HOST_V6_EXTRA_BYTES + _STORE_TIMESTAMP.size
# How far before its end a file's last record is looked for, one after the other.
_WINDOWS_BYTES = (64 << 10, 1 << 20, 16 << 20)


@dataclass(frozen=True, slots=True)
class TimeRun:
    """Neighbouring files."""

    start: int
    """Physical offset of the first one."""
    first_ms: int
    """Store time of its first record, epoch milliseconds; 0 where that cannot be read."""


class TimeRuns:
    """The time runs of an open log; owned by the thread that owns it.

    Args:
        log: open, recovered.
        disk: where its files are.
        newest_ms: store time of its newest record, 0 if there is none.

    Attributes:
        newest_ms: store time of the newest record, epoch milliseconds.
    """

    def __init__(self, log: CommitLog, disk: Disk, newest_ms: int) -> None:
        self._log = log
        self.newest_ms = newest_ms
        # By start, of the newest message of each file that is closed; None where none is found.
        self._closed_ms: dict[int, int | None] = {}
        self._last_start = log.files[-1].start if log.files else 0
        self._runs = list(self._found(disk))

    def is_behind(self, now_ms: int) -> bool:
        """Whether a time is so far behind the newest message that a run has to end."""
        return self.newest_ms - now_ms > BEHIND_MS

    def least_to_come_ms(self, now_ms: int) -> int | None:
        """No message to come will bear an earlier time, if a run has to end; None if none has to.

        Clocks that are disciplined still go back a little meanwhile.
        """
        return now_ms - BEHIND_MS if self.is_behind(now_ms) else None

    def note(self, physical_offset: int, stored_ms: int) -> None:
        """Take note of a batch at the log's end; where store times go back, it begins a file."""
        start = physical_offset - physical_offset % self._log.file_bytes
        if start != self._last_start:
            self._closed_ms[self._last_start] = self.newest_ms
            self._last_start = start
        if stored_ms < self.newest_ms:
            self._begin(physical_offset, stored_ms)
        self.newest_ms = stored_ms

    def newest_in(self, start: int) -> int | None:
        """Store time of the newest message of a file; None where that cannot be read.

        Args:
            start: physical offset at which the file begins.
        """
        return self.newest_ms if start == self._last_start else self._closed_ms.get(start)

    def forget(self, start: int) -> None:
        """A file is gone."""
        self._closed_ms.pop(start, None)

    def _begin(self, start: int, first_ms: int) -> None:
        _log.error(
            "store times go back by %d s, to what the clock has said for long: messages before "
            "physical offset %d may bear times that were wrong, those behind it bear right ones",
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

    def behind(self, physical_offset: int) -> list[TimeRun]:
        """The runs that begin behind a physical offset, the newest first."""
        kept = max(physical_offset, self._log.min_offset)
        return [run for run in reversed(self._runs) if run.start > kept]

    def least_ms(self, physical_offset: int, stored_ms: int) -> int:
        """No message at or behind a physical offset was stored at an earlier time than this.

        Args:
            stored_ms: store time of the first of them.
        """
        return min([stored_ms, *(run.first_ms for run in self.behind(physical_offset))])


def store_time_ms(head: bytes) -> int:
    """Store time of the record that begins with STORE_TIME_HEAD_BYTES bytes."""
    (flag,) = _SYS_FLAG.unpack_from(head, AT_SYS_FLAG)
    extra = HOST_V6_EXTRA_BYTES if flag & SYS_FLAG_BORN_HOST_V6 else 0
    (time_ms,) = _STORE_TIMESTAMP.unpack_from(head, AT_STORE_TIMESTAMP_V4 + extra)
    return int(time_ms)


def record_time_ms(log: CommitLog, physical_offset: int) -> int | None:
    """Store time of the record at a physical offset; None if no record can be read there.

    Raises:
        OSError: the disk.
    """
    head = log.read(physical_offset, STORE_TIME_HEAD_BYTES)
    is_record = next(record_heads(head, physical_offset), None) == physical_offset
    return store_time_ms(head) if is_record and len(head) == STORE_TIME_HEAD_BYTES else None


def _last_ms(log: CommitLog, disk: Disk, file: LogFile) -> int | None:
    """Store time of the last record of a file that is closed; None if none is found.

    It is the one that the blank at the end follows. What is reserved and was never written is not
    read.
    """
    # Of its own: listing the ranges switches reading ahead off.
    fd = disk.open_reading(file.path)
    try:
        ranges = list(disk.data_ranges(fd, 0, log.file_bytes))
    finally:
        disk.close(fd)
    behind = low = file.start + (ranges[-1][1] if ranges else 0)
    for window in _WINDOWS_BYTES:
        high, low = low, max(behind - window, file.start)
        # A head may lie across the end of this window.
        data = log.read(low, high - low + STORE_TIME_HEAD_BYTES)
        for head in sorted(record_heads(data, low), reverse=True):
            if _is_last(log, head):
                return store_time_ms(log.read(head, STORE_TIME_HEAD_BYTES))
    return None


def _is_last(log: CommitLog, head: int) -> bool:
    """Whether a whole record begins at a physical offset, and a blank follows it."""
    remaining = log.file_bytes - head % log.file_bytes
    size = whole_record_bytes(lambda at, count: log.read(head + at, count), remaining)
    behind = log.read(head + size, _SIZE_AND_MAGIC.size) if size else b""
    if len(behind) < _SIZE_AND_MAGIC.size:
        return False
    return _SIZE_AND_MAGIC.unpack(behind) == (remaining - size, MAGIC_BLANK)
