"""CPU time of this process and its descendants, which varies less on a busy machine than elapsed
time."""

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Fields after the name: state, parent, ... user and system time of itself and of ended children.
_PARENT, _TIMES = 1, slice(11, 15)


@dataclass(slots=True)
class Spent:
    """Elapsed and CPU seconds of a block of code."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0


@contextmanager
def spending() -> Iterator[Spent]:
    """Context manager that measures its block; the yielded result is valid after the block."""
    spent = Spent()
    cpu_before, began = cpu_seconds(), time.perf_counter()
    yield spent
    spent.seconds = time.perf_counter() - began
    spent.cpu_seconds = cpu_seconds() - cpu_before


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its descendants, including ended ones."""
    ticks: dict[int, int] = {}
    children: defaultdict[int, list[int]] = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            # It has just ended; its parent has its times.
            continue
        ticks[int(path.name)] = sum(map(int, fields[_TIMES]))
        children[int(fields[_PARENT])].append(int(path.name))
    found, waiting = 0, [os.getpid()]
    while waiting:
        process = waiting.pop()
        found += ticks.get(process, 0)
        waiting += children[process]
    return found / _TICKS_PER_SECOND
