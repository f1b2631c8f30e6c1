"""The parts of a generation as partitions: what each task reads of them, and checks."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rockoon_format.frames import IntArray
from rockoon_format.generation import (
    EntriesLayout,
    GenerationError,
    GenerationPart,
    part_names,
)
from rockoon_format.record import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from rockoon_spark.generations.coverage import Coverage
from rockoon_spark.records.columns import Bytes, LogRecords
from rockoon_spark.records.selection import Selection
from rockoon_spark.source.log_source import DamagedRange, in_batches

ReadPiece = Callable[[str, int, int], Bytes]
"""Bytes of a file of a generation: its name, the first one, and behind the last."""

# What is read at once, unless one record is longer.
_PIECE_BYTES = 4 << 20
_FAULT = "are a record that its generation has damaged"


class GenerationReplaced(Exception):
    """A generation is not in force any more, and its files are gone."""


class GenerationFiles(Protocol):
    """The files of one generation, wherever they are. Can be pickled."""

    @property
    def name(self) -> str:
        """Which generation, for people."""
        ...

    @property
    def broker(self) -> str:
        """Name of the broker whose it is."""
        ...

    def opened(self) -> AbstractContextManager[ReadPiece]:
        """A way to read them, which raises GenerationReplaced once they are gone."""
        ...


@dataclass(frozen=True, slots=True)
class GenerationPartition:
    """Some records of one part of a generation."""

    files: GenerationFiles
    part: int
    """Its number."""
    layout: EntriesLayout
    rows: Sequence[slice]
    """Which, ascending."""

    def read(self) -> Iterator[LogRecords | DamagedRange]:
        """See `LogPartition`.

        Raises:
            GenerationReplaced: the generation went while it was read.
            GenerationError: the entries are damaged.
        """
        with self.files.opened() as read:
            for rows in self.rows:
                yield from self._run(read, rows)

    def _run(self, read: ReadPiece, rows: slice) -> Iterator[LogRecords | DamagedRange]:
        records_file, entries_file = part_names(self.part)
        positions, sizes, physical = (
            _column(read, entries_file, self.layout, name, rows).astype(np.int64)
            for name in ("positions", "sizes", "physical_offsets")
        )
        ends = positions + sizes
        if (sizes < RECORD_BYTES_MIN).any() or (positions[1:] != ends[:-1]).any():
            raise GenerationError(f"{self.files.name}: {entries_file} is damaged")
        at = 0
        while at < len(positions):
            first = int(positions[at])
            behind = max(int(np.searchsorted(ends, first + _PIECE_BYTES, "right")), at + 1)
            chosen = slice(at, behind)
            buffer = read(records_file, first, int(ends[behind - 1]))
            starts = positions[chosen] - first
            yield from self._whole(buffer, starts, sizes[chosen], physical[chosen])
            at = behind

    def _whole(
        self, buffer: Bytes, starts: IntArray, sizes: IntArray, physical: IntArray
    ) -> Iterator[LogRecords | DamagedRange]:
        """The records of some bytes, and those that are not what the entries say."""
        at = 0
        for records in in_batches(buffer, 0, starts, sizes, self.files.broker):
            own = slice(at, at + len(records))
            magic = records.parts.prefix["magic"]
            good = (magic == MAGIC_V1) | (magic == MAGIC_V2)
            good &= records.parts.prefix["size"] == records.sizes
            good &= records.parts.computed_sizes == records.sizes
            good &= records.parts.topic_lengths >= 0
            good &= records.prefix("physical_offset") == physical[own]
            for index in np.flatnonzero(~good).tolist():
                start = int(physical[own][index])
                yield DamagedRange(
                    self.files.name, start, start + int(records.sizes[index]), _FAULT
                )
            yield records if good.all() else records.chosen(good)
            at = own.stop


def generation_partitions(
    files: GenerationFiles,
    parts: Sequence[GenerationPart],
    coverage: Coverage,
    selection: Selection,
    split_bytes: int,
) -> list[GenerationPartition]:
    """Cut a generation into partitions; queues that are not selected are left out.

    Args:
        files: the generation's.
        parts: of its manifest.
        coverage: which of its topics are read.
        selection: which records are wanted.
        split_bytes: length of a partition, about: it is counted in records.

    Raises:
        GenerationReplaced: the generation went while it was looked at.
        GenerationError: a file of it is damaged.
    """
    found: list[GenerationPartition] = []
    with files.opened() as read:
        for part in parts:
            layout, runs = _wanted_rows(read, part, coverage, selection)
            rows_max = max(part.records * split_bytes // max(part.records_bytes, 1), 1)
            found += [
                GenerationPartition(files, part.number, layout, rows)
                for rows in _packed(runs, rows_max)
            ]
    return found


def _wanted_rows(
    read: ReadPiece, part: GenerationPart, coverage: Coverage, selection: Selection
) -> tuple[EntriesLayout, list[slice]]:
    """Rows of the queues that are wanted, neighbours together."""
    _, name = part_names(part.number)
    layout = EntriesLayout.of(read(name, 0, EntriesLayout.HEAD_BYTES).data)
    if layout.columns["positions"].count != part.records:
        raise GenerationError(f"{name} has not the {part.records} records of the manifest")
    topics = layout.decode_topics(read(name, layout.names.start, layout.names.stop).tobytes())
    numbers, starts = (
        _column(read, name, layout, column).tolist() for column in ("slice_topics", "slice_starts")
    )
    runs: list[slice] = []
    for index, number in enumerate(numbers):
        topic, rows = topics[number], slice(starts[index], starts[index + 1])
        if topic not in coverage.topics or not selection.wants_topic(topic):
            continue
        if runs and runs[-1].stop == rows.start:
            runs[-1] = slice(runs[-1].start, rows.stop)
        else:
            runs.append(rows)
    return layout, runs


def _packed(runs: Sequence[slice], rows_max: int) -> Iterator[list[slice]]:
    """Runs cut and put together, so that each list has `rows_max` rows; the last may have fewer."""
    packed: list[slice] = []
    room = rows_max
    for run in runs:
        at = run.start
        while at < run.stop:
            taken = slice(at, min(run.stop, at + room))
            packed.append(taken)
            at = taken.stop
            room -= taken.stop - taken.start
            if not room:
                yield packed
                packed, room = [], rows_max
    if packed:
        yield packed


def _column(
    read: ReadPiece, name: str, layout: EntriesLayout, column: str, rows: slice | None = None
) -> NDArray[Any]:
    place = layout.columns[column]
    wanted = place.bytes_of(slice(0, place.count) if rows is None else rows)
    return np.frombuffer(read(name, wanted.start, wanted.stop), place.dtype)
