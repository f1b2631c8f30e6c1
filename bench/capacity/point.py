"""One measured point of one axis, and how points are kept."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

PERCENTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
# Of a core, a disk's time or all cores: from here on it is what limits.
SATURATED = 0.9
NOBODY = "nothing"


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What one process took while a point was measured."""

    cpu_seconds: float
    resident_bytes: int
    """At the end."""
    written_bytes: int


@dataclass(frozen=True, slots=True)
class Use:
    """What the processes and the machine were busy with while a point was measured."""

    seconds: float
    processes: Mapping[str, ProcessUse]
    """Services by name; "load" is the program that makes the load."""
    machine_cores: float
    """Cores busy, whoever used them."""
    cores: int
    disk_share: float
    """Of the time, the disk had work; 0 where the system does not tell."""

    def cores_of(self, name: str) -> float:
        return self.processes[name].cpu_seconds / self.seconds

    @property
    def others_cores(self) -> float:
        """Cores that neither the cluster nor the load used: other work on the machine."""
        ours = sum(process.cpu_seconds for process in self.processes.values()) / self.seconds
        return max(self.machine_cores - ours, 0.0)

    @property
    def saturated(self) -> str:
        """What had no more to give: a process on its one core, all cores, the disk, or nothing.

        A service and the load that saturate together are told as both: then neither is known to
        be the bound, and CPU per operation is what to go by.
        """
        full = [name for name in self.processes if self.cores_of(name) >= SATURATED]
        if not full and self.machine_cores >= SATURATED * self.cores:
            full = ["all cores"]
        if not full and self.disk_share >= SATURATED:
            full = ["disk"]
        return " and ".join(full) or NOBODY


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured at one value of an axis."""

    measure: str
    at: float
    """The axis' value: how many producers, queues, ..."""
    rate: float = 0.0
    """Operations a second; 0 where that is not what was measured."""
    latency_ms: Mapping[str, float] = field(default_factory=dict)
    use: Use | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    """Whatever else, by a name that ends in its unit."""

    def cpu_per_operation(self, process: str) -> float:
        """Seconds of a process's CPU for each operation."""
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
    """The points of one part of the program, as they are kept in a file."""

    name: str
    points: Sequence[Point]
    seconds: float
    commit: str
    machine: str
    command: str
    failure: str = ""
    """Why it ended early; the points before that count."""

    def of(self, measure: str) -> list[Point]:
        """The points of one measure, in the order of the axis."""
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
    """The parts of which there are results."""
    paths = ((name, folder / f"{name}.json") for name in names)
    return {name: Part.read(path) for name, path in paths if path.exists()}


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds by percentile; nothing when there are no samples."""
    ordered = sorted(seconds)
    count = len(ordered)
    return {
        name: ordered[min(int(count * share), count - 1)] * 1e3
        for name, share in PERCENTILES.items()
        if count
    }


def slope(points: Sequence[tuple[float, float]]) -> float:
    """What one more of x adds to y: the straight line with the least squares.

    Raises:
        ValueError: there are not two different x.
    """
    count = len(points)
    mean_x = sum(x for x, _ in points) / max(count, 1)
    mean_y = sum(y for _, y in points) / max(count, 1)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if not spread:
        raise ValueError("a slope needs two different points")
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
