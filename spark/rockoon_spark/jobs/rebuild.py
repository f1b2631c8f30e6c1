"""Rebuild of the ConsumeQueues from the CommitLog, byte for byte as the broker writes them.

Used for a store whose queues are lost, and to verify queues. Tasks extract 20-byte entries from
partitions of the log; only the entries are shuffled. One task writes each queue file.
"""

import filecmp
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from rockoon_format.consume_queue import ENTRY_BYTES, QueueRuns, filler_entries
from rockoon_format.delay_levels import DELAY_LEVELS_MS
from rockoon_format.file_names import offset_to_file_name
from rockoon_format.names import topic_fault
from rockoon_spark.publish import Replace, published
from rockoon_spark.records.record_run import LogBroken, RecordRun, queue_runs_of
from rockoon_spark.source.log_source import (
    SPLIT_BYTES,
    ContiguousLog,
    ContiguousPartition,
    LogSource,
)
from rockoon_spark.source.store_directory import Extent, check_complete, contiguous_log

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
_WRITTEN = "topic string, queue int, file long, first long, entries long, report string"
_WRITTEN_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("queue", pa.int32()),
        ("file", pa.int64()),
        ("first", pa.int64()),
        ("entries", pa.int64()),
        ("report", pa.string()),
    ]
)


class QueueDisorder(Exception):
    """The offsets of a queue have a gap or a duplicate, or its entries cannot be written."""


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """Figures of a run of a rebuild."""

    log_bytes: int
    entries: int
    queues: int
    files: int
    end_offset: int
    """Physical offset below which all records have ConsumeQueue entries."""


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
    """Write the `consumequeue` directory for a CommitLog.

    Args:
        source: a store directory (path or URI) to which no broker is writing, or a broker of a live
            cluster, whose log is read up to its durable end.
        target: the directory to create; every executor must see it.
        file_entries: entries per file, equal to the broker's setting.
        delay_levels_ms: equal to the broker's setting; entries of delayed messages contain the
            delivery time.
        split_bytes: bytes of log that one task reads.
        rename: renames the finished directory to its final path.

    Raises:
        LogBroken: the log is damaged, was partly deleted during the read, or no broker serves it.
        QueueDisorder: a queue offset is missing or occurs twice, or the disk is full.
        StoreReadError: there is no log.
        TargetExists: the target exists already.
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
        end = _check_log(log, partitions, [row for row in written if row.topic is None])
        rows = [row for row in written if row.topic is not None]
        rows.sort(key=lambda row: (row.topic, row.queue, row.file))
        _check_queues(rows)
    return RebuildReport(
        log_bytes=log.end - log.start,
        entries=sum(row.entries for row in rows),
        queues=len({(row.topic, row.queue) for row in rows}),
        files=len(rows),
        end_offset=end,
    )


def _check_log(
    log: ContiguousLog, partitions: Sequence[ContiguousPartition], reports: Sequence[Any]
) -> int:
    """Check from the tasks' reports that they read the whole log; return its end offset."""
    extents: list[Extent] = [None] * len(partitions)
    for number, report in ((row.file, json.loads(row.report)) for row in reports):
        if report["broken"] is not None:
            raise LogBroken(report["broken"])
        extents[number] = tuple(report["extent"]) if report["extent"] else None
    if len(reports) != len(partitions):
        raise RuntimeError(f"{len(reports)} of {len(partitions)} tasks reported (bug)")
    return check_complete(log, log.start, log.end, extents)


def _check_queues(rows: Sequence[Any]) -> None:
    """Check that the files of each queue have no gap."""
    for before, row in zip([None, *rows], rows, strict=False):
        if row.report is not None:
            raise QueueDisorder(row.report)
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
    """Yield runs of consecutive ConsumeQueue entries of a queue file, for all queues of a
    partition.

    The last row has no topic: it reports the extent of the records, or an error.
    """
    extent: Extent = None
    broken = None

    def tracked() -> Iterator[RecordRun]:
        nonlocal extent
        for run in partition.runs():
            yield run
            extent = (extent[0] if extent else run.extent[0], run.extent[1])

    try:
        for topics, runs in queue_runs_of(tracked(), marks, levels, file_entries):
            yield _batch(topics, runs)
    except LogBroken as error:
        broken = str(error)
    report = json.dumps({"extent": extent, "broken": broken}).encode()
    values = ([None], [-1], [number], [0], [report])
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
    """Write one ConsumeQueue file. If the input is a task's report of its partition, return the
    report unchanged.

    If the queue begins within the file, filler entries precede it; zeros follow its end.
    """
    topic, queue, number = (runs[name][0].as_py() for name in ("topic", "queue", "file"))
    if topic is None:
        return _written(topic, queue, number, 0, 0, runs["entries"][0].as_py().decode())
    ordered = runs.sort_by("first")
    firsts = ordered["first"].to_pylist()
    contents = ordered["entries"].to_pylist()
    fault = topic_fault(topic)
    expected = firsts[0]
    for first, content in zip(firsts, contents, strict=True):
        if first != expected:
            fault = (
                f"queue {queue} of {topic}: the log has offset {first}, but {expected} was expected"
            )
            break
        expected += len(content) // ENTRY_BYTES
    if not fault:
        start = number * file_entries
        path = root / topic / str(queue) / offset_to_file_name(start * ENTRY_BYTES)
        data = filler_entries(firsts[0] - start) + b"".join(contents)
        try:
            for directory in (path.parent.parent, path.parent):
                directory.mkdir(0o700, exist_ok=True)
            path.touch(0o600)
            with path.open("wb") as file:
                file.write(data)
                # A hole of a sparse file: its zeros use no disk space.
                file.truncate(file_entries * ENTRY_BYTES)
        except OSError as error:
            fault = f"{path} cannot be written: {error}"
    return _written(topic, queue, number, firsts[0], expected - firsts[0], fault or None)


def _written(*values: object) -> pa.Table:
    columns = [
        pa.array([value], field.type) for value, field in zip(values, _WRITTEN_SCHEMA, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=_WRITTEN_SCHEMA)


_NAME_DIGITS = 20
_PROBLEMS_MAX = 100


@dataclass(frozen=True, slots=True)
class VerifiedQueues:
    """Numbers of queue files and entries that a verification compared."""

    log_bytes: int
    entries: int
    queues: int
    files: int


def queue_files(target: Path) -> list[Path]:
    """Return the queue files below a directory: topic/queue/offset."""
    found = target.glob("*/*/*")
    return sorted(
        path
        for path in found
        if path.parent.name.isdigit() and path.name.isdigit() and len(path.name) == _NAME_DIGITS
    )


def verify_queues(
    spark: SparkSession, source: str | LogSource, target: Path
) -> tuple[VerifiedQueues, list[str]]:
    """Rebuild the queues of a log next to `target`, which needs free disk space, and compare.

    Args:
        source: see `rebuild_queues`; no broker may be writing to it.
        target: a `consumequeue` directory with files of one length.

    Returns:
        The numbers, and a sentence per difference, a hundred at most.

    Raises:
        LogBroken, QueueDisorder, StoreReadError: see `rebuild_queues`.
    """
    target = target.resolve()
    existing = {str(path.relative_to(target)): path for path in queue_files(target)}
    entries = max(path.stat().st_size for path in existing.values()) // ENTRY_BYTES
    rebuilt = target.parent / f".{target.name}.again-{uuid.uuid4().hex}"
    try:
        report = rebuild_queues(spark, source, rebuilt, file_entries=max(entries, 1))
        expected = {str(path.relative_to(rebuilt)): path for path in queue_files(rebuilt)}
        problems = [
            f"{target / name} {fault}"
            for name in sorted(existing.keys() | expected.keys())
            if (fault := _fault(existing.get(name), expected.get(name)))
        ]
    finally:
        shutil.rmtree(rebuilt, ignore_errors=True)
    shown = problems[:_PROBLEMS_MAX]
    if len(problems) > len(shown):
        shown.append(f"{len(problems) - len(shown)} more files differ")
    verified = VerifiedQueues(report.log_bytes, report.entries, report.queues, report.files)
    return verified, shown


def _fault(found: Path | None, expected: Path | None) -> str | None:
    if found is None:
        return "is missing, although the log has messages for it"
    if expected is None:
        return "has no message in the log"
    return None if filecmp.cmp(found, expected, shallow=False) else "differs from the log"
