"""The log of a store directory: the files are read as they are, whoever wrote them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rockoon_format.generation import Manifest
from rockoon_spark.files import StoreError, dropped_marks, generation_marks, list_log
from rockoon_spark.generations.coverage import Coverage
from rockoon_spark.generations.directory_generation import DirectoryGeneration, generation_in_force
from rockoon_spark.generations.parts import (
    GenerationPartition,
    GenerationReplaced,
    generation_partitions,
)
from rockoon_spark.records.columns import LogRecords
from rockoon_spark.records.selection import Selection
from rockoon_spark.source.file_partition import Split, files_of_times, read_split, split_files
from rockoon_spark.source.log_source import FORGED_FAULT, DamagedPlace, in_batches, report_loss

# Looking again is for a generation that another replaces while files are listed.
_LOOKS_MAX = 5


@dataclass(frozen=True, slots=True)
class StoreDirectory:
    """A store, Rockoon's or RocketMQ's.

    Args:
        path: a path of this machine, or a URI.
        broker: name of the broker whose store it is.
        compacted: whether compacted topics are read as a consumer gets them; see `Coverage`.
        fails_on_data_loss: whether to fail when a file is deleted before it is read.
    """

    path: str
    broker: str
    compacted: bool = False
    fails_on_data_loss: bool = True

    def partitions(
        self, selection: Selection, split_bytes: int
    ) -> Sequence["FilePartition | GenerationPartition"]:
        """See `LogSource`.

        Raises:
            StoreError: this is no store, or a file is missing, or the generation is damaged.
        """
        for look in range(_LOOKS_MAX):
            try:
                found = self._generation()
                partitions = self._cut(found, selection, split_bytes)
                # What another generation covers may have gone from the log since.
                if found == self._generation():
                    return partitions
            except (GenerationReplaced, FileNotFoundError):
                if look == _LOOKS_MAX - 1:
                    raise
        raise StoreError(f"{self.path}: files come and go while they are listed")

    def absent(self, topics: Collection[str]) -> Sequence[str]:
        """See `LogSource`: none, since what a log holds is known when it has been read."""
        del topics
        return ()

    def _generation(self) -> tuple[DirectoryGeneration, Manifest] | None:
        return generation_in_force(self.path, self.broker) if self.compacted else None

    def _cut(
        self,
        found: tuple[DirectoryGeneration, Manifest] | None,
        selection: Selection,
        split_bytes: int,
    ) -> "Sequence[FilePartition | GenerationPartition]":
        if found is None:
            return self._of_log(selection, split_bytes, None)
        files, manifest = found
        coverage = Coverage.of(manifest, generation_marks(self.path))
        return [
            *generation_partitions(files, manifest.parts, coverage, selection, split_bytes),
            *self._of_log(selection, split_bytes, coverage),
        ]

    def _of_log(
        self, selection: Selection, split_bytes: int, coverage: Coverage | None
    ) -> "list[FilePartition]":
        files = list_log(self.path)
        wanted = selection.ranges.get("store_time")
        if wanted is not None:
            files = files_of_times(files, wanted.least // 1000, -(-wanted.most // 1000))
        splits = split_files(files, split_bytes)
        if coverage is not None and coverage.holds_all(selection):
            splits = [each for each in splits if each.file.start + each.stop > coverage.log_end]
        return [FilePartition(self, split, coverage=coverage) for split in splits]


@dataclass(frozen=True, slots=True)
class FilePartition:
    """A partition of one file."""

    directory: StoreDirectory
    split: Split
    at_record: bool = False
    """A record is known to start at the split's start, or nothing was written there."""
    coverage: Coverage | None = None
    """Records that are read from elsewhere."""

    def read(self) -> Iterator[LogRecords | DamagedPlace]:
        """See `LogPartition`.

        Raises:
            DataLost: the file was deleted after the read was planned.
        """
        split = self.split
        try:
            buffer, found = read_split(split, proven=self.at_record)
        except FileNotFoundError:
            sentence = (
                f"{split.file.uri} was deleted, as retention does, after the read was planned"
            )
            report_loss(sentence, fails=self.directory.fails_on_data_loss)
            return
        for damage in found.damages:
            yield DamagedPlace(split.file.uri, damage.start, damage.end)
        if found.forgery is not None:
            forged = found.forgery
            yield DamagedPlace(split.file.uri, forged.start, forged.end, FORGED_FAULT)
        marks = dropped_marks(self.directory.path)
        base = split.file.start + split.start
        for records in in_batches(buffer, base, found.starts, found.sizes, self.directory.broker):
            kept = records.chosen(_kept(records, marks))
            yield kept if self.coverage is None else self.coverage.left(kept)


def _kept(records: LogRecords, marks: Mapping[str, int]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which records did not go with their topic."""
    kept = np.ones(len(records), np.bool_)
    for topic, mark in marks.items():
        if records.base < mark:
            of_topic = Selection().among("topic", frozenset({topic})).mask(records)
            kept &= ~(of_topic & (records.prefix("physical_offset") < mark))
    return kept
