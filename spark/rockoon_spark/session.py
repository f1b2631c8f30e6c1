"""The Spark session of Rockoon's jobs, local unless a master is given, and numbered tasks on it."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from rockoon_spark.java import find_java
from rockoon_spark.spark_version import check_spark

# All cores. Each task has four attempts, as on a cluster, because a worker can run out of memory.
_LOCAL = "local[*,4]"
_SETTINGS = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # Every batch is copied into the JVM: a few large batches cost less than many small ones.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
}


def session(master: str | None = None, **settings: Any) -> SparkSession:
    """Start a session, or return the active one. Spark finds `format("rockoon")` in it.

    Args:
        master: URL of the Spark master, or of a server of Spark Connect (sc://); by default the one
            of `spark-submit`, else this machine.
        settings: of Spark, with `__` for each dot in a name.

    Raises:
        JavaMissing: this process must start Spark, and no Java can run it.
        SparkUnsupported: the installed PySpark is too old or too new.
    """
    check_spark()
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    is_remote = master is not None and master.startswith("sc://")
    if not is_submitted and not is_remote:
        find_java()
        master = master or _LOCAL
    builder = SparkSession.builder.appName("rockoon")
    if master is not None:
        builder = builder.remote(master) if is_remote else builder.master(master)
        if master.startswith("local"):
            # Local workers use this process's interpreter, not the first one on PATH.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    chosen = {name.replace("__", "."): str(value) for name, value in settings.items()}
    for name, value in {**_SETTINGS, **chosen}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def parallel_tasks(spark: SparkSession) -> int:
    """Return the number of tasks that a session runs at the same time."""
    context = getattr(spark, "sparkContext", None)
    if context is not None:
        return int(context.defaultParallelism)
    # A client of Spark Connect has no context: a range has as many partitions by default. The
    # expression is text, because functions of PySpark are those of the process's first session.
    return spark.range(1 << 20).selectExpr("spark_partition_id()").distinct().count()


_ANSWER = "number int, answer string"
_ANSWER_SCHEMA = pa.schema([("number", pa.int32()), ("answer", pa.string())])


def run_tasks(
    spark: SparkSession, tasks: int, task: Callable[[int], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Run a task for each number from 0 to `tasks` - 1; return their answers in order.

    Args:
        task: called with the number; Spark may repeat it, even concurrently. It is pickled, and its
            answer is encoded as JSON, without tuples.
    """
    if tasks == 0:
        return []

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["number"].to_pylist():
                row = {"number": number, "answer": json.dumps(task(number))}
                yield pa.RecordBatch.from_pylist([row], schema=_ANSWER_SCHEMA)

    numbers = spark.range(0, tasks, 1, tasks).toDF("number")
    rows = sorted(numbers.mapInArrow(run, _ANSWER).collect(), key=lambda row: int(row.number))
    return [json.loads(row.answer) for row in rows]
