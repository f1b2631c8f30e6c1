"""Metrics of a job, as a file for node_exporter's textfile collector.

A job is a process that ends, so nobody can ask it for metrics; a file stays, and the age of the
last success in it grows while no job runs at all, which is what an alert has to see. Each command
has a file of its own. Format: Prometheus's text exposition format.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from rockoon_spark.commands.outcomes import Figures


class Gauge(NamedTuple):
    """A metric of the file; its label is the command."""

    name: str
    doc: str


ENDED = Gauge(
    "rockoon_spark_job_ended_timestamp_seconds", "When the last run ended, seconds since the epoch"
)
SUCCEEDED = Gauge("rockoon_spark_job_succeeded", "1 when the last run did what it was to do")
SUCCEEDED_AT = Gauge(
    "rockoon_spark_job_succeeded_timestamp_seconds",
    "When the last run ended that did, seconds since the epoch; 0 for never",
)
SECONDS = Gauge("rockoon_spark_job_seconds", "How long the last run took")
LOG_BYTES = Gauge("rockoon_spark_job_log_bytes", "Bytes of logs that the last run read")
RECORDS = Gauge("rockoon_spark_job_records", "Records that the last run went through")
PROBLEMS = Gauge("rockoon_spark_job_problems", "What the last run found to be wrong")

TABLE = (ENDED, SUCCEEDED, SUCCEEDED_AT, SECONDS, LOG_BYTES, RECORDS, PROBLEMS)

# What jobs call their records.
_RECORDS = ("records", "messages", "keys")


class CommandRun(NamedTuple):
    """A run that has ended."""

    command: str
    ended_at: float
    """Epoch seconds."""
    seconds: float
    succeeded: bool
    figures: Figures
    problems: int


def write_metrics(path: Path, run: CommandRun) -> None:
    """Write a run's metrics; a reader sees either the former file or this one.

    Args:
        path: the file, whose name node_exporter wants to end with ".prom".
        run: what is told. The time of the last success is kept when this is none.

    Raises:
        OSError: it cannot be written.
    """
    values = {
        ENDED: run.ended_at,
        SUCCEEDED: float(run.succeeded),
        SUCCEEDED_AT: run.ended_at if run.succeeded else _read_success(path, run.command),
        SECONDS: run.seconds,
        LOG_BYTES: float(sum(_numbers(run.figures, ("log_bytes",)))),
        RECORDS: float(sum(_numbers(run.figures, _RECORDS))),
        PROBLEMS: float(run.problems),
    }
    # The collector reads whatever ends with .prom, so this does not.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text("".join(_lines(run.command, values)))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _lines(command: str, values: Mapping[Gauge, float]) -> Iterator[str]:
    for gauge, value in values.items():
        yield f"# HELP {gauge.name} {gauge.doc}\n# TYPE {gauge.name} gauge\n"
        yield f"{_series(gauge, command)} {value!r}\n"


def _series(gauge: Gauge, command: str) -> str:
    return f'{gauge.name}{{command="{command}"}}'


def _read_success(path: Path, command: str) -> float:
    start = _series(SUCCEEDED_AT, command) + " "
    try:
        lines = path.read_text(errors="replace").splitlines()
        told = (line.removeprefix(start) for line in lines if line.startswith(start))
        return float(next(told, 0.0))
    except (FileNotFoundError, ValueError):
        # There is none yet, or something else wrote into it: the last success is not known.
        return 0.0


def _numbers(figures: Figures, names: tuple[str, ...]) -> list[int]:
    """The first of these names that there is: of the whole, or else of each part."""
    for name in names:
        if isinstance(own := figures.get(name), int):
            return [own]
    parts = [part for part in figures.values() if isinstance(part, Mapping)]
    return [number for part in parts for number in _numbers(part, names)]
