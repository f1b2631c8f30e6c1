"""CPU cost of awaited sends and of sends to many queues, compared with bulk sends to one queue.

Run: `.venv/bin/python -m bench.single`. CPU time of this process and of the broker, because other
work on the machine changes it least; bodies of 100 bytes, one broker, one producer.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

import rockoon
from bench.command import parser, stores
from bench.loops import BODY, call_closed, make_topic, one_broker
from bench.tables import quantile
from bench.usage import cpu_of
from rockoon.local import LocalCluster
from rockoon.producer.producer import Producer

TASKS = 64
SPREADS = (1, 10, 100, 1000)
CHUNK = 500
PARTS = ("awaited", "bulk", "spread")


@dataclass(frozen=True)
class Work:
    """Result of one measure. `waits`: latency of each awaited send in seconds, ascending."""

    messages: int
    seconds: float
    client_seconds: float
    broker_seconds: float
    waits: Sequence[float]

    def row(self) -> str:
        client, broker = (
            used / self.messages * 1e6 for used in (self.client_seconds, self.broker_seconds)
        )
        row = f"{client + broker:9.2f}{client:9.2f}{broker:9.2f}"
        row += f"{self.messages / self.seconds:13,.0f}"
        for share in (0.5, 0.99) if self.waits else ():
            row += f"{quantile(self.waits, share) * 1e3:9.3f}"
        return row


Sending = Callable[[Producer, float], Awaitable[tuple[int, Sequence[float]]]]
"""Type of a function that sends for some seconds; it returns the number of messages, and the
latency of each awaited send in seconds."""


async def measured(
    local: LocalCluster, cluster: rockoon.Cluster, sending: Sending, seconds: float
) -> Work:
    """Warm up, so that routes are cached and queue files exist; then measure."""
    pid = local.node(local.brokers[0]).pid
    async with cluster.producer() as producer:
        await sending(producer, seconds / 3)
        await producer.flush()
        began, client, broker = time.perf_counter(), time.process_time(), cpu_of(pid)
        messages, waits = await sending(producer, seconds)
        await producer.flush()
        return Work(
            messages,
            time.perf_counter() - began,
            time.process_time() - client,
            cpu_of(pid) - broker,
            sorted(waits),
        )


def one_by_one(topic: str, tasks: int) -> Sending:
    """Return a load of `tasks` tasks; each task awaits each send before the next."""

    async def send(producer: Producer, seconds: float) -> tuple[int, Sequence[float]]:
        done = await call_closed(lambda _: producer.send(topic, BODY), tasks, seconds)
        return len(done.waits), done.waits

    return send


def _in_rotation(send_one: Callable[[Producer, int], object]) -> Sending:
    """Return a load that sends without waiting; `send_one` gets the number of the message."""

    async def send(producer: Producer, seconds: float) -> tuple[int, Sequence[float]]:
        sent, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            for number in range(sent, sent + CHUNK):
                send_one(producer, number)
            sent += CHUNK
            await producer.wait_capacity()
        return sent, ()

    return send


def by_key(topic: str, keys: int) -> Sending:
    """Return a load that sends each message to the next queue, by ordering key."""
    names = [f"key-{number}" for number in range(4 * keys)]
    return _in_rotation(
        lambda producer, number: producer.send(topic, BODY, ordering_key=names[number % len(names)])
    )


def by_topic(topics: Sequence[str]) -> Sending:
    """Return a load that sends each message to the next topic."""
    return _in_rotation(lambda producer, number: producer.send(topics[number % len(topics)], BODY))


def in_bulk(topic: str) -> Sending:
    """Return a load that sends with `send_many`."""
    bodies = [BODY] * 100_000

    async def send(producer: Producer, seconds: float) -> tuple[int, Sequence[float]]:
        sent, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            sent += len(await producer.send_many(topic, bodies))
        return sent, ()

    return send


async def measure(folder: Path, only: set[str], flush: str, seconds: float) -> None:
    print(f"flush = {flush:25}  CPU µs   client   broker   messages/s   p50 ms   p99 ms")
    async with one_broker(folder / flush, flush) as (local, cluster):

        async def show(name: str, sending: Sending) -> None:
            work = await measured(local, cluster, sending, seconds)
            print(f"{name:32}{work.row()}", flush=True)

        topic = await make_topic(cluster, "single", 8)
        if "awaited" in only:
            await show("awaited, one by one", one_by_one(topic, 1))
            await show(f"awaited, {TASKS} tasks", one_by_one(topic, TASKS))
        if "bulk" in only:
            await show("send()", by_topic([topic]))
            await show("send_many()", in_bulk(topic))
        for count in SPREADS if "spread" in only else ():
            topic = await make_topic(cluster, f"keyed-{count}", count)
            await show(f"{count:,} keyed queues", by_key(topic, count))
        for count in SPREADS if "spread" in only else ():
            topics = [await make_topic(cluster, f"of-{count}-{n}", 1) for n in range(count)]
            await show(f"{count:,} topics of one queue", by_topic(topics))


def main() -> None:
    options = parser("python -m bench.single", __doc__, PARTS, seconds=3.0)
    options.add_argument("--flush", choices=("async", "sync"), action="append")
    given = options.parse_args()
    with stores(given.dir) as folder:
        for flush in given.flush or ("async", "sync"):
            uvloop.run(measure(folder, set(given.only or PARTS), flush, given.seconds))


if __name__ == "__main__":
    main()
