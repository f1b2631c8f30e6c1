"""A Spark session fit for Rockoon's jobs: local unless told otherwise."""

import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from rockoon_spark.java import find_java
from rockoon_spark.source.data_source import RockoonDataSource

# All cores. A worker that dies for want of memory is not the end: a task is tried four times, as on
# a cluster.
_LOCAL = "local[*,4]"
_SETTINGS = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # Every batch crosses into the JVM: few large ones cost less than many small ones.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
}


def session(master: str | None = None, **settings: Any) -> SparkSession:
    """Start a session, or take the one that runs, that knows `format("rockoon")`.

    Args:
        master: where Spark runs; by default what `spark-submit` said, else this machine.
        settings: of Spark, with `__` for the dots of their names.

    Raises:
        JavaMissing: Spark has to be started from here, and there is no Java that can run it.
    """
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not is_submitted:
        find_java()
        master = master or _LOCAL
    builder = SparkSession.builder.appName("rockoon")
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            # Workers of this machine run where this process does, not where PATH leads.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    chosen = {name.replace("__", "."): str(value) for name, value in settings.items()}
    for name, value in {**_SETTINGS, **chosen}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(RockoonDataSource)
    return spark
