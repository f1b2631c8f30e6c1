"""The parts of a generation as partitions, and their consistent division with the log after it.

Records of the topics that a generation covers are read from its parts. In the log, records of these
topics below the generation's `log_end` are skipped, because many of them are superseded. A topic
that was deleted after the generation was made is read only from the log.
"""

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
    Manifest,
    part_names,
    superseded_name,
)
from rockoon_format.record import RECORD_BYTES_MIN
from rockoon_spark.records.columns import Bytes, LogRecords, are_whole
from rockoon_spark.records.selection import Coverage, Selection
from rockoon_spark.source.log_source import (
    DamagedRange,
    GenerationReplaced,
    LogPartition,
    in_batches,
)

ReadFile = Callable[[str, int, int], Bytes]
"""Function that reads bytes of a generation's file: file name, first byte, end (exclusive)."""

# Bytes of one read, unless one record is longer.
_READ_BYTES = 4 << 20
_FAULT = "are a damaged record of the generation"


class GenerationFiles(Protocol):
    """The files of one generation. Can be pickled."""

    @property
    def name(self) -> str:
        """Name of the generation, for error texts."""

    @property
    def broker(self) -> str:
        """Name of the broker."""

    @property
    def number(self) -> int:
        """Number of the generation."""

    def opened(self) -> AbstractContextManager[ReadFile]:
        """Return a context with a function that reads the files of the generation.

        The function raises GenerationReplaced after the files were deleted.
        """


@dataclass(frozen=True, slots=True)
class GenerationPartition:
    """Partition of a generation that one task reads: some records of one part."""

    files: GenerationFiles
    part: GenerationPart
    layout: EntriesLayout
    rows: Sequence[slice]
    """Indexes of the entries whose records are read, ascending."""

    def read(self) -> Iterator[LogRecords | DamagedRange]:
        """Yield the records of the partition; see `LogPartition`.

        Raises:
            GenerationReplaced: the generation was replaced during the read.
            GenerationError: the entries are damaged.
        """
        with self.files.opened() as read:
            for rows in self.rows:
                yield from self._read_rows(read, rows)

    def _read_rows(self, read: ReadFile, rows: slice) -> Iterator[LogRecords | DamagedRange]:
        records_file, entries_file = part_names(self.part.number)
        positions, sizes, physical = (
            _column(read, entries_file, self.layout, name, rows).astype(np.int64)
            for name in ("positions", "sizes", "physical_offsets")
        )
        ends = positions + sizes
        if (sizes < RECORD_BYTES_MIN).any() or (positions[1:] != ends[:-1]).any():
            raise GenerationError(f"{self.files.name}: {entries_file} is damaged")
        kept = _kept(read, self.part, rows)
        positions, sizes, physical, ends = (
            column[kept] for column in (positions, sizes, physical, ends)
        )
        at = 0
        while at < len(positions):
            first = int(positions[at])
            stop = max(int(np.searchsorted(ends, first + _READ_BYTES, "right")), at + 1)
            chosen = slice(at, stop)
            buffer = read(records_file, first, int(ends[stop - 1]))
            starts = positions[chosen] - first
            yield from self._checked(buffer, starts, sizes[chosen], physical[chosen])
            at = stop

    def _checked(
        self, buffer: Bytes, starts: IntArray, sizes: IntArray, physical: IntArray
    ) -> Iterator[LogRecords | DamagedRange]:
        """Yield the records that match their index entries, and the damaged ranges: records that do
        not match.
        """
        at = 0
        for records in in_batches(buffer, 0, starts, sizes, self.files.broker):
            own = slice(at, at + len(records))
            good = are_whole(records, physical[own])
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
    """Divide the selected queues of a generation into partitions.

    Args:
        files: files of the generation.
        parts: parts of its manifest.
        coverage: the topics to read from it.
        selection: the records to read.
        split_bytes: approximate size of a partition, converted to a number of records.

    Raises:
        GenerationReplaced: the generation was replaced during this call.
        GenerationError: one of its files is damaged.
    """
    found: list[GenerationPartition] = []
    with files.opened() as read:
        for part in parts:
            layout, runs = _selected_rows(read, part, coverage, selection)
            rows_max = max(part.rows * split_bytes // max(part.records_bytes, 1), 1)
            found += [
                GenerationPartition(files, part, layout, rows) for rows in _packed(runs, rows_max)
            ]
    return found


def _selected_rows(
    read: ReadFile, part: GenerationPart, coverage: Coverage, selection: Selection
) -> tuple[EntriesLayout, list[slice]]:
    """Return the runs of entries of the selected queues; adjacent queues are merged."""
    _, name = part_names(part.number)
    layout = EntriesLayout.of(read(name, 0, EntriesLayout.HEAD_BYTES).data)
    if layout.columns["positions"].count != part.rows:
        raise GenerationError(
            f"{name} has {layout.columns['positions'].count} records, "
            f"but the manifest counts {part.rows}"
        )
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
    """Divide runs into lists of `rows_max` rows each; the last may have fewer."""
    packed: list[slice] = []
    room = rows_max
    for run in runs:
        at = run.start
        while at < run.stop:
            rows = slice(at, min(run.stop, at + room))
            packed.append(rows)
            at = rows.stop
            room -= rows.stop - rows.start
            if not room:
                yield packed
                packed, room = [], rows_max
    if packed:
        yield packed


def _column(
    read: ReadFile, name: str, layout: EntriesLayout, column: str, rows: slice | None = None
) -> NDArray[Any]:
    found = layout.columns[column]
    at = found.bytes_of(slice(0, found.count) if rows is None else rows)
    return np.frombuffer(read(name, at.start, at.stop), found.dtype)


def _kept(read: ReadFile, part: GenerationPart, rows: slice) -> NDArray[np.bool_] | slice:
    """Return which of some rows are not superseded."""
    if not part.superseded:
        return slice(None)
    first = rows.start // 8
    bits = read(superseded_name(part.number), first, -(-rows.stop // 8))
    superseded = np.unpackbits(bits, bitorder="little").view(np.bool_)
    return ~superseded[rows.start - first * 8 : rows.stop - first * 8]


# Planning is repeated if the generation is replaced during it.
_ATTEMPTS_MAX = 5


@dataclass(frozen=True, slots=True)
class CurrentGeneration:
    """The generation that a broker serves to readers of compacted topics."""

    files: GenerationFiles
    manifest: Manifest
    coverage: Coverage


def with_generation(
    current: Callable[[], CurrentGeneration | None],
    of_log: Callable[[Coverage | None], Sequence[LogPartition]],
    selection: Selection,
    split_bytes: int,
) -> Sequence[LogPartition]:
    """Divide the current generation and the log after it into partitions.

    Args:
        current: returns the current generation, None if there is none.
        of_log: divides the log into partitions, without the covered records.
        selection: the records to read.
        split_bytes: maximum size of a partition.

    Raises:
        GenerationReplaced: the generation was replaced during each attempt.
        GenerationError: it is damaged.
        FileNotFoundError: files of the log were deleted during each attempt.
    """
    for attempt in range(_ATTEMPTS_MAX):
        try:
            found = current()
            partitions: list[LogPartition] = []
            if found is not None:
                partitions += generation_partitions(
                    found.files, found.manifest.parts, found.coverage, selection, split_bytes
                )
            partitions += of_log(found.coverage if found else None)
            # Checked again after the log's ends were read: if a new generation was published in
            # between, retention may have deleted log records that only the new one contains.
            if found == current():
                return partitions
        except (GenerationReplaced, FileNotFoundError):
            if attempt == _ATTEMPTS_MAX - 1:
                raise
    raise GenerationReplaced(
        f"the generation was replaced during each of {_ATTEMPTS_MAX} attempts: read again later"
    )
