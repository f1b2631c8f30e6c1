"""The rows of an export: messages as Parquet files, for tools that cannot read a CommitLog.

A task reads a section of one broker's log and writes a file for each topic and date in it, or
several if they get large. Rows are in the order of the log. Rows are collected up to a size limit
and then written as one row group per file, so a task's memory does not depend on the number of
topics.
"""

import re
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rockoon_spark.export.target import BrokerRange, ExportedFile, ExportTarget, Gap, Section
from rockoon_spark.records.columns import LogRecords, arrow_schema, to_batch
from rockoon_spark.records.selection import Selection
from rockoon_spark.records.sent_columns import SentColumns
from rockoon_spark.source.log_source import (
    ContiguousLog,
    DamagedRange,
    DataLost,
    LastRecord,
    without_damaged,
)


class ExportError(Exception):
    """The export failed: a log cannot be exported, or not to this target."""


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """The topics to export: listed names, names that match a pattern, or all.

    Args:
        includes_internal: True to include internal topics of the brokers.
    """

    names: frozenset[str] | None = None
    pattern: str | None = None
    includes_internal: bool = False

    @property
    def selection(self) -> Selection:
        chosen = Selection(
            topic_pattern=self.pattern or "*", includes_internal=self.includes_internal
        )
        return chosen if self.names is None else chosen.among("topic", self.names)

    def is_same(self, other: "TopicChoice") -> bool:
        """True if both choices select the same topics in every cluster."""
        if (self.names, self.pattern) != (other.names, other.pattern):
            return False
        return (
            self.includes_internal == other.includes_internal
            or not self.selection.may_have_internal
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "names": sorted(self.names) if self.names else None,
            "pattern": self.pattern,
            "internal": self.includes_internal,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "TopicChoice":
        names, pattern = content["names"], content["pattern"]
        # Manifests of earlier versions have no "internal": these versions excluded internal topics
        # only from an export of all topics.
        internal = content.get("internal", bool(names) or pattern is not None)
        return cls(frozenset(names) if names else None, pattern, bool(internal))


@dataclass(frozen=True, slots=True)
class SectionReading:
    """Options for reading sections."""

    topics: TopicChoice
    fails_on_data_loss: bool
    skips_damage: bool
    is_final: bool = False
    """True if the section was exported before; damage after its end is then ignored."""


@dataclass(slots=True)
class SectionResult:
    """End of a section, and damaged ranges in it; updated while the section is read."""

    end_offset: int
    """Physical offset after the last record of the section."""
    last: LastRecord | None = None
    gaps: list[Gap] = field(default_factory=list)


def gap_text(gap: Gap) -> str:
    return f"broker {gap.broker!r}: physical offsets {gap.start} to {gap.end} {gap.reason}"


def read_section(
    log: ContiguousLog,
    section: Section,
    reading: SectionReading,
    result: SectionResult,
    *,
    at_record: bool,
) -> Iterator[LogRecords]:
    """Yield the records of the selected topics in a section.

    Args:
        at_record: True if a record is known to start at the section's start.

    Raises:
        ExportError: records are damaged or deleted, and the options do not allow that.
    """
    selection = reading.topics.selection

    def report(damage: DamagedRange) -> None:
        gap = Gap(section.broker, damage.start, damage.end, damage.fault)
        if not reading.skips_damage:
            raise ExportError(f"{gap_text(gap)}; --skip-damage exports the rest")
        result.gaps.append(gap)

    for found in _batches(log, section, reading, result, at_record=at_record):
        if isinstance(found, DamagedRange):
            # In a first export, damage after the section's last record is reported too.
            if found.start < section.stop or not reading.is_final:
                report(found)
        elif len(found):
            result.end_offset, result.last = _last_record(found)
            yield without_damaged(found.chosen(selection.mask(found)), report)


def _batches(
    log: ContiguousLog,
    section: Section,
    reading: SectionReading,
    result: SectionResult,
    *,
    at_record: bool,
) -> Iterator[LogRecords | DamagedRange]:
    start, broker = section.start, section.broker
    while start < section.stop:
        try:
            for partition in log.partitions(start, section.stop, at_record=at_record):
                for found in partition.read():
                    # The partitions were planned without a choice of columns.
                    assert not isinstance(found, SentColumns)
                    yield found
        except (DataLost, FileNotFoundError) as error:
            if reading.fails_on_data_loss:
                raise ExportError(
                    f"messages of broker {broker!r} were deleted during the read: {error}"
                ) from error
            # Continue where the log begins now, not at the failed offset: retention deletes whole
            # files, and may delete more during this read.
            oldest = log.oldest()
            end = result.end_offset
            start, at_record = (oldest, True) if oldest > end else (section.stop, False)
            lost = Gap(broker, end, min(start, section.stop), "were deleted while they were read")
            result.gaps.append(lost)
            result.end_offset = lost.end
        else:
            return


def _last_record(records: LogRecords) -> tuple[int, LastRecord]:
    position, size = int(records.parts.starts[-1]), int(records.sizes[-1])
    content = np.ascontiguousarray(records.buffer[position : position + size])
    # Not computed from the position in the buffer: a broker omits records of deleted topics.
    offset = int(records.prefix("physical_offset")[-1])
    return offset + size, LastRecord(offset, size, zlib.crc32(content.data))


FILE_BYTES = 256 << 20
ROWS_BYTES = 64 << 20
"""Size of the decoded rows that are collected before they are written."""
# Per task; if there are more, the least recently written file is closed.
_FILES_OPEN_MAX = 128
_MS_PER_DAY = 86_400_000

_FROM_LOG = (
    "topic",
    "broker",
    "queue",
    "queue_offset",
    "physical_offset",
    "message_id",
    "unique_key",
    "keys",
    "tags",
    "body",
    "properties",
    "born_time",
    "store_time",
    "born_host",
    "store_host",
    "reconsume_times",
    "flag",
    "sys_flag",
)
_TOPIC_AT = _FROM_LOG.index("topic")
_BODY_AT = _FROM_LOG.index("body")
TOPIC_COLUMN = "topic_name"
"""Column of the topic. Not `topic`, because Arrow refuses a column that is also in the path."""
# Columns with few distinct values. For other columns a dictionary costs more than it saves.
_FEW_VALUES = [
    TOPIC_COLUMN,
    "broker",
    "queue",
    "tags",
    "properties.key_value.key",
    "born_host",
    "store_host",
    "reconsume_times",
    "flag",
    "sys_flag",
]


def _schema() -> pa.Schema:
    fields = list(arrow_schema(_FROM_LOG))
    fields[_TOPIC_AT] = fields[_TOPIC_AT].with_name(TOPIC_COLUMN)
    fields[_BODY_AT : _BODY_AT + 1] = [
        pa.field("body", pa.string()),
        pa.field("body_bytes", pa.binary()),
    ]
    return pa.schema(fields)


ROW_SCHEMA = _schema()
"""Columns of each file; the path adds `topic` and `date` (of the store time, UTC). `body` is the
body if it is UTF-8 text, else null, and then `body_bytes` contains it."""


@dataclass(frozen=True, slots=True)
class Partition:
    """Topic and date of rows that are in the same files."""

    topic: str
    date: str
    """Date of the rows, as year-month-day."""

    @property
    def path(self) -> str:
        """Directory path in Hive's form, relative to the export."""
        return f"topic={escaped(self.topic)}/date={self.date}"

    @classmethod
    def of(cls, path: str) -> "Partition":
        """Return the partition of a file, from its path relative to the export."""
        topic, date, _ = path.split("/")
        return cls(unquote(topic.removeprefix("topic=")), date.removeprefix("date="))


# If all topic names look like numbers or dates, Spark converts them, for example '007' to 7. Spark
# decides before it decodes escapes, so a name with an escaped first character stays text.
_LIKE_NO_TEXT = re.compile(r"[-+.\d]|(NaN|Infinity|__HIVE_DEFAULT_PARTITION__)$")


def escaped(text: str) -> str:
    """Escape a value for a directory name as Hive and Spark do; Spark reads it as text."""
    kept = "-_."
    bare = 1 if _LIKE_NO_TEXT.match(text) else 0
    return "".join(
        each
        if number >= bare and (each.isalnum() or each in kept or not each.isascii())
        else f"%{ord(each):02X}"
        for number, each in enumerate(text)
    )


def to_rows(records: LogRecords) -> tuple[pa.RecordBatch, NDArray[np.int64], list[Partition]]:
    """Convert records to rows; also return the index of each row's partition, int64[n], and the
    partitions.
    """
    batch = to_batch(records, _FROM_LOG)
    columns = batch.columns
    columns[_BODY_AT : _BODY_AT + 1] = split_text(columns[_BODY_AT])
    topics = columns[_TOPIC_AT].dictionary_encode()
    days, day_numbers = np.unique(records.store_timestamps_ms // _MS_PER_DAY, return_inverse=True)
    pairs = topics.indices.to_numpy().astype(np.int64) * len(days) + day_numbers
    used, numbers = np.unique(pairs, return_inverse=True)
    names, dates = topics.dictionary.to_pylist(), days.astype("datetime64[D]").astype(str)
    partitions = [
        Partition(names[pair // len(days)], str(dates[pair % len(days)])) for pair in used.tolist()
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA), numbers, partitions


def split_text(bodies: pa.BinaryArray) -> list[pa.Array]:
    """Divide bodies into two columns: bodies that are UTF-8 text, and other bodies as bytes; else
    null.
    """
    try:
        return [bodies.cast(pa.string()), pa.nulls(len(bodies), pa.binary())]
    except pa.ArrowInvalid:
        raw = bodies.to_pylist()
    texts = [_decoded(body) for body in raw]
    rest = [body if text is None else None for body, text in zip(raw, texts, strict=True)]
    return [pa.array(texts, pa.string()), pa.array(rest, pa.binary())]


def _decoded(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def gathered(batches: Iterable[LogRecords]) -> Iterator[Mapping[Partition, pa.Table]]:
    """Convert records to rows by partition; yield them when ROWS_BYTES are collected."""
    tables: dict[Partition, list[pa.RecordBatch]] = {}
    gathered_bytes = 0
    for records in batches:
        if not len(records):
            continue
        rows, numbers, partitions = to_rows(records)
        gathered_bytes += rows.nbytes
        if len(partitions) > 1:
            # Stable, so that each partition keeps the order of the log.
            rows = rows.take(pa.array(np.argsort(numbers, kind="stable")))
        ends = np.cumsum(np.bincount(numbers)).tolist()
        for partition, start, end in zip(partitions, [0, *ends], ends, strict=False):
            tables.setdefault(partition, []).append(rows.slice(start, end - start))
        if gathered_bytes >= ROWS_BYTES:
            yield {each: pa.Table.from_batches(parts) for each, parts in tables.items()}
            tables, gathered_bytes = {}, 0
    if tables:
        yield {each: pa.Table.from_batches(parts) for each, parts in tables.items()}


class PartitionedWriter:
    """Writes rows to files of their partitions in the staging directory.

    Args:
        target: the export.
        broker: name of the broker of the messages.
        staging: the run's staging directory, relative to the target.
        stem: prefix of the file names; unique for each writer.
        file_bytes: size at which a file is closed and the next one is created.
    """

    def __init__(
        self, target: ExportTarget, broker: str, staging: str, stem: str, file_bytes: int
    ) -> None:
        self._target, self._broker = target, broker
        self._staging, self._stem = staging, stem
        self._file_bytes = file_bytes
        self._open: OrderedDict[Partition, ParquetFile] = OrderedDict()
        self._created = 0
        self._done: list[ExportedFile] = []

    def write(self, tables: Mapping[Partition, pa.Table]) -> None:
        """Append rows to each partition.

        Raises:
            OSError: the target cannot be written.
        """
        for partition, table in tables.items():
            file = self._open.get(partition) or self._create(partition)
            self._open.move_to_end(partition)
            if file.write(table, self._broker) >= self._file_bytes:
                self._close(partition)

    def close(self) -> list[ExportedFile]:
        """Close all Parquet files; return the written files.

        Raises:
            OSError: the target cannot be written.
        """
        while self._open:
            self._close(next(iter(self._open)))
        return self._done

    def _create(self, partition: Partition) -> "ParquetFile":
        if len(self._open) >= _FILES_OPEN_MAX:
            self._close(next(iter(self._open)))
        name = f"{self._stem}-{self._created:04}.parquet"
        self._created += 1
        file = ParquetFile(self._target, self._staging, f"{partition.path}/{name}")
        self._open[partition] = file
        return file

    def _close(self, partition: Partition) -> None:
        self._done.append(self._open.pop(partition).close())


class ParquetFile:
    """A Parquet file that is being written to a staging directory; counts and checksums its bytes.

    Args:
        target: the export.
        staging: the run's staging directory, relative to the target.
        path: path of the file once it is published, relative to the target.
    """

    def __init__(self, target: ExportTarget, staging: str, path: str) -> None:
        self._path = path
        self._target, self._staged = target, target.staged_path(staging, path)
        self._stream = target.create(self._staged)
        self._bytes = self._crc32 = self._rows = 0
        self._ranges: list[BrokerRange] = []
        self._writer = pq.ParquetWriter(
            pa.PythonFile(_Counted(self)),
            ROW_SCHEMA,
            compression="zstd",
            use_dictionary=_FEW_VALUES,
        )

    def write(self, table: pa.Table, broker: str) -> int:
        """Write a row group with messages of one broker, in the order of its log; return the size
        of the file.

        The messages of each broker must be written together.
        """
        offsets = table["physical_offset"]
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        if self._ranges and self._ranges[-1].broker == broker:
            first = self._ranges.pop().first_offset
        self._ranges.append(BrokerRange(broker, first, last))
        self._rows += table.num_rows
        self._writer.write_table(table, row_group_size=table.num_rows)
        return self._bytes

    def append(self, content: bytes) -> int:
        self._stream.write(content)
        self._bytes += len(content)
        self._crc32 = zlib.crc32(content, self._crc32)
        return len(content)

    def close(self) -> ExportedFile:
        self._writer.close()
        self._stream.close()
        self._target.sync(self._staged)
        first, *further = self._ranges
        return ExportedFile(
            self._path,
            first.broker,
            self._rows,
            self._bytes,
            self._crc32,
            first.first_offset,
            first.last_offset,
            further,
        )


class _Counted:
    """File object for Arrow, which writes a Parquet file and counts its bytes."""

    closed = False

    def __init__(self, file: ParquetFile) -> None:
        self._file = file

    def write(self, content: bytes) -> int:
        return self._file.append(content)

    def tell(self) -> int:
        return self._file._bytes

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False
