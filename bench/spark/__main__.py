"""`make bench-spark`: Spark's rates for logs of one and two gibibytes, on one core and two.

The machine is shared and noisy: compare only ratios, and only within one run. Each run creates the
store and removes it.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.command import console, parser, stores
from bench.compare.programs import NotHere
from bench.spark.beside_kafka import measure_beside_kafka
from bench.spark.compactions import measure_compactions
from bench.spark.jobs import (
    COLUMN_SETS,
    JOBS,
    WORK,
    partitions_of,
    read_columns,
    seconds_of,
    spark_on,
)
from bench.spark.many_queues import QUEUES, measure_plans
from bench.spark.report import JOB, PROCESS, SPARK, Figure, Figures
from bench.spark.scan import measure_scans
from bench.spark.stores import StoreMade, make_store
from bench.spark.topics import measure_topics
from bench.usage import Spent
from rockoon_spark.java import JavaMissing

PARTS = ("topics", "scan", "plans", "kafka", "compactions", "process", "spark", *JOBS)
# Parts that make stores of their own.
OWN_STORES = frozenset({"topics", "scan", "plans", "kafka", "compactions"})
COMPACTIONS = 20
# Messages of the comparison with Kafka's source.
MESSAGES, QUICK_MESSAGES = 2_000_000, 100_000
FILE_BYTES = 1 << 30
QUICK_FILE_BYTES = 64 << 20
# Size of the log of one topic among others, as a part of a file.
TOPICS_LOG_PART = 2
# Free disk space per byte of the largest store: the store, the output of the jobs, and a reserve.
FREE_BYTES_PER_LOG_BYTE = 3
CORES = (1, 2)
# A fixed width, because output can go to a file.
TABLE_WIDTH = 120


class Bench:
    """One run of the benchmark: stores, a scratch directory, and the figures."""

    def __init__(self, folder: Path, stores: Sequence[StoreMade], rounds: int) -> None:
        self.figures = Figures()
        self._stores = stores
        self._rounds = rounds
        self._scratch = folder / "scratch"
        self._scratch.mkdir()

    def in_processes(self, cores: int) -> None:
        """Measure decoding in processes without Spark, and the minimum cost of reading the
        bytes."""
        for store in self._stores:
            partitions = partitions_of(store.path)
            for name, work in WORK.items():
                for _ in range(self._rounds):
                    spent = seconds_of(work, partitions, cores)
                    self._add(PROCESS, name, cores, store, spent)

    def on_spark(self, cores: int, parts: Sequence[str]) -> None:
        """Measure decoding into Spark DataFrames, and the requested jobs."""
        with spark_on(cores, self._scratch) as spark:
            # Warm-up: Java's JIT compiler, and imports of the workers.
            read_columns(spark, self._stores[0].path, COLUMN_SETS["offsets"])
            for store in self._stores:
                for name, columns in COLUMN_SETS.items() if "spark" in parts else ():
                    for _ in range(self._rounds):
                        spent = read_columns(spark, store.path, columns)
                        self._add(SPARK, name, cores, store, spent)
                for name in (name for name in JOBS if name in parts):
                    for _ in range(self._rounds):
                        self._run(name, spark, cores, store)

    def _run(self, name: str, spark: SparkSession, cores: int, store: StoreMade) -> None:
        with tempfile.TemporaryDirectory(dir=self._scratch) as target:
            run = JOBS[name](spark, store.path, Path(target))
        figures = (run.entries, run.bytes_written, run.shuffle_bytes, run.steps)
        self._add(JOB, name, cores, store, run.spent, *figures)

    def _add(
        self, kind: str, name: str, cores: int, store: StoreMade, spent: Spent, *figures: Any
    ) -> None:
        of_store = (store.log_bytes, store.records, spent.seconds, spent.cpu_seconds)
        self.figures.add(Figure(kind, name, cores, *of_store, *figures))


def measure(folder: Path, arguments: argparse.Namespace) -> Figures:
    """Create the stores, run all measures, and print the results."""
    file_bytes = QUICK_FILE_BYTES if arguments.quick else FILE_BYTES
    began = time.perf_counter()
    stores = make_store(folder / "stores", file_bytes, 2)
    console.print(
        f"{os.cpu_count()} cores; stores of "
        + " and ".join(f"{each.log_bytes >> 20} MiB, {each.records:,} records" for each in stores)
        + f", made in {time.perf_counter() - began:.0f} s; the faster of {arguments.rounds} runs"
    )
    bench = Bench(folder, stores, arguments.rounds)
    parts = tuple(arguments.only or PARTS)
    for cores in arguments.cores or CORES:
        if {"process", "spark"} & set(parts):
            bench.in_processes(cores)
        if set(parts) - {"process", *OWN_STORES}:
            bench.on_spark(cores, parts)
    bench.figures.print(arguments.cores or CORES)
    console.print(f"{time.perf_counter() - began:.0f} s in all; load {os.getloadavg()[0]:.1f}")
    return bench.figures


def _beside_kafka(directory: Path, messages: int, rounds: int) -> list[dict[str, Any]]:
    try:
        found = measure_beside_kafka(directory, messages, rounds)
    except NotHere as reason:
        console.print(f"skipped: beside Kafka: {reason}", markup=False)
        return []
    return [asdict(each) for each in found]


def main(given: Sequence[str] | None = None) -> int:
    options = parser("make bench-spark", __doc__, PARTS)
    options.add_argument("--cores", type=int, action="append", help="default: one, then two")
    options.add_argument("--rounds", type=int, default=2, help="runs of each, the faster counts")
    options.add_argument("--quick", action="store_true", help="64 MiB and 128 MiB")
    options.add_argument("--messages", type=int, help="of the comparison with Kafka's source")
    arguments = options.parse_args(given)
    console.width = TABLE_WIDTH
    directory: Path = arguments.dir
    directory.mkdir(parents=True, exist_ok=True)
    parts = set(arguments.only or PARTS)
    file_bytes = QUICK_FILE_BYTES if arguments.quick else FILE_BYTES
    needed = 2 * file_bytes * FREE_BYTES_PER_LOG_BYTE
    free = shutil.disk_usage(directory).free
    if free < needed:
        console.print(
            f"{directory.resolve()} has {free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB are needed"
        )
        return 1
    figures: list[dict[str, Any]] = []
    if "topics" in parts:
        topics = measure_topics(file_bytes // TOPICS_LOG_PART, arguments.rounds)
        figures += [asdict(each) for each in topics]
    if "scan" in parts:
        scans = measure_scans(file_bytes, arguments.rounds)
        figures += [asdict(each) for each in scans]
    if "plans" in parts:
        plans = measure_plans(QUEUES, arguments.rounds)
        figures += [asdict(each) for each in plans]
    try:
        if "kafka" in parts:
            messages = arguments.messages or (QUICK_MESSAGES if arguments.quick else MESSAGES)
            figures += _beside_kafka(directory, messages, arguments.rounds)
        if "compactions" in parts:
            with stores(directory) as folder, spark_on(max(CORES), folder) as spark:
                figures += [asdict(each) for each in measure_compactions(spark, COMPACTIONS)]
        if parts - OWN_STORES:
            with stores(directory) as folder:
                figures += measure(folder, arguments).to_json()
    except JavaMissing as error:
        console.print(str(error), markup=False)
        return 1
    path = directory / "spark.json"
    path.write_text(json.dumps(figures, indent=1) + "\n")
    console.print(f"figures: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
