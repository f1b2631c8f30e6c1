"""Resource usage of processes and of the machine (Linux), and its part in the notes of a run."""

import os
import platform
import resource
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.tables import markdown, miss, missing_lines

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Servers at rest use less of a core than this: RocketMQ 0.1.
REST_CORES = 0.2
REST_LOOK_SECONDS = 0.1
REST_SECONDS_MAX = 1.5
MIB = 1 << 20
# More than any peer of `make compare` stores per second, including its indexes.
NEW_PAGES_A_SECOND = 768


def with_children(pids: Iterable[int]) -> set[int]:
    """Return process ids with those of all their descendants."""
    parents = defaultdict[int, list[int]](list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(_fields(stat.parent.name)[1])].append(int(stat.parent.name))
    found, left = set[int](), list(pids)
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += parents[pid]
    return found


def _fields(process: int | str) -> list[str]:
    """Return the fields of /proc/PID/stat that follow the name: state, parent, ..."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def cpu_of(pid: int | None) -> float:
    """Return the CPU seconds of one process since its start."""
    assert pid is not None, "the process does not run"
    # Linux's CPU clock of another process: nanoseconds, where /proc counts hundredths of a second.
    return time.clock_gettime((~pid << 3) | 2)


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU seconds of processes and all their descendants since their start."""
    total = 0.0
    for pid in with_children(pids):
        with suppress(OSError):
            total += cpu_of(pid)
    return total


def used(processes: Mapping[str, int]) -> dict[str, float]:
    """Return the CPU seconds of processes, each with its descendants, by name."""
    return {name: cpu_seconds([pid]) for name, pid in processes.items()}


def own_bytes(pids: Iterable[int]) -> int:
    """Return the resident memory of processes and all their descendants, without file pages."""
    total = 0
    for pid in with_children(pids):
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    total += int(line.split()[1]) << 10
    return total


def resident_bytes(process: int | str | None) -> int:
    """Return the resident memory of a process, given by its pid or "self"."""
    return int(_fields(str(process))[21]) * _PAGE_BYTES


def written_bytes(process: int | str) -> int:
    """Return the bytes that a process has written to disks since its start."""
    lines = Path(f"/proc/{process}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["write_bytes"])


def wait_rest(pids: Sequence[int]) -> None:
    """Wait until servers are idle after a measure, for at most REST_SECONDS_MAX."""
    deadline = time.monotonic() + REST_SECONDS_MAX
    spent = cpu_seconds(pids)
    while time.monotonic() < deadline:
        time.sleep(REST_LOOK_SECONDS)
        before, spent = spent, cpu_seconds(pids)
        if spent - before < REST_CORES * REST_LOOK_SECONDS:
            break


@dataclass(slots=True)
class Spent:
    """Elapsed and CPU seconds of a block of code."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    apart_cpu_seconds: float = 0.0
    """The part of the processes that were named; see `spending`."""


@contextmanager
def spending(without: Sequence[int] = (), apart: Sequence[int] = ()) -> Iterator[Spent]:
    """Context manager that measures its block; the yielded result is valid after the block.

    CPU seconds are those of this process and its descendants, including ended ones.

    Args:
        without: process ids of servers whose CPU is not counted, with that of their descendants.
        apart: process ids of servers whose CPU is included and also returned separately.
    """
    spent = Spent()
    starts = _cpu_with_ended() - cpu_seconds(without), cpu_seconds(apart)
    began = time.perf_counter()
    yield spent
    spent.seconds = time.perf_counter() - began
    spent.cpu_seconds = _cpu_with_ended() - cpu_seconds(without) - starts[0]
    spent.apart_cpu_seconds = cpu_seconds(apart) - starts[1]


def _cpu_with_ended() -> float:
    total = 0
    for pid in with_children([os.getpid()]):
        # If a child has just ended, its parent has its times.
        with suppress(OSError):
            # User and system time of the process, and of its ended children.
            total += sum(map(int, _fields(pid)[11:15]))
    return total / _TICKS


def machine_cpu_seconds() -> float:
    """Return the CPU seconds of the whole machine since its start."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _wait, irq, softirq = fields[:7]
    return (user + nice + system + irq + softirq) / _TICKS


def disk_busy_seconds(folder: Path) -> float:
    """Return the busy seconds of a folder's disk; 0 if the system does not report them."""
    device = folder.stat().st_dev
    wanted = [str(os.major(device)), str(os.minor(device))]
    for line in Path("/proc/diskstats").read_text().splitlines():
        fields = line.split()
        if fields[:2] == wanted:
            return int(fields[12]) / 1000
    return 0.0


def disk_bytes(folder: Path) -> int:
    """Return the disk space of a folder's files and directories, without holes of sparse files."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def find_pages(folder: Path, seconds: float) -> None:
    """Write to the page cache until the host has provided free pages for some seconds of writing.

    In a virtual machine, the page cache can allocate pages that the host has reclaimed. On the
    machine of docs/measurements/benchmarks.md a MiB of reclaimed pages costs 1,500 to 2,700
    microseconds of system time, of recently freed pages 170 to 230, and the host reclaims freed
    pages within five seconds. Without this, a turn that writes would measure the host.

    Args:
        folder: a directory on the written file system.
        seconds: duration of the turn, which must follow immediately.

    Raises:
        OSError: the disk has too little space.
    """
    path = folder / "pages"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    # Unlinked before its bytes are on disk, so that a turn with syncs does not wait for them.
    path.unlink()
    chunk = bytes(MIB)
    try:
        for _ in range(round(seconds * NEW_PAGES_A_SECOND)):
            os.write(descriptor, chunk)
    finally:
        os.close(descriptor)


def machine() -> str:
    """Return a one-line description of the machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")
    memory_gib = os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES / (1 << 30)
    system = os.uname()
    return (
        f"{os.cpu_count()} cores{f' ({model})' if model else ''}, {memory_gib:.0f} GiB, "
        f"{system.sysname} {system.release}, Python {platform.python_version()}"
    )


@dataclass(slots=True)
class Circumstances:
    """State of the machine in a part of a run.

    Attributes:
        load: load average before the part.
        others_cores: CPU cores that other programs used during the part.
    """

    load: float
    others_cores: float = 0.0
    seconds: float = 0.0


@contextmanager
def circumstances() -> Iterator[Circumstances]:
    """Context manager that records the state of the machine; the yielded result is valid after the
    block. Processes of the part must end in the block."""
    found = Circumstances(os.getloadavg()[0])
    began, machine_before, own_before = time.monotonic(), machine_cpu_seconds(), _own_cpu_seconds()
    try:
        yield found
    finally:
        found.seconds = time.monotonic() - began
        own = _own_cpu_seconds() - own_before
        others = machine_cpu_seconds() - machine_before - own
        found.others_cores = max(others, 0.0) / found.seconds


def _own_cpu_seconds() -> float:
    """Return the CPU seconds of this process and its ended children."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class RunNotes:
    """Records the state of the machine, and failed measures. `failures`: exceptions that end one
    measure, not the run."""

    def __init__(self, failures: tuple[type[Exception], ...]) -> None:
        self._failures = failures
        self._circumstances: dict[str, Circumstances] = {}
        self._missing: dict[str, str] = {}

    @contextmanager
    def measured(self, name: str) -> Iterator[None]:
        """Context manager that records the state of the machine in a part; see `circumstances`."""
        with circumstances() as found:
            yield
        self._circumstances[name] = found

    @contextmanager
    def noted(self, name: str) -> Iterator[None]:
        """Context manager that records a failure of its block or its tasks; the run then
        continues."""
        try:
            yield
        except Exception as failures:
            failure: BaseException = failures
            while isinstance(failure, BaseExceptionGroup):
                failure = failure.exceptions[0]
            if not isinstance(failure, self._failures):
                raise
            self.miss(name, str(failure))

    def miss(self, name: str, reason: str) -> None:
        miss(self._missing, name, reason)

    def machine_table(self) -> str:
        """Return a table of the machine's state with one line per part."""
        rows = [
            (name, f"{each.load:.1f}", f"{each.others_cores:.1f}", f"{each.seconds:.0f}")
            for name, each in self._circumstances.items()
        ]
        return markdown(("part", "load before", "cores that others used", "seconds"), rows)

    def missing(self) -> list[str]:
        return missing_lines(self._missing)
