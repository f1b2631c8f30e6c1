"""The log of a store directory, read from its files; the store can be Rockoon's or RocketMQ's."""

import zlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from rockoon_format.record import MAGIC_BLANK
from rockoon_spark.files import LogFile, dropped_marks, list_log, list_topics, read_range
from rockoon_spark.generations.directory_generation import current_generation
from rockoon_spark.generations.parts import CurrentGeneration, with_generation
from rockoon_spark.records.record_run import LogBroken, no_record
from rockoon_spark.records.selection import Coverage, Selection
from rockoon_spark.source.file_partition import (
    FilePartition,
    deleted_text,
    files_of_times,
    written_stop,
)
from rockoon_spark.source.log_source import (
    SPLIT_BYTES,
    CheckQueues,
    ContiguousLog,
    ExistingQueues,
    LastRecord,
    LogPartition,
    LogSource,
)
from rockoon_spark.source.queue_entries import ListedRecords, listed_records, recovery_point

_HEAD_BYTES = 8


@dataclass(frozen=True, slots=True)
class StoreDirectory:
    """`LogSource` for a store directory of Rockoon or RocketMQ.

    Args:
        path: a local path, or a URI.
        broker: name of the broker of the store.
        compacted: True to read compacted topics as a consumer does; see `Coverage`.
        fails_on_data_loss: True to fail if a file is deleted before it is read.
    """

    path: str
    broker: str = ""
    compacted: bool = False
    fails_on_data_loss: bool = True

    def partitions(
        self,
        selection: Selection,
        split_bytes: int,
        check: CheckQueues | None = None,
        columns: Sequence[str] = (),  # noqa: ARG002 - its partitions read whole records
    ) -> Sequence[LogPartition]:
        """Divide the log of the store into partitions; see `LogSource`.

        Raises:
            StoreReadError: this is not a store, a file is missing, or the generation is damaged.
            GenerationReplaced: the broker replaced its generation during each attempt.
        """
        if check is not None:
            check(self.existing())

        def current() -> CurrentGeneration | None:
            return current_generation(self.path, self.broker) if self.compacted else None

        def of_log(coverage: Coverage | None) -> Sequence[LogPartition]:
            return self._of_log(selection, split_bytes, coverage)

        return with_generation(current, of_log, selection, split_bytes)

    def _of_log(
        self, selection: Selection, split_bytes: int, coverage: Coverage | None
    ) -> list[FilePartition]:
        files = list_log(self.path)
        log = DirectoryLog(self, files[: _count_written(files)], {})
        start = log.start
        if coverage is not None and coverage.holds_all(selection):
            start = max(start, coverage.log_end)
        point = recovery_point(self.path)
        listed = listed_records(self.path, self.broker, selection, start, point)
        found: list[FilePartition] = []
        if listed is not None:
            records, listed_end = listed
            found += log.listed_partitions(records, listed_end, split_bytes)
            start = max(start, listed_end)
        if log.files and not log.is_end(start):
            # Zeros at the end of the last file are not planned.
            stop = written_stop(log.files[-1], 0 if point is None else point.log_end)
            found += log.partitions(start, stop, split_bytes)
        wanted = selection.ranges.get("store_time")
        if wanted is not None:
            kept = files_of_times(log.files, wanted.least // 1000, -(-wanted.most // 1000))
            found = [each for each in found if each.file in kept]
        return [replace(each, coverage=coverage) for each in found]

    def existing(self) -> ExistingQueues | None:
        """Return the topics and queues of the store; see `LogSource`.

        Raises:
            StoreReadError: the store's topics cannot be read.
        """
        topics = list_topics(self.path)
        if topics is None:
            return None
        keys = (
            (topic, broker, number)
            for topic, numbers in topics.items()
            for number in numbers
            for broker in ("", self.broker)
        )
        return ExistingQueues(frozenset(topics), frozenset(keys))

    def log(self) -> "DirectoryLog":
        files = list_log(self.path)
        files = files[: max(_count_written(files), 1)]
        # Marks are read after the files. Otherwise, if a topic is recreated in between, records of
        # both topics with the same queue offset would be read.
        return DirectoryLog(self, tuple(files), dict(dropped_marks(self.path)))

    def logs(self) -> "Sequence[DirectoryLog]":
        log = self.log()
        return [log] if log.files and not log.is_end(log.start) else []


@dataclass(frozen=True, slots=True)
class DirectoryLog:
    """`ContiguousLog` of a store directory.

    Args:
        directory: the store directory.
        files: nonempty files, in order.
        marks: see `ContiguousLog`.
    """

    directory: StoreDirectory
    files: Sequence[LogFile]
    marks: Mapping[str, int]
    is_end_known = False

    @property
    def broker(self) -> str:
        return self.directory.broker

    @property
    def start(self) -> int:
        return self.files[0].start if self.files else 0

    @property
    def sealed_end(self) -> int:
        return self.files[max(_count_written(self.files), 1) - 1].start if self.files else 0

    @property
    def end(self) -> int:
        return self.files[-1].start + self.files[-1].bytes if self.files else 0

    def partitions(
        self, start: int, stop: int, split_bytes: int | None = None, *, at_record: bool = True
    ) -> list[FilePartition]:
        found: list[FilePartition] = []
        sealed_end = self.sealed_end
        for file in self.files:
            first = max(start, file.start)
            whole = FilePartition(
                file=file,
                start=first,
                stop=min(stop, file.start + file.bytes),
                at_record=at_record and first == start,
                broker=self.directory.broker,
                store=self.directory.path,
                fails_on_data_loss=self.directory.fails_on_data_loss,
                is_sealed=file.start < sealed_end,
            )
            found += whole.cut(split_bytes or SPLIT_BYTES)
        return found

    def listed_partitions(
        self, records: ListedRecords, stop: int, split_bytes: int
    ) -> list[FilePartition]:
        """Divide listed records into partitions.

        Args:
            records: the records to read.
            stop: physical offset up to which `records` is complete.
            split_bytes: maximum size of the records of a partition, unless one is larger.
        """
        found: list[FilePartition] = []
        for whole in self.partitions(self.start, stop, max(stop - self.start, 1)):
            first, last = np.searchsorted(records.starts, [whole.start, whole.stop]).tolist()
            own = records.within(first, last)
            parts = (np.cumsum(own.sizes) - 1) // split_bytes
            bounds = [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist(), len(own)]
            for begin, end in pairwise(bounds):
                if begin == end:
                    continue
                part = own.within(begin, end)
                behind = int(own.starts[end]) if end < len(own) else whole.stop
                start = int(part.starts[0])
                found.append(replace(whole, start=start, stop=behind, at_record=True, listed=part))
        return found

    def following(self, offset: int) -> int:
        file = self._file_of(offset)
        closing = _head(file, offset - file.start)
        is_closed = int.from_bytes(closing[4:], signed=True) == MAGIC_BLANK
        if len(closing) < _HEAD_BYTES or is_closed:
            return file.start + file.bytes
        return offset

    def is_end(self, offset: int) -> bool:
        file = self.files[-1]
        return offset >= file.start and not any(_head(file, offset - file.start))

    def name_at(self, offset: int, /) -> str:
        return self._file_of(offset).shown

    def oldest(self) -> int:
        files = list_log(self.directory.path)
        return files[0].start if files else self.end

    def knows(self, last: LastRecord) -> bool | None:
        for file in self.files:
            position = last.offset - file.start
            if 0 <= position < file.bytes:
                record = read_range(file, position, position + last.bytes, 0)
                return zlib.crc32(record.tobytes()) == last.crc32
        return None

    def _file_of(self, offset: int) -> LogFile:
        return self.files[max(bisect_right(self.files, offset, key=lambda file: file.start), 1) - 1]


def _count_written(files: Sequence[LogFile]) -> int:
    """Count the files without the empty ones at the end, which brokers create in advance."""
    count = len(files)
    while count and not any(_head(files[count - 1], 0)):
        count -= 1
    return count


def _head(file: LogFile, position: int) -> bytes:
    """Return the 8 bytes with a record's size and magic at a position; fewer at the file's end."""
    try:
        stop = min(position + _HEAD_BYTES, file.bytes)
        return read_range(file, position, stop, 0).tobytes()
    except FileNotFoundError as error:
        raise LogBroken(deleted_text(file)) from error


Extent = tuple[int, int] | None
"""Physical offsets at which a partition's first record starts and its last record ends; None
without records.
"""


def contiguous_log(log: str | LogSource) -> ContiguousLog:
    """Return the current state of the log that a job reads.

    Args:
        log: a source, or a store directory (local path or URI).

    Raises:
        LogBroken, RockoonError, StoreReadError: see `LogSource.log`.
    """
    return (StoreDirectory(log) if isinstance(log, str) else log).log()


def check_complete(log: ContiguousLog, start: int, stop: int, extents: Sequence[Extent]) -> int:
    """Check that the records of all partitions cover the log from `start` to `stop`.

    Args:
        start, stop: physical offsets; the partitions are in order and have no gap.
        extents: of each partition.

    Returns:
        Physical offset at which the next record will start: `stop`, or the end of the log.

    Raises:
        LogBroken: bytes between two records, or before `stop`, belong to no record.
    """
    at = start
    for extent in extents:
        if extent is None:
            continue
        first, end = extent
        if first != at:
            at = log.following(at)
        if first != at:
            raise LogBroken(no_record(log.name_at(at), at, first))
        at = end
    if at != stop:
        at = log.following(at)
    if at != stop and not (stop == log.end and log.is_end(at)):
        raise LogBroken(no_record(log.name_at(at), at, stop))
    return at
