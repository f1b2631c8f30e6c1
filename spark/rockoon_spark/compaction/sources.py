"""Sources of a compaction: partitions of the log, and parts of the previous generation."""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rockoon.errors import RockoonError
from rockoon_format.frames import IntArray
from rockoon_format.generation import GenerationError, GenerationPart, PartEntries, PartFile
from rockoon_format.record import TRANSACTION_PREPARED
from rockoon_spark.generations.parts import GenerationFiles
from rockoon_spark.records.columns import Bytes, LogRecords
from rockoon_spark.source.log_source import (
    ContiguousPartition,
    DamagedRange,
    DataLost,
    GenerationReplaced,
    in_batches,
)

NEVER_MS = 1 << 62


class CompactionError(Exception):
    """The compaction failed: the log cannot be compacted, or the generation cannot be written. The
    current one is unchanged.
    """


@dataclass(frozen=True, slots=True)
class CompactedRecords:
    """The n records of compacted topics among some records of a source."""

    records: LogRecords
    index: IntArray
    """Indexes of the selected records in `records`, int64[n], ascending."""
    topics: list[str]
    which: IntArray
    """Index into `topics` for each selected record, int64[n]."""
    kept_since_ms: IntArray
    """Creation time of the first generation with each record, epoch milliseconds, int64[n]."""

    def __len__(self) -> int:
        return len(self.index)

    def column(self, name: str) -> IntArray:
        """Return a field of the fixed-length prefix of each record, int64[n]."""
        column: IntArray = self.records.parts.prefix[name][self.index].astype(np.int64)
        return column

    @property
    def sizes(self) -> IntArray:
        """Size of each record in bytes, int64[n]."""
        return self.records.sizes[self.index]

    @property
    def are_empty(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """True for records with an empty body, bool[n]."""
        found: np.ndarray[tuple[int], np.dtype[np.bool_]]
        found = self.records.parts.body_lengths[self.index] <= 0
        return found


class Source(Protocol):
    """Source of a compaction: a range of physical offsets whose records of compacted topics are
    read. Can be pickled.
    """

    @property
    def start(self) -> int:
        """Physical offset at which the source begins."""

    @property
    def stop(self) -> int:
        """Physical offset at which the source ends, exclusive."""

    @property
    def is_log(self) -> bool:
        """True if the source is the log, whose queues have no gaps; False for a former
        generation.
        """

    def read(self) -> Iterator[CompactedRecords]:
        """Yield the records of the source in batches, each record once.

        Raises:
            CompactionError: records are missing or damaged.
        """

    def read_at(self, positions: IntArray) -> Iterator[CompactedRecords]:
        """Yield the records that start at these physical offsets, and maybe other records."""


@dataclass(frozen=True, slots=True)
class PartitionSource:
    """Source of a compaction that is a partition of the log."""

    partition: ContiguousPartition
    min_offsets: Mapping[str, int]
    """Topics to compact, each with the physical offset below which its records are ignored: they
    were deleted with the topic, or the previous generation contains the kept ones."""
    log_end: int
    """End of the log for this run; damage after it is ignored."""
    created_ms: int
    """Creation time of the new generation, epoch milliseconds."""
    is_log = True

    @property
    def start(self) -> int:
        return self.partition.start

    @property
    def stop(self) -> int:
        return self.partition.stop

    def read(self) -> Iterator[CompactedRecords]:
        """Yield the records of the partition; see `Source`. Checksums are verified: a damaged key
        would supersede another message.
        """
        for wanted in self._selected(self.partition.records()):
            chosen = np.zeros(len(wanted.records), np.bool_)
            chosen[wanted.index] = True
            records = wanted.records.chosen(chosen)
            damaged = records.are_damaged()
            if damaged.any():
                at = int(records.prefix("physical_offset")[int(damaged.argmax())])
                raise CompactionError(f"the record at physical offset {at} is damaged: bad crc")
            yield wanted

    def read_at(self, positions: IntArray) -> Iterator[CompactedRecords]:
        return self._selected(self.partition.records(positions))

    def _selected(self, batches: Iterator[LogRecords | DamagedRange]) -> Iterator[CompactedRecords]:
        try:
            for found in batches:
                if isinstance(found, DamagedRange):
                    if found.start >= self.log_end:
                        # Left by a power failure, or being written by the broker.
                        continue
                    raise CompactionError(
                        f"{found.log}: physical offsets {found.start} to {found.end} hold no record"
                    )
                yield _select(found, self.min_offsets, np.full(len(found), self.created_ms))
        except FileNotFoundError as error:
            raise CompactionError(
                f"retention deleted {error.filename} while it was read: run again"
            ) from error
        except (RockoonError, DataLost) as error:
            raise CompactionError(f"the log cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class FormerPart:
    """Files of one part of the previous generation."""

    files: GenerationFiles
    description: GenerationPart

    def records(self) -> Bytes:
        """Return the content of the file with the records.

        Raises:
            CompactionError: it cannot be read, or differs from the manifest.
        """
        return self._load(self.description.files[:1])[0]

    def entries(self) -> PartEntries:
        """Return the entries; raises CompactionError as `records` does."""
        encoded, *superseded = self._load(self.description.files[1:])
        try:
            entries = PartEntries.decode(encoded.data)
            return entries.with_superseded(superseded[0].data) if superseded else entries
        except GenerationError as error:
            raise CompactionError(f"the current generation is damaged: {error}") from error

    def _load(self, wanted: Sequence[PartFile]) -> list[Bytes]:
        try:
            with self.files.opened() as read:
                content = [read(file.name, 0, file.bytes) for file in wanted]
        except (RockoonError, GenerationReplaced, GenerationError, OSError) as error:
            raise CompactionError(f"{self.files.name} cannot be read: {error}") from error
        for found, file in zip(content, wanted, strict=True):
            if hashlib.sha256(found.data).hexdigest() != file.sha256:
                raise CompactionError(
                    f"{self.files.name} is damaged: the checksum of {file.name} is wrong"
                )
        return content


@dataclass(frozen=True, slots=True)
class FormerSource:
    """Source of a compaction that is a part of the previous generation."""

    part: FormerPart
    min_offsets: Mapping[str, int]
    """Topics to compact, as in `PartitionSource`; topics that are no longer compacted are
    omitted.
    """
    is_log = False

    @property
    def start(self) -> int:
        return self.part.description.log_start

    @property
    def stop(self) -> int:
        return self.part.description.log_end

    def read(self) -> Iterator[CompactedRecords]:
        entries = self.part.entries()
        rows = entries.kept_rows()
        kept_since_ms, sizes = entries.kept_since_ms[rows], entries.sizes[rows].astype(np.int64)
        done = 0
        for found in in_batches(self.part.records(), 0, entries.positions[rows], sizes, ""):
            behind = done + len(found)
            yield _select(found, self.min_offsets, kept_since_ms[done:behind])
            done = behind

    def read_at(self, _positions: IntArray) -> Iterator[CompactedRecords]:
        return self.read()


def _select(
    records: LogRecords, min_offsets: Mapping[str, int], kept_since_ms: IntArray
) -> CompactedRecords:
    stored, numbers = records.topics
    topics = [raw.decode(errors="replace") for raw in stored]
    which = numbers.astype(np.int64)
    is_compacted = np.array([topic in min_offsets for topic in topics], np.bool_)
    index = np.flatnonzero(is_compacted[which])
    if len(index):
        floor = np.array([min_offsets.get(topic, 0) for topic in topics], np.int64)
        physical = records.parts.prefix["physical_offset"][index]
        # Prepared messages of transactions have no ConsumeQueue entries.
        listed = records.parts.prefix["sys_flag"][index] & TRANSACTION_PREPARED == 0
        index = index[(physical >= floor[which[index]]) & listed]
    return CompactedRecords(records, index, topics, which[index], kept_since_ms[index])


def first_stored_after(
    partitions: Sequence[ContiguousPartition], time_ms: int, log_end: int
) -> int:
    """Return the physical offset of the first record of the log stored after a time; `log_end` if
    none.

    Store times usually ascend. If a clock was wrong and store times go back, all records before
    the step back were stored earlier than the records after it, so their store times are ignored.

    Args:
        partitions: partitions of a log up to `log_end`, in its order.
        time_ms: epoch milliseconds.
    """
    low, high, step = len(partitions) - 1, len(partitions), 1
    # Search from the end, because records with wrong times are usually old.
    while low >= 0 and _first_stored_ms(partitions[low]) > time_ms:
        low, high, step = low - step, low, 2 * step
    number = bisect_right(partitions, time_ms, max(low + 1, 0), high, key=_first_stored_ms)
    # The record is in the partition before the first one that begins too late, or follows it.
    for partition in partitions[max(number - 1, 0) :]:
        for found in partition.records():
            if not isinstance(found, DamagedRange):
                late = found.store_timestamps_ms > time_ms
                if late.any():
                    return int(found.prefix("physical_offset")[int(late.argmax())])
    return log_end


def _first_stored_ms(partition: ContiguousPartition) -> int:
    """Return the store time of a partition's first record; NEVER_MS if it has none."""
    for found in partition.records():
        if not isinstance(found, DamagedRange) and len(found):
            return int(found.store_timestamps_ms[0])
    return NEVER_MS
