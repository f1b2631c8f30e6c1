"""Sources of a compaction: partitions of the log, and the generation before."""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rockoon.errors import RockoonError
from rockoon_format.frames import IntArray
from rockoon_format.generation import GenerationError, GenerationPart, PartEntries, part_names
from rockoon_format.record import TRANSACTION_PREPARED
from rockoon_spark.generations.parts import GenerationFiles, GenerationReplaced
from rockoon_spark.records.columns import Bytes, LogRecords
from rockoon_spark.source.log_source import (
    ContiguousPartition,
    DamagedPlace,
    DataLost,
    in_batches,
)

_NEVER_MS = 1 << 62


class CompactionError(Exception):
    """A log cannot be compacted, or a generation cannot be made; the one before stays in force."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Records of compacted topics among others."""

    records: LogRecords
    index: IntArray
    """Which of the records are wanted, int64[n], ascending."""
    topics: list[str]
    which: IntArray
    """Which of `topics` each wanted one is of, int64[n]."""
    kept_since_ms: IntArray
    """When the first generation that held each was made, epoch milliseconds, int64[n]."""

    def __len__(self) -> int:
        return len(self.index)

    def column(self, name: str) -> IntArray:
        """A field that stands at the same place in all records, int64[n]."""
        column: IntArray = self.records.parts.prefix[name][self.index].astype(np.int64)
        return column

    @property
    def sizes(self) -> IntArray:
        """Bytes of each, int64[n]."""
        return self.records.sizes[self.index]

    @property
    def are_empty(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which have an empty body, bool[n]."""
        found: np.ndarray[tuple[int], np.dtype[np.bool_]]
        found = self.records.parts.body_lengths[self.index] <= 0
        return found


class Source(Protocol):
    """The records of compacted topics that start between two places of the log. Can be pickled."""

    @property
    def start(self) -> int:
        """Physical offset."""
        ...

    @property
    def stop(self) -> int:
        """Exclusive."""
        ...

    @property
    def is_log(self) -> bool:
        """Whether every record of its topics is there; what was compacted has holes."""
        ...

    def read(self) -> Iterator[Wanted]:
        """The records, some at a time, no two twice.

        Raises:
            CompactionError: they are not all there, or damaged.
        """
        ...

    def read_at(self, places: IntArray) -> Iterator[Wanted]:
        """At least those that start at some places, physical offsets; otherwise as `read`."""
        ...


@dataclass(frozen=True, slots=True)
class PartitionSource:
    """A partition of the log."""

    partition: ContiguousPartition
    floors: Mapping[str, int]
    """Topics to compact, and the physical offset below which each one's records do not count: they
    went with the topic, or the generation before has what is left of them."""
    log_end: int
    """Where the log ends for this run: what is behind does not matter."""
    created_ms: int
    """When the generation that will have the records was made."""
    is_log = True

    @property
    def start(self) -> int:
        return self.partition.start

    @property
    def stop(self) -> int:
        return self.partition.stop

    def read(self) -> Iterator[Wanted]:
        """See `Source`. By a damaged key another message would be superseded."""
        for wanted in self._wanted(self.partition.records()):
            chosen = np.zeros(len(wanted.records), np.bool_)
            chosen[wanted.index] = True
            records = wanted.records.chosen(chosen)
            damaged = records.are_damaged()
            if damaged.any():
                place = int(records.prefix("physical_offset")[int(damaged.argmax())])
                raise CompactionError(f"the record at physical offset {place} is damaged: bad crc")
            yield wanted

    def read_at(self, places: IntArray) -> Iterator[Wanted]:
        """See `Source`."""
        return self._wanted(self.partition.records(places))

    def _wanted(self, pieces: Iterator[LogRecords | DamagedPlace]) -> Iterator[Wanted]:
        try:
            for found in pieces:
                if isinstance(found, DamagedPlace):
                    if found.start >= self.log_end:
                        # What a power cut left there, or somebody writes at this moment.
                        continue
                    raise CompactionError(
                        f"{found.log}: physical offsets {found.start} to {found.end} hold no record"
                    )
                yield _wanted(found, self.floors, np.full(len(found), self.created_ms))
        except FileNotFoundError as error:
            raise CompactionError(
                f"{error.filename} went while it was read: retention deleted it; run again"
            ) from error
        except (RockoonError, DataLost) as error:
            raise CompactionError(f"the log cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class FormerPart:
    """A part of the generation before."""

    files: GenerationFiles
    description: GenerationPart

    def load(self) -> tuple[Bytes, Bytes]:
        """The content of both of its files, records and entries.

        Raises:
            CompactionError: they cannot be read, or are not what the manifest says.
        """
        told = self.description
        records, entries = part_names(told.number)
        wanted = (
            (records, told.records_bytes, told.records_sha256),
            (entries, told.entries_bytes, told.entries_sha256),
        )
        try:
            with self.files.opened() as read:
                content = [read(name, 0, size) for name, size, _ in wanted]
        except (RockoonError, GenerationReplaced, GenerationError, OSError) as error:
            raise CompactionError(f"{self.files.name} cannot be read: {error}") from error
        for found, (name, _, sha256) in zip(content, wanted, strict=True):
            if hashlib.sha256(found.data).hexdigest() != sha256:
                raise CompactionError(
                    f"{self.files.name} is damaged: {name} does not have its checksum"
                )
        return content[0], content[1]


@dataclass(frozen=True, slots=True)
class FormerSource:
    """A part of the generation before."""

    part: FormerPart
    floors: Mapping[str, int]
    """As for `PartitionSource`; topics that are not compacted any more have none."""
    is_log = False

    @property
    def start(self) -> int:
        return self.part.description.log_start

    @property
    def stop(self) -> int:
        return self.part.description.log_end

    def read(self) -> Iterator[Wanted]:
        """See `Source`."""
        records, encoded = self.part.load()
        try:
            entries = PartEntries.decode(encoded.data)
        except GenerationError as error:
            raise CompactionError(f"the generation in force is damaged: {error}") from error
        done = 0
        sizes = entries.sizes.astype(np.int64)
        for found in in_batches(records, 0, entries.positions, sizes, ""):
            kept_since_ms = entries.kept_since_ms[done : done + len(found)]
            yield _wanted(found, self.floors, kept_since_ms)
            done += len(found)

    def read_at(self, _places: IntArray) -> Iterator[Wanted]:
        """See `Source`."""
        return self.read()


def _wanted(records: LogRecords, floors: Mapping[str, int], kept_since_ms: IntArray) -> Wanted:
    encoded = records.topics().dictionary_encode()
    topics = [raw.decode(errors="replace") for raw in encoded.dictionary.to_pylist()]
    which = encoded.indices.to_numpy().astype(np.int64)
    is_compacted = np.array([topic in floors for topic in topics], np.bool_)
    index = np.flatnonzero(is_compacted[which])
    if len(index):
        floor = np.array([floors.get(topic, 0) for topic in topics], np.int64)
        physical = records.parts.prefix["physical_offset"][index]
        # No queue lists a prepared message.
        listed = records.parts.prefix["sys_flag"][index] & TRANSACTION_PREPARED == 0
        index = index[(physical >= floor[which[index]]) & listed]
    return Wanted(records, index, topics, which[index], kept_since_ms[index])


def first_stored_after(
    partitions: Sequence[ContiguousPartition], time_ms: int, log_end: int
) -> int:
    """Where a record starts before which none was stored after some time; `log_end` if none was.

    It is the first that bears a later time, unless store times go back behind it: what lies before
    such a place was stored earlier, whatever time it bears.

    Args:
        partitions: of a log up to there, in its order.
        time_ms: epoch milliseconds.
    """
    low, high, step = len(partitions) - 1, len(partitions), 1
    # From the end, since wrong times are sooner or later far behind.
    while low >= 0 and _first_stored_ms(partitions[low]) > time_ms:
        low, high, step = low - step, low, 2 * step
    number = bisect_right(partitions, time_ms, max(low + 1, 0), high, key=_first_stored_ms)
    # The partition before the first that begins too late has the place, or ends there.
    for partition in partitions[max(number - 1, 0) :]:
        for found in partition.records():
            if not isinstance(found, DamagedPlace):
                late = found.store_timestamps_ms > time_ms
                if late.any():
                    return int(found.prefix("physical_offset")[int(late.argmax())])
    return log_end


def _first_stored_ms(partition: ContiguousPartition) -> int:
    """When a partition's first record was stored; never, if it has none."""
    for found in partition.records():
        if not isinstance(found, DamagedPlace) and len(found):
            return int(found.store_timestamps_ms[0])
    return _NEVER_MS
