"""Partitions of CommitLog files, which a broker may be writing during the read."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rockoon_core.valid_text import redacted
from rockoon_format import kernel
from rockoon_format.frames import IntArray, sliding
from rockoon_format.record import RECORD_BYTES_MIN
from rockoon_format.scan import extent_in_place
from rockoon_spark.files import (
    LogFile,
    dropped_marks,
    is_remote,
    probed_end,
    read_range,
    read_ranges,
    written_end,
)
from rockoon_spark.records.columns import LogRecords
from rockoon_spark.records.partition_scan import FoundRecords, find_records, first_record
from rockoon_spark.records.record_run import LogBroken, RecordRun, no_record
from rockoon_spark.records.selection import Mask, Selection
from rockoon_spark.records.window import RecordWindow
from rockoon_spark.source.log_source import (
    BATCH_RECORDS,
    FORGED_FAULT,
    ContiguousPartition,
    DamagedRange,
    in_batches,
    report_loss,
)
from rockoon_spark.source.queue_entries import ListedRecords

Proved = TypeVar("Proved")

# Bytes read after a partition, so that its last record is whole; extended if they are too few.
_BEYOND_BYTES = 1 << 20
# Bytes copied in one step; they fit into the processor's cache.
WINDOW_BYTES = 1 << 19
# The same for batches of columns: larger, because each batch has a constant cost in Python.
TABLE_BYTES = 1 << 21
_RECORD_BYTES_MAX = 64 << 20
_UNLISTED_FAULT = (
    "are not the record that a ConsumeQueue lists: `rockoon spark rebuild` writes the ConsumeQueues"
    " of a log"
)
# Two listed records with at most so many bytes between them are read at once.
_GAP_BYTES = 4 << 10
_HEAD_BYTES = 4
# Sizes of the tail of a file in which its last record is searched; the second if the first fails.
_TAILS_BYTES = (1 << 20, 16 << 20)
_PROOF_BYTES = 64 << 10
# Scans of damage at the end of the log before it is reported: a broker may be writing there.
_SCANS_MAX = 3
_SCAN_INTERVAL_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePartition(ContiguousPartition):
    """Range of one CommitLog file that one task reads; see `ContiguousPartition`."""

    file: LogFile
    broker: str = ""
    """Name of the broker of the store."""
    store: str | None = None
    """The store directory with the marks of deleted topics; None to read records of all topics."""
    is_sealed: bool = False
    """True if a later file has records, so that no broker writes to this one."""
    listed: ListedRecords | None = None
    """The records to read; None to find all records."""

    @classmethod
    def of(cls, file: LogFile) -> "FilePartition":
        """Return a partition of a whole file."""
        return cls(file=file, start=file.start, stop=file.start + file.bytes)

    def scan(
        self,
        wait: Callable[[float], object] = time.sleep,
        content: NDArray[np.uint8] | None = None,
    ) -> tuple[NDArray[np.uint8], FoundRecords]:
        """Return the bytes from `start` on, and the records that start in this partition.

        Positions are relative to `start`.

        Args:
            wait: waits the given number of seconds.
            content: result of `_content`, if it was called before: then the file, which retention
                may have deleted, is read again only if these bytes are too few.
        """
        scans = 0
        while True:
            buffer, found = self._scan_once(content)
            content = None
            scans += 1
            buffer_end = self.start + len(buffer)
            is_last = bool(found.damages) and found.damages[-1].end >= buffer_end
            if not is_last or scans == _SCANS_MAX:
                return buffer, found
            # No record follows the damage: a broker may be writing this record now.
            wait(_SCAN_INTERVAL_SECONDS)

    def _scan_once(
        self, content: NDArray[np.uint8] | None
    ) -> tuple[NDArray[np.uint8], FoundRecords]:
        first, stop = self.start - self.file.start, self.stop - self.file.start
        # A file always begins with a record.
        proven = self.at_record or not first
        beyond = _BEYOND_BYTES
        while True:
            buffer = self._content(beyond) if content is None else content
            content = None
            # No record is longer than the maximum: if one is still cut off, it is damage, and its
            # wrong size must not make this task read the rest of the file.
            has_more = first + len(buffer) < self.file.bytes and beyond < _RECORD_BYTES_MAX
            length = stop - first
            found = find_records(buffer, self.start, 0, length, proven=proven, has_more=has_more)
            if not found.is_cut:
                return buffer, found
            beyond *= 8

    def _content(self, beyond: int = _BEYOND_BYTES) -> NDArray[np.uint8]:
        """Return the bytes of the partition, and up to `beyond` bytes of the file after it."""
        first = self.start - self.file.start
        return read_range(self.file, first, self.stop - self.file.start, beyond)

    def read(self) -> Iterator[LogRecords | DamagedRange]:
        marks: Mapping[str, int] | None = None
        recreated: dict[str, int] = {}
        try:
            for found in self.records():
                if isinstance(found, DamagedRange):
                    yield found
                    continue
                if self.store and (marks is None or not self.is_sealed):
                    # Read after the records: the broker writes a topic's mark before any record of
                    # the recreated topic, so messages of both topics are never mixed.
                    now = dropped_marks(self.store)
                    marks = now if marks is None else marks
                    # If a topic is recreated during this read, only the former topic is read.
                    changed = {topic: at for topic, at in now.items() if at != marks.get(topic)}
                    recreated = changed | recreated
                kept = found
                if marks or recreated:
                    is_kept = _kept(found, marks or {}) & ~_after_marks(found, recreated)
                    kept = found.chosen(is_kept)
                yield kept if self.coverage is None else self.coverage.left(kept)
        except FileNotFoundError:
            sentence = f"{self.file.shown} was deleted by retention after the read was planned"
            report_loss(sentence, fails=self.fails_on_data_loss)

    def records(self, offsets: IntArray | None = None) -> Iterator[LogRecords | DamagedRange]:
        if offsets is not None:
            yield from self._records_at(offsets)
            return
        if self.listed is not None:
            yield from self._listed_records(self.listed)
            return
        at, read, last = self.start, self._content(), b""
        for content, base, window in self._leading(read, _window_of, TABLE_BYTES):
            if self._was_truncated(read, last, at):
                return
            at = base + window.stop
            last = content[window.stop - int(window.sizes[-1]) : window.stop]
            yield LogRecords.of_window(content, base, window, self.broker)
        buffer, found = self._after(at).scan(content=read[at - self.start :])
        if self._was_truncated(read, last, at):
            return
        for damage in found.damages:
            yield DamagedRange(self.file.shown, damage.start, damage.end)
        if found.forgery is not None:
            forged = found.forgery
            yield DamagedRange(self.file.shown, forged.start, forged.end, FORGED_FAULT)
        yield from in_batches(buffer, at, found.starts, found.sizes, self.broker)

    def _was_truncated(self, read: NDArray[np.uint8], last: bytes, last_end: int) -> bool:
        """True if a broker truncated its log before the end of the record `last`.

        A broker truncates unsynced records when it starts after a crash. Bytes read after `last`
        are then newer than this read and need not begin with a record, so the read ends.

        Args:
            last_end: physical offset at which `last` ended.
        """
        end = last_end - self.start
        return not self.is_sealed and read[end - len(last) : end].tobytes() != last

    def _listed_records(self, listed: ListedRecords) -> Iterator[LogRecords | DamagedRange]:
        """Yield the listed records, and report those that are not where they are listed."""
        at = 0
        while at < len(listed):
            reach = np.cumsum(listed.sizes[at : at + BATCH_RECORDS])
            own = listed.within(at, at + max(int(np.searchsorted(reach, TABLE_BYTES)), 1))
            at += len(own)
            records = self._gathered(own)
            good = own.matches(records)
            for index in np.flatnonzero(~good).tolist():
                start = int(own.starts[index])
                end = start + int(own.sizes[index])
                yield DamagedRange(self.file.shown, start, end, _UNLISTED_FAULT)
            yield records if good.all() else records.chosen(good)

    def _gathered(self, own: ListedRecords) -> LogRecords:
        """Read listed records into one buffer; bytes after the end of the file are zeros."""
        ends = own.starts + own.sizes
        firsts = np.flatnonzero(np.append(True, own.starts[1:] - ends[:-1] > _GAP_BYTES))
        lasts = np.append(firsts[1:], len(own)) - 1
        base = self.file.start
        run_starts, run_stops = own.starts[firsts] - base, np.maximum.reduceat(ends, firsts) - base
        lengths = run_stops - run_starts
        content = b"".join(read_ranges(self.file, run_starts.tolist(), lengths.tolist()))
        # Distance of each run from its place in the buffer.
        moves = run_starts + base - (np.cumsum(lengths) - lengths)
        starts = own.starts - np.repeat(moves, lasts + 1 - firsts)
        # base=0, because the records are not contiguous in the log.
        return LogRecords.of(content, 0, starts, own.sizes, self.broker)

    def _records_at(self, offsets: IntArray) -> Iterator[LogRecords | DamagedRange]:
        # Bytes between the records are not scanned, so the second read of a job is cheap.
        first, stop = self.start - self.file.start, self.stop - self.file.start
        buffer = read_range(self.file, first, stop, _RECORD_BYTES_MAX)
        starts = offsets - self.start
        sizes = sliding(buffer, ">i4")[starts].astype(np.int64)
        wrong = (sizes < RECORD_BYTES_MIN) | (sizes > len(buffer) - starts)
        for offset in offsets[wrong].tolist():
            yield DamagedRange(self.file.shown, offset, offset + _HEAD_BYTES)
        yield from in_batches(buffer, self.start, starts[~wrong], sizes[~wrong], self.broker)

    def runs(self) -> Iterator[RecordRun]:
        file = self.file
        at = self.start
        try:
            read = self._content()
            for content, base, size in self._leading(read, _extent_of, WINDOW_BYTES):
                at = base + size
                yield RecordRun(content, base, size)
            buffer, found = self._after(at).scan(content=read[at - self.start :])
        except FileNotFoundError as error:
            raise LogBroken(deleted_text(file)) from error
        except (OSError, ValueError) as error:
            raise LogBroken(f"{file.shown} cannot be read: {redacted(error)}") from error
        if found.damages:
            raise LogBroken(no_record(file.shown, found.damages[0].start, found.damages[0].end))
        ends = found.starts + found.sizes
        first = 0
        while first < len(ends):
            start = int(found.starts[first])
            stop = max(int(np.searchsorted(ends, start + WINDOW_BYTES, "right")), first + 1)
            content = buffer[start : int(ends[stop - 1])].tobytes()
            yield RecordRun(content, at + start, len(content))
            first = stop

    def _after(self, offset: int) -> "FilePartition":
        """Return the rest of the partition, after a record that ends at a physical offset."""
        return self if offset == self.start else replace(self, start=offset, at_record=True)

    def _leading(
        self,
        buffer: NDArray[np.uint8],
        prove: Callable[[bytes, int, int], tuple[Proved | None, int, bool]],
        window_bytes: int,
    ) -> Iterator[tuple[bytes, int, Proved]]:
        """Yield the first records of the partition, up to the first record that needs all checks of
        `scan`.

        Each window is read once, and verified while it is in the processor's cache. The records
        near the partition's end are omitted, because `scan` must also check the bytes after them.

        Args:
            buffer: the partition's `_content`.
            prove: verifies the records at the beginning of a window. Arguments: the window, the
                physical offset of its first byte, the number of bytes of the file from there on.
                Result: the records, their size, and True if the next record needs more bytes than
                the window has.
            window_bytes: size of a window.

        Yields:
            A window, the physical offset of its first byte, and the result of `prove`.
        """
        # NumPy verifies no window, so a search for the first record would be in vain.
        if not kernel.is_compiled():
            return
        length = self.stop - self.start
        first = self.start - self.file.start
        at: int | None = 0
        if first and not self.at_record:
            has_more = first + len(buffer) < self.file.bytes
            at = first_record(buffer, self.start, 0, length, has_more=has_more)
        while at is not None and at + window_bytes < length:
            content = buffer[at : at + window_bytes].tobytes()
            base = self.start + at
            found, size, more = prove(content, base, len(buffer) - at)
            if found is not None:
                yield content, base, found
            if found is None or not more:
                return
            at += size


def _extent_of(content: bytes, base: int, end: int) -> tuple[int | None, int, bool]:
    """Check the records of a window; return only their total size. An argument `prove` of
    `FilePartition._leading`.
    """
    size, more = extent_in_place(content, base, end)
    return size or None, size, more


def _window_of(content: bytes, base: int, end: int) -> tuple[RecordWindow | None, int, bool]:
    """Check the records of a window; return them as a `Window`. An argument `prove` of
    `FilePartition._leading`.
    """
    found = RecordWindow.following(content, base, end)
    if found is None:
        return None, 0, False
    return found if len(found) else None, found.stop, found.has_more


def deleted_text(file: LogFile) -> str:
    """Return the error text for a file that was deleted during a job."""
    return f"retention deleted {file.shown} while it was read: run again"


def _kept(records: LogRecords, marks: Mapping[str, int]) -> Mask:
    """Return a mask of the records that were not deleted with their topic."""
    kept = np.ones(len(records), np.bool_)
    for topic, mark in marks.items():
        if records.base < mark:
            kept &= ~(_of_topic(records, topic) & (records.prefix("physical_offset") < mark))
    return kept


def _after_marks(records: LogRecords, marks: Mapping[str, int]) -> Mask:
    """Return a mask of the records that were appended after their topic was recreated."""
    found = np.zeros(len(records), np.bool_)
    for topic, mark in marks.items():
        found |= _of_topic(records, topic) & (records.prefix("physical_offset") >= mark)
    return found


def _of_topic(records: LogRecords, topic: str) -> Mask:
    return Selection().among("topic", frozenset({topic})).mask(records)


def files_of_times(files: Sequence[LogFile], least_ms: int, most_ms: int) -> list[LogFile]:
    """Return the files that can contain records with store times in a range.

    Store times ascend within each file. After a clock was set back, the next file can begin with an
    earlier time, so a file is excluded only by the times of its own records.
    """
    firsts = [_first_time_ms(file) for file in files]
    kept = []
    for number, file in enumerate(files):
        first = firsts[number]
        following = next((each for each in firsts[number + 1 :] if each is not None), None)
        begins_late = first is not None and first > most_ms
        may_end_early = following is not None and following < least_ms
        if not begins_late and not (may_end_early and _ends_before(file, least_ms)):
            kept.append(file)
    return kept


def written_stop(file: LogFile, written: int) -> int:
    """Return a physical offset below which all records of a file start; zeros follow it.

    Args:
        file: the last file of a log with a record.
        written: physical offset up to which the log is known to have records; 0 if unknown.
    """
    end, file_end = probed_end(file), file.start + file.bytes
    if end in (file.start, file_end):
        return end
    # The end is a guess, which the record before the zeros proves. Damage can be zeros too, and a
    # body can have a forged record before zeros: neither is the end of the log before `written`.
    for tail_bytes in (_PROOF_BYTES, *_TAILS_BYTES):
        tail = _tail(file, end, tail_bytes)
        _, found = tail.scan(content=tail._content(0))
        if len(found.starts) and not found.damages:
            last_end = tail.start + int(found.starts[-1] + found.sizes[-1])
            if written <= last_end <= end:
                return last_end
            break
    return file_end if is_remote(file) else written_end(file)


def _tail(file: LogFile, stop: int, tail_bytes: int) -> FilePartition:
    return FilePartition(file=file, start=max(stop - tail_bytes, file.start), stop=stop)


def _ends_before(file: LogFile, time_ms: int) -> bool:
    """True if the last record of a file is found and its store time is before a time."""
    stop = file.start + file.bytes
    for tail_bytes in _TAILS_BYTES:
        tail = _tail(file, stop, tail_bytes)
        buffer, found = tail.scan()
        if found.damages:
            return False
        if len(found.starts):
            last = LogRecords.of(buffer, tail.start, found.starts[-1:], found.sizes[-1:], "")
            return int(last.store_timestamps_ms[0]) < time_ms
    return False


def _first_time_ms(file: LogFile) -> int | None:
    """Return the store time of a file's first record; None without a record."""
    buffer, found = FilePartition(file=file, start=file.start, stop=file.start + 1).scan()
    if not len(found.starts):
        return None
    records = LogRecords.of(buffer, file.start, found.starts, found.sizes, "")
    return int(records.store_timestamps_ms[0])
