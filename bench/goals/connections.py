"""A client program: one connection awaits its sends, then many do; prints the p99 of both, seconds.

`python -m bench.goals.connections ADDRESS TOPIC CONNECTIONS SECONDS`
"""

import asyncio
import sys
import time
from contextlib import AsyncExitStack

import uvloop

import rockoon
from rockoon.producer.producer import Producer

BODY = bytes(100)
# Connections that are made at once.
TOGETHER = 50


async def p99(producers: list[Producer], topic: str, seconds: float) -> float:
    """Of all sends, each producer's one after another."""
    waits: list[float] = []
    end = time.perf_counter() + seconds

    async def send(producer: Producer) -> None:
        while (began := time.perf_counter()) < end:
            await producer.send(topic, BODY)
            waits.append(time.perf_counter() - began)

    async with asyncio.TaskGroup() as tasks:
        for producer in producers:
            tasks.create_task(send(producer), name="sender")
    return sorted(waits)[len(waits) * 99 // 100]


async def measured(address: str, topic: str, count: int, seconds: float) -> tuple[float, float]:
    async with AsyncExitStack() as stack:

        async def opened() -> Producer:
            cluster = await stack.enter_async_context(rockoon.connect(address))
            producer = await stack.enter_async_context(cluster.producer())
            await producer.send(topic, BODY)
            return producer

        first = await opened()
        await p99([first], topic, seconds)
        alone = await p99([first], topic, seconds)
        producers = [first]
        while len(producers) < count:
            async with asyncio.TaskGroup() as tasks:
                more = min(TOGETHER, count - len(producers))
                made = [tasks.create_task(opened(), name="connect") for _ in range(more)]
            producers += [task.result() for task in made]
        return alone, await p99(producers, topic, seconds)


if __name__ == "__main__":
    address, topic, count, seconds = sys.argv[1:]
    print(*uvloop.run(measured(address, topic, int(count), float(seconds))))
