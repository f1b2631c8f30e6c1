"""An honest caller beside an attacker, in separate processes: calls, CPU and memory."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from support.http2_attacks import Poll
from support.waiting import DEADLINE_SECONDS

TESTS = Path(__file__).resolve().parents[1]
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Served(NamedTuple):
    """Calls of an honest caller in an interval.

    Attributes:
        per_second: calls with a reply.
        p99_ms: of all calls; a failed call counts as a long one.
        failed: calls that were refused, or had no reply in time.
        failure: reason of the last failed call.
    """

    per_second: float
    p99_ms: float
    failed: int
    failure: str = ""


class Process:
    """A module of tests/support in a process that ends when its standard input ends.

    The process ends with the test run, also if the test run is killed.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid: int = process.pid

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    async def line(self) -> str:
        """Return the next line of its output.

        Raises:
            RuntimeError: the process has ended, or prints nothing.
        """
        assert self._process.stdout is not None
        async with asyncio.timeout(DEADLINE_SECONDS):
            found = await self._process.stdout.readline()
        if not found:
            raise RuntimeError(f"the process has ended with status {await self._process.wait()}")
        return found.decode()

    @property
    def runs(self) -> bool:
        return self._process.returncode is None


@asynccontextmanager
async def process(module: str, *arguments: object) -> AsyncIterator[Process]:
    """Run a module of tests/support within the block."""
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", f"support.{module}", *map(str, arguments)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        # Ctrl-C ends the test run, which ends its processes.
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(TESTS), "GRPC_VERBOSITY": "NONE"},
    )
    try:
        yield Process(started)
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


class HonestCaller:
    """A caller in a separate process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def measure(self, seconds: float) -> Served:
        """Connect, and call for an interval."""
        self._process.say(str(seconds))
        return Served(**json.loads(await self._process.line()))


@asynccontextmanager
async def honest_caller(port: int, ca: Path | None = None) -> AsyncIterator[HonestCaller]:
    """Start a caller of the server at a port; with TLS if the server's authority is set."""
    async with process("honest_caller", port, *([ca] if ca is not None else [])) as caller:
        yield HonestCaller(caller)


@asynccontextmanager
async def attacked(
    port: int, attack: str, connections: int = 1, *, tls: bool = False, poll: Poll | None = None
) -> AsyncIterator[None]:
    """Attack a server from another process within the block.

    Args:
        port, tls: of the server.
        attack: name of the attack.
        connections: number of connections of the attacker.
        poll: a call of this server that waits; by default that of grpc.health.v1.
    """
    flags = ["--tls"] if tls else []
    if poll is not None:
        flags += ["--poll-path", poll.path]
        flags += [f"--poll-message={poll.message.hex()}", f"--poll-headers={poll.headers.hex()}"]
    async with process("http2_attacker", port, attack, connections, *flags) as attacker:
        assert await attacker.line() == "ready\n"
        attacker.say("attack")
        yield
        if not attacker.runs:
            raise RuntimeError(f"the attacker ({attack}) has ended")


def memory_mib(pid: int, name: str = "VmRSS") -> int:
    """Return memory of a process in MiB: VmRSS, or VmHWM for its peak."""
    status = Path(f"/proc/{pid}/status").read_text()
    kib = next(line.split()[1] for line in status.splitlines() if line.startswith(f"{name}:"))
    return int(kib) // 1024


def forget_peak(pid: int) -> None:
    """Reset a process's VmHWM."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
