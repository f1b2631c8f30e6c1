"""The index by key built from the CommitLog, byte for byte as a broker builds it key by key.

Tasks extract the keys from partitions of the log and write them to files in a staging directory
next to the target. The driver assigns the keys to index files, and one task writes each file. A run
continues where the previous one ended. Publishing: `rockoon_spark.index.target`.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from rockoon_format.index_entries import KeyEntries
from rockoon_format.index_file import (
    SLOTS_DEFAULT,
    UNITS_DEFAULT,
    IndexHeader,
    header_behind,
)
from rockoon_spark.index.linking import (
    FilePlan,
    KeyCount,
    ScratchKeys,
    compare_file,
    divide_keys,
    plan_files,
    stored_units,
    write_file,
)
from rockoon_spark.index.target import (
    IndexedFile,
    IndexFileShape,
    IndexManifest,
    IndexTargetError,
    check_content,
    check_files,
    locked,
    publish,
    read_manifest,
    recover,
    staged,
)
from rockoon_spark.publish import Replace
from rockoon_spark.records.record_run import LogBroken
from rockoon_spark.session import run_tasks
from rockoon_spark.source.log_source import (
    SPLIT_BYTES,
    ContiguousLog,
    ContiguousPartition,
    LogSource,
)
from rockoon_spark.source.store_directory import Extent, check_complete, contiguous_log


class IndexBuildError(Exception):
    """The existing index belongs to another log or shape, or the new one cannot be written."""


@dataclass(frozen=True, slots=True)
class IndexReport:
    """Figures of a run of an index job."""

    log_bytes: int
    keys: int
    files_written: int
    files: int
    """Total number of files of the index."""
    end_offset: int
    """Physical offset below which all records are indexed."""


@dataclass(frozen=True, slots=True)
class _ExtractedKeys:
    """Number of keys that tasks extracted from each partition, and the end of the last
    partition.
    """

    counts: tuple[KeyCount, ...]
    """Number of keys of each partition."""
    end_offset: int

    @property
    def keys(self) -> int:
        return sum(count.keys for count in self.counts)


def build_index(
    spark: SparkSession,
    source: str | LogSource,
    target: Path,
    *,
    slots: int = SLOTS_DEFAULT,
    units: int = UNITS_DEFAULT,
    sealed_only: bool = True,
    split_bytes: int = SPLIT_BYTES,
    rename: Replace = os.replace,
) -> IndexReport:
    """Extend the index in `target` by the records of a CommitLog that it does not cover yet.

    Args:
        source: a store directory (path or URI), or a broker of a live cluster.
        target: the index directory, created if necessary; every executor must see it and its
            parent.
        slots, units: shape of each file, equal to the broker's settings; the same in each run.
        sealed_only: skip the last file that has messages. If False, no broker may be writing to the
            store directory; of a live cluster, everything that is durable now is indexed.
        split_bytes: bytes of log that one task reads.
        rename: renames a file to its final path.

    Raises:
        LogBroken: the log is damaged, was partly deleted during the read, or no broker serves it;
            the index is unchanged.
        IndexBuildError: the existing index belongs to another log or shape, or the disk is full;
            the index is unchanged.
        IndexTargetError: the target contains something else, or another job holds its lock.
        StoreReadError: there is no log.
    """
    shape = IndexFileShape(slots, units)
    target = target.resolve()
    with locked(target):
        recover(target)
        log = contiguous_log(source)
        former = read_manifest(target) or IndexManifest(shape, log.start)
        _check_former(target, former, shape, log)
        start = max(former.end_offset, log.start)
        stop = log.sealed_end if sealed_only else log.end
        partitions = log.partitions(start, stop, split_bytes)
        if not partitions:
            return IndexReport(0, 0, 0, len(former.files), former.end_offset)
        with staged(target) as staging:
            scratch = ScratchKeys(staging)
            extracted = _extract_keys(spark, log, partitions, scratch)
            last = former.files[-1] if former.files else None
            # A broker deletes an index file after its messages were deleted from the log.
            last_exists = last is not None and (target / last.name).exists()
            if last is not None and last_exists and last.keys < shape.file_keys and extracted.keys:
                check_content(target, last, shape)
            plans = plan_files(extracted.counts, scratch, shape, last, last_exists=last_exists)
            written = _write(spark, plans, shape, scratch, staging, target)
            kept = [
                file for file in former.files if file.name not in {each.name for each in written}
            ]
            manifest = IndexManifest(shape, extracted.end_offset, (*kept, *written))
            publish(target, staging, manifest, replace=rename)
    return IndexReport(
        log_bytes=partitions[-1].stop - start,
        keys=extracted.keys,
        files_written=len(written),
        files=len(manifest.files),
        end_offset=manifest.end_offset,
    )


def verify_index(
    spark: SparkSession, source: str | LogSource, target: Path, *, split_bytes: int = SPLIT_BYTES
) -> list[str]:
    """Compare an index of `build_index` with the log; return a sentence per difference.

    If the log no longer has some of a file's messages, the keys of the others are compared. If it
    has none of them, only the checksum is.

    Raises:
        LogBroken, IndexBuildError, IndexTargetError, StoreReadError: see `build_index`.
    """
    target = target.resolve()
    if not target.is_dir():
        return [f"{target} does not exist"]
    with locked(target):
        recover(target)
        manifest = read_manifest(target)
        if manifest is None:
            return [f"{target} has no manifest: no index was published"]
        log = contiguous_log(source)
        try:
            check_files(target, manifest, log.start)
        except IndexTargetError as difference:
            return [str(difference)]
        end = manifest.end_offset
        if end > log.end:
            return [f"{target} covers the log up to {end}, but the log ends at {log.end}"]
        partitions = log.partitions(log.start, end, split_bytes)
        with staged(target) as staging:
            scratch = ScratchKeys(staging)
            extracted = _extract_keys(spark, log, partitions, scratch)
            return _compare(spark, manifest, target, extracted, scratch, log.start)


def _check_former(
    target: Path, former: IndexManifest, shape: IndexFileShape, log: ContiguousLog
) -> None:
    check_files(target, former if former.files else None, log.start)
    if former.shape != shape:
        raise IndexBuildError(
            f"{target} has files of {former.shape.slots} slots and {former.shape.units} units, "
            f"expected {shape.slots} and {shape.units}"
        )
    if former.end_offset > log.end:
        raise IndexBuildError(
            f"{target} covers a log up to offset {former.end_offset}, but this log ends at "
            f"{log.end}: it is the index of another store"
        )
    if former.files and not _has_last_record(log, former.files[-1].header):
        raise IndexBuildError(
            f"{target} ends with a record at offset {former.files[-1].header.end_offset}, which "
            "this log does not contain: it is the index of another store"
        )


def _has_last_record(log: ContiguousLog, header: IndexHeader) -> bool:
    """True if the record of the index's last key is in the log, or may have been deleted."""
    at = header.end_offset
    if at < log.start:
        return True
    try:
        times_ms = [
            int(records.store_timestamps_ms[0])
            for partition in log.partitions(at, at + 1, 1)
            for run in partition.runs()
            for records in run.scans(with_tag_codes=False)
        ]
    except LogBroken:
        return False
    return times_ms == [header.end_timestamp_ms]


def _extract_keys(
    spark: SparkSession,
    log: ContiguousLog,
    partitions: Sequence[ContiguousPartition],
    scratch: ScratchKeys,
) -> _ExtractedKeys:
    """Write the keys of partitions to scratch files; check that the records have no gap."""

    def extract(number: int) -> dict[str, Any]:
        try:
            extent, count = _extract_partition(partitions[number], number, scratch)
        except LogBroken as error:
            return {"broken": str(error)}
        except OSError as error:
            return {"error": f"keys cannot be written to a scratch file: {error}"}
        return {"extent": extent, "keys": count.keys, "begins": count.begins}

    answers = _answers(spark, len(partitions), extract)
    for answer in answers:
        if "broken" in answer:
            raise LogBroken(answer["broken"])
    start, stop = partitions[0].start, partitions[-1].stop
    extents = [tuple(answer["extent"]) if answer["extent"] else None for answer in answers]
    counts = tuple(KeyCount(answer["keys"], tuple(answer["begins"])) for answer in answers)
    return _ExtractedKeys(counts, check_complete(log, start, stop, extents))


def _extract_partition(
    partition: ContiguousPartition, number: int, scratch: ScratchKeys
) -> tuple[Extent, KeyCount]:
    """Write a partition's keys; return the extent of its records and the number of keys."""
    extent: Extent = None
    keys: list[KeyEntries] = []
    for run in partition.runs():
        keys.append(run.keys())
        extent = (extent[0] if extent else run.extent[0], run.extent[1])
    return extent, scratch.save(number, keys)


def _write(
    spark: SparkSession,
    plans: Sequence[FilePlan],
    shape: IndexFileShape,
    scratch: ScratchKeys,
    staging: Path,
    target: Path,
) -> list[IndexedFile]:
    def write(number: int) -> dict[str, Any]:
        try:
            written = write_file(plans[number], shape, scratch, staging, target)
        except OSError as error:
            return {"error": f"{target / plans[number].name} cannot be written: {error}"}
        return {"file": written.to_json()}

    answers = _answers(spark, len(plans), write)
    return [IndexedFile.from_json(answer["file"]) for answer in answers]


def _compare(
    spark: SparkSession,
    manifest: IndexManifest,
    target: Path,
    extracted: _ExtractedKeys,
    scratch: ScratchKeys,
    log_start: int,
) -> list[str]:
    files, shape = manifest.files, manifest.shape
    names = {path.name for path in target.iterdir()}
    deleted = [_keys_below(target, file, shape, log_start) for file in files]
    bounds = [0]
    for file, keys in zip(files, deleted, strict=True):
        bounds.append(bounds[-1] + file.keys - keys)
    problems = []
    if bounds[-1] != extracted.keys:
        problems.append(
            f"the log has {extracted.keys} keys between offsets {log_start} and "
            f"{manifest.end_offset}, the index has {bounds[-1]}"
        )
    headers = [IndexHeader(), *(header_behind(file.header) for file in files)]
    shares = divide_keys([count.keys for count in extracted.counts], bounds)
    plans = [
        FilePlan(file.name, start, share)
        for file, start, share in zip(files, headers, shares, strict=False)
    ]

    def compare(number: int) -> dict[str, Any]:
        found = compare_file(plans[number], shape, scratch, target, files[number], deleted[number])
        return {"problems": found}

    for plan, answer in zip(plans, run_tasks(spark, len(plans), compare), strict=True):
        # A file without messages in the log may have been deleted by the broker.
        if plan.name in names:
            problems += answer["problems"]
    return problems


def _keys_below(target: Path, file: IndexedFile, shape: IndexFileShape, log_start: int) -> int:
    """Return the number of a file's keys whose records are no longer in the log."""
    if file.header.end_offset < log_start:
        return file.keys
    if file.header.begin_offset >= log_start:
        return 0
    path = target / file.name
    if path.stat().st_size != shape.file_bytes:
        return 0
    units = stored_units(np.memmap(path, np.uint8, "r"), shape)[1 : file.keys + 1]
    return int(np.searchsorted(units["offset"].astype(np.int64), log_start))


def _answers(
    spark: SparkSession, tasks: int, task: Callable[[int], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Run tasks and return their answers; see `run_tasks`.

    Raises:
        IndexBuildError: a task reported an error.
    """
    answers = run_tasks(spark, tasks, task)
    for answer in answers:
        if "error" in answer:
            raise IndexBuildError(answer["error"])
    return answers
