"""The index by key made from CommitLog files, byte for byte as one key after another makes it.

Tasks take the keys out of partitions of the log and leave them as files in a directory beside the
target; the driver decides which go into which index file, and one task writes each. A run goes on
where the one before ended. `rockoon_spark.index.target` says how a result gets in place.
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
    cut_keys,
    plan_files,
    stored_units,
    write_file,
)
from rockoon_spark.index.target import (
    IndexedFile,
    IndexManifest,
    IndexShape,
    IndexTargetError,
    check_content,
    check_files,
    locked,
    publish,
    read_manifest,
    recover,
    staged,
)
from rockoon_spark.jobs.numbered_tasks import run_tasks
from rockoon_spark.publish import Replace
from rockoon_spark.records.record_run import LogBroken
from rockoon_spark.source.completeness import Extent, check_complete, contiguous_log
from rockoon_spark.source.log_source import (
    SPLIT_BYTES,
    ContiguousLog,
    ContiguousPartition,
    LogSource,
)


class IndexBuildError(Exception):
    """The index that is there does not fit, or the new one cannot be written."""


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What a run read and wrote."""

    log_bytes: int
    keys: int
    files_written: int
    files: int
    """All that the index has now."""
    end_offset: int
    """Every record below is in it."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """The keys that were taken out of some partitions."""

    counts: tuple[KeyCount, ...]
    """Of each partition."""
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
    """Index what a CommitLog has beyond what the index in `target` covers.

    Args:
        source: a store directory, as a path or URI, or a broker of a live cluster.
        target: the index directory, made if need be; every executor must see it, and its parent.
        slots, units: shape of each file, as the broker's; the same in each run.
        sealed_only: leave out the last file that has messages. Without, nobody may write a store
            directory; of a log that is served, everything that is durable now is taken.
        split_bytes: bytes of log that one task reads.
        rename: puts a file into its place.

    Raises:
        LogBroken: the log is damaged, some of it went while it was read, or nobody serves it; the
            index is as it was.
        IndexBuildError: the index there is of another log or shape, or the disk is full; it is as
            it was.
        IndexTargetError: the target holds something else, or another job is at it.
        StoreError: there is no log.
    """
    shape = IndexShape(slots, units)
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
            taken = _take_keys(spark, log, partitions, scratch)
            last = former.files[-1] if former.files else None
            # With its messages gone from the log, a broker may have deleted it.
            goes_on = last is not None and (target / last.name).exists()
            if last is not None and goes_on and last.keys < shape.file_keys and taken.keys:
                check_content(target, last, shape)
            plans = plan_files(taken.counts, scratch, shape, last, goes_on=goes_on)
            written = _write(spark, plans, shape, scratch, staging, target)
            kept = [
                file for file in former.files if file.name not in {each.name for each in written}
            ]
            manifest = IndexManifest(shape, taken.end_offset, (*kept, *written))
            publish(target, staging, manifest, replace=rename)
    return IndexReport(
        log_bytes=partitions[-1].stop - start,
        keys=taken.keys,
        files_written=len(written),
        files=len(manifest.files),
        end_offset=manifest.end_offset,
    )


def verify_index(
    spark: SparkSession, source: str | LogSource, target: Path, *, split_bytes: int = SPLIT_BYTES
) -> list[str]:
    """Compare an index that `build_index` made with the log; each sentence is a difference.

    Of files whose messages are partly gone from the log, the rest is compared; of those whose
    messages are all gone, the checksum.

    Raises:
        LogBroken, IndexBuildError, IndexTargetError, StoreError: as `build_index`.
    """
    target = target.resolve()
    if not target.is_dir():
        return [f"{target} does not exist"]
    with locked(target):
        recover(target)
        manifest = read_manifest(target)
        if manifest is None:
            return [f"{target} has no manifest beside it: nothing was published"]
        log = contiguous_log(source)
        try:
            check_files(target, manifest, log.start)
        except IndexTargetError as difference:
            return [str(difference)]
        end = manifest.end_offset
        if end > log.end:
            return [f"{target} covers the log up to {end}, it ends at {log.end}"]
        partitions = log.partitions(log.start, end, split_bytes)
        with staged(target) as staging:
            scratch = ScratchKeys(staging)
            taken = _take_keys(spark, log, partitions, scratch)
            return _compare(spark, manifest, target, taken, scratch, log.start)


def _check_former(
    target: Path, former: IndexManifest, shape: IndexShape, log: ContiguousLog
) -> None:
    check_files(target, former if former.files else None, log.start)
    if former.shape != shape:
        raise IndexBuildError(
            f"{target} has files of {former.shape.slots} slots and {former.shape.units} units, "
            f"not {shape.slots} and {shape.units}"
        )
    if former.end_offset > log.end:
        raise IndexBuildError(
            f"{target} covers a log up to offset {former.end_offset}, this one ends at "
            f"{log.end}: it is the index of another store"
        )
    if former.files and not _has_last_record(log, former.files[-1].header):
        raise IndexBuildError(
            f"{target} ends with a record at offset {former.files[-1].header.end_offset} that "
            "this log does not have: it is the index of another store"
        )


def _has_last_record(log: ContiguousLog, header: IndexHeader) -> bool:
    """Whether the record of an index's last key is in a log, or may have been."""
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


def _take_keys(
    spark: SparkSession,
    log: ContiguousLog,
    partitions: Sequence[ContiguousPartition],
    scratch: ScratchKeys,
) -> _Taken:
    """Take the keys out of partitions, and see that their records follow one another."""

    def take(number: int) -> dict[str, Any]:
        try:
            extent, count = _take_partition(partitions[number], number, scratch)
        except LogBroken as error:
            return {"broken": str(error)}
        except OSError as error:
            return {"trouble": f"keys cannot be kept: {error}"}
        return {"extent": extent, "keys": count.keys, "begins": count.begins}

    answers = _answers(spark, len(partitions), take)
    for answer in answers:
        if "broken" in answer:
            raise LogBroken(answer["broken"])
    start, stop = partitions[0].start, partitions[-1].stop
    extents = [tuple(answer["extent"]) if answer["extent"] else None for answer in answers]
    counts = tuple(KeyCount(answer["keys"], tuple(answer["begins"])) for answer in answers)
    return _Taken(counts, check_complete(log, start, stop, extents))


def _take_partition(
    partition: ContiguousPartition, number: int, scratch: ScratchKeys
) -> tuple[Extent, KeyCount]:
    """Keep a partition's keys; where its records begin and end, and how many keys they have."""
    extent: Extent = None
    keys: list[KeyEntries] = []
    for run in partition.runs():
        keys.append(run.keys())
        extent = (extent[0] if extent else run.extent[0], run.extent[1])
    return extent, scratch.save(number, keys)


def _write(
    spark: SparkSession,
    plans: Sequence[FilePlan],
    shape: IndexShape,
    scratch: ScratchKeys,
    staging: Path,
    target: Path,
) -> list[IndexedFile]:
    def write(number: int) -> dict[str, Any]:
        try:
            written = write_file(plans[number], shape, scratch, staging, target)
        except OSError as error:
            return {"trouble": f"{target / plans[number].name} cannot be written: {error}"}
        return {"file": written.to_json()}

    answers = _answers(spark, len(plans), write)
    return [IndexedFile.from_json(answer["file"]) for answer in answers]


def _compare(
    spark: SparkSession,
    manifest: IndexManifest,
    target: Path,
    taken: _Taken,
    scratch: ScratchKeys,
    log_start: int,
) -> list[str]:
    files, shape = manifest.files, manifest.shape
    names = {path.name for path in target.iterdir()}
    gone = [_keys_below(target, file, shape, log_start) for file in files]
    bounds = [0]
    for file, lost in zip(files, gone, strict=True):
        bounds.append(bounds[-1] + file.keys - lost)
    problems = []
    if bounds[-1] != taken.keys:
        problems.append(
            f"the log has {taken.keys} keys between offsets {log_start} and "
            f"{manifest.end_offset}, the index {bounds[-1]}"
        )
    headers = [IndexHeader(), *(header_behind(file.header) for file in files)]
    shares = cut_keys([count.keys for count in taken.counts], bounds)
    plans = [
        FilePlan(file.name, start, pieces)
        for file, start, pieces in zip(files, headers, shares, strict=False)
    ]

    def compare(number: int) -> dict[str, Any]:
        found = compare_file(plans[number], shape, scratch, target, files[number], gone[number])
        return {"problems": found}

    for plan, answer in zip(plans, run_tasks(spark, len(plans), compare), strict=True):
        # Files whose every message is gone may be gone too.
        if plan.name in names:
            problems += answer["problems"]
    return problems


def _keys_below(target: Path, file: IndexedFile, shape: IndexShape, log_start: int) -> int:
    """How many of a file's keys are of records that are in the log no more."""
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
    """What tasks answer, see `run_tasks`.

    Raises:
        IndexBuildError: one of them is in trouble.
    """
    answers = run_tasks(spark, tasks, task)
    for answer in answers:
        if "trouble" in answer:
            raise IndexBuildError(answer["trouble"])
    return answers
