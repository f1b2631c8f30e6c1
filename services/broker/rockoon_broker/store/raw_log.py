"""Raw bytes of the log, which replicas exchange so that their logs are equal.

Invariants:
1. Written bytes continue the log and each of its queues, and are whole records, or the blank
   that closes a file.
2. Written records are in no queue before they are committed.

The newest copied chunks are cached with their checked records, so that the index and the code that
applies records do not read or check them again.
"""

import struct
import zlib
from collections import OrderedDict
from collections.abc import Sequence

from rockoon_broker.store.errors import AppendRefused
from rockoon_broker.store.log.commit_log import CommitLog
from rockoon_broker.store.log.epochs import Epochs, Mark, Renewal, marks_among, renewals_among
from rockoon_broker.store.log.reading import RECORDS_MAX, LogChunk
from rockoon_broker.store.log.scan import WINDOW_BYTES, ScannedChunk
from rockoon_broker.store.log.time_runs import TimeRuns
from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_broker.store.queues.dispatch import (
    EntryRun,
    Numbers,
    count_runs,
    entry_runs,
    first_break,
    parted,
)
from rockoon_broker.store.queues.dispatch_queue import CopiedRecords, DispatchQueue
from rockoon_broker.store.queues.dropped_topics import DroppedTopics
from rockoon_broker.store.queues.queue_numbers import restore_next_offsets
from rockoon_broker.store.recovery.recovery_points import RecoveryPoints
from rockoon_format.log_marks import EpochMark
from rockoon_format.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from rockoon_format.scan import Scan, ScanEnd, scan

# Maximum of kept bytes: as many as arrive, at the write rate of a disk, during one gathering period
# of the index.
KEPT_BYTES_MAX = 32 << 20
# Overhead of a chunk besides its records, with a dozen columns.
CHUNK_BYTES = 2048


class CopiedChunks:
    """Cache of the newest chunks in log order. Older chunks can be read from the log."""

    def __init__(self) -> None:
        # By start offset, in order of arrival.
        self._chunks: OrderedDict[int, LogChunk] = OrderedDict()
        self._bytes = 0

    def add(self, chunk: LogChunk) -> None:
        """Add the chunk that follows the last one."""
        self._chunks[chunk.start] = chunk
        self._bytes += len(chunk.frames) + CHUNK_BYTES
        while self._bytes > KEPT_BYTES_MAX:
            self._evict_oldest()

    def at(self, position: int, end: int) -> LogChunk | None:
        """Return the cached chunk that begins at a physical offset, if all of it is below `end`."""
        found = self._chunks.get(position)
        return found if found is not None and found.next_offset <= end else None

    def next_start(self, position: int) -> int | None:
        """Return the start of the first chunk after a physical offset."""
        return next((start for start in self._chunks if start > position), None)

    def discard_below(self, position: int) -> None:
        """Discard the chunks that begin below a physical offset, because all readers have used
        them."""
        while self._chunks and next(iter(self._chunks)) < position:
            self._evict_oldest()

    def _evict_oldest(self) -> None:
        _, first = self._chunks.popitem(last=False)
        self._bytes -= len(first.frames) + CHUNK_BYTES


_SIZE_AND_MAGIC = struct.Struct(">ii")
_BLANK = MAGIC_BLANK.to_bytes(4, signed=True)


class RawLog:
    """Reads and writes whole records of an open log; owned by the store's thread.

    Args:
        dropped: marks of deleted topics, whose records are not numbered.
        runs, points: updated with store times.
        epochs: receives their marks.
        delay_levels_ms: see `scan`.

    Attributes:
        copied: the most recently written chunks.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        dropped: DroppedTopics,
        runs: TimeRuns,
        points: RecoveryPoints,
        undispatched: DispatchQueue,
        epochs: Epochs,
        delay_levels_ms: Sequence[int],
    ) -> None:
        self._log = log
        self._queues = queues
        self._dropped = dropped
        self._runs = runs
        self._points = points
        self._undispatched = undispatched
        self._epochs = epochs
        self._delay_levels_ms = delay_levels_ms
        self.copied = CopiedChunks()

    def read(self, offset: int, bytes_max: int) -> bytes:
        """Return whole records and blanks from a physical offset on, of one file; empty at the end.

        Args:
            offset: where a record or a blank begins.
            bytes_max: maximum length; the first record or blank is always returned whole.

        Raises:
            ValueError: no record or blank begins there.
            OSError: the disk.
        """
        log = self._log
        if not log.min_offset <= offset <= log.end:
            raise ValueError(f"the log is from {log.min_offset} to {log.end}, not at {offset}")
        if offset == log.end:
            return b""
        data = log.read(offset, max(bytes_max, RECORD_BYTES_MIN))
        size, magic = _SIZE_AND_MAGIC.unpack_from(data)
        left = min(log.end, offset - offset % log.file_bytes + log.file_bytes) - offset
        if magic not in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK) or not 0 < size <= left:
            raise ValueError(f"no record begins at {offset}")
        if len(data) == left:
            # Ends at the end of the last record, so that no record is cut.
            return data
        if size > len(data):
            return log.read(offset, size)
        found = scan(
            data, 0, len(data), check_crc=False, with_tag_codes=False, records_max=RECORDS_MAX
        )
        if not found.position:
            raise ValueError(f"no whole record begins at {offset}: {found.end.value}")
        # A blank ends with its file, so a blank here would not be whole.
        return data[: found.position]

    def tail_crc(self, end: int, size: int) -> int:
        """Return the CRC-32 of the `size` bytes before a physical offset. If all of them are in one
        blank, the CRC includes the offset at which the blank begins.

        Raises:
            ValueError: the log does not have all these bytes.
            OSError: the disk.
        """
        if not self._log.min_offset <= end - size <= end <= self._log.end:
            raise ValueError(f"the log does not have {size} bytes before {end}")
        crc, at = 0, end - size
        while at < end:
            data = self._log.read(at, end - at)
            crc = zlib.crc32(data, crc)
            at += len(data)
        begins = self.blank_at(end - 1) if size else None
        if begins is not None and begins <= end - size:
            # They are all zero, wherever the blank begins; without its offset the logs could
            # differ.
            crc = zlib.crc32(begins.to_bytes(8), crc)
        return crc

    def blank_at(self, position: int) -> int | None:
        """Return the start of the blank that contains a physical offset; None if there is none.

        Scans the file from its beginning if the byte could be part of a blank.

        Raises:
            OSError: the disk.
        """
        log = self._log
        head = log.read(position, _SIZE_AND_MAGIC.size)
        if not head or (any(head) and head[4:] != _BLANK):
            # After a blank's header all bytes are zero.
            return None
        at = position - position % log.file_bytes
        while at <= position:
            data = log.read(at, WINDOW_BYTES)
            found = scan(
                data, 0, len(data), check_crc=False, with_tag_codes=False, records_max=RECORDS_MAX
            )
            at += found.position
            if found.end is ScanEnd.BLANK or found.position == 0:
                size, magic = _SIZE_AND_MAGIC.unpack_from(data, found.position)
                if magic == MAGIC_BLANK:
                    return at if at <= position else None
                if magic not in (MAGIC_V1, MAGIC_V2):
                    return None
                # A record that is longer than the window.
                at += max(size, RECORD_BYTES_MIN)
        return None

    def check_end(self, offset: int, committed_end: int) -> None:
        """Raise ValueError if the log cannot be cut at a physical offset."""
        log = self._log
        if log.min_offset == log.end:
            if offset < log.end or offset % log.file_bytes:
                raise ValueError(f"an empty log at {log.end} cannot begin at {offset}")
            return
        if not committed_end <= offset <= log.end:
            raise ValueError(f"{offset} is not between {committed_end} and {log.end}")
        at = committed_end
        while at < offset:
            at += len(self.read(at, offset - at))
        if at != offset:
            raise ValueError(f"no record ends at {offset}")

    def write(self, offset: int, data: bytes, full_reason: str = "") -> None:
        """Append bytes of another copy of the log.

        Args:
            offset: end of this log.
            data: whole records, a blank, or records followed by a blank; of one file, and at most
                as much as one scan covers (8 MiB and a record).
            full_reason: if not empty, only the log's own records are accepted, and this is the
                reason of the refusal.

        Raises:
            ValueError: the bytes do not continue the log, or are damaged; nothing was written.
            AppendRefused: `full_reason`; nothing was written.
            AppendFailed: the disk refused; nothing was written.
        """
        # Scanned once, to check the records, to count them, and to list them once committed.
        records = self._scanned(offset, data)
        marks = list(marks_among(data, records))
        if full_reason and len(marks) < records.count:
            raise AppendRefused(full_reason)
        parts = self._checked(ScannedChunk(offset, records), marks)
        self._log.extend(data)
        times_ms = records.store_timestamps_ms
        if records.count:
            if times_ms[0] < self._runs.newest_ms:
                self._points.keep_below(int(times_ms[0]))
                self._points.lift_cap(offset)
            self._runs.add(offset, int(times_ms[0]))
            self._runs.add(offset + int(records.offsets[-1]), int(times_ms[-1]))
        for position, mark in marks:
            self._epochs.add(offset + position, mark)
            if isinstance(mark, EpochMark) and offset + position == self._log.min_offset:
                # After a crash, recovery does the same.
                restore_next_offsets(mark, self._log.min_offset, self._queues, self._dropped.marks)
        at = offset
        for part, runs, renewal in parts:
            count_runs(runs, self._queues)
            end = renewal.first if renewal is not None else self._log.end
            ends = offset + part.offsets + part.sizes
            if end > at:
                self._undispatched.add(CopiedRecords(end, runs, ends, part.store_timestamps_ms))
            if renewal is not None:
                for topic in renewal.topics:
                    self._queues.restart_numbering(topic)
                self._undispatched.add(renewal)
            at = end
        whole = data[: records.position]
        self.copied.add(LogChunk(offset, whole, records, self._log.end, checked=True))

    def _scanned(self, offset: int, data: bytes) -> Scan:
        log = self._log
        if offset != log.end:
            raise ValueError(f"the log ends at {log.end}, but the given bytes begin at {offset}")
        room = log.file_bytes - offset % log.file_bytes
        if not data or len(data) > room:
            raise ValueError(f"{len(data)} bytes at {offset}, but the file has room for {room}")
        records = scan(
            data,
            0,
            len(data),
            # One more than possible, so that the scan examines the bytes after the last record.
            records_max=len(data) // RECORD_BYTES_MIN + 1,
            delay_levels_ms=self._delay_levels_ms,
        )
        is_whole = records.end is ScanEnd.END
        if records.end is ScanEnd.BLANK:
            size, _ = _SIZE_AND_MAGIC.unpack_from(data, records.position)
            is_whole = records.position + size == len(data) == room
        if not is_whole:
            raise ValueError(f"no whole record at {offset + records.position}: {records.end.value}")
        return records

    def _checked(
        self, chunk: ScannedChunk, marks: Sequence[tuple[int, Mark]]
    ) -> list[tuple[Scan, list[EntryRun], Renewal | None]]:
        """Return the parts of a chunk between renewals, each with its queue entries, after a check
        that their records continue the log and its queues.

        Raises:
            ValueError: a record does not continue the log or its queue.
        """
        log, newest_ms = self._log, self._runs.newest_ms
        numbers = Numbers(self._queues, begins_anywhere=log.min_offset > 0)
        checked = []
        for part, renewal in parted(chunk, renewals_among(marks, chunk.records, chunk.base)):
            runs = list(entry_runs(part, self._dropped.marks))
            wrong = first_break(part, runs, numbers, newest_ms, log.file_bytes)
            if wrong is not None:
                raise ValueError(f"the record at {wrong} does not continue the log or its queue")
            if part.records.count:
                newest_ms = int(part.records.store_timestamps_ms[-1])
            checked.append((part.records, runs, renewal))
            if renewal is not None:
                numbers.restart(renewal.topics)
        return checked
