"""CPU cost and latency of consumers: a push consumer's handler, and receivers that acknowledge.

Run: `.venv/bin/python -m bench.consuming`; one broker, flush = sync; producers and consumers share
a process. Parts:

- handler: the cost of a push consumer per message without the pull; needs no cluster.
- listener: a message from a producer to the handler at a modest rate; `--queues 10 1000` compares
  consumers of few and of many queues.
- receivers: a backlog received in batches; single messages sent to a waiting receiver; and the cost
  of receivers that wait without messages.
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import count

import uvloop

import rockoon
from bench.command import parser, stores
from bench.loops import BODY, make_topic, one_broker, until, wait_for
from bench.tables import P50, P99, p50_p99
from bench.usage import cpu_of
from rockoon.consumer.delivery import HandlerDelivery
from rockoon.consumer.process_queue import ProcessQueue
from rockoon.consumer.queue_reader import QueueReader
from rockoon.consumer.redelivery import LocalRedelivery
from rockoon.local import LocalCluster
from rockoon.message import Batch, Message
from rockoon.offsets.start import Start
from rockoon.receiving.simple_consumer import SimpleConsumer
from rockoon.subscription import Subscription
from rockoon_core.message_queue import MessageQueue
from rockoon_format.batch_encoding import encode_batch
from rockoon_format.properties import PROPERTY_UNIQ_KEY, encode

PARTS = ("handler", "listener", "receivers")
HANDLED, PULLED = 300_000, 1024
QUEUE = MessageQueue("bench", "broker-a", 0)
SENDERS, WARM_UP = 4, 500
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


# The handler alone.


async def handler_microseconds(batch_max: int) -> float:
    """Return the CPU time per message, with `batch_max` messages per call of the handler, which
    reads the body and does not wait."""
    properties = [encode({PROPERTY_UNIQ_KEY: f"{number:032X}"}) for number in range(PULLED)]
    frames, lengths = encode_batch(b"bench", 0, [BODY] * PULLED, properties, 0, bytes(8))
    sizes = lengths.astype("<u4").tobytes()
    handled = 0

    async def one(message: Message) -> None:
        nonlocal handled
        handled += len(message.body) > 0

    async def many(messages: list[Message]) -> None:
        nonlocal handled
        handled += sum(len(message.body) > 0 for message in messages)

    async def working(work: Callable[[], Awaitable[None]]) -> None:
        await work()

    delivery = HandlerDelivery(
        one if batch_max == 1 else many,
        concurrency=20,
        batch_max=batch_max,
        redelivery=LocalRedelivery(),
    )
    held: ProcessQueue[Batch] = ProcessQueue(0)
    start = Start(QUEUE, 0, "ASSIGNED", "")
    source = QueueReader(QUEUE, Subscription.parse("bench", "*"), start, 0, held)
    loop = asyncio.get_running_loop()
    delivery.start(lambda work: loop.create_task(working(work)))
    began, seen, end = time.process_time(), source.finished.count, 0
    while held.commit_offset < HANDLED:
        while end < HANDLED and held.blocked_by() is None:
            held.put(
                Batch(QUEUE, frames, sizes),
                range(end, end + PULLED),
                next_offset=end + PULLED,
                size_bytes=len(frames),
            )
            end += PULLED
            delivery.offer(source)
        seen = await source.finished.wait(seen)
    spent = time.process_time() - began
    await delivery.drain(1.0)
    return spent / handled * 1e6


# From a producer to the handler.


async def listened(
    local: LocalCluster, cluster: rockoon.Cluster, queues: int, rate: int, seconds: float
) -> str:
    """Measure CPU and latency per message at a rate."""
    topic, broker = f"listened-{queues}", local.node(local.brokers[0]).pid
    waited: list[float] = []

    async def listen(message: Message) -> None:
        waited.append(time.time() - float(message.properties["sent"]))  # noqa: TID251 - another task's

    await make_topic(cluster, topic, queues)
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


# Receivers.


def consumer_of(cluster: rockoon.Cluster) -> SimpleConsumer:
    return cluster.simple_consumer(GROUP, {TOPIC: "*"}, consume_from="first")


async def backlog(cluster: rockoon.Cluster, local: LocalCluster, messages: int, batch: int) -> str:
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


async def waiting(cluster: rockoon.Cluster, local: LocalCluster, messages: int) -> str:
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


async def idle(
    cluster: rockoon.Cluster, local: LocalCluster, receivers: int, seconds: float
) -> str:
    async with consumer_of(cluster) as consumer, asyncio.TaskGroup() as tasks:
        parked = [tasks.create_task(consumer.receive(32, wait=600)) for _ in range(receivers)]
        await asyncio.sleep(1)
        cpu = Cpu(local)
        await asyncio.sleep(seconds)
        used = cpu.shown(seconds)
        for task in parked:
            task.cancel()
    return f"{receivers} receivers that wait: {used} a second"


async def measure(given: argparse.Namespace) -> None:
    parts = given.only or PARTS
    for batch_max in (1, 64) if "handler" in parts else ():
        spent = await handler_microseconds(batch_max)
        print(f"{batch_max:3} a call: {spent:5.2f} us a message", flush=True)
    if set(parts) == {"handler"}:
        return
    with stores(given.dir) as folder:
        async with one_broker(folder / "consuming", "sync") as (local, cluster):
            for queues in given.queues if "listener" in parts else ():
                found = await listened(local, cluster, queues, given.rate, given.seconds)
                print(found, flush=True)
            if "receivers" in parts:
                await cluster.admin.create_topic(TOPIC, queues_per_broker=8)
                for batch in given.batch:
                    print(await backlog(cluster, local, given.messages, batch), flush=True)
                print(await waiting(cluster, local, given.single), flush=True)
                print(await idle(cluster, local, given.receivers, given.seconds), flush=True)


def main() -> None:
    options = parser("python -m bench.consuming", __doc__, PARTS, seconds=5.0)
    options.add_argument("--queues", type=int, nargs="+", default=[10], help="of a listener")
    options.add_argument("--rate", type=int, default=1000, help="of a listener, messages a second")
    options.add_argument("--messages", type=int, default=200_000, help="of the backlog")
    options.add_argument("--batch", type=int, nargs="+", default=[32], help="of a receive")
    options.add_argument("--single", type=int, default=300, help="messages to a waiting receiver")
    options.add_argument("--receivers", type=int, default=1000, help="that wait without messages")
    uvloop.run(measure(options.parse_args()))


if __name__ == "__main__":
    main()
