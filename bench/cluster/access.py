"""Cost of access keys: the same work without and with them, in the order off, on, on, off.

A stream of batches is signed only when it is opened. The cost of signatures is visible in small
calls, so these are measured too. In addition to rates, CPU time of client and broker is shown: it
shows the cost even if other work on the machine changes the rates by more.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import rockoon
from bench.cluster import throughput
from bench.cluster.telemetry import Cost, cpu_seconds
from bench.cluster.throughput import Rate
from rockoon.local import LocalCluster
from rockoon_proto.v1.broker_pb2 import BrokerQueue, QueueStatusRequest

ORDER = ("off", "on", "on", "off")
BODY_BYTES = 100
CALLS_IN_FLIGHT = 32


async def by_mode(folder: Path, seconds: float) -> dict[str, list[Cost]]:
    """Measure calls without and with access keys; return the turn of each measure with the least
    CPU."""
    best: dict[str, list[Cost]] = {}
    for turn, mode in enumerate(ORDER):
        costs = await measured(folder / f"{mode}-{turn}", seconds, on=mode == "on")
        known = best.get(mode, costs)
        best[mode] = [
            min(pair, key=lambda cost: cost.cpu_seconds) for pair in zip(known, costs, strict=True)
        ]
    return best


async def measured(folder: Path, seconds: float, *, on: bool) -> list[Cost]:
    settings = {"broker": {"flush": "async", "commit_log_file_bytes": "1GiB"}}
    async with (
        LocalCluster(folder, brokers=1, settings=settings, access=on) as local,
        rockoon.connect(local.nameservers, access=local.access) as cluster,
    ):
        await cluster.admin.create_topic("bench", queues_per_broker=8)
        works: list[Callable[[], Awaitable[Rate]]] = [
            lambda: throughput.append(cluster, "bench", BODY_BYTES, seconds),
            lambda: throughput.pull(cluster, "bench", BODY_BYTES, seconds),
            lambda: sends(cluster, "bench", seconds),
            lambda: calls(cluster, "bench", seconds),
        ]
        costs = []
        for work in works:
            began, cpu = time.perf_counter(), cpu_seconds(local)
            rate = await work()
            elapsed, used = time.perf_counter() - began, cpu_seconds(local) - cpu
            costs.append(Cost(rate, used / (rate.messages_per_second * elapsed)))
    return costs


async def sends(cluster: rockoon.Cluster, topic: str, seconds: float) -> Rate:
    """Measure single messages, each acknowledged before the next is sent."""
    count, began = 0, time.perf_counter()
    async with cluster.producer() as producer:
        while time.perf_counter() - began < seconds:
            await producer.send(topic, b"x" * BODY_BYTES)
            count += 1
    rate = count / (time.perf_counter() - began)
    return Rate("single sends", rate, rate * BODY_BYTES)


async def calls(cluster: rockoon.Cluster, topic: str, seconds: float) -> Rate:
    """Measure small unary calls with many calls in flight."""
    stub = cluster.broker("broker-a")
    request = QueueStatusRequest(queues=[BrokerQueue(topic=topic, queue_id=0)])
    count, began = 0, time.perf_counter()

    async def call() -> None:
        nonlocal count
        while time.perf_counter() - began < seconds:
            await stub.QueueStatus(request, metadata=cluster.metadata)
            count += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CALLS_IN_FLIGHT):
            tasks.create_task(call())
    rate = count / (time.perf_counter() - began)
    return Rate("small calls, 32 in flight", rate, rate * request.ByteSize())
