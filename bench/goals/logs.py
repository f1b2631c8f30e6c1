"""CPU cost of reading a whole log: recovery, index, ConsumeQueues, Spark's columns.

Unit: CPU time of one process, the best of several passes over a log in the page cache.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

from bench.spark.decoding import WORK, Work, partitions_of
from bench.spark.stores import StoreMade, make_store
from bench.tables import Goal
from rockoon_broker.store.log.scan import LogScan
from rockoon_core.disk import Disk
from rockoon_format.consume_queue import ENTRY_BYTES
from rockoon_format.delay_levels import DELAY_LEVELS_MS
from rockoon_format.index_entries import KeyEntries, Slots
from rockoon_format.index_file import SLOTS_DEFAULT, IndexHeader
from rockoon_spark.records.record_run import queue_runs_of
from rockoon_spark.source.file_partition import FilePartition
from rockoon_spark.source.log_source import SPLIT_BYTES, ContiguousPartition
from rockoon_spark.source.store_directory import contiguous_log

Result = TypeVar("Result")

LOG_BYTES = 512 << 20
PASSES = 5
# The same as in `rockoon_spark.index.linking`.
LINKED_KEYS = 16_384
QUEUE_FILE_ENTRIES = 300_000

SCAN = "recovery reads the log, one core"
INDEX = "index built: keys found and linked, one core"
REBUILD = "ConsumeQueues rebuilt: entries by queue, one core"
EVERY = "Spark's decoding, all columns, one core"
FIXED = "Spark's decoding, fixed fields, one core"

GOALS = (
    Goal(SCAN, 1.5, "GB/s", is_floor=True),
    Goal(INDEX, 12_000_000, "keys/s", is_floor=True),
    Goal(REBUILD, 9_000_000, "entries/s", is_floor=True),
    Goal(EVERY, 1.5, "GB/s", is_floor=True),
    Goal(FIXED, 2.5, "GB/s", is_floor=True),
)


def measure(folder: Path) -> Iterator[tuple[str, float]]:
    """Measure the CPU cost of each way to read a log of 268-byte records; yield each value with its
    goal's name."""
    (store,) = make_store(folder / "logs", LOG_BYTES, 1)
    try:
        log = contiguous_log(str(store.path))
        partitions = list(log.partitions(log.start, log.end, SPLIT_BYTES))
        gigabytes = store.log_bytes / 1e9
        yield SCAN, gigabytes / best(lambda: scanned(store))[0]
        finding, keys = best(lambda: keys_of(partitions))
        linking, count = best(lambda: linked(keys))
        yield INDEX, count / (finding + linking)
        cutting, entries_bytes = best(lambda: runs_of(partitions))
        assert entries_bytes == store.records * ENTRY_BYTES
        yield REBUILD, store.records / cutting
        splits = partitions_of(store.path)
        for name, columns in ((EVERY, "+ body, properties"), (FIXED, "fixed fields")):
            yield name, gigabytes / best(partial(decoded, splits, WORK[columns]))[0]
    finally:
        shutil.rmtree(folder / "logs")


def best(work: Callable[[], Result]) -> tuple[float, Result]:
    """Return the CPU seconds of the best pass, and its result."""
    found = []
    for _ in range(PASSES):
        began = time.process_time()
        result = work()
        found.append(time.process_time() - began)
    return min(found), result


def decoded(splits: list[FilePartition], work: Work) -> int:
    return sum(map(work, splits))


def scanned(store: StoreMade) -> int:
    walk = LogScan(store.path / "commitlog", LOG_BYTES, [0], Disk())
    count = sum(chunk.records.count for chunk in walk.chunks(0))
    assert count == store.records
    return count


def keys_of(partitions: list[ContiguousPartition]) -> list[KeyEntries]:
    return [run.keys() for partition in partitions for run in partition.runs()]


def linked(keys: list[KeyEntries]) -> int:
    """Add keys to an index file in memory; return their number."""
    header, slots = IndexHeader(), Slots(SLOTS_DEFAULT)
    for part in keys:
        for at in range(0, len(part), LINKED_KEYS):
            header = slots.put(header, part.behind(at).first(LINKED_KEYS)).header
    return header.next_unit - 1


def runs_of(partitions: list[ContiguousPartition]) -> int:
    """Extract the ConsumeQueue entries of log partitions; return their size in bytes."""
    return sum(
        len(made.entries)
        for partition in partitions
        for _, made in queue_runs_of(partition.runs(), {}, DELAY_LEVELS_MS, QUEUE_FILE_ENTRIES)
    )
