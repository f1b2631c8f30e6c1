"""Partitions of CommitLog files, read while a broker may be writing them."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rockoon_core.redaction import redacted
from rockoon_format import kernel
from rockoon_format.frames import IntArray, sliding
from rockoon_format.record import RECORD_BYTES_MIN
from rockoon_format.scan import extent_in_place
from rockoon_spark.files import LogFile, dropped_marks, read_range
from rockoon_spark.records.columns import LogRecords
from rockoon_spark.records.partition_scan import Found, find_records
from rockoon_spark.records.record_run import LogBroken, RecordRun, no_record
from rockoon_spark.records.selection import Mask, Selection
from rockoon_spark.records.starts import first_record
from rockoon_spark.records.window import Window
from rockoon_spark.source.log_source import (
    FORGED_FAULT,
    ContiguousPartition,
    DamagedRange,
    in_batches,
    report_loss,
)

Proved = TypeVar("Proved")

# What is read behind a partition, so that its last record is whole; more when that is not enough.
_BEYOND_BYTES = 1 << 20
# So much is copied at once, and is still in the processor's cache when it is read.
WINDOW_BYTES = 1 << 19
# Every batch of columns has its price: Python's part of it runs in a cache that was filled by the
# columns before.
TABLE_BYTES = 1 << 21
_RECORD_BYTES_MAX = 64 << 20
_HEAD_BYTES = 4
# How far before its end a file's last record is looked for, one after the other.
_TAILS_BYTES = (1 << 20, 16 << 20)
# How often damage at the end of what is written is looked at before it is believed.
_LOOKS_MAX = 3
_LOOK_INTERVAL_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePartition(ContiguousPartition):
    """A piece of one CommitLog file; see `ContiguousPartition`."""

    file: LogFile
    broker: str = ""
    """Whose store it is in."""
    store: str | None = None
    """The store directory, which says what topics were deleted."""
    is_sealed: bool = False
    """A later file has records: nothing is written to this one any more."""

    @classmethod
    def of(cls, file: LogFile) -> "FilePartition":
        """A whole file, of whatever store."""
        return cls(file=file, start=file.start, stop=file.start + file.bytes)

    def look(
        self,
        wait: Callable[[float], object] = time.sleep,
        content: NDArray[np.uint8] | None = None,
    ) -> tuple[NDArray[np.uint8], Found]:
        """Bytes from `start` on, and the records that start here; positions count from there.

        Args:
            wait: spends so many seconds.
            content: what `_content` gave, if it was asked: the file, which retention may have
                deleted since, is read again only where these bytes do not do.
        """
        looks = 0
        while True:
            buffer, found = self._look_once(content)
            content = None
            looks += 1
            behind = self.start + len(buffer)
            is_last = bool(found.damages) and found.damages[-1].end >= behind
            if not is_last or looks == _LOOKS_MAX:
                return buffer, found
            # Nothing whole stands behind it: a broker may be writing this very record.
            wait(_LOOK_INTERVAL_SECONDS)

    def _look_once(self, content: NDArray[np.uint8] | None) -> tuple[NDArray[np.uint8], Found]:
        first, behind = self.start - self.file.start, self.stop - self.file.start
        # A file begins with a record, whoever has cut it.
        proven = self.at_record or not first
        beyond = _BEYOND_BYTES
        while True:
            buffer = self._content(beyond) if content is None else content
            content = None
            # No record is longer: what is cut off even then is damage, and reading on would take
            # in the rest of the file for one forged size.
            goes_on = first + len(buffer) < self.file.bytes and beyond < _RECORD_BYTES_MAX
            length = behind - first
            found = find_records(buffer, self.start, 0, length, proven=proven, goes_on=goes_on)
            if not found.is_cut:
                return buffer, found
            beyond *= 8

    def _content(self, beyond: int = _BEYOND_BYTES) -> NDArray[np.uint8]:
        """Bytes of the partition, and so many more where the file has them."""
        first = self.start - self.file.start
        return read_range(self.file, first, self.stop - self.file.start, beyond)

    def read(self) -> Iterator[LogRecords | DamagedRange]:
        """See `LogPartition`."""
        marks: Mapping[str, int] | None = None
        anew: dict[str, int] = {}
        try:
            for found in self.records():
                if isinstance(found, DamagedRange):
                    yield found
                    continue
                if self.store and (marks is None or not self.is_sealed):
                    # After the records: a mark is there before any record of a topic that was
                    # created again, so messages of the former topic never come with its own.
                    now = dropped_marks(self.store)
                    marks = now if marks is None else marks
                    # What is read of a topic is what it was when this began, not its next life.
                    changed = {topic: at for topic, at in now.items() if at != marks.get(topic)}
                    anew = changed | anew
                kept = found
                if marks or anew:
                    kept = found.chosen(_kept(found, marks or {}) & ~_behind_marks(found, anew))
                yield kept if self.coverage is None else self.coverage.left(kept)
        except FileNotFoundError:
            sentence = (
                f"{self.file.shown} was deleted, as retention does, after the read was planned"
            )
            report_loss(sentence, fails=self.fails_on_data_loss)

    def records(self, offsets: IntArray | None = None) -> Iterator[LogRecords | DamagedRange]:
        """See `ContiguousPartition`."""
        if offsets is not None:
            yield from self._records_at(offsets)
            return
        at, read, last = self.start, self._content(), b""
        for content, base, window in self._leading(read, _window_of, TABLE_BYTES):
            if self._was_rolled_back(read, last, at):
                return
            at = base + window.stop
            last = content[window.stop - int(window.sizes[-1]) : window.stop]
            yield LogRecords.of_window(content, base, window, self.broker)
        buffer, found = self._behind(at).look(content=read[at - self.start :])
        if self._was_rolled_back(read, last, at):
            return
        for damage in found.damages:
            yield DamagedRange(self.file.shown, damage.start, damage.end)
        if found.forgery is not None:
            forged = found.forgery
            yield DamagedRange(self.file.shown, forged.start, forged.end, FORGED_FAULT)
        yield from in_batches(buffer, at, found.starts, found.sizes, self.broker)

    def _was_rolled_back(self, read: NDArray[np.uint8], last: bytes, behind: int) -> bool:
        """Whether a broker took back the record `last`, which ended at a physical offset, as it
        does with what it had not yet synced when it stopped.

        What was read behind it afterwards is newer than this reading then, and need not begin where
        a record did: there is nothing more to read.
        """
        end = behind - self.start
        return not self.is_sealed and read[end - len(last) : end].tobytes() != last

    def _records_at(self, offsets: IntArray) -> Iterator[LogRecords | DamagedRange]:
        # What lies between is not looked at: the second reading costs what is left, not the log.
        first, behind = self.start - self.file.start, self.stop - self.file.start
        buffer = read_range(self.file, first, behind, _RECORD_BYTES_MAX)
        starts = offsets - self.start
        sizes = sliding(buffer, ">i4")[starts].astype(np.int64)
        wrong = (sizes < RECORD_BYTES_MIN) | (sizes > len(buffer) - starts)
        for offset in offsets[wrong].tolist():
            yield DamagedRange(self.file.shown, offset, offset + _HEAD_BYTES)
        yield from in_batches(buffer, self.start, starts[~wrong], sizes[~wrong], self.broker)

    def runs(self) -> Iterator[RecordRun]:
        """See `ContiguousPartition`."""
        file = self.file
        at = self.start
        try:
            read = self._content()
            for content, base, size in self._leading(read, _extent_of, WINDOW_BYTES):
                at = base + size
                yield RecordRun(content, base, size)
            buffer, found = self._behind(at).look(content=read[at - self.start :])
        except FileNotFoundError as error:
            raise LogBroken(file_gone(file)) from error
        except (OSError, ValueError) as error:
            raise LogBroken(f"{file.shown} cannot be read: {redacted(error)}") from error
        if found.damages:
            raise LogBroken(no_record(file.shown, found.damages[0].start, found.damages[0].end))
        ends = found.starts + found.sizes
        first = 0
        while first < len(ends):
            start = int(found.starts[first])
            behind = max(int(np.searchsorted(ends, start + WINDOW_BYTES, "right")), first + 1)
            content = buffer[start : int(ends[behind - 1])].tobytes()
            yield RecordRun(content, at + start, len(content))
            first = behind

    def _behind(self, offset: int) -> "FilePartition":
        """What of the partition is left behind a record that ends at a physical offset."""
        return self if offset == self.start else replace(self, start=offset, at_record=True)

    def _leading(
        self,
        buffer: NDArray[np.uint8],
        prove: Callable[[bytes, int, int], tuple[Proved | None, int, bool]],
        window_bytes: int,
    ) -> Iterator[tuple[bytes, int, Proved]]:
        """The partition's first records, as far as nothing about them is unusual.

        Each window is read once, and proved while it is in the processor's cache. Not the records
        near the partition's end: what comes behind them has to be looked at as well.

        Args:
            buffer: the partition's `_content`.
            prove: of bytes, the physical offset of the first, and how many the file has from there
                on, gives what they begin with, how long that is, and whether what follows has
                more bytes.
            window_bytes: how many at once.

        Yields:
            A window, the physical offset of its first byte, and what it begins with.
        """
        if kernel.native is None:
            return
        length = self.stop - self.start
        first = self.start - self.file.start
        at: int | None = 0
        if first and not self.at_record:
            goes_on = first + len(buffer) < self.file.bytes
            at = first_record(buffer, self.start, 0, length, goes_on=goes_on)
        # A mapped file's own class takes its time over each slice.
        buffer = buffer.view(np.ndarray)
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
    """How long the records are that some bytes begin with; see `FilePartition._leading`."""
    size, more = extent_in_place(content, base, end)
    return size or None, size, more


def _window_of(content: bytes, base: int, end: int) -> tuple[Window | None, int, bool]:
    """The records that some bytes begin with; see `FilePartition._leading`."""
    found = Window.following(content, base, end)
    if found is None:
        return None, 0, False
    return found if len(found) else None, found.stop, found.has_more


def file_gone(file: LogFile) -> str:
    """What is wrong where a file is missing, in one sentence."""
    return f"{file.shown} went while it was read: retention deleted it; run again"


def _kept(records: LogRecords, marks: Mapping[str, int]) -> Mask:
    """Which records did not go with their topic."""
    kept = np.ones(len(records), np.bool_)
    for topic, mark in marks.items():
        if records.base < mark:
            kept &= ~(_of_topic(records, topic) & (records.prefix("physical_offset") < mark))
    return kept


def _behind_marks(records: LogRecords, marks: Mapping[str, int]) -> Mask:
    """Which records came after their topic was made anew."""
    behind = np.zeros(len(records), np.bool_)
    for topic, mark in marks.items():
        behind |= _of_topic(records, topic) & (records.prefix("physical_offset") >= mark)
    return behind


def _of_topic(records: LogRecords, topic: str) -> Mask:
    return Selection().among("topic", frozenset({topic})).mask(records)


def files_of_times(files: Sequence[LogFile], least_ms: int, most_ms: int) -> list[LogFile]:
    """The files that can hold records stored within some time.

    Times ascend over each file. The next one may begin with an earlier time than the last record
    bears, where a clock came back: so a file is left out only by times of its own.
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


def _ends_before(file: LogFile, time_ms: int) -> bool:
    """Whether the last record of a file is proved to have been stored before some time."""
    stop = file.start + file.bytes
    for tail_bytes in _TAILS_BYTES:
        tail = FilePartition(file=file, start=max(stop - tail_bytes, file.start), stop=stop)
        buffer, found = tail.look()
        if found.damages:
            return False
        if len(found.starts):
            last = LogRecords.of(buffer, tail.start, found.starts[-1:], found.sizes[-1:], "")
            return int(last.store_timestamps_ms[0]) < time_ms
    return False


def _first_time_ms(file: LogFile) -> int | None:
    """Store time of a file's first record, None if there is none."""
    buffer, found = FilePartition(file=file, start=file.start, stop=file.start + 1).look()
    if not len(found.starts):
        return None
    records = LogRecords.of(buffer, file.start, found.starts, found.sizes, "")
    return int(records.store_timestamps_ms[0])
