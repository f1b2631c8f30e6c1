"""Figures of one run, and the tables that people read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

MB = 1e6
GIB = 1 << 30
PROCESS = "process"
SPARK = "Spark"
JOB = "job"
READ = "sequential read"
PASS = "NumPy, one pass"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measure on one store with some cores; the faster of some runs."""

    kind: str
    """PROCESS, SPARK or JOB."""
    name: str
    cores: int
    log_bytes: int
    records: int
    seconds: float
    cpu_seconds: float = 0.0
    """Of all processes."""
    entries: int = 0
    """JOB: what it made."""
    bytes_written: int = 0
    shuffle_bytes: int = 0
    steps: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Slope:
    """What one more byte costs: a smaller store beside a larger one, start-up left out."""

    small: Figure
    large: Figure

    @property
    def seconds(self) -> float:
        """Of the difference; that of the larger one alone where noise left none."""
        difference = self.large.seconds - self.small.seconds
        return difference if difference > 0 else self.large.seconds

    @property
    def _is_difference(self) -> bool:
        return self.large.seconds > self.small.seconds

    def _of(self, large: int, small: int) -> int:
        return large - small if self._is_difference else large

    @property
    def seconds_per_gib(self) -> float:
        return self.seconds * GIB / self._of(self.large.log_bytes, self.small.log_bytes)

    @property
    def cpu_seconds_per_gib(self) -> float:
        """Of the larger one, start-up and all where the difference says nothing."""
        difference = self.large.cpu_seconds - self.small.cpu_seconds
        bytes_between = self.large.log_bytes - self.small.log_bytes
        if difference <= 0 or not bytes_between:
            return self.large.cpu_seconds * GIB / self.large.log_bytes
        return difference * GIB / bytes_between

    @property
    def bytes_per_second(self) -> float:
        return self._of(self.large.log_bytes, self.small.log_bytes) / self.seconds

    @property
    def records_per_second(self) -> float:
        return self._of(self.large.records, self.small.records) / self.seconds

    @property
    def entries_per_second(self) -> float:
        return self._of(self.large.entries, self.small.entries) / self.seconds

    @property
    def start_seconds(self) -> float:
        """What a run costs beside its bytes."""
        return max(self.small.seconds - self.seconds_per_gib * self.small.log_bytes / GIB, 0.0)


class Figures:
    """All measures of a run."""

    def __init__(self) -> None:
        self._all: list[Figure] = []

    def add(self, figure: Figure) -> None:
        """Take a measure; of two of the same the faster stays."""
        key = (figure.kind, figure.name, figure.cores, figure.log_bytes)
        for at, known in enumerate(self._all):
            if (known.kind, known.name, known.cores, known.log_bytes) == key:
                self._all[at] = min(known, figure, key=lambda each: each.seconds)
                return
        self._all.append(figure)

    def slopes(self, kind: str, cores: int) -> dict[str, Slope]:
        """By name, in the order of the measures."""
        found: dict[str, list[Figure]] = {}
        for each in self._all:
            if (each.kind, each.cores) == (kind, cores):
                found.setdefault(each.name, []).append(each)
        ordered = {
            name: sorted(figures, key=lambda each: each.log_bytes)
            for name, figures in found.items()
        }
        return {name: Slope(figures[0], figures[-1]) for name, figures in ordered.items()}

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(each) for each in self._all]

    def print(self, console: Console, cores: Iterable[int]) -> None:
        for count in cores:
            for table in (self._decoding(count), self._jobs(count)):
                if table.row_count:
                    console.print(table, "")

    def _decoding(self, cores: int) -> Table:
        """Rates are of the slope; "crossing" is what Spark adds, in CPU s/GiB."""
        alone, spark = self.slopes(PROCESS, cores), self.slopes(SPARK, cores)
        table = _table(
            f"Decoding, {_cores(cores)}",
            ("s/GiB", "CPU s/GiB", "MB/s", "M rec./s", "÷ NumPy", "÷ read", "crossing"),
            next(iter(alone.values()), None),
        )
        for name, slope in alone.items():
            table.add_row(name, *_rates(slope, alone), "")
        for name, slope in spark.items():
            crossing = slope.cpu_seconds_per_gib - alone[name].cpu_seconds_per_gib
            table.add_row(f"Spark: {name}", *_rates(slope, alone), f"{max(crossing, 0):.2f}")
        return table

    def _jobs(self, cores: int) -> Table:
        table = _table(
            f"Jobs, {_cores(cores)}",
            (
                "s/GiB",
                "CPU s/GiB",
                "start, s",
                "MB/s",
                "M entries/s",
                "written, MB",
                "shuffled, MB",
            ),
            next(iter(self.slopes(JOB, cores).values()), None),
        )
        for name, slope in self.slopes(JOB, cores).items():
            table.add_row(
                name,
                *_both(slope),
                f"{slope.seconds_per_gib:.2f}",
                f"{slope.cpu_seconds_per_gib:.2f}",
                f"{slope.start_seconds:.1f}",
                f"{slope.bytes_per_second / MB:,.0f}",
                f"{slope.entries_per_second / MB:.2f}",
                f"{slope.large.bytes_written / MB:,.0f}",
                f"{slope.large.shuffle_bytes / MB:,.1f}",
            )
        return table


def _rates(slope: Slope, alone: Mapping[str, Slope]) -> list[str]:
    rate = slope.bytes_per_second
    return [
        *_both(slope),
        f"{slope.seconds_per_gib:.2f}",
        f"{slope.cpu_seconds_per_gib:.2f}",
        f"{rate / MB:,.0f}",
        "" if slope.small.name in (READ, PASS) else f"{slope.records_per_second / MB:.2f}",
        f"{rate / alone[PASS].bytes_per_second:.3f}",
        f"{rate / alone[READ].bytes_per_second:.3f}",
    ]


def _both(slope: Slope) -> list[str]:
    return [f"{slope.small.seconds:.2f}", f"{slope.large.seconds:.2f}"]


def _cores(count: int) -> str:
    return "one core" if count == 1 else f"{count} cores"


def _table(title: str, columns: Sequence[str], sizes: Slope | None) -> Table:
    """A table whose first columns are the seconds that each size took."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("", no_wrap=True)
    for figure in (sizes.small, sizes.large) if sizes else ():
        table.add_column(f"{figure.log_bytes >> 20} MiB, s", justify="right", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
    return table
