"""The index by key made from CommitLog files, byte for byte as one key after another makes it.

Tasks take the keys out of stretches of the log and leave them as files in a directory beside the
target; the driver decides which go into which index file, and one task writes each. A run goes on
where the one before ended. `rockoon_spark.index_target` says how a result gets in place.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import Row, SparkSession

from rockoon_format.index_entries import KeyEntries, index_entries
from rockoon_format.index_file import (
    SLOTS_DEFAULT,
    UNITS_DEFAULT,
    IndexHeader,
    header_behind,
)
from rockoon_format.record import MAGIC_BLANK
from rockoon_format.scan import scan
from rockoon_spark.files import LogFile, list_log, read_range
from rockoon_spark.index_linking import (
    FilePlan,
    ScratchKeys,
    compare_file,
    cut_keys,
    plan_files,
    stored_units,
    write_file,
)
from rockoon_spark.index_target import (
    IndexedFile,
    IndexShape,
    IndexTargetError,
    Manifest,
    Replace,
    check_content,
    check_files,
    locked,
    publish,
    read_manifest,
    recover,
    staged,
)
from rockoon_spark.splits import SPLIT_BYTES, Split, read_split, split_files

_RECORDS_PER_SCAN = 65_536
_HEAD_BYTES = 8
_TAKEN = "number int, first long, behind long, keys long, trouble string"
_TAKEN_SCHEMA = pa.schema(
    [
        ("number", pa.int32()),
        ("first", pa.int64()),
        ("behind", pa.int64()),
        ("keys", pa.int64()),
        ("trouble", pa.string()),
    ]
)
_ANSWER = "number int, answer string, trouble string"
_ANSWER_SCHEMA = pa.schema(
    [("number", pa.int32()), ("answer", pa.string()), ("trouble", pa.string())]
)


class IndexBuildError(Exception):
    """The log is damaged, or cannot be read or indexed."""


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
    """The keys that were taken out of some splits."""

    counts: tuple[int, ...]
    """Of each split."""
    end_offset: int

    @property
    def keys(self) -> int:
        return sum(self.counts)


def build_index(
    spark: SparkSession,
    store: str,
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
        store: a store directory, as a path or URI.
        target: the index directory, made if need be; every executor must see it, and its parent.
        slots, units: shape of each file, as the broker's; the same in each run.
        sealed_only: leave out the last file that has messages, which a broker may be writing.
            Without, nobody may write the store.
        split_bytes: bytes of log that one task reads.
        rename: puts a file into its place.

    Raises:
        IndexBuildError: the log is damaged, a file of it went while it was read, or the disk is
            full; the index is as it was.
        IndexTargetError: the target holds something else, or another job is at it.
        StoreError: there is no log.
    """
    shape = IndexShape(slots, units)
    target = target.resolve()
    with locked(target):
        recover(target)
        files = _written(list_log(store))
        log_start, log_end = _bounds(files)
        former = read_manifest(target) or Manifest(shape, log_start)
        _check_former(target, former, shape, log_start, log_end)
        start = max(former.end_offset, log_start)
        splits = _splits_of(files[:-1] if sealed_only else files, start, sys.maxsize, split_bytes)
        if not splits:
            return IndexReport(0, 0, 0, len(former.files), former.end_offset)
        with staged(target) as staging:
            scratch = ScratchKeys(staging)
            taken = _take_keys(spark, splits, start, scratch, log_open_at=files[-1].start)
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
            manifest = Manifest(shape, taken.end_offset, (*kept, *written))
            publish(target, staging, manifest, replace=rename)
    return IndexReport(
        log_bytes=sum(split.stop - split.start for split in splits),
        keys=taken.keys,
        files_written=len(written),
        files=len(manifest.files),
        end_offset=manifest.end_offset,
    )


def verify_index(
    spark: SparkSession, store: str, target: Path, *, split_bytes: int = SPLIT_BYTES
) -> list[str]:
    """Compare an index that `build_index` made with the log; each sentence is a difference.

    Of files whose messages are partly gone from the log, the rest is compared; of those whose
    messages are all gone, the checksum.

    Raises:
        IndexBuildError, IndexTargetError, StoreError: as `build_index`.
    """
    target = target.resolve()
    if not target.is_dir():
        return [f"{target} does not exist"]
    with locked(target):
        recover(target)
        manifest = read_manifest(target)
        if manifest is None:
            return [f"{target} has no manifest beside it: nothing was published"]
        files = _written(list_log(store))
        log_start, log_end = _bounds(files)
        try:
            check_files(target, manifest, log_start)
        except IndexTargetError as difference:
            return [str(difference)]
        if manifest.end_offset > log_end:
            return [f"{target} covers the log up to {manifest.end_offset}, it ends at {log_end}"]
        splits = _splits_of(files, log_start, manifest.end_offset, split_bytes)
        with staged(target) as staging:
            scratch = ScratchKeys(staging)
            taken = _take_keys(spark, splits, log_start, scratch, stop=manifest.end_offset)
            return _compare(spark, manifest, target, taken, scratch, log_start)


def _check_former(
    target: Path, former: Manifest, shape: IndexShape, log_start: int, log_end: int
) -> None:
    check_files(target, former if former.files else None, log_start)
    if former.shape != shape:
        raise IndexBuildError(
            f"{target} has files of {former.shape.slots} slots and {former.shape.units} units, "
            f"not {shape.slots} and {shape.units}"
        )
    if former.end_offset > log_end:
        raise IndexBuildError(
            f"{target} covers a log up to offset {former.end_offset}, this one ends at {log_end}: "
            "it is the index of another store"
        )


def _written(files: Sequence[LogFile]) -> Sequence[LogFile]:
    """Files without those that a broker made ahead, behind the one that it writes."""
    behind = len(files)
    while behind > 1 and not any(_head(files[behind - 1], 0)):
        behind -= 1
    return files[:behind]


def _head(file: LogFile, position: int) -> bytes:
    """Size and magic of what stands at a position of a file, less at its end."""
    try:
        stop = min(position + _HEAD_BYTES, file.bytes)
        return read_range(file, position, stop, 0).tobytes()
    except FileNotFoundError as error:
        raise IndexBuildError(_gone(file)) from error


def _bounds(files: Sequence[LogFile]) -> tuple[int, int]:
    return (files[0].start, files[-1].start + files[-1].bytes) if files else (0, 0)


def _splits_of(files: Sequence[LogFile], start: int, stop: int, split_bytes: int) -> list[Split]:
    """Splits of what lies between two physical offsets."""
    found = []
    for split in split_files(files, split_bytes):
        base = split.file.start
        first, behind = max(split.start, start - base), min(split.stop, stop - base)
        if first < behind:
            found.append(replace(split, start=first, stop=behind))
    return found


def _take_keys(
    spark: SparkSession,
    splits: Sequence[Split],
    start: int,
    scratch: ScratchKeys,
    *,
    log_open_at: int | None = None,
    stop: int | None = None,
) -> _Taken:
    """Take the keys out of splits, and see that their records follow one another.

    Args:
        start: physical offset at which the first record starts.
        log_open_at: start of a file that need not be closed.
        stop: where the records have to end; None: at their files' ends.
    """

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in _numbers(batches):
            begins = number == 0 or splits[number].file != splits[number - 1].file
            row = [number, *_take_split(splits[number], number, scratch, proven=begins)]
            yield _one_row(row, _TAKEN_SCHEMA)

    rows = _run(spark, len(splits), task, _TAKEN)
    end = start
    for number, row in enumerate(rows):
        if row.first is not None:
            if row.first != end:
                raise _damage(splits[number].file, end, row.first)
            end = row.behind
        file = splits[number].file
        is_last = number + 1 == len(splits)
        if is_last and end == stop:
            continue
        if is_last or splits[number + 1].file != file:
            end = _end_of(file, end, may_be_open=file.start == log_open_at)
    return _Taken(tuple(row.keys for row in rows), end)


def _take_split(
    split: Split, number: int, scratch: ScratchKeys, *, proven: bool
) -> tuple[int | None, int | None, int, str | None]:
    """Keep a split's keys; where its records begin and end, how many keys, or what is wrong."""
    try:
        buffer, found = read_split(split, proven=proven)
    except FileNotFoundError:
        return None, None, 0, _gone(split.file)
    except (OSError, ValueError) as error:
        return None, None, 0, f"{split.file.uri} cannot be read: {error}"
    base = split.file.start + split.start
    if found.damages:
        damage = found.damages[0]
        return None, None, 0, str(_damage(split.file, damage.start, damage.end))
    if not len(found.starts):
        return None, None, scratch.save(number, []), None
    first, behind = int(found.starts[0]), int(found.starts[-1] + found.sizes[-1])
    keys: list[KeyEntries] = []
    position = first
    while position < behind:
        records = scan(
            buffer.data,
            position,
            behind,
            check_crc=False,
            with_tag_codes=False,
            records_max=_RECORDS_PER_SCAN,
        )
        if records.count == 0:
            return None, None, 0, f"the record at {base + position}: {records.end.value}"
        keys.append(index_entries(buffer, records, base))
        position = records.position
    try:
        return base + first, base + behind, scratch.save(number, keys), None
    except OSError as error:
        return None, None, 0, f"keys cannot be kept: {error}"


def _end_of(file: LogFile, end: int, *, may_be_open: bool) -> int:
    """Where the log goes on behind a file whose last record ends at `end`."""
    closing = _head(file, end - file.start)
    if len(closing) < _HEAD_BYTES or int.from_bytes(closing[4:], signed=True) == MAGIC_BLANK:
        return file.start + file.bytes
    if may_be_open and not any(closing):
        return end
    raise _damage(file, end, file.start + file.bytes)


def _gone(file: LogFile) -> str:
    return f"{file.uri} went while it was read: retention deleted it; run again"


def _damage(file: LogFile, start: int, end: int) -> IndexBuildError:
    return IndexBuildError(f"{file.uri}: physical offsets {start} to {end} hold no record")


def _write(
    spark: SparkSession,
    plans: Sequence[FilePlan],
    shape: IndexShape,
    scratch: ScratchKeys,
    staging: Path,
    target: Path,
) -> list[IndexedFile]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in _numbers(batches):
            answer = trouble = None
            try:
                written = write_file(plans[number], shape, scratch, staging, target)
                answer = json.dumps(written.to_json())
            except OSError as error:
                trouble = f"{target / plans[number].name} cannot be written: {error}"
            yield _one_row([number, answer, trouble], _ANSWER_SCHEMA)

    rows = _run(spark, len(plans), task, _ANSWER)
    return [IndexedFile.from_json(json.loads(row.answer)) for row in rows]


def _compare(
    spark: SparkSession,
    manifest: Manifest,
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
    plans = [
        FilePlan(file.name, start, pieces)
        for file, start, pieces in zip(files, headers, cut_keys(taken.counts, bounds), strict=False)
    ]

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in _numbers(batches):
            found = compare_file(plans[number], shape, scratch, target, files[number], gone[number])
            yield _one_row([number, json.dumps(found), None], _ANSWER_SCHEMA)

    for row in _run(spark, len(plans), task, _ANSWER):
        # Files whose every message is gone may be gone too.
        if files[row.number].name in names:
            problems += json.loads(row.answer)
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


def _run(
    spark: SparkSession,
    tasks: int,
    task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: str,
) -> list[Row]:
    """Run numbered tasks; return a row of each, in order.

    Raises:
        IndexBuildError: one of them says that something is wrong.
    """
    if tasks == 0:
        return []
    numbers = spark.range(0, tasks, 1, tasks).toDF("number")
    rows = sorted(numbers.mapInArrow(task, schema).collect(), key=lambda row: int(row.number))
    for row in rows:
        if row.trouble is not None:
            raise IndexBuildError(row.trouble)
    return rows


def _numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch["number"].to_pylist()


def _one_row(values: Sequence[object], schema: pa.Schema) -> pa.RecordBatch:
    row = dict(zip(schema.names, values, strict=True))
    return pa.RecordBatch.from_pylist([row], schema=schema)


if __name__ == "__main__":
    from rockoon_spark.commands import main

    raise SystemExit(main(["index", *sys.argv[1:]]))
