"""Consumption of processes during a run: CPU time and resident memory."""

from collections.abc import Mapping
from dataclasses import dataclass

import psutil


@dataclass
class Usage:
    """Of one process."""

    cpu_seconds: float = 0.0
    """Since the first measurement."""
    memory_bytes_max: int = 0
    """Of all measurements."""


class UsageMeter:
    """Measures processes on request.

    Args:
        pids: by the names under which they are reported.
    """

    def __init__(self, pids: Mapping[str, int]) -> None:
        self.usages = {name: Usage() for name in pids}
        self._processes: dict[str, psutil.Process] = {}
        self._began: dict[str, float] = {}
        for name, pid in pids.items():
            self.watch(name, pid)

    def watch(self, name: str, pid: int) -> None:
        """Add one; a process that has already ended is left out."""
        usage = self.usages.setdefault(name, Usage())
        try:
            process = psutil.Process(pid)
            self._began[name] = _cpu_seconds(process) - usage.cpu_seconds
            self._processes[name] = process
        except psutil.NoSuchProcess:
            return

    def look(self) -> None:
        """Read the figures of the live ones."""
        for name, process in self._processes.items():
            try:
                memory_bytes = int(process.memory_info().rss)
                seconds = _cpu_seconds(process)
            except psutil.NoSuchProcess:
                continue
            usage = self.usages[name]
            usage.cpu_seconds = seconds - self._began[name]
            usage.memory_bytes_max = max(usage.memory_bytes_max, memory_bytes)


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
