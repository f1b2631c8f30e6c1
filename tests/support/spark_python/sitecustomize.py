"""Spark's Python processes in tests, without what they spend on nothing; Python runs it first."""

import gc
import sys

# Spark puts a copy of PySpark before the installed one: an archive, which each process compiles.
sys.path[:] = [path for path in sys.path if not path.endswith("pyspark.zip")]

collect = gc.collect
modules = 0


def collect_new() -> int:
    """Look for garbage, as a worker does behind each task, but not again and again among all that
    modules consist of: that takes longer than a test's task."""
    global modules
    found = collect()
    if len(sys.modules) != modules:
        modules = len(sys.modules)
        gc.freeze()
    return found


gc.collect = collect_new  # type: ignore[assignment]
