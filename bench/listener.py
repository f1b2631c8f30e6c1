"""CPU cost and latency of a message from a producer to a push consumer's handler, at a modest rate.

Run: `.venv/bin/python -m bench.listener`; `--queues 10 1000` compares consumers of few and of many
queues. One broker, flush = sync. Sender and consumer share a process.
"""

import asyncio
import time
from itertools import count

import uvloop

import rockoon
from bench.command import parser, stores
from bench.loops import BODY, one_broker, until, wait_for
from bench.tables import P50, P99, p50_p99
from bench.usage import cpu_of
from rockoon.local import LocalCluster
from rockoon.message import Message

SENDERS = 4
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
                    await wait_for(due)

            async def send_all(messages: int) -> None:
                async with asyncio.TaskGroup() as tasks:
                    for _ in range(SENDERS):
                        tasks.create_task(send(messages // SENDERS), name="sender")
                await until(lambda: len(waited) == messages)

            await send_all(WARM_UP)
            waited.clear()
            messages = round(rate * seconds / SENDERS) * SENDERS
            client, served, began = time.process_time(), cpu_of(broker), time.perf_counter()
            await send_all(messages)
            took = time.perf_counter() - began
            client, served = time.process_time() - client, cpu_of(broker) - served
    client, served, waits = client * 1e6 / messages, served * 1e6 / messages, p50_p99(waited)
    return (
        f"{queues:6} queues, {messages / took:6.0f} messages/s: client {client:5.0f}, "
        f"broker {served:5.0f}, together {client + served:5.0f} us of CPU a message; "
        f"p50 {waits[P50]:.2f} ms, p99 {waits[P99]:.2f} ms"
    )


async def main() -> None:
    options = parser("python -m bench.listener", __doc__, seconds=5.0)
    options.add_argument("--queues", type=int, nargs="+", default=[10])
    options.add_argument("--rate", type=int, default=1000, help="messages a second")
    given = options.parse_args()
    with stores(given.dir) as folder:
        async with one_broker(folder / "listened", "sync") as (local, _):
            for queues in given.queues:
                print(await measured(local, queues, given.rate, given.seconds))


if __name__ == "__main__":
    uvloop.run(main())
