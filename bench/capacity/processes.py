"""Resource usage of a local cluster's processes, the load and the machine (Linux)."""

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

from bench.capacity.point import ProcessUse, Use
from rockoon.local import LocalCluster

LOAD = "load"
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_OWN = "self"


@dataclass(frozen=True, slots=True)
class Reading:
    """Values of the usage counters at one moment."""

    at: float
    processes: dict[str, ProcessUse]
    machine_cpu_seconds: float
    disk_busy_seconds: float


class Meter:
    """Measures usage between `start` and `stop`.

    Args:
        local: a started cluster; a process that is restarted in between counts from its start.
        folder: a directory on the measured disk.
    """

    def __init__(self, local: LocalCluster, folder: Path) -> None:
        self._local = local
        self._folder = folder
        self._before = self._read()

    def start(self) -> None:
        self._before = self._read()

    def stop(self) -> Use:
        """Return the resource usage since `start`."""
        before, now = self._before, self._read()
        seconds = now.at - before.at
        processes = {}
        for name, after in now.processes.items():
            first = before.processes.get(name)
            if first is None or first.cpu_seconds > after.cpu_seconds:
                first = ProcessUse(0.0, 0, 0)
            processes[name] = ProcessUse(
                cpu_seconds=after.cpu_seconds - first.cpu_seconds,
                resident_bytes=after.resident_bytes,
                written_bytes=after.written_bytes - first.written_bytes,
            )
        return Use(
            seconds=seconds,
            processes=processes,
            machine_cores=(now.machine_cpu_seconds - before.machine_cpu_seconds) / seconds,
            cores=os.cpu_count() or 1,
            disk_share=min((now.disk_busy_seconds - before.disk_busy_seconds) / seconds, 1.0),
        )

    def _read(self) -> Reading:
        processes = {LOAD: of_process(_OWN)}
        for node in self._local.nodes:
            if node.pid is not None:
                processes[node.name] = of_process(str(node.pid))
        return Reading(
            at=time.perf_counter(),
            processes=processes,
            machine_cpu_seconds=machine_cpu_seconds(),
            disk_busy_seconds=disk_busy_seconds(self._folder),
        )


def of_process(process: str) -> ProcessUse:
    """Return the usage of a process since its start, by its pid or "self"."""
    root = Path("/proc") / process
    fields = (root / "stat").read_text().rpartition(")")[2].split()
    # Linux's CPU clock of another process: nanoseconds, where /proc counts hundredths of a second.
    number = os.getpid() if process == _OWN else int(process)
    counts = dict(line.split(": ") for line in (root / "io").read_text().splitlines())
    return ProcessUse(
        cpu_seconds=time.clock_gettime((~number << 3) | 2),
        resident_bytes=int(fields[21]) * _PAGE_BYTES,
        written_bytes=int(counts["write_bytes"]),
    )


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
    total = 0
    for root, directories, files in os.walk(folder):
        for name in (*directories, *files):
            total += (Path(root) / name).lstat().st_blocks * 512
    return total


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
