"""Measures without Spark: decoding, the upper limit by the CPU; and with Spark: reads that discard
the rows, and the jobs over whole logs.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

from bench.spark.stores import TOPICS, topic_name
from bench.usage import Spent, spending
from rockoon_format.config_json import TopicConfig, TopicConfigs, write_topics
from rockoon_format.generation import GENERATIONS_DIRECTORY
from rockoon_spark.compaction.directory_target import DirectoryTarget
from rockoon_spark.jobs.compact import compact
from rockoon_spark.jobs.export import export
from rockoon_spark.jobs.index import build_index
from rockoon_spark.jobs.rebuild import rebuild_queues
from rockoon_spark.records.selection import Selection
from rockoon_spark.session import session
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

_SETTINGS = {
    "spark__ui__enabled": "false",
    "spark__ui__showConsoleProgress": "false",
    "spark__log__level": "OFF",
    "spark__driver__bindAddress": "127.0.0.1",
    "spark__driver__host": "127.0.0.1",
    "spark__driver__memory": "2g",
}


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run of a job."""

    spent: Spent
    entries: int
    """Number of keys, queue entries or records that the job wrote."""
    bytes_written: int
    shuffle_bytes: int
    """Number of shuffle bytes that Spark wrote."""
    steps: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each step of the job, if the job reports steps."""


@contextmanager
def spark_on(cores: int, scratch: Path, **settings: object) -> Iterator[SparkSession]:
    """Start a local session with `cores` parallel tasks, and stop it at the end. `settings`:
    further settings, as in `session`."""
    spark = session(f"local[{cores}]", spark__local__dir=scratch, **_SETTINGS, **settings)
    try:
        yield spark
    finally:
        spark.stop()


def read_columns(spark: SparkSession, store: Path, columns: Sequence[str]) -> Spent:
    """Decode a store's columns for Spark, which discards the rows."""
    reader = spark.read.format("rockoon").option("path", str(store))
    frame = reader.option("columns", ",".join(columns)).load()
    with spending() as spent:
        frame.write.format("noop").mode("overwrite").save()
    return spent


def run_index(spark: SparkSession, store: Path, scratch: Path) -> JobRun:
    with _timed(spark) as timing:
        report = build_index(spark, str(store), scratch / "index", sealed_only=False)
    return timing.of(report.keys, _tree_bytes(scratch / "index"))


def run_rebuild(spark: SparkSession, store: Path, scratch: Path) -> JobRun:
    with _timed(spark) as timing:
        report = rebuild_queues(spark, str(store), scratch / "consumequeue")
    return timing.of(report.entries, _tree_bytes(scratch / "consumequeue"))


def run_compact(spark: SparkSession, store: Path, scratch: Path) -> JobRun:
    del scratch
    _say_compacted(store)
    try:
        with _timed(spark) as timing:
            report = compact(spark, DirectoryTarget(store))
    finally:
        shutil.rmtree(store / GENERATIONS_DIRECTORY, ignore_errors=True)
    return timing.of(report.records, report.bytes_written, report.seconds)


def run_export(spark: SparkSession, store: Path, scratch: Path) -> JobRun:
    place = StoreDirectory(str(store), "bench")
    with _timed(spark) as timing:
        report = export(spark, place, str(scratch / "export"), sealed_only=False)
    return timing.of(report.messages, report.bytes)


JOBS: Mapping[str, Callable[[SparkSession, Path, Path], JobRun]] = {
    "index": run_index,
    "rebuild": run_rebuild,
    "compact": run_compact,
    "export": run_export,
}
"""Jobs by name. Arguments: a session, a store and an empty directory for the output."""


def _say_compacted(store: Path) -> None:
    """Set the attribute cleanup.policy=COMPACTION for every topic of a store."""
    topics = {
        name: TopicConfig(topic=name, attributes={"cleanup.policy": "COMPACTION"})
        for name in map(topic_name, range(TOPICS))
    }
    (store / "config").mkdir(exist_ok=True)
    (store / "config" / "topics.json").write_bytes(write_topics(TopicConfigs(topics)))


class _Timing:
    def __init__(self) -> None:
        self.spent = Spent()
        self.shuffle_bytes = 0

    def of(
        self, entries: int, bytes_written: int, steps: Mapping[str, float] | None = None
    ) -> JobRun:
        return JobRun(self.spent, entries, bytes_written, self.shuffle_bytes, dict(steps or {}))


@contextmanager
def _timed(spark: SparkSession) -> Iterator[_Timing]:
    """Measure time and shuffled bytes of the block."""
    timing = _Timing()
    before = shuffled_bytes(spark)
    with spending() as timing.spent:
        yield timing
    timing.shuffle_bytes = shuffled_bytes(spark) - before


def shuffled_bytes(spark: SparkSession) -> int:
    """Return the shuffled bytes of all stages of a session so far."""
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    return sum(executors.apply(at).totalShuffleWrite() for at in range(executors.size()))


def _tree_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
