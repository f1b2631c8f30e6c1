"""Result of a command: its last lines, and a file for node_exporter's textfile collector.

Prometheus cannot scrape a job, because its process ends. The file remains, and the age of the last
success grows while no job runs, so an alert can detect that. Each command and target has its
own file. Format: Prometheus's text exposition format.
"""

import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

Figures = Mapping[str, Any]
"""Figures of a job by name: numbers, sentences, or nested figures of parts such as brokers."""

_BYTES_READ = "log_bytes"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a job, as a command prints it."""

    figures: Figures
    problems: Sequence[str] = ()
    """Problems found by the job; if there is one, the command exits with status 1."""
    notes: Sequence[str] = ()
    """Remarks of the job, printed without effect on the exit status."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of figures in the printed table; figures without one are printed by name."""

    def timed(self, seconds: float) -> "Outcome":
        """Return a copy with the duration and the rate at which the log was read."""
        figures = {**self.figures, "seconds": round(seconds, 2)}
        if read := figures.get(_BYTES_READ):
            figures["MB/s"] = round(read / 1e6 / seconds, 1)
        return replace(self, figures=figures)


def table(figures: Figures, labels: Mapping[str, str] = MappingProxyType({})) -> str:
    """Format figures, one per line; those of a part are indented below its name."""
    flat = {name: each for name, each in figures.items() if not isinstance(each, Mapping)}
    blocks = [_block(flat, labels)] if flat else []
    for name, each in figures.items():
        if isinstance(each, Mapping) and each:
            blocks.append(f"{name}:\n{textwrap.indent(table(each, labels), '  ')}")
    return "\n".join(blocks)


def _block(figures: Figures, labels: Mapping[str, str]) -> str:
    shown = {
        labels.get(name) or name.replace("_", " "): _shown(value) for name, value in figures.items()
    }
    width, length = max(map(len, shown)), max(map(len, shown.values()))
    return "\n".join(f"{name:<{width}}  {value:>{length}}" for name, value in shown.items())


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


class Gauge(NamedTuple):
    """A metric in the file; its labels are the command and its target, if it has one."""

    name: str
    doc: str


ENDED = Gauge(
    "rockoon_spark_job_ended_timestamp_seconds", "When the last run ended, seconds since the epoch"
)

SUCCEEDED = Gauge("rockoon_spark_job_succeeded", "1 if the last run succeeded, else 0")

SUCCEEDED_AT = Gauge(
    "rockoon_spark_job_succeeded_timestamp_seconds",
    "When the last successful run ended, seconds since the epoch; 0 for never",
)

SECONDS = Gauge("rockoon_spark_job_seconds", "Duration of the last run")
LOG_BYTES = Gauge("rockoon_spark_job_log_bytes", "Bytes of logs that the last run read")
RECORDS = Gauge("rockoon_spark_job_records", "Records that the last run processed")
FILES = Gauge("rockoon_spark_job_files", "Files that the last run wrote or verified")
PROBLEMS = Gauge("rockoon_spark_job_problems", "Number of problems that the last run found")
TABLE = (ENDED, SUCCEEDED, SUCCEEDED_AT, SECONDS, LOG_BYTES, RECORDS, FILES, PROBLEMS)
# Names under which the jobs count their records; the first one present is used.
_RECORDS = ("records", "messages", "keys")


class CommandRun(NamedTuple):
    """A finished run of a command, from which the metrics are written."""

    command: str
    ended_at: float
    """Time at which the command ended, epoch seconds."""
    seconds: float
    succeeded: bool
    figures: Figures
    problems: int
    target: str = ""
    """What the command writes or verifies, without secrets; empty for a command without one."""

    @property
    def labels(self) -> str:
        """The labels of the run's metrics, in the text format."""
        if not self.target:
            return f'command="{self.command}"'
        escaped = self.target.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        return f'command="{self.command}",target="{escaped}"'


def write_metrics(path: Path, run: CommandRun) -> None:
    """Write the metrics of a run; the former file is replaced atomically.

    Args:
        path: the file; node_exporter reads it only if its name ends with ".prom".
        run: its figures. If it failed, the former file's time of the last success is kept.

    Raises:
        OSError: the file cannot be written.
    """
    values = {
        ENDED: run.ended_at,
        SUCCEEDED: float(run.succeeded),
        SUCCEEDED_AT: run.ended_at if run.succeeded else _read_success(path, run),
        SECONDS: run.seconds,
        LOG_BYTES: float(sum(_numbers(run.figures, ("log_bytes",)))),
        RECORDS: float(sum(_numbers(run.figures, _RECORDS))),
        FILES: float(sum(_numbers(run.figures, ("files",)))),
        PROBLEMS: float(run.problems),
    }
    # The collector reads every file that ends with .prom, so this name does not.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text("".join(_lines(run.labels, values)))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _lines(labels: str, values: Mapping[Gauge, float]) -> Iterator[str]:
    for gauge, value in values.items():
        yield f"# HELP {gauge.name} {gauge.doc}\n# TYPE {gauge.name} gauge\n"
        yield f"{gauge.name}{{{labels}}} {value!r}\n"


def _read_success(path: Path, run: CommandRun) -> float:
    # Files of former versions have no target.
    starts = tuple(
        f"{SUCCEEDED_AT.name}{{{labels}}} "
        for labels in {run.labels, run._replace(target="").labels}
    )
    try:
        lines = path.read_text(errors="replace").splitlines()
        values = (line.rpartition(" ")[2] for line in lines if line.startswith(starts))
        return float(next(values, 0.0))
    except (FileNotFoundError, ValueError):
        # No file yet, or its content is not ours: the last success is unknown.
        return 0.0


def _numbers(figures: Figures, names: tuple[str, ...]) -> list[int]:
    """Return the value of the first name that the figures have, or else the value in each of their
    parts.
    """
    for name in names:
        if isinstance(own := figures.get(name), int):
            return [own]
    parts = [part for part in figures.values() if isinstance(part, Mapping)]
    return [number for part in parts for number in _numbers(part, names)]
