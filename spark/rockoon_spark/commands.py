"""The jobs as commands: `rockoon spark index ...`, or `spark-submit` with `rockoon_spark`.

The exit status is 0, 1 for a failure or a difference (sentences on standard error), 2 for wrong
usage.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rockoon_format.index_file import SLOTS_DEFAULT, UNITS_DEFAULT
from rockoon_spark.files import StoreError
from rockoon_spark.index_target import IndexTargetError, read_manifest
from rockoon_spark.java import JavaMissing
from rockoon_spark.jobs.index import IndexBuildError, build_index, verify_index
from rockoon_spark.jobs.rebuild import FILE_ENTRIES, QueueDisorder, rebuild_queues
from rockoon_spark.publish import TargetExists
from rockoon_spark.session import session

FAILED = 1
INTERRUPTED = 130
_EXPECTED = (
    IndexBuildError,
    IndexTargetError,
    JavaMissing,
    QueueDisorder,
    StoreError,
    TargetExists,
)
_QUIET = {
    "spark__ui__enabled": "false",
    "spark__ui__showConsoleProgress": "false",
    # A failure is told once, by one sentence.
    "spark__log__level": "OFF",
}
# How a task's failure ends, in the midst of what Java and Python say of it.
_OWN_ERROR = re.compile(r"^(?:\w+\.)*rockoon_spark\.[\w.]+: (.+)$", re.MULTILINE)

Outcome = tuple[dict[str, Any], list[str]]
"""What was done, by name, and what is wrong."""


def main(arguments: Sequence[str], program: str = "rockoon spark") -> int:
    """Run a command line and return its exit status."""
    options = _parser(program).parse_args(arguments)
    is_own = SparkSession.getActiveSession() is None
    try:
        spark = session(options.master, **_QUIET)
        try:
            done, problems = options.run(spark, options)
        finally:
            if is_own:
                spark.stop()
    except KeyboardInterrupt:
        return INTERRUPTED
    except _EXPECTED as error:
        return _complain(str(error))
    except OSError as error:
        if error.filename is None:
            raise
        return _complain(f"{error.filename}: {error.strerror}")
    except PySparkException as error:
        own = _OWN_ERROR.findall(str(error))
        if not own:
            raise
        return _complain(own[-1])
    if options.json:
        _say(json.dumps(done | {"problems": problems}, indent=2))
    else:
        _say(_table(done))
    for problem in problems:
        _complain(problem)
    return FAILED if problems else 0


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program, description="Jobs over whole stores, on Spark.", allow_abbrev=False
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    index = _command(
        commands,
        "index",
        _index,
        "make the index by key from the CommitLog, or go on with it",
    )
    index.add_argument("--slots", type=_count, default=SLOTS_DEFAULT, help="of each index file")
    index.add_argument("--units", type=_units, default=UNITS_DEFAULT, help="of each index file")
    index.add_argument(
        "--whole",
        action="store_true",
        help="the last CommitLog file too: no broker may be using the store",
    )

    rebuild = _command(
        commands,
        "rebuild",
        _rebuild,
        "make the ConsumeQueues from the CommitLog; no broker may be using the store",
    )
    rebuild.add_argument(
        "--entries", type=_count, default=FILE_ENTRIES, help="of each queue file, as the broker's"
    )

    _command(commands, "verify", _verify, "compare an index that `index` made with the CommitLog")
    return parser


def _command(
    commands: Any, name: str, run: Callable[[SparkSession, Any], Outcome], does: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=does, description=does[0].upper() + does[1:] + ".", allow_abbrev=False
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--store", required=True, metavar="DIR", help="the store directory, a path or URI"
    )
    parser.add_argument(
        "--target",
        required=True,
        type=Path,
        metavar="DIR",
        help="the index or queue directory; every executor must see it",
    )
    parser.add_argument(
        "--master",
        metavar="URL",
        help="where Spark runs (default: what spark-submit said, else local[*])",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("has to be 1 or more")
    return value


def _units(text: str) -> int:
    value = int(text)
    if value < 2:
        raise argparse.ArgumentTypeError("has to be 2 or more: one is not used")
    return value


def _index(spark: SparkSession, options: Any) -> Outcome:
    report = build_index(
        spark,
        options.store,
        options.target,
        slots=options.slots,
        units=options.units,
        sealed_only=not options.whole,
    )
    return asdict(report), []


def _rebuild(spark: SparkSession, options: Any) -> Outcome:
    report = rebuild_queues(spark, options.store, options.target, file_entries=options.entries)
    return asdict(report), []


def _verify(spark: SparkSession, options: Any) -> Outcome:
    problems = verify_index(spark, options.store, options.target)
    manifest = read_manifest(options.target.resolve())
    done = {
        "files": len(manifest.files) if manifest else 0,
        "keys": sum(file.keys for file in manifest.files) if manifest else 0,
        "end_offset": manifest.end_offset if manifest else 0,
        "differences": len(problems),
    }
    return done, problems


def _table(done: Mapping[str, int]) -> str:
    width = max(map(len, done))
    figures = max(len(f"{value:,}") for value in done.values())
    return "\n".join(
        f"{name.replace('_', ' '):<{width}}  {value:>{figures},}" for name, value in done.items()
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _complain(sentence: str) -> int:
    sys.stderr.write(f"rockoon: {sentence}\n")
    return FAILED
