"""Figures of one benchmark run, and their tables."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

from bench.command import console

MB = 1e6
GIB = 1 << 30
PROCESS = "process"
SPARK = "Spark"
JOB = "job"
READ = "sequential read"
PASS = "NumPy, one pass"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measure on one store with a number of cores; the fastest of several runs."""

    kind: str
    """Kind of measure: PROCESS, SPARK or JOB."""
    name: str
    cores: int
    log_bytes: int
    records: int
    seconds: float
    cpu_seconds: float = 0.0
    """CPU seconds of all processes."""
    entries: int = 0
    """Number of entries that the job wrote; 0 for other kinds."""
    bytes_written: int = 0
    shuffle_bytes: int = 0
    steps: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Slope:
    """Cost per byte without start-up cost: the difference between a larger and a smaller store."""

    small: Figure
    large: Figure

    @property
    def seconds(self) -> float:
        """Return the difference in seconds; if noise makes it useless, the seconds of the larger
        store."""
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
        """Return CPU seconds per GiB of the difference; of the larger store if the difference is
        useless."""
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
        """Return the constant cost of a run in seconds."""
        return max(self.small.seconds - self.seconds_per_gib * self.small.log_bytes / GIB, 0.0)


class Figures:
    """All measures of a run."""

    def __init__(self) -> None:
        self._all: list[Figure] = []

    def add(self, figure: Figure) -> None:
        """Add a measure; if it exists already, keep the faster one."""
        key = (figure.kind, figure.name, figure.cores, figure.log_bytes)
        for at, known in enumerate(self._all):
            if (known.kind, known.name, known.cores, known.log_bytes) == key:
                self._all[at] = min(known, figure, key=lambda each: each.seconds)
                return
        self._all.append(figure)

    def slopes(self, kind: str, cores: int) -> dict[str, Slope]:
        """Return the slopes by name, in the order of the measures."""
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

    def print(self, cores: Iterable[int]) -> None:
        for count in cores:
            for table in (self._decoding(count), self._jobs(count)):
                if table.row_count:
                    console.print(table, "")

    def _decoding(self, cores: int) -> Table:
        """Return the table of decoding; "crossing" is Spark's additional cost, in CPU s/GiB."""
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
    """Create a table whose first columns are the seconds of each size."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("", no_wrap=True)
    for figure in (sizes.small, sizes.large) if sizes else ():
        table.add_column(f"{figure.log_bytes >> 20} MiB, s", justify="right", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
    return table
