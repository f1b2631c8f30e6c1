"""CPU cost and latency of a message from a producer to a push consumer's handler, at a modest rate.

Run: `.venv/bin/python -m bench.listener`; `--queues 10 1000` compares consumers of few and of many
queues. One broker, flush = sync. Sender and consumer share a process.
"""

import argparse
import asyncio
import tempfile
import time
from itertools import count
from pathlib import Path

import uvloop

import rockoon
from bench.cluster.copies import cpu_seconds_of
from bench.cluster.groups import until
from rockoon.local import LocalCluster
from rockoon.message import Message

SENDERS = 4
BODY = bytes(100)
WARM_UP = 500


async def measured(local: LocalCluster, queues: int, rate: int, seconds: float) -> str:
    """Measure one row of the table: CPU and latency per message."""
    topic, broker = f"listened-{queues}", local.node(local.brokers[0]).pid
    waited: list[float] = []

    async def listen(message: Message) -> None:
        waited.append(time.time() - float(message.properties["sent"]))  # noqa: TID251 - another task's

    async with rockoon.connect(local.nameservers) as cluster:
        await cluster.admin.create_topic(topic, queues_per_broker=queues)
        route = (await cluster.route(topic)).queues
        async with (
            cluster.push_consumer(topic, {topic: "*"}, listen, consume_from="first") as consumer,
            cluster.producer() as producer,
        ):
            await until(lambda: len(consumer.assignment) == queues)
            numbers = count()

            async def send(messages: int) -> None:
                due = time.perf_counter()
                for _ in range(messages):
                    sent = str(time.time())  # noqa: TID251 - compared with the handler's
                    queue = route[next(numbers) % queues]
                    await producer.send(topic, BODY, queue=queue, properties={"sent": sent})
                    due += SENDERS / rate
                    await asyncio.sleep(max(due - time.perf_counter(), 0))

            async def send_all(messages: int) -> None:
                async with asyncio.TaskGroup() as tasks:
                    for _ in range(SENDERS):
                        tasks.create_task(send(messages // SENDERS), name="sender")
                await until(lambda: len(waited) == messages)

            await send_all(WARM_UP)
            waited.clear()
            messages = round(rate * seconds / SENDERS) * SENDERS
            client, served, began = time.process_time(), cpu_seconds_of(broker), time.perf_counter()
            await send_all(messages)
            took = time.perf_counter() - began
            client, served = time.process_time() - client, cpu_seconds_of(broker) - served
    waited.sort()
    p50, p99 = (waited[messages * share // 100] * 1e3 for share in (50, 99))
    client, served = client * 1e6 / messages, served * 1e6 / messages
    return (
        f"{queues:6} queues, {messages / took:6.0f} messages/s: client {client:5.0f}, "
        f"broker {served:5.0f}, together {client + served:5.0f} us of CPU a message; "
        f"p50 {p50:.2f} ms, p99 {p99:.2f} ms"
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, nargs="+", default=[10])
    parser.add_argument("--rate", type=int, default=1000, help="messages a second")
    parser.add_argument("--seconds", type=float, default=5.0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rockoon-bench-") as folder:
        settings = {"broker": {"flush": "sync"}}
        async with LocalCluster(Path(folder) / "listened", brokers=1, settings=settings) as local:
            for queues in chosen.queues:
                print(await measured(local, queues, chosen.rate, chosen.seconds))


if __name__ == "__main__":
    uvloop.run(main())
