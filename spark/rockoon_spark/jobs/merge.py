"""Merge of an export's small files: each topic and date then has one, or a few large ones.

A task reads the small files of one topic and date, and writes their rows to new files, by broker
and physical offset. The driver publishes the new files with a manifest that lists the replaced
ones (`rockoon_spark.export.target`).
"""

import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from rockoon_core.valid_text import redacted
from rockoon_format.file_names import OFFSET_MAX
from rockoon_spark.export.reading import file_problem, section_rows
from rockoon_spark.export.rows import (
    FILE_BYTES,
    ROW_SCHEMA,
    ROWS_BYTES,
    ExportError,
    ParquetFile,
    Partition,
)
from rockoon_spark.export.target import (
    Check,
    ExportedFile,
    ExportManifest,
    ExportTarget,
    Move,
    Section,
    discard,
    exported_files,
    locked,
    manifests,
    publish,
    recover,
)
from rockoon_spark.session import run_tasks


@dataclass(frozen=True, slots=True)
class MergeReport:
    """Figures of a merge of small files."""

    merged: int
    """Number of replaced files."""
    files: int
    """Number of files that replace them."""
    bytes: int
    """Size of the written files."""
    run: int
    """Number of the last published run: of this one, if anything was merged."""


def merge_small_files(
    spark: SparkSession,
    target: str,
    *,
    file_bytes: int = FILE_BYTES,
    keep_seconds: float = 0.0,
    move: Move | None = None,
) -> MergeReport:
    """Merge the files of an export that are smaller than half of `file_bytes`.

    Args:
        spark: runs the tasks.
        target: the directory of an export; every executor must see it.
        file_bytes: approximate size of the merged files.
        keep_seconds: how long the replaced files stay; the first job after this time removes them.
            Until then, a reader of all files in the directory finds their messages twice.
        move: renames a file of the target.

    Raises:
        ExportError: a file is damaged, or cannot be written. Nothing is published.
        ExportTargetError: the directory contains something else, or an export is running.
    """
    into = ExportTarget.of(target)
    with locked(into) as check:
        recover(into, check=check)
        return merge_locked(spark, into, check, file_bytes, keep_seconds, move)


def merge_locked(
    spark: SparkSession,
    target: ExportTarget,
    check: Check,
    file_bytes: int,
    keep_seconds: float,
    move: Move | None = None,
) -> MergeReport:
    """Merge small files in a directory that the caller has locked; see `merge_small_files`."""
    runs = manifests(target)
    groups = _small_files(exported_files(runs), file_bytes // 2)
    last = runs[-1].run if runs else 0
    if not groups:
        return MergeReport(0, 0, 0, last)
    run_id = uuid.uuid4().hex
    staging = target.staging(run_id)
    target.make(staging)
    try:
        stem = f"{last + 1:08}-{run_id[:8]}"
        files = _write(spark, target, groups, staging, stem, file_bytes)
        small = [file for group in groups for file in group]
        _check_rows(target, small, files)
        manifest = ExportManifest(
            last + 1,
            run_id,
            runs[-1].topics,
            runs[-1].positions,
            sections=(),
            files=files,
            replaces=[file.path for file in small],
            keep_seconds=keep_seconds,
        )
        publish(target, manifest, move, check)
    finally:
        discard(target, run_id)
    return MergeReport(len(small), len(files), sum(file.bytes for file in files), last + 1)


def _small_files(files: Sequence[ExportedFile], bytes_max: int) -> list[list[ExportedFile]]:
    """Return the files below `bytes_max` by topic and date, if there are several for it."""
    groups: dict[Partition, list[ExportedFile]] = defaultdict(list)
    for file in files:
        if file.bytes < bytes_max:
            groups[Partition.of(file.path)].append(file)
    return [group for group in groups.values() if len(group) > 1]


def _check_rows(
    target: ExportTarget, small: Sequence[ExportedFile], files: Sequence[ExportedFile]
) -> None:
    expected, written = (sum(file.rows for file in each) for each in (small, files))
    if written != expected:
        raise ExportError(
            f"{target.shown}: {written} messages were written, but the files to merge have"
            f" {expected} by their manifests; run again"
        )


def _write(
    spark: SparkSession,
    target: ExportTarget,
    groups: Sequence[Sequence[ExportedFile]],
    staging: str,
    stem: str,
    file_bytes: int,
) -> list[ExportedFile]:
    def write(number: int) -> dict[str, Any]:
        context = TaskContext.get()
        # A repeated task must not overwrite the files of the first attempt.
        attempt = context.taskAttemptId() if context else 0
        merged = merge_group(
            target, groups[number], staging, f"{stem}-{number:05}-{attempt}", file_bytes
        )
        return {"files": [file.to_json() for file in merged]}

    answers = run_tasks(spark, len(groups), write)
    return [ExportedFile.from_json(each) for answer in answers for each in answer["files"]]


def merge_group(
    target: ExportTarget, small: Sequence[ExportedFile], staging: str, stem: str, file_bytes: int
) -> list[ExportedFile]:
    """Write the rows of files of one topic and date to new files in the staging directory.

    Args:
        target: the export.
        small: the files.
        staging: the run's staging directory, relative to the target.
        stem: prefix of the file names.
        file_bytes: size at which a file is closed and the next one is created.

    Raises:
        ExportError: a file is damaged, or the target cannot be written.
    """
    if problem := next(filter(None, (file_problem(target, file) for file in small)), None):
        raise ExportError(f"{problem}: the files of its topic and date are not merged")
    directory = Partition.of(small[0].path).path
    done: list[ExportedFile] = []
    writing: ParquetFile | None = None
    try:
        for broker in sorted({each.broker for file in small for each in file.ranges}):
            for rows in _gathered(section_rows(target, small, Section(broker, 0, OFFSET_MAX))):
                if writing is None:
                    path = f"{directory}/{stem}-{len(done):04}.parquet"
                    writing = ParquetFile(target, staging, path)
                if writing.write(rows, broker) >= file_bytes:
                    done.append(writing.close())
                    writing = None
        return [*done, writing.close()] if writing else done
    except OSError as error:
        raise ExportError(
            f"files of {target.shown}/{directory} cannot be merged: {redacted(error)}"
        ) from error


def _gathered(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Concatenate tables up to ROWS_BYTES, so that row groups are large."""
    found: list[pa.Table] = []
    size = 0
    for table in tables:
        found.append(table.cast(ROW_SCHEMA))
        size += table.nbytes
        if size >= ROWS_BYTES:
            yield pa.concat_tables(found)
            found, size = [], 0
    if found:
        yield pa.concat_tables(found)
