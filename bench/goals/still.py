"""Cost of an idle cluster, and start time of a single process."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import rockoon
from bench.cluster.idle import SETTLE_SECONDS, used
from bench.compare.programs import Program
from bench.tables import Goal
from bench.usage import resident_bytes
from rockoon.local import LocalCluster
from rockoon.local.directory import PortBlock

IDLE = "an idle cluster, two brokers"
SINGLE_IDLE = "an idle `rockoon up --single`"
SINGLE_BYTES = "`rockoon up --single`, resident memory"
SINGLE_FIRST = "`rockoon up --single`, from the command to the first message stored"
TRIES = 3

GOALS = (
    Goal(IDLE, 0.5, "% of a core"),
    Goal(SINGLE_IDLE, 0.5, "% of a core"),
    Goal(SINGLE_BYTES, 90, "MB"),
    Goal(SINGLE_FIRST, 0.5, "s"),
)


async def measure(folder: Path, seconds: float) -> AsyncIterator[tuple[str, float]]:
    async with LocalCluster(folder / "idle", brokers=2) as local:
        await asyncio.sleep(SETTLE_SECONDS)
        # Including etcd, but without this process.
        nodes = {node.name for node in local.nodes}
        figures = await used(local, seconds)
        yield IDLE, sum(percent for name, (percent, _) in figures.items() if name in nodes)
    yield SINGLE_FIRST, min([await _first_message(folder / f"first-{n}") for n in range(TRIES)])
    async with LocalCluster(folder / "single", single=True) as local:
        (node,) = local.nodes
        await _send(node.address)
        await asyncio.sleep(SETTLE_SECONDS)
        figures = await used(local, seconds)
        yield SINGLE_IDLE, figures[node.name][0]
        yield SINGLE_BYTES, resident_bytes(node.pid) / 1e6


async def _first_message(folder: Path) -> float:
    """Return the seconds from the start command until a message is stored."""
    ports = PortBlock()
    port = ports.choose()
    command = [Path(sys.executable).with_name("rockoon"), "up", "--single", "--dir", folder]
    began = time.perf_counter()
    program = Program("rockoon up", [*command, "--port", port], folder.with_suffix(".log"))
    try:
        await asyncio.to_thread(program.wait_listening, port)
        await _send(f"127.0.0.1:{port}")
        return time.perf_counter() - began
    finally:
        await asyncio.to_thread(program.stop)
        ports.close()


async def _send(address: str) -> None:
    async with rockoon.connect(address) as cluster:
        await cluster.admin.create_topic("first", queues_per_broker=1)
        async with cluster.producer() as producer:
            await producer.send("first", b"first")
