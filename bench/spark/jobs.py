"""Measures with Spark: reads that discard the rows, and the jobs over whole logs."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

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
from rockoon_spark.session import session
from rockoon_spark.source.store_directory import StoreDirectory

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
def spark_on(cores: int, scratch: Path) -> Iterator[SparkSession]:
    """Start a local session with `cores` parallel tasks, and warm up its worker."""
    spark = session(f"local[{cores}]", spark__local__dir=scratch, **_SETTINGS)
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
    """Return the size of all files below a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
