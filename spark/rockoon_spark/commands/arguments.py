"""The command line of the jobs."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from rockoon_format.index_file import SLOTS_DEFAULT, UNITS_DEFAULT
from rockoon_spark.commands import actions
from rockoon_spark.commands.outcomes import Outcome
from rockoon_spark.jobs.compact import MAX_LAG_SECONDS, MIN_DIRTY_RATIO
from rockoon_spark.jobs.rebuild import FILE_ENTRIES

_WHOLE = "the last CommitLog file too: no broker may be using the store directory"


def parser(program: str) -> argparse.ArgumentParser:
    """Return the parser for `index`, `rebuild`, `compact`, `export` and `verify`."""
    made = argparse.ArgumentParser(
        prog=program, description="Jobs over whole logs, on Spark.", allow_abbrev=False
    )
    commands = made.add_subparsers(metavar="COMMAND", required=True, dest="command")
    _add_index(commands)
    _add_rebuild(commands)
    _add_compact(commands)
    _add_export(commands)
    _add_verify(commands)
    return made


def _add_index(commands: Any) -> None:
    index = _command(
        commands,
        "index",
        actions.index,
        "build the index by key from the CommitLog, or extend an existing one",
    )
    _add_log(index, "the log of one broker is read")
    _add_target(index, "the index directory; every executor must see it")
    index.add_argument("--slots", type=_count, default=SLOTS_DEFAULT, help="of each index file")
    index.add_argument("--units", type=_units, default=UNITS_DEFAULT, help="of each index file")
    index.add_argument("--whole", action="store_true", help=_WHOLE)


def _add_rebuild(commands: Any) -> None:
    rebuild = _command(
        commands,
        "rebuild",
        actions.rebuild,
        "rebuild the ConsumeQueues from the CommitLog; no broker may be using the store directory",
    )
    _add_log(rebuild, "the log of one broker is read")
    _add_target(rebuild, "the queue directory to create; every executor must see it")
    rebuild.add_argument(
        "--entries",
        type=_count,
        default=FILE_ENTRIES,
        help="of each queue file; the same as in the broker's settings",
    )


def _add_compact(commands: Any) -> None:
    compact = _command(
        commands,
        "compact",
        actions.compact,
        "keep the newest message of each key of topics with cleanup.policy=COMPACTION",
    )
    _add_log(compact, "the topics of all its brokers are compacted")
    compact.add_argument(
        "--min-lag-seconds",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="compact only messages that are at least this old (default: 0, all)",
    )
    compact.add_argument(
        "--min-dirty-ratio",
        type=_ratio,
        default=MIN_DIRTY_RATIO,
        metavar="RATIO",
        help="skip a broker if a smaller share of its compacted topics' bytes is new since the "
        "last generation (default: %(default)s; 0: never skip)",
    )
    compact.add_argument(
        "--max-lag-seconds",
        type=_seconds,
        default=MAX_LAG_SECONDS,
        metavar="SECONDS",
        help="do not skip a broker if a message has waited longer than this for a generation: the "
        "broker keeps its log from this message on (default: %(default)g)",
    )
    compact.add_argument(
        "--rewrite",
        action="store_true",
        help="write all parts again, so that no superseded message stays on the disk; brokers of "
        "earlier versions can use the generation",
    )


def _add_export(commands: Any) -> None:
    export = _command(
        commands,
        "export",
        actions.export,
        "write messages to Parquet files by topic and date; each run adds the new messages",
    )
    _add_log(export, "the logs of all its brokers are exported")
    _add_target(export, "the export's directory, a path or URI; every executor must see it")
    chosen = export.add_mutually_exclusive_group()
    chosen.add_argument(
        "--topics",
        metavar="NAME,...",
        help="only these topics (default: all except internal topics); the same in every run",
    )
    chosen.add_argument(
        "--topic-pattern",
        metavar="PATTERN",
        help="only topics whose names match (* and ?); the same in every run",
    )
    export.add_argument(
        "--include-internal-topics",
        action="store_true",
        help="internal topics too, such as delayed messages before they are due; "
        "the same in every run",
    )
    export.add_argument("--whole", action="store_true", help=_WHOLE)
    export.add_argument(
        "--allow-data-loss",
        action="store_true",
        help="continue if retention deleted messages before their export; the gap is reported",
    )
    export.add_argument(
        "--skip-damage",
        action="store_true",
        help="skip damaged bytes of the log; their offsets are reported",
    )
    export.add_argument(
        "--skip-brokers-away",
        action="store_true",
        help="skip brokers that do not answer; a later run exports their messages",
    )
    export.add_argument(
        "--consumer-group",
        default="",
        metavar="GROUP",
        help="with --endpoint: commit the exported messages for this group, so that lag metrics "
        "show for each topic how long messages wait for an export",
    )
    export.add_argument(
        "--merge",
        action="store_true",
        help="merge small files of this run and of former runs by topic and date",
    )
    export.add_argument(
        "--keep-replaced-seconds",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="with --merge: how long the replaced files stay, for readers by the manifests that "
        "have begun; a later run removes them (default: 0)",
    )


def _add_verify(commands: Any) -> None:
    verify = _command(
        commands,
        "verify",
        actions.verify,
        "compare an index, queues, a generation or an export with its manifest and the CommitLog",
    )
    _add_log(verify, "compare with its brokers' logs", required=False)
    _add_target(verify, "what `index`, `rebuild`, `compact` or `export` wrote")


def _command(
    commands: Any, name: str, run: Callable[[SparkSession, Any], Outcome], does: str
) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(
        name, help=does, description=does[0].upper() + does[1:] + ".", allow_abbrev=False
    )
    made.set_defaults(run=run)
    made.add_argument(
        "--master",
        metavar="URL",
        help="URL of the Spark master (default: that of spark-submit, else local[*,4])",
    )
    made.add_argument("--json", action="store_true", help="print the result as JSON")
    made.add_argument(
        "--metrics-file",
        type=Path,
        metavar="FILE.prom",
        help="write metrics of the run, for node_exporter's textfile collector",
    )
    return made


def _add_log(command: argparse.ArgumentParser, use: str, *, required: bool = True) -> None:
    log = command.add_mutually_exclusive_group(required=required)
    log.add_argument("--store", metavar="DIR", help="a store directory, a path or URI")
    log.add_argument(
        "--endpoint",
        metavar="HOST:PORT,...",
        help=f"nameservers of a running cluster: {use}",
    )
    command.add_argument(
        "--broker",
        metavar="NAME",
        help="with --endpoint: only this broker; with --store: the broker's name "
        "(default: the directory's name)",
    )


def _add_target(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument("--target", required=True, metavar="DIR", help=what)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("has to be 1 or more")
    return value


def _units(text: str) -> int:
    value = int(text)
    if value < 2:
        raise argparse.ArgumentTypeError("has to be 2 or more: the format leaves one unit unused")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError("has to be 0 or more")
    return value


def _ratio(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError("has to be between 0 and 1")
    return value
