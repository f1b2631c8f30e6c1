"""Decoding without Spark in one process, or two: the limit that a core sets."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from bench.spark.cpu import Spent, spending
from rockoon_spark.records.selection import Selection
from rockoon_spark.source.file_partition import FilePartition
from rockoon_spark.source.log_source import SPLIT_BYTES, DamagedRange
from rockoon_spark.source.rows import rows
from rockoon_spark.source.store_directory import StoreDirectory

_OFFSETS = ("topic", "queue", "queue_offset", "physical_offset", "size")
_FIXED = (
    *_OFFSETS,
    "born_time",
    "store_time",
    "flag",
    "sys_flag",
    "reconsume_times",
    "prepared_offset",
)
_KEYED = (*_FIXED, "keys", "tags")
COLUMN_SETS = {
    "offsets": _OFFSETS,
    "fixed fields": _FIXED,
    "+ keys, tags": _KEYED,
    "+ body, properties": (*_KEYED, "body", "properties"),
}
"""What is decoded, by name; each set has the one before it in it."""

_CHUNK_BYTES = 1 << 20

Work = Callable[[FilePartition], int]
"""Does something with a partition of a log, and returns how many records it has."""


def partitions_of(store: Path, split_bytes: int = SPLIT_BYTES) -> list[FilePartition]:
    """A store's log, cut as Spark's tasks get it."""
    found = StoreDirectory(str(store), "bench").partitions(Selection(), split_bytes)
    return [partition for partition in found if isinstance(partition, FilePartition)]


def read_through(partition: FilePartition) -> int:
    """Read bytes one after the other into one buffer: what any reader pays at least."""
    chunk = bytearray(_CHUNK_BYTES)
    with open(partition.file.uri, "rb", buffering=0) as file:
        file.seek(partition.start - partition.file.start)
        missing = partition.stop - partition.start
        while missing > 0:
            missing -= file.readinto(memoryview(chunk)[: min(missing, _CHUNK_BYTES)])
    return 0


def numpy_pass(partition: FilePartition) -> int:
    """Look at every byte once with one NumPy operation: a sum over the mapped file."""
    first, behind = (at - partition.file.start for at in (partition.start, partition.stop))
    words = np.memmap(partition.file.uri, np.uint64, "r")[first // 8 : behind // 8]
    # One pass has to read every byte; what comes out is of no use.
    words.sum()
    return 0


def decode(columns: Sequence[str], partition: FilePartition) -> int:
    """Find the records of a partition and make Arrow columns of them."""
    return sum(batch.num_rows for batch in rows(partition.read(), Selection(), columns, _whole))


def _whole(damage: DamagedRange) -> None:
    raise AssertionError(damage)


def find(partition: FilePartition) -> int:
    """Find the records of a partition, and where their fields are."""
    return decode((), partition)


def seconds_of(work: Work, partitions: list[FilePartition], cores: int) -> Spent:
    """What some processes take for all partitions; they run already."""
    if cores == 1:
        work(partitions[0])
        with spending() as spent:
            for partition in partitions:
                work(partition)
        return spent
    with ProcessPoolExecutor(cores, get_context("spawn")) as pool:
        # All are up, and have imported everything, once each has done something.
        list(pool.map(work, partitions[:1] * cores))
        with spending() as spent:
            list(pool.map(work, partitions))
        return spent


WORK: dict[str, Work] = {
    "sequential read": read_through,
    "NumPy, one pass": numpy_pass,
    "find records": find,
    **{name: partial(decode, columns) for name, columns in COLUMN_SETS.items()},
}
"""What is measured in processes without Spark, by name."""
