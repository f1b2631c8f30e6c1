"""Jobs that a driver runs on a standalone Spark cluster, for `oracle.test_standalone`.

Arguments: the job, the master's URL, the nameservers, and a directory for the result.
"""

import os
import signal
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from rockoon_spark.compaction.broker_target import broker_targets
from rockoon_spark.jobs.compact import compact
from rockoon_spark.jobs.export import export
from rockoon_spark.session import session
from rockoon_spark.source.live_cluster import LiveCluster
from support.message_oracle import PLAIN, expressions
from support.spark_processes import BRIEF_JAVA, patiently

BATCHES = ("first", "second")
# Small, so that each job has several tasks.
SPLIT_BYTES = 100_000
# Ends a job that hangs; a job needs half a minute on a busy machine.
JOB_SECONDS_MAX = 600
FORWARDED = ("PYTHONPATH", "HELD_STEP", "HELD_AT")


def batch(spark: SparkSession, endpoint: str, out: Path) -> None:
    """Write the rows of one DataFrame twice."""
    reader = spark.read.format("rockoon").option("splitBytes", SPLIT_BYTES)
    frame = reader.option("endpoint", endpoint).load()
    for name in BATCHES:
        frame.selectExpr(*expressions()).write.mode("overwrite").parquet(str(out / name))


def stream(spark: SparkSession, endpoint: str, out: Path) -> None:
    """Read all messages that the checkpoint does not cover."""
    reader = (
        spark.readStream.format("rockoon")
        .option("startingOffsets", "earliest")
        .option("topics", ",".join(PLAIN))
    )
    frame = reader.option("endpoint", endpoint).option("maxOffsetsPerTrigger", 400).load()

    def write(rows: DataFrame, number: int) -> None:
        # The same batch may be repeated, always with the same rows.
        write_batch(rows, out / f"batch-{number}")

    writer = frame.writeStream.foreachBatch(write).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(out / "checkpoint"))
    patiently(lambda: writer.start().awaitTermination())


def write_batch(rows: DataFrame, place: Path) -> None:
    rows.selectExpr(*expressions()).write.mode("overwrite").parquet(str(place))


def export_log(spark: SparkSession, endpoint: str, out: Path) -> None:
    export(spark, LiveCluster(endpoint), str(out), section_bytes=SPLIT_BYTES)


def compact_log(spark: SparkSession, endpoint: str, _: Path) -> None:
    for target in broker_targets(endpoint):
        compact(spark, target, min_dirty_ratio=0.0, split_bytes=SPLIT_BYTES)


JOBS = {"batch": batch, "stream": stream, "export": export_log, "compaction": compact_log}


def main(job: str, master: str, endpoint: str, out: Path) -> None:
    signal.alarm(JOB_SECONDS_MAX)
    forwarded = {f"spark__executorEnv__{name}": os.environ[name] for name in FORWARDED}
    spark = session(
        master,
        spark__cores__max=2,
        spark__executor__cores=1,
        spark__executor__memory="512m",
        spark__driver__memory="512m",
        spark__driver__extraJavaOptions=BRIEF_JAVA,
        spark__executor__extraJavaOptions=BRIEF_JAVA,
        spark__ui__enabled="false",
        spark__driver__bindAddress="127.0.0.1",
        spark__driver__host="127.0.0.1",
        spark__sql__shuffle__partitions=2,
        **forwarded,
    )
    out.mkdir(exist_ok=True)
    JOBS[job](spark, endpoint, out)
    spark.stop()


if __name__ == "__main__":
    # The steps of this program are those of the imported module.
    from spark import standalone_driver

    standalone_driver.main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
