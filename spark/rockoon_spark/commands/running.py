"""Running a command, from its arguments to its exit status: log output, Ctrl-C and progress."""

import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rockoon.errors import RockoonError
from rockoon_core.valid_text import redacted
from rockoon_spark.commands.actions import EXPECTED, refuse_unusable
from rockoon_spark.commands.arguments import parser
from rockoon_spark.commands.outcomes import CommandRun, Outcome, table, write_metrics
from rockoon_spark.java import JavaMissing
from rockoon_spark.session import session
from rockoon_spark.spark_version import SparkUnsupported

_LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")
_OPTIONS = "SPARK_SUBMIT_OPTS"
_SETTINGS = {"spark__ui__enabled": "false", "spark__ui__showConsoleProgress": "false"}


def quiet_settings() -> dict[str, str]:
    """Return settings for a session that logs nothing; see `session`.

    Java prints seven lines before it reads any Spark setting, so its log configuration is passed in
    an environment variable. A Java that `spark-submit` started has printed them already; the
    setting only stops further lines.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return {**_SETTINGS, "spark__log__level": "OFF"}
    option = f"-Dlog4j2.configurationFile={_LOG_CONFIGURATION.as_uri()}"
    given = os.environ.get(_OPTIONS, "")
    if "-Dlog4j2.configurationFile=" not in given:
        os.environ[_OPTIONS] = f"{given} {option}".strip()
    return dict(_SETTINGS)


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Defer a Ctrl-C to the end of the block; a second Ctrl-C is handled immediately.

    If Spark were interrupted while it starts, its Java process would keep running.
    """
    if not _has_signals():
        yield
        return
    former = signal.getsignal(signal.SIGINT)
    held: list[int] = []

    def hold(number: int, _: FrameType | None) -> None:
        held.append(number)
        signal.signal(signal.SIGINT, former)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
    if held:
        raise KeyboardInterrupt


@contextmanager
def plain_interrupts() -> Iterator[None]:
    """Within the block, a Ctrl-C raises only KeyboardInterrupt.

    PySpark's own handler calls Java during another call, and both calls log errors.

    Raises:
        KeyboardInterrupt: on Ctrl-C, also if the interrupted call fails with another error.
    """
    if not _has_signals():
        yield
        return
    interrupts: list[int] = []

    def interrupt(number: int, _: FrameType | None) -> NoReturn:
        # The interrupted call would log its end as a failure.
        logging.disable(logging.CRITICAL)
        interrupts.append(number)
        raise KeyboardInterrupt

    # Not restored, so that a second Ctrl-C during the exit is handled in the same way.
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception as error:
        # After an interrupted call PySpark calls Java once more, which may fail.
        if interrupts:
            raise KeyboardInterrupt from error
        raise


def _has_signals() -> bool:
    return threading.current_thread() is threading.main_thread()


_UPDATES_PER_SECOND = 4
_ERASE_LINE = "\r\033[K"


@contextmanager
def shown_progress(spark: SparkSession, what: str, stream: TextIO = sys.stderr) -> Iterator[None]:
    """Within the block, show the tasks of the running stages and the elapsed seconds.

    Shows nothing if the stream is not a terminal, or with Spark Connect.

    Args:
        what: the job's name.
    """
    if not stream.isatty() or not hasattr(spark, "sparkContext"):
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
    while not is_over.wait(1 / _UPDATES_PER_SECOND):
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


FAILED = 1
INTERRUPTED = 130
# The line with Rockoon's own error within the stack traces of a failed task.
_OWN_ERROR = re.compile(r"^(?:\w+\.)*rockoon_\w+\.[\w.]+: (.+)$", re.MULTILINE)


def main(arguments: Sequence[str], program: str = "rockoon spark") -> int:
    """Run a command line and return its exit status."""
    options = parser(program).parse_args(arguments)
    began = time.monotonic()
    status, outcome = _run(options)
    if options.metrics_file is not None:
        run = CommandRun(
            options.command,
            time.time_ns() / 1e9,
            time.monotonic() - began,
            status == 0,
            outcome.figures,
            len(outcome.problems),
            redacted(getattr(options, "target", None) or ""),
        )
        try:
            write_metrics(options.metrics_file, run)
        except OSError as error:
            return max(status, _complain(f"{options.metrics_file}: {error.strerror}"))
    return status


def _run(options: Any) -> tuple[int, Outcome]:
    """Run a command; return its exit status and result."""
    nothing = Outcome({})
    is_own = SparkSession.getActiveSession() is None
    try:
        refuse_unusable(options)
        with held_interrupts():
            spark = session(options.master, **quiet_settings())
        with plain_interrupts() if is_own else nullcontext():
            try:
                began = time.monotonic()
                with shown_progress(spark, options.command):
                    outcome: Outcome = options.run(spark, options)
                outcome = outcome.timed(time.monotonic() - began)
            finally:
                if is_own:
                    spark.stop()
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED, nothing
    except (JavaMissing, SparkUnsupported, RockoonError, *EXPECTED) as error:
        return _complain(str(error)), nothing
    except OSError as error:
        if error.filename is None:
            raise
        return _complain(f"{error.filename}: {error.strerror}"), nothing
    except PySparkException as error:
        own = _OWN_ERROR.findall(str(error))
        if not own:
            raise
        return _complain(own[-1]), nothing
    if options.json:
        figures = {
            name.replace("MB/s", "mb_per_second"): each for name, each in outcome.figures.items()
        }
        sentences = {
            "problems": [redacted(each) for each in outcome.problems],
            "notes": [redacted(each) for each in outcome.notes],
        }
        sys.stdout.write(json.dumps(figures | sentences, indent=2) + "\n")
    else:
        sys.stdout.write(table(outcome.figures, outcome.labels) + "\n")
    for sentence in (*outcome.notes, *outcome.problems):
        _complain(sentence)
    return (FAILED if outcome.problems else 0), outcome


def _complain(sentence: str) -> int:
    sys.stderr.write(f"rockoon: {redacted(sentence)}\n")
    return FAILED
