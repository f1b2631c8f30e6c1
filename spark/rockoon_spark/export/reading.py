"""Reading the files of an export: their checksums, and the rows of a section of a log."""

import heapq
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rockoon_spark.export.rows import ROW_SCHEMA, TOPIC_COLUMN, Partition
from rockoon_spark.export.target import ExportedFile, ExportTarget, Section

_READ_BYTES = 4 << 20
_BATCH_ROWS = 65_536


def file_problem(target: ExportTarget, file: ExportedFile) -> str | None:
    """Check the length and checksum of an exported file; return the problem, or None."""
    crc32 = found_bytes = 0
    try:
        with target.open(file.path) as stream:
            while block := stream.read(_READ_BYTES):
                crc32 = zlib.crc32(block, crc32)
                found_bytes += len(block)
    except FileNotFoundError:
        return f"{target.shown}/{file.path} is missing"
    if found_bytes != file.bytes:
        return f"{target.shown}/{file.path} has {found_bytes} bytes, expected {file.bytes}"
    if crc32 != file.crc32:
        return f"{target.shown}/{file.path}: its checksum differs from the manifest"
    return None


def section_rows(
    target: ExportTarget, files: Sequence[ExportedFile], section: Section
) -> Iterator[pa.Table]:
    """Yield the rows of a section of a broker's log, by physical offset.

    Args:
        target: the export.
        files: all files with rows of the section, in any order; further files are ignored.
        section: the range of the log.

    Raises:
        OSError, pa.ArrowException: a file cannot be read.
    """
    # By a lower bound of the next offset: so a file is opened when its first row is due.
    pending: list[tuple[int, int, Iterator[pa.Table]]] = [
        (found.first_offset, number, _file_rows(target, file, section))
        for number, file in enumerate(files)
        if (found := file.range_in(section))
    ]
    heapq.heapify(pending)
    while pending:
        _, number, tables = heapq.heappop(pending)
        for table in tables:
            offsets = table["physical_offset"].to_numpy()
            due = len(offsets)
            if pending:
                due = int(offsets.searchsorted(pending[0][0], side="right"))
            if due:
                yield table.slice(0, due)
            if due < len(offsets):
                rest = chain((table.slice(due),), tables)
                heapq.heappush(pending, (int(offsets[due]), number, rest))
                break


def _file_rows(target: ExportTarget, file: ExportedFile, section: Section) -> Iterator[pa.Table]:
    """Yield the rows of a file that are in a section, in the order of the file."""
    is_whole = (
        not file.further and section.start <= file.first_offset and file.last_offset < section.stop
    )
    with target.open(file.path) as stream:
        parquet = pq.ParquetFile(stream)
        groups = [
            number
            for number in range(parquet.num_row_groups)
            if _may_have(parquet.metadata.row_group(number), section)
        ]
        for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=groups):
            table = pa.Table.from_batches([batch])
            if TOPIC_COLUMN not in table.column_names:
                # Exports of earlier versions have it only in the directory's name.
                topics = pa.repeat(Partition.of(file.path).topic, table.num_rows)
                at = ROW_SCHEMA.get_field_index(TOPIC_COLUMN)
                table = table.add_column(at, TOPIC_COLUMN, topics)
            if not is_whole:
                table = table.filter(_is_in(table, section))
            if table.num_rows:
                yield table


def _is_in(table: pa.Table, section: Section) -> pa.ChunkedArray:
    """Return a mask of the rows that are in a section."""
    offsets = table["physical_offset"]
    is_between = pc.and_(pc.greater_equal(offsets, section.start), pc.less(offsets, section.stop))
    return pc.and_(pc.equal(table["broker"], section.broker), is_between)


def _may_have(group: Any, section: Section) -> bool:
    """True if a row group can have rows of a section, by its statistics."""
    for number in range(group.num_columns):
        column = group.column(number)
        found = column.statistics
        if found is None or not found.has_min_max:
            continue
        if column.path_in_schema == "broker" and not found.min <= section.broker <= found.max:
            return False
        if column.path_in_schema == "physical_offset" and (
            found.min >= section.stop or found.max < section.start
        ):
            return False
    return True
