"""A measured point of a benchmark axis, and storage of points in files."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from bench.tables import quantile


@dataclass(frozen=True, slots=True)
class Axes:
    """Values of each axis; predictions are tested at the last value of `queues` and `groups`."""

    seconds: float = 4.0
    """Duration of the measurement of each rate."""
    producers: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    body_bytes: tuple[int, ...] = (100, 1 << 10, 10 << 10, 100 << 10, 1 << 20, 4 << 20)
    offered: tuple[int, ...] = (100, 1_000, 5_000, 10_000, 20_000, 40_000, 80_000)
    readers: tuple[int, ...] = (1, 2, 4, 8, 16)
    members: tuple[int, ...] = (1, 4, 16, 64)
    waiting_pulls: tuple[int, ...] = (100, 1_000, 5_000)
    queues: tuple[int, ...] = (1_000, 5_000, 10_000, 50_000)
    topics: tuple[int, ...] = (500, 1_000, 2_000, 4_000)
    groups: tuple[int, ...] = (500, 1_000, 2_500, 5_000, 10_000)
    heartbeat_members: tuple[int, ...] = (1, 10, 100, 500)
    watchers: tuple[int, ...] = (100, 500, 1_000, 2_000)
    route_changes: int = 5


FULL = Axes()
MORE_QUEUES = replace(FULL, queues=(*FULL.queues, 100_000))

QUICK = Axes(
    seconds=0.7,
    producers=(1, 8),
    body_bytes=(100, 10 << 10, 1 << 20),
    offered=(500, 5_000),
    readers=(1, 4),
    members=(1, 8),
    waiting_pulls=(100, 500),
    queues=(100, 400, 1_200),
    topics=(50, 100, 200),
    groups=(50, 100, 200),
    heartbeat_members=(1, 20),
    watchers=(50, 150),
    route_changes=2,
)

PERCENTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
# Share of a core, of a disk's time or of all cores from which on the resource is the limit.
SATURATED = 0.9
NOBODY = "nothing"


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """Resources that a process used while a point was measured."""

    cpu_seconds: float
    resident_bytes: int
    """Resident memory at the end of the measurement."""
    written_bytes: int


@dataclass(frozen=True, slots=True)
class Use:
    """Resources that the processes and the machine used while a point was measured."""

    seconds: float
    processes: Mapping[str, ProcessUse]
    """Usage of each process by service name; "load" is the load generator."""
    machine_cores: float
    """CPU cores in use on the whole machine, by all processes."""
    cores: int
    disk_share: float
    """Share of the time in which the disk was busy; 0 if the system does not report it."""

    def cores_of(self, name: str) -> float:
        return self.processes[name].cpu_seconds / self.seconds

    @property
    def others_cores(self) -> float:
        """CPU cores used by other programs, not by the cluster or the load generator."""
        ours = sum(process.cpu_seconds for process in self.processes.values()) / self.seconds
        return max(self.machine_cores - ours, 0.0)

    @property
    def saturated(self) -> str:
        """Name of the saturated resource: a process on its one core, all cores, the disk, or "".

        If a service and the load are both saturated, both are named: either can be the limit, so
        compare CPU per operation instead.
        """
        full = [name for name in self.processes if self.cores_of(name) >= SATURATED]
        if not full and self.machine_cores >= SATURATED * self.cores:
            full = ["all cores"]
        if not full and self.disk_share >= SATURATED:
            full = ["disk"]
        return " and ".join(full) or NOBODY


@dataclass(frozen=True, slots=True)
class Point:
    """Results of the measurement at one value of an axis."""

    measure: str
    at: float
    """Value of the axis, for example the number of producers."""
    rate: float = 0.0
    """Operations per second; 0 if the measurement has no rate."""
    latency_ms: Mapping[str, float] = field(default_factory=dict)
    use: Use | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    """Other figures, by a name that ends with the unit."""

    def cpu_per_operation(self, process: str) -> float:
        """Return the CPU seconds of a process per operation."""
        assert self.use is not None
        return self.use.processes[process].cpu_seconds / (self.rate * self.use.seconds)

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Self:
        use = kept["use"]
        if use is not None:
            processes = {name: ProcessUse(**each) for name, each in use["processes"].items()}
            use = Use(**{**use, "processes": processes})
        return cls(**{**kept, "use": use})


@dataclass(frozen=True, slots=True)
class Part:
    """All points of one benchmark part, stored in a file."""

    name: str
    points: Sequence[Point]
    seconds: float
    commit: str
    machine: str
    command: str
    failure: str = ""
    """Reason why the part ended early; the points before it are valid."""

    def of(self, measure: str) -> list[Point]:
        """Return the points of one measure, in the order of the axis."""
        return sorted((p for p in self.points if p.measure == measure), key=lambda p: p.at)

    def measures(self) -> list[str]:
        return list(dict.fromkeys(point.measure for point in self.points))

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        kept = json.loads(path.read_text())
        points = [Point.from_json(point) for point in kept["points"]]
        return cls(**{**kept, "points": points})


def read_parts(folder: Path, names: Iterable[str]) -> dict[str, Part]:
    """Return the parts that have stored results."""
    paths = ((name, folder / f"{name}.json") for name in names)
    return {name: Part.read(path) for name, path in paths if path.exists()}


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Return milliseconds by percentile; empty without samples."""
    ordered = sorted(seconds)
    shares = PERCENTILES.items() if ordered else ()
    return {name: quantile(ordered, share) * 1e3 for name, share in shares}


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the least-squares line. Raises ValueError: there are fewer than two
    different x."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / max(count, 1)
    mean_y = sum(y for _, y in points) / max(count, 1)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if not spread:
        raise ValueError("a slope needs two different points")
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
