"""ConsumeQueues made again from the CommitLog alone, byte for byte as the broker writes them.

For a store whose queues are lost, and to check one. Tasks take 20-byte entries out of partitions of
the log; only these cross the cluster. Each queue file is then written by one task.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from rockoon_format.consume_queue import ENTRY_BYTES, filler_entries
from rockoon_format.delay_levels import DELAY_LEVELS_MS
from rockoon_format.file_names import offset_to_file_name
from rockoon_format.names import topic_fault
from rockoon_format.queue_runs import QueueRuns
from rockoon_spark.publish import Replace, published
from rockoon_spark.records.record_run import LogBroken, RecordRun, queue_runs_of
from rockoon_spark.source.completeness import Extent, check_complete, contiguous_log
from rockoon_spark.source.log_source import (
    SPLIT_BYTES,
    ContiguousLog,
    ContiguousPartition,
    LogSource,
)

FILE_ENTRIES = 300_000

_RUN = "topic string, queue int, file long, first long, entries binary"
_RUN_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("queue", pa.int32()),
        ("file", pa.int64()),
        ("first", pa.int64()),
        ("entries", pa.binary()),
    ]
)
_WRITTEN = "topic string, queue int, file long, first long, entries long, word string"
_WRITTEN_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("queue", pa.int32()),
        ("file", pa.int64()),
        ("first", pa.int64()),
        ("entries", pa.int64()),
        ("word", pa.string()),
    ]
)


class QueueDisorder(Exception):
    """Records of a queue do not follow one another, or their entries cannot be written."""


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What was read and written."""

    log_bytes: int
    entries: int
    queues: int
    files: int
    end_offset: int
    """Every record below this physical offset is in it."""


def rebuild_queues(
    spark: SparkSession,
    source: str | LogSource,
    target: Path,
    *,
    file_entries: int = FILE_ENTRIES,
    delay_levels_ms: Sequence[int] = DELAY_LEVELS_MS,
    split_bytes: int = SPLIT_BYTES,
    rename: Replace = os.replace,
) -> RebuildReport:
    """Write the `consumequeue` directory that a CommitLog implies.

    Args:
        source: a store directory that nobody writes, as a path or URI, or a broker of a
            live cluster, of whose log everything that is durable now is taken.
        target: the directory to make; every executor must see it.
        file_entries: entries per file, as the broker's.
        delay_levels_ms: the broker's: entries of delayed messages bear deliver times.
        split_bytes: bytes of log that one task reads.
        rename: puts the directory into its place.

    Raises:
        LogBroken: the log is damaged, some of it went while it was read, or nobody serves it.
        QueueDisorder: it has two records of one queue offset, or lacks one; the disk is full.
        StoreError: there is no log.
        TargetExists: something is there already.
    """
    log = contiguous_log(source)
    partitions = log.partitions(log.start, log.end, split_bytes)
    levels, marks = tuple(delay_levels_ms), dict(log.marks)

    def entries_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["number"].to_pylist():
                yield from _runs(partitions[number], number, marks, levels, file_entries)

    numbers = spark.range(0, len(partitions), 1, max(len(partitions), 1)).toDF("number")
    runs = numbers.mapInArrow(entries_of, _RUN)
    with published(target, rename=rename) as staging:
        root = str(staging)

        def write(table: pa.Table) -> pa.Table:
            return _write_file(Path(root), table, file_entries)

        written = runs.groupBy("topic", "queue", "file").applyInArrow(write, _WRITTEN).collect()
        end = _see_log(log, partitions, [row for row in written if row.topic is None])
        rows = [row for row in written if row.topic is not None]
        rows.sort(key=lambda row: (row.topic, row.queue, row.file))
        _see_queues(rows)
    return RebuildReport(
        log_bytes=log.end - log.start,
        entries=sum(row.entries for row in rows),
        queues=len({(row.topic, row.queue) for row in rows}),
        files=len(rows),
        end_offset=end,
    )


def _see_log(
    log: ContiguousLog, partitions: Sequence[ContiguousPartition], words: Sequence[Any]
) -> int:
    """See that the tasks have taken in the whole log, from what each says of its partition; return
    where it ends."""
    extents: list[Extent] = [None] * len(partitions)
    for number, word in ((row.file, json.loads(row.word)) for row in words):
        if word["broken"] is not None:
            raise LogBroken(word["broken"])
        extents[number] = tuple(word["extent"]) if word["extent"] else None
    if len(words) != len(partitions):
        raise RuntimeError(f"{len(words)} of {len(partitions)} tasks have said what they read")
    return check_complete(log, log.start, log.end, extents)


def _see_queues(rows: Sequence[Any]) -> None:
    """See that the files of a queue follow one another."""
    for before, row in zip([None, *rows], rows, strict=False):
        if row.word is not None:
            raise QueueDisorder(row.word)
        same = before is not None and (before.topic, before.queue) == (row.topic, row.queue)
        if same and before is not None and before.first + before.entries != row.first:
            raise QueueDisorder(
                f"queue {row.queue} of {row.topic}: offset {before.first + before.entries} "
                f"is not in the log, {row.first} is"
            )


def _runs(
    partition: ContiguousPartition,
    number: int,
    marks: Mapping[str, int],
    levels: Sequence[int],
    file_entries: int,
) -> Iterator[pa.RecordBatch]:
    """Entries of neighbouring messages of one queue file, for every queue of a partition; then a
    row of no topic that says where its records begin and end, or what is wrong."""
    extent: Extent = None
    broken = None

    def noted() -> Iterator[RecordRun]:
        nonlocal extent
        for run in partition.runs():
            yield run
            extent = (extent[0] if extent else run.extent[0], run.extent[1])

    try:
        for topics, runs in queue_runs_of(noted(), marks, levels, file_entries):
            yield _batch(topics, runs)
    except LogBroken as error:
        broken = str(error)
    word = json.dumps({"extent": extent, "broken": broken}).encode()
    values = ([None], [-1], [number], [0], [word])
    arrays = [pa.array(value, field.type) for value, field in zip(values, _RUN_SCHEMA, strict=True)]
    yield pa.RecordBatch.from_arrays(arrays, schema=_RUN_SCHEMA)


def _batch(topics: Sequence[str], runs: QueueRuns) -> pa.RecordBatch:
    count = len(runs.files)
    buffers = [None, pa.py_buffer(runs.bounds), pa.py_buffer(runs.entries)]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(topics, pa.string()).take(pa.array(runs.topic_numbers)),
            pa.array(runs.queue_ids).cast(pa.int32()),
            pa.array(runs.files),
            pa.array(runs.first_offsets),
            pa.BinaryArray.from_buffers(pa.binary(), count, buffers),
        ],
        schema=_RUN_SCHEMA,
    )


def _write_file(root: Path, runs: pa.Table, file_entries: int) -> pa.Table:
    """Write one queue file: fillers where it begins in the middle, zeros behind its end; or pass
    on what was said of a partition."""
    topic, queue, number = (runs[name][0].as_py() for name in ("topic", "queue", "file"))
    if topic is None:
        return _written(topic, queue, number, 0, 0, runs["entries"][0].as_py().decode())
    ordered = runs.sort_by("first")
    firsts = ordered["first"].to_pylist()
    contents = ordered["entries"].to_pylist()
    trouble = topic_fault(topic)
    expected = firsts[0]
    for first, content in zip(firsts, contents, strict=True):
        if first != expected:
            trouble = (
                f"queue {queue} of {topic}: the log has offset {first} where {expected} is due"
            )
            break
        expected += len(content) // ENTRY_BYTES
    if not trouble:
        start = number * file_entries
        path = root / topic / str(queue) / offset_to_file_name(start * ENTRY_BYTES)
        data = filler_entries(firsts[0] - start) + b"".join(contents)
        try:
            for directory in (path.parent.parent, path.parent):
                directory.mkdir(0o700, exist_ok=True)
            path.touch(0o600)
            with path.open("wb") as file:
                file.write(data)
                # Zeros that nobody writes take no room.
                file.truncate(file_entries * ENTRY_BYTES)
        except OSError as error:
            trouble = f"{path} cannot be written: {error}"
    return _written(topic, queue, number, firsts[0], expected - firsts[0], trouble or None)


def _written(*values: object) -> pa.Table:
    columns = [
        pa.array([value], field.type) for value, field in zip(values, _WRITTEN_SCHEMA, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=_WRITTEN_SCHEMA)
