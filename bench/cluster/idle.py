"""Cost of an idle cluster: CPU and wakeups of each process, and its own Python calls.

Two brokers, an offset service and a nameserver without a client; then the same with one idle
program that has a producer, a transactional producer and a push consumer of four queues. Calls are
calls of functions in Rockoon's packages. They are counted in a second run of each service, because
counting needs CPU time itself.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

import rockoon
from bench.cluster.counted import CallCounter
from bench.command import console, show
from bench.loops import nothing
from bench.usage import cpu_of
from rockoon.local import LocalCluster
from rockoon.local.process import NodeKind
from rockoon.transactions.transaction import Resolution

SETTLE_SECONDS = 15.0
CLIENT = "client"
QUEUES = 4
TOPIC = "idle"
COUNTED = ("broker-b", "nameserver-a", "offset")
SERVICES = (NodeKind.NAMESERVER, NodeKind.BROKER, NodeKind.OFFSET)


@dataclass(frozen=True)
class Usage:
    """Usage of a process since its start."""

    cpu_seconds: float
    voluntary_switches: int
    """Number of wakeups of its threads."""


def usage_of(pid: int) -> Usage:
    """Return the usage of a running process (Linux)."""
    switches = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for line in (thread / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                switches += int(line.split()[1])
    return Usage(cpu_of(pid), switches)


def usages(local: LocalCluster) -> dict[str, Usage]:
    pids = {node.name: node.pid for node in local.nodes} | {CLIENT: os.getpid()}
    return {name: usage_of(pid) for name, pid in pids.items() if pid is not None}


async def used(local: LocalCluster, seconds: float) -> dict[str, tuple[float, float]]:
    """Measure CPU in percent of a core, and wakeups per second, by process."""
    before, began = usages(local), time.perf_counter()
    await asyncio.sleep(seconds)
    after, elapsed = usages(local), time.perf_counter() - began
    return {
        name: (
            100 * (use.cpu_seconds - before[name].cpu_seconds) / elapsed,
            (use.voluntary_switches - before[name].voluntary_switches) / elapsed,
        )
        for name, use in after.items()
    }


@asynccontextmanager
async def idle_client(local: LocalCluster) -> AsyncIterator[None]:
    """Context manager that runs a connected, idle program (producers and a push consumer)."""

    async def unknown(_message: rockoon.Message) -> Resolution:
        return Resolution.UNKNOWN

    async with rockoon.connect(local.nameservers) as cluster, AsyncExitStack() as stack:
        await cluster.admin.create_topic(TOPIC, queues_per_broker=QUEUES // 2)
        producer = await stack.enter_async_context(cluster.producer())
        await producer.send(TOPIC, b"first")
        await stack.enter_async_context(
            cluster.push_consumer("idle-readers", {TOPIC: "*"}, nothing, consume_from="first")
        )
        await stack.enter_async_context(
            cluster.transactional_producer("idle-senders", check=unknown)
        )
        yield


async def counted(local: LocalCluster, folder: Path, seconds: float) -> dict[str, Counter[str]]:
    """Count the calls of this process and of each kind of service, restarted for counting."""
    results = {}
    for name in COUNTED:
        node = local.node(name)
        results[name] = folder / f"{name}.json"
        service = node.command[node.command.index("-m") + 1 :]
        count = ("bench.cluster.counted", str(results[name]), str(SETTLE_SECONDS), str(seconds))
        node.command = (sys.executable, "-m", *count, *service)
        await asyncio.to_thread(local.restart, name)
    own = CallCounter()
    await asyncio.sleep(SETTLE_SECONDS)
    own.start()
    await asyncio.sleep(seconds)
    own.stop()
    # The services began counting a moment earlier or later.
    await asyncio.sleep(SETTLE_SECONDS)
    found = {name: Counter(json.loads(path.read_text())) for name, path in results.items()}
    return found | {CLIENT: Counter(own.calls())}


def show_idle(
    title: str,
    figures: Mapping[str, tuple[float, float]],
    calls: Mapping[str, Counter[str]],
    seconds: float,
    *,
    functions_max: int,
) -> None:
    rows = []
    for name, (percent, switches) in figures.items():
        own = f"{calls[name].total() / seconds:,.1f}" if name in calls else ""
        rows.append((name, f"{percent:.2f}", f"{switches:,.1f}", own))
    rows.append(("all", f"{sum(percent for percent, _ in figures.values()):.2f}", "", ""))
    show(title, ("process", "CPU, % of a core", "wakeups /s", "own calls /s"), rows)
    for name, counts in calls.items():
        for function, count in counts.most_common(functions_max):
            console.print(f"  {name:14} {count / seconds:10,.1f} /s  {function}", highlight=False)


async def measure(folder: Path, seconds: float, functions_max: int) -> None:
    for title, with_client in (("Idle cluster", False), ("With an idle client", True)):
        part = folder / ("with" if with_client else "without")
        async with LocalCluster(part, brokers=2) as local, AsyncExitStack() as stack:
            if with_client:
                await stack.enter_async_context(idle_client(local))
            await asyncio.sleep(SETTLE_SECONDS)
            figures = await used(local, seconds)
            calls = await counted(local, part, seconds)
            show_idle(title, figures, calls, seconds, functions_max=functions_max)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster.idle", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of a measure")
    parser.add_argument(
        "--functions", type=int, default=0, help="number of functions listed per process"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(measure(Path(folder), arguments.seconds, arguments.functions))


if __name__ == "__main__":
    main()
