"""Progress of a job, on one line of a terminal."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from pyspark.sql import SparkSession

_LOOKS_PER_SECOND = 4
_ERASE_LINE = "\r\033[K"


@contextmanager
def shown_progress(spark: SparkSession, what: str, stream: TextIO = sys.stderr) -> Iterator[None]:
    """Within the block, show the tasks of the running stages and the elapsed seconds.

    Shows nothing if the stream is not a terminal.

    Args:
        what: the job's name.
    """
    if not stream.isatty():
        yield
        return
    is_over = threading.Event()
    shower = threading.Thread(
        target=_show, args=(spark, what, stream, is_over), name="progress", daemon=True
    )
    shower.start()
    try:
        yield
    finally:
        is_over.set()
        shower.join()
        stream.write(_ERASE_LINE)
        stream.flush()


def _show(spark: SparkSession, what: str, stream: TextIO, is_over: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    began = time.monotonic()
    while not is_over.wait(1 / _LOOKS_PER_SECOND):
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        running = [stage for stage in stages if stage is not None]
        stream.write(
            _ERASE_LINE
            + progress_line(
                what,
                time.monotonic() - began,
                [(each.name, each.numCompletedTasks, each.numTasks) for each in running],
            )
        )
        stream.flush()


def progress_line(what: str, seconds: float, stages: list[tuple[str, int, int]]) -> str:
    """Format the job, its seconds, and per stage (name, done, tasks) the number of done tasks."""
    parts = [f"{done} of {tasks} tasks" for _, done, tasks in stages]
    return f"{what}: {int(seconds)} s, {', '.join(parts) or 'planning'}"
