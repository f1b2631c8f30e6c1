"""Decoding of a log in one or two processes without Spark: the upper limit by the CPU."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from bench.usage import Spent, spending
from rockoon_spark.records.selection import Selection
from rockoon_spark.source.file_partition import FilePartition
from rockoon_spark.source.log_source import SPLIT_BYTES, DamagedRange, rows
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
"""Sets of decoded columns, by name; each set contains the one before it."""

_CHUNK_BYTES = 1 << 20

Work = Callable[[FilePartition], int]
"""Type of a function that processes a partition of a log and returns its number of records."""


def partitions_of(store: Path, split_bytes: int = SPLIT_BYTES) -> list[FilePartition]:
    """Return the partitions of a store's log, the same as for Spark's tasks."""
    found = StoreDirectory(str(store), "bench").partitions(Selection(), split_bytes)
    return [partition for partition in found if isinstance(partition, FilePartition)]


def read_through(partition: FilePartition) -> int:
    """Read all bytes into one buffer: the minimum cost of any reader."""
    chunk = bytearray(_CHUNK_BYTES)
    with open(partition.file.uri, "rb", buffering=0) as file:
        file.seek(partition.start - partition.file.start)
        missing = partition.stop - partition.start
        while missing > 0:
            missing -= file.readinto(memoryview(chunk)[: min(missing, _CHUNK_BYTES)])
    return 0


def numpy_pass(partition: FilePartition) -> int:
    """Sum every byte of the mapped file with one NumPy operation."""
    first, behind = (at - partition.file.start for at in (partition.start, partition.stop))
    words = np.memmap(partition.file.uri, np.uint64, "r")[first // 8 : behind // 8]
    # The result is not used.
    words.sum()
    return 0


def decode(columns: Sequence[str], partition: FilePartition) -> int:
    """Find the records of a partition and decode Arrow columns."""
    return sum(batch.num_rows for batch in rows(partition.read(), Selection(), columns, _whole))


def _whole(damage: DamagedRange) -> None:
    raise AssertionError(damage)


def find(partition: FilePartition) -> int:
    """Find the records of a partition and the positions of their fields, without decoding
    columns."""
    return decode((), partition)


def seconds_of(work: Work, partitions: list[FilePartition], cores: int) -> Spent:
    """Measure the processing of all partitions by some processes, which are already running."""
    if cores == 1:
        work(partitions[0])
        with spending() as spent:
            for partition in partitions:
                work(partition)
        return spent
    with ProcessPoolExecutor(cores, get_context("spawn")) as pool:
        # Warm-up: starts all processes, which import their modules.
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
"""Functions that are measured without Spark, by name."""
