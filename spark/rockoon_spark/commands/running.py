"""Running a command: from its arguments to its exit status."""

import json
import re
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rockoon.errors import RockoonError
from rockoon_core.redaction import redacted
from rockoon_spark.commands.actions import EXPECTED, refuse_unusable
from rockoon_spark.commands.arguments import parser
from rockoon_spark.commands.interruption import held_interrupts, plain_interrupts
from rockoon_spark.commands.metrics_file import CommandRun, write_metrics
from rockoon_spark.commands.outcomes import Outcome, table
from rockoon_spark.commands.progress import shown_progress
from rockoon_spark.commands.quiet import quiet_settings
from rockoon_spark.java import JavaMissing
from rockoon_spark.session import session

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
    except (JavaMissing, RockoonError, *EXPECTED) as error:
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
