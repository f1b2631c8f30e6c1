"""Makes Spark's Python processes start faster in tests; Python runs this module first."""

import gc
import importlib
import os
import sys

# Spark puts a copy of PySpark before the installed one: an archive, which each process compiles.
sys.path[:] = [path for path in sys.path if not path.endswith("pyspark.zip")]

# Tasks of jobs, of the sink and of Spark import these modules: a new worker needs half a second.
MODULES_OF_TASKS = ("pandas", "rockoon_spark.commands.actions", "rockoon_spark.sink")
collect = gc.collect
modules = 0


def collect_new() -> int:
    """Collect garbage, as a worker does after each task, but traverse the objects of modules only
    once: a collection of all of them takes longer than a test's task."""
    global modules
    found = collect()
    if len(sys.modules) != modules:
        modules = len(sys.modules)
        gc.freeze()
    return found


gc.collect = collect_new  # type: ignore[assignment]

# By default, the imports of a process cause fifty collections without a result.
gc.set_threshold(50_000)
# A daemon forks a worker for each plan of a read, and for each task that finds no idle worker.
if "pyspark.daemon" in sys.orig_argv:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for module in (
        "pyspark.worker",
        "pyspark.sql.worker.plan_data_source_read",
        "rockoon_spark.source.data_source",
        *(MODULES_OF_TASKS if sys.orig_argv[-1] == "pyspark.worker" else ()),
    ):
        importlib.import_module(module)
    collect_new()
