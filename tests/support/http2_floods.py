"""An honest caller beside a hostile one: its rate, its p99, and the service's memory."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from grpc import aio

from rockoon_core.http2.channel import Http2Channel
from support.http2_attacks import PATH

TESTS = Path(__file__).resolve().parents[1]
CALLS_PER_SECOND = 100
# Of one call. A caller that waits longer counts as one that waited so long.
CALL_SECONDS_MAX = 5.0
MIB = 1 << 20


class Served(NamedTuple):
    """What an honest caller got in a time.

    Attributes:
        per_second: answered calls.
        p99_ms: of the answered ones.
        failed: calls that were refused, or not answered in time.
    """

    per_second: float
    p99_ms: float
    failed: int


async def honest(port: int, seconds: float) -> Served:
    """Call a service's health over one connection, one call after another, `CALLS_PER_SECOND` at
    most."""
    loop = asyncio.get_running_loop()
    channel = Http2Channel(f"127.0.0.1:{port}")
    check = channel.unary_unary(PATH)
    took: list[float] = []
    failed = 0
    try:
        began = loop.time()
        due = began
        while loop.time() < began + seconds:
            called = time.perf_counter()
            try:
                await check(b"", timeout=CALL_SECONDS_MAX)
                took.append(time.perf_counter() - called)
            except aio.AioRpcError:
                failed += 1
            due = max(due + 1 / CALLS_PER_SECOND, loop.time())
            await asyncio.sleep(due - loop.time())
        lasted = loop.time() - began
    finally:
        await channel.close()
    took.sort()
    p99 = took[len(took) * 99 // 100] if took else CALL_SECONDS_MAX
    return Served(len(took) / lasted, p99 * 1e3, failed)


@asynccontextmanager
async def attacked(port: int, attack: str, connections: int = 1) -> AsyncIterator[None]:
    """Another process attacks a service within."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    attacker = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "support.http2_attacks", str(port), attack, str(connections)),
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        assert attacker.stdout is not None
        assert await attacker.stdout.readline() == b"attacking\n"
        yield
        assert attacker.returncode is None
    finally:
        if attacker.returncode is None:
            attacker.kill()
        await attacker.wait()


def memory_mib(pid: int, name: str = "VmRSS") -> int:
    """Of a process: VmRSS, or VmHWM for its peak."""
    status = Path(f"/proc/{pid}/status").read_text()
    kib = next(line.split()[1] for line in status.splitlines() if line.startswith(f"{name}:"))
    return int(kib) // 1024


def forget_peak(pid: int) -> None:
    """Begin a process's VmHWM again."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
