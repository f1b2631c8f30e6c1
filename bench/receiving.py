"""CPU cost of received and acknowledged messages, and latency of a waiting receiver.

Run: `.venv/bin/python -m bench.receiving`. One broker, flush = sync; producers and receivers share
a process. Three figures: a backlog received in batches by some receivers; single messages sent to a
waiting receiver; and the cost of receivers that wait without messages.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import uvloop

import rockoon
from bench.loops import BODY
from bench.tables import P50, P99, p50_p99
from bench.usage import cpu_of
from rockoon.cluster import Cluster
from rockoon.local import LocalCluster
from rockoon.receiving.simple_consumer import SimpleConsumer

TOPIC, GROUP = "received", "receivers"


class Cpu:
    """CPU seconds of each process since the creation of this object."""

    def __init__(self, local: LocalCluster) -> None:
        self._pids = {name: local.node(name).pid for name in ("broker-a", "offset")}
        self._before = self._now()

    def _now(self) -> dict[str, float]:
        services = {name: cpu_of(pid) for name, pid in self._pids.items()}
        return {"client": time.process_time(), **services}

    def shown(self, count: float) -> str:
        """Return the microseconds of each process per message, or per second."""
        each = {name: (now - self._before[name]) * 1e6 / count for name, now in self._now().items()}
        parts = ", ".join(f"{name} {value:.1f}" for name, value in each.items())
        return f"{parts}, together {sum(each.values()):.1f} us of CPU"


def consumer_of(cluster: Cluster) -> SimpleConsumer:
    return cluster.simple_consumer(GROUP, {TOPIC: "*"}, consume_from="first")


async def backlog(cluster: Cluster, local: LocalCluster, messages: int, batch: int) -> str:
    left = messages

    async def work(consumer: SimpleConsumer) -> None:
        nonlocal left
        while left > 0:
            found = await consumer.receive(batch, wait=0.1)
            if not found:
                continue
            left -= len(found)
            for message in found:
                _ = message.body
            await consumer.ack(found)

    async with cluster.producer() as producer:
        await producer.send_many(TOPIC, [BODY] * messages)
    cpu, began = Cpu(local), time.perf_counter()
    async with consumer_of(cluster) as consumer, asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(work(consumer))
    rate = messages / (time.perf_counter() - began)
    return f"in batches of {batch}: {rate:.0f} messages/s; {cpu.shown(messages)} a message"


async def waiting(cluster: Cluster, local: LocalCluster, messages: int) -> str:
    waited = []
    async with consumer_of(cluster) as consumer, cluster.producer(linger_ms=0) as producer:
        cpu = Cpu(local)
        for _ in range(messages):
            async with asyncio.TaskGroup() as tasks:
                receiving = tasks.create_task(consumer.receive(32))
                # Time for the receiver to start waiting.
                await asyncio.sleep(0.01)
                await producer.send(TOPIC, BODY)
                stored_at = time.perf_counter()
                found = await receiving
                waited.append(time.perf_counter() - stored_at)
            await consumer.ack(found)
        used = cpu.shown(messages)
    waits = p50_p99(waited)
    return (
        f"one by one: received {waits[P50]:.2f} ms (p99 {waits[P99]:.2f} ms) after the sender knew "
        f"that it was stored; {used} a message, its sending included"
    )


async def idle(cluster: Cluster, local: LocalCluster, receivers: int, seconds: float) -> str:
    async with consumer_of(cluster) as consumer, asyncio.TaskGroup() as tasks:
        parked = [tasks.create_task(consumer.receive(32, wait=600)) for _ in range(receivers)]
        await asyncio.sleep(1)
        cpu = Cpu(local)
        await asyncio.sleep(seconds)
        used = cpu.shown(seconds)
        for task in parked:
            task.cancel()
    return f"{receivers} receivers that wait: {used} a second"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--batch", type=int, nargs="+", default=[32])
    parser.add_argument("--single", type=int, default=300)
    parser.add_argument("--receivers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        async with (
            LocalCluster(Path(folder)) as local,
            rockoon.connect(local.nameservers) as cluster,
        ):
            await cluster.admin.create_topic(TOPIC, queues_per_broker=8)
            for batch in options.batch:
                print(await backlog(cluster, local, options.messages, batch))
            print(await waiting(cluster, local, options.single))
            print(await idle(cluster, local, options.receivers, options.seconds))


if __name__ == "__main__":
    uvloop.run(main())
