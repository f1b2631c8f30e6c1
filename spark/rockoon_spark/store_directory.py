"""The log of a store directory: the files are read as they are, whoever wrote them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rockoon_spark.files import dropped_marks, list_log
from rockoon_spark.log_columns import LogRecords
from rockoon_spark.selection import Selection
from rockoon_spark.splits import Split, files_of_times, read_split, split_files
from rockoon_spark.stretches import DamagedPlace, in_batches


@dataclass(frozen=True, slots=True)
class StoreDirectory:
    """A store, Rockoon's or RocketMQ's.

    Args:
        path: a path of this machine, or a URI.
        broker: name of the broker whose store it is.
    """

    path: str
    broker: str

    def stretches(self, selection: Selection, split_bytes: int) -> Sequence["DirectoryStretch"]:
        """See `LogPlace`.

        Raises:
            StoreError: this is no store, or a file is missing.
        """
        if not selection.wants_broker(self.broker):
            return []
        files = list_log(self.path)
        wanted = selection.ranges.get("store_time")
        if wanted is not None:
            files = files_of_times(files, wanted.least // 1000, -(-wanted.most // 1000))
        return [DirectoryStretch(self, split) for split in split_files(files, split_bytes)]


@dataclass(frozen=True, slots=True)
class DirectoryStretch:
    """A stretch of one file."""

    directory: StoreDirectory
    split: Split

    def read(self) -> Iterator[LogRecords | DamagedPlace]:
        """See `Stretch`."""
        split = self.split
        buffer, found = read_split(split)
        for damage in found.damages:
            yield DamagedPlace(split.file.uri, damage.start, damage.end)
        marks = dropped_marks(self.directory.path)
        base = split.file.start + split.start
        for records in in_batches(buffer, base, found.starts, found.sizes, self.directory.broker):
            yield records.chosen(_kept(records, marks))


def _kept(records: LogRecords, marks: Mapping[str, int]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which records did not go with their topic."""
    kept = np.ones(len(records), np.bool_)
    for topic, mark in marks.items():
        if records.base < mark:
            of_topic = Selection().among("topic", frozenset({topic})).mask(records)
            kept &= ~(of_topic & (records.prefix("physical_offset") < mark))
    return kept
