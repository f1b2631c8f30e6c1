"""Instruction counts of a process that runs under Valgrind's callgrind."""

import asyncio
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

WARM_UP = 300
VALGRIND = ("valgrind", "--tool=callgrind", "--instr-atstart=no", "--cache-sim=yes", "-q")

Doing = Callable[[int], Awaitable[object]]
"""Type of a function that repeats an operation; the argument is the number of repetitions."""


def control(option: str, *, pid: int, argument: str = "") -> None:
    command = ["callgrind_control", option, *([argument] if argument else []), str(pid)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def totals(part: Path) -> tuple[int, int]:
    """Return the number of instructions and of instruction cache misses in a callgrind dump."""
    for line in part.read_text().splitlines():
        if line.startswith("totals: "):
            instructions, _, _, misses, *_ = map(int, line.split()[1:])
            return instructions, misses
    raise ValueError(f"no totals in {part}")


async def counted(doing: Doing, count: int, pid: int, out: Path, first: int = 1) -> tuple[int, int]:
    """Count instructions and cache misses of one operation.

    The counts of an idle period of the same length are subtracted.

    Args:
        doing: the operation.
        count: number of counted repetitions.
        pid: the process, under callgrind.
        out: file name of its dumps, without their numbers.
        first: number of the next dump.
    """
    await doing(WARM_UP)
    control("-i", pid=pid, argument="on")
    # Not counted: Valgrind translates code at its first execution.
    await doing(count // 10)
    control("-z", pid=pid)
    began = time.perf_counter()
    await doing(count)
    control("-d", pid=pid)
    await asyncio.sleep(time.perf_counter() - began)
    control("-d", pid=pid)
    control("-i", pid=pid, argument="off")
    busy, idle = (totals(out.with_name(f"{out.name}.{first + number}")) for number in (0, 1))
    return (busy[0] - idle[0]) // count, (busy[1] - idle[1]) // count
