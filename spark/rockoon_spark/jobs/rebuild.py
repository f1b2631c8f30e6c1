"""ConsumeQueues made anew from the CommitLog alone, byte for byte as the broker writes them.

For a store whose queues are lost, and to check one. Tasks take 20-byte entries out of stretches of
the log; only these cross the cluster. Each queue file is then written by one task.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from rockoon_format.consume_queue import ENTRY_BYTES, encode_entries, filler_entries
from rockoon_format.delay_levels import DELAY_LEVELS_MS
from rockoon_format.file_names import offset_to_file_name
from rockoon_format.frames import IntArray
from rockoon_format.names import topic_fault
from rockoon_format.scan import Scan, scan
from rockoon_spark.files import dropped_marks, list_log
from rockoon_spark.publish import published
from rockoon_spark.splits import SPLIT_BYTES, Split, read_split, split_files

FILE_ENTRIES = 300_000
_RECORDS_PER_SCAN = 65_536

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
_WRITTEN = "topic string, queue int, file long, first long, entries long"


class QueueDisorder(Exception):
    """Records of a queue do not follow one another, or the log is damaged."""


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What was read and written."""

    log_bytes: int
    entries: int
    queues: int
    files: int


def rebuild_queues(
    spark: SparkSession,
    store: str,
    target: Path,
    *,
    file_entries: int = FILE_ENTRIES,
    delay_levels_ms: Sequence[int] = DELAY_LEVELS_MS,
    split_bytes: int = SPLIT_BYTES,
) -> RebuildReport:
    """Write the `consumequeue` directory that a CommitLog implies.

    Args:
        store: a store directory that nobody writes, as a path or URI.
        target: the directory to make; every executor must see it.
        file_entries: entries per file, as the broker's.
        delay_levels_ms: the broker's: entries of delayed messages bear deliver times.
        split_bytes: bytes of log that one task reads.

    Raises:
        QueueDisorder: the log is damaged, or has two records of one queue offset, or lacks one.
        TargetExists: something is there already.
    """
    splits = split_files(list_log(store), split_bytes)
    levels, marks = tuple(delay_levels_ms), dict(dropped_marks(store))

    def entries_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["number"].to_pylist():
                yield from _runs(splits[number], marks, levels, file_entries)

    numbers = spark.range(0, len(splits), 1, max(len(splits), 1)).toDF("number")
    runs = numbers.mapInArrow(entries_of, _RUN)
    with published(target) as staging:
        root = str(staging)

        def write(table: pa.Table) -> pa.Table:
            return _write_file(Path(root), table, file_entries)

        written = runs.groupBy("topic", "queue", "file").applyInArrow(write, _WRITTEN).collect()
        rows = sorted(written, key=lambda row: (row.topic, row.queue, row.file))
        for before, row in zip([None, *rows], rows, strict=False):
            same = before is not None and (before.topic, before.queue) == (row.topic, row.queue)
            if same and before is not None and before.first + before.entries != row.first:
                raise QueueDisorder(
                    f"queue {row.queue} of {row.topic}: offset {before.first + before.entries} "
                    f"is not in the log, {row.first} is"
                )
    return RebuildReport(
        log_bytes=sum(split.stop - split.start for split in splits),
        entries=sum(row.entries for row in rows),
        queues=len({(row.topic, row.queue) for row in rows}),
        files=len(rows),
    )


def _runs(
    split: Split, marks: Mapping[str, int], levels: Sequence[int], file_entries: int
) -> Iterator[pa.RecordBatch]:
    """Entries of neighbouring messages of one queue file, for every queue of a split."""
    buffer, found = read_split(split)
    base = split.file.start + split.start
    if found.damages:
        damage = found.damages[0]
        raise QueueDisorder(
            f"{split.file.uri}: physical offsets {damage.start} to {damage.end} hold no record"
        )
    for at in range(0, len(found.starts), _RECORDS_PER_SCAN):
        chosen = slice(at, at + _RECORDS_PER_SCAN)
        first = int(found.starts[chosen][0])
        behind = int(found.starts[chosen][-1] + found.sizes[chosen][-1])
        position = first
        while position < behind:
            records = scan(buffer.data, position, behind, check_crc=False, delay_levels_ms=levels)
            if records.count == 0:
                raise QueueDisorder(f"the record at {base + position}: {records.end.value}")
            yield _batch(records, base, marks, file_entries)
            position = records.position


def _batch(records: Scan, base: int, marks: Mapping[str, int], file_entries: int) -> pa.RecordBatch:
    topics = [topic.decode(errors="replace") for topic in records.topics]
    floors = np.array([marks.get(topic, 0) for topic in topics], np.int64)
    physical = records.offsets + base
    listed = np.flatnonzero(records.has_queue_entry & (physical >= floors[records.topic_numbers]))
    # Stable, so that each queue keeps the order of the log.
    order = listed[np.lexsort((records.queue_ids[listed], records.topic_numbers[listed]))]
    numbers, queues = records.topic_numbers[order], records.queue_ids[order]
    offsets = records.queue_offsets[order]
    entries = encode_entries(physical[order], records.sizes[order], records.tag_codes[order])
    files = offsets // file_entries
    breaks = _changes(numbers) | _changes(queues) | _changes(files) | (np.diff(offsets) != 1)
    firsts = np.concatenate(([0], np.flatnonzero(breaks) + 1)) if len(order) else order
    ends = np.append(firsts[1:], len(order)) if len(order) else order
    content = entries.tobytes()
    return pa.RecordBatch.from_arrays(
        [
            pa.array([topics[number] for number in numbers[firsts].tolist()], pa.string()),
            pa.array(queues[firsts]).cast(pa.int32()),
            pa.array(files[firsts]),
            pa.array(offsets[firsts]),
            pa.array(
                [
                    content[first * ENTRY_BYTES : end * ENTRY_BYTES]
                    for first, end in zip(firsts.tolist(), ends.tolist(), strict=True)
                ],
                pa.binary(),
            ),
        ],
        schema=_RUN_SCHEMA,
    )


def _changes(values: IntArray) -> NDArray[np.bool_]:
    changed: NDArray[np.bool_] = np.diff(values) != 0
    return changed


def _write_file(root: Path, runs: pa.Table, file_entries: int) -> pa.Table:
    """Write one queue file: fillers where it begins in the middle, zeros behind its end."""
    topic, queue, number = (runs[name][0].as_py() for name in ("topic", "queue", "file"))
    if fault := topic_fault(topic):
        raise QueueDisorder(fault)
    ordered = runs.sort_by("first")
    firsts = ordered["first"].to_pylist()
    contents = ordered["entries"].to_pylist()
    expected = firsts[0]
    for first, content in zip(firsts, contents, strict=True):
        if first != expected:
            raise QueueDisorder(
                f"queue {queue} of {topic}: the log has offset {first} where {expected} is due"
            )
        expected += len(content) // ENTRY_BYTES
    directory = root / topic / str(queue)
    directory.mkdir(parents=True, exist_ok=True)
    start = number * file_entries
    path = directory / offset_to_file_name(start * ENTRY_BYTES)
    data = filler_entries(firsts[0] - start) + b"".join(contents)
    path.write_bytes(data.ljust(file_entries * ENTRY_BYTES, b"\0"))
    return pa.table(
        {
            "topic": [topic],
            "queue": pa.array([queue], pa.int32()),
            "file": [number],
            "first": [firsts[0]],
            "entries": [expected - firsts[0]],
        }
    )


if __name__ == "__main__":
    from rockoon_spark.commands import main

    raise SystemExit(main(["rebuild", *sys.argv[1:]]))
