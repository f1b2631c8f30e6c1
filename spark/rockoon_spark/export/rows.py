"""The rows of an export: messages as Parquet files, for people and tools that know no log.

A task reads a partition of one broker's log and writes one file for each topic and date in it, more
when they get large. Rows are in the order of the log. A row group holds what one reading of the log
brought, so a task needs memory for that and no more, however many topics there are.
"""

import re
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rockoon_spark.export.target import ExportedFile, ExportTarget
from rockoon_spark.records.columns import LogRecords, arrow_schema, to_batch

FILE_BYTES = 256 << 20
ROWS_BYTES = 64 << 20
"""Decoded rows that are gathered before they are written."""
# Of one task; the one that was not written to for longest is closed.
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
"""The topic in the files. Not `topic`: Arrow refuses a column that a directory's name has too."""
# Where values come again and again; elsewhere looking for it costs more than it gives.
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
"""What each file has; the directories' names add `topic` and `date` (of the store time, UTC).
`body` is the body where that is text in UTF-8, else null, and `body_bytes` has it."""


@dataclass(frozen=True, slots=True)
class Partition:
    """Where rows belong."""

    topic: str
    date: str
    """Year-month-day."""

    @property
    def path(self) -> str:
        """Directories as Hive names them, below the export's."""
        return f"topic={escaped(self.topic)}/date={self.date}"

    @classmethod
    def of(cls, path: str) -> "Partition":
        """The one that a file is of, by its path below the export's."""
        topic, date, _ = path.split("/")
        return cls(unquote(topic.removeprefix("topic=")), date.removeprefix("date="))


# Where all names of an export look like numbers or dates, Spark takes them for such, and '007' for
# '7'. It looks at a name as it is written: with an escape in it, it is text.
_LIKE_NO_TEXT = re.compile(r"[-+.\d]|(NaN|Infinity|__HIVE_DEFAULT_PARTITION__)$")


def escaped(text: str) -> str:
    """A value in a directory's name, as Hive and Spark write it, so that Spark reads it as text."""
    kept = "-_."
    bare = 1 if _LIKE_NO_TEXT.match(text) else 0
    return "".join(
        each
        if number >= bare and (each.isalnum() or each in kept or not each.isascii())
        else f"%{ord(each):02X}"
        for number, each in enumerate(text)
    )


def to_rows(records: LogRecords) -> tuple[pa.RecordBatch, NDArray[np.int64], list[Partition]]:
    """Rows, the number of each one's partition, int64[n], and the partitions."""
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
    """Bodies as text, null where they are not UTF-8, and the bytes of those."""
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
    """The rows of records by partition, as many at a time as are written together."""
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
    """Writes rows into files of their partitions, in a place aside.

    Args:
        target: the export.
        broker: whose messages they are.
        staging: the run's directory aside, below the target.
        stem: how names of the files begin; no other writer's may.
        file_bytes: a file that has so many is closed and another one begun.
    """

    def __init__(
        self, target: ExportTarget, broker: str, staging: str, stem: str, file_bytes: int
    ) -> None:
        self._target, self._broker = target, broker
        self._staging, self._stem = staging, stem
        self._file_bytes = file_bytes
        self._open: OrderedDict[Partition, _OpenFile] = OrderedDict()
        self._begun = 0
        self._done: list[ExportedFile] = []

    def write(self, tables: Mapping[Partition, pa.Table]) -> None:
        """Append rows to each partition.

        Raises:
            OSError: the target cannot be written.
        """
        for partition, table in tables.items():
            file = self._open.get(partition) or self._begin(partition)
            self._open.move_to_end(partition)
            if file.write(table) >= self._file_bytes:
                self._end(partition)

    def close(self) -> list[ExportedFile]:
        """End every file; return what was written.

        Raises:
            OSError: the target cannot be written.
        """
        while self._open:
            self._end(next(iter(self._open)))
        return self._done

    def _begin(self, partition: Partition) -> "_OpenFile":
        if len(self._open) >= _FILES_OPEN_MAX:
            self._end(next(iter(self._open)))
        name = f"{self._stem}-{self._begun:04}.parquet"
        self._begun += 1
        file = _OpenFile(self._target, self._broker, self._staging, f"{partition.path}/{name}")
        self._open[partition] = file
        return file

    def _end(self, partition: Partition) -> None:
        self._done.append(self._open.pop(partition).close())


class _OpenFile:
    """A Parquet file that is being written; Arrow writes through it as through a file."""

    def __init__(self, target: ExportTarget, broker: str, staging: str, path: str) -> None:
        self._broker, self._path = broker, path
        self._target, self._staged = target, target.staged_path(staging, path)
        self._stream = target.create(self._staged)
        self._bytes = self._crc32 = self._rows = 0
        self._first_offset = self._last_offset = 0
        self._writer = pq.ParquetWriter(
            pa.PythonFile(_Counted(self)),
            ROW_SCHEMA,
            compression="zstd",
            use_dictionary=_FEW_VALUES,
        )

    def write(self, table: pa.Table) -> int:
        """Write a row group; return how many bytes there are now."""
        offsets = table["physical_offset"]
        if not self._rows:
            self._first_offset = offsets[0].as_py()
        self._last_offset = offsets[-1].as_py()
        self._rows += table.num_rows
        self._writer.write_table(table, row_group_size=table.num_rows)
        return self._bytes

    def take(self, content: bytes) -> int:
        self._stream.write(content)
        self._bytes += len(content)
        self._crc32 = zlib.crc32(content, self._crc32)
        return len(content)

    def close(self) -> ExportedFile:
        self._writer.close()
        self._stream.close()
        self._target.sync(self._staged)
        return ExportedFile(
            self._path,
            self._broker,
            self._rows,
            self._bytes,
            self._crc32,
            self._first_offset,
            self._last_offset,
        )


class _Counted:
    """What Arrow asks of a file that it only writes to."""

    closed = False

    def __init__(self, file: _OpenFile) -> None:
        self._file = file

    def write(self, content: bytes) -> int:
        return self._file.take(content)

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
