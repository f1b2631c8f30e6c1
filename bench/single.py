"""CPU cost of awaited sends and of sends to many queues, compared with bulk sends to one queue.

Run: `.venv/bin/python -m bench.single`. CPU time of this process and of the broker, because other
work on the machine changes it least; bodies of 100 bytes, one broker, one producer.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

import rockoon
from bench.cluster.copies import cpu_seconds_of
from rockoon.local import LocalCluster
from rockoon.producer.producer import Producer

BODY = b"x" * 100
TASKS = 64
SPREADS = (1, 10, 100, 1000)
CHUNK = 500


@dataclass(frozen=True)
class Work:
    """Result of one measure."""

    messages: int
    seconds: float
    client_seconds: float
    broker_seconds: float
    waits: list[float] = field(default_factory=list)
    """Latency of each awaited send in seconds, ascending."""

    def row(self) -> str:
        client, broker = (
            used / self.messages * 1e6 for used in (self.client_seconds, self.broker_seconds)
        )
        row = (
            f"{client + broker:9.2f}{client:9.2f}{broker:9.2f}{self.messages / self.seconds:13,.0f}"
        )
        for share in (0.5, 0.99) if self.waits else ():
            row += f"{self.waits[int(len(self.waits) * share)] * 1e3:9.3f}"
        return row


Sending = Callable[[Producer, float], Awaitable[tuple[int, list[float]]]]
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
        began, client, broker = time.perf_counter(), time.process_time(), cpu_seconds_of(pid)
        messages, waits = await sending(producer, seconds)
        await producer.flush()
        return Work(
            messages,
            time.perf_counter() - began,
            time.process_time() - client,
            cpu_seconds_of(pid) - broker,
            sorted(waits),
        )


def one_by_one(topic: str, tasks: int) -> Sending:
    """Return a load of `tasks` tasks; each task awaits each send before the next."""

    async def send(producer: Producer, seconds: float) -> tuple[int, list[float]]:
        waits: list[float] = []
        end = time.perf_counter() + seconds

        async def one() -> None:
            while (began := time.perf_counter()) < end:
                await producer.send(topic, BODY)
                waits.append(time.perf_counter() - began)

        async with asyncio.TaskGroup() as group:
            for number in range(tasks):
                group.create_task(one(), name=f"sender {number}")
        return len(waits), waits

    return send


def by_key(topic: str, keys: int) -> Sending:
    """Return a load that sends each message to the next queue, by ordering key."""
    names = [f"key-{number}" for number in range(4 * keys)]

    async def send(producer: Producer, seconds: float) -> tuple[int, list[float]]:
        sent, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            for number in range(sent, sent + CHUNK):
                producer.send(topic, BODY, ordering_key=names[number % len(names)])
            sent += CHUNK
            await producer.wait_capacity()
        return sent, []

    return send


def by_topic(topics: Sequence[str]) -> Sending:
    """Return a load that sends each message to the next topic."""

    async def send(producer: Producer, seconds: float) -> tuple[int, list[float]]:
        sent, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            for number in range(sent, sent + CHUNK):
                producer.send(topics[number % len(topics)], BODY)
            sent += CHUNK
            await producer.wait_capacity()
        return sent, []

    return send


def in_bulk(topic: str) -> Sending:
    """Return a load that sends with `send_many`."""
    bodies = [BODY] * 100_000

    async def send(producer: Producer, seconds: float) -> tuple[int, list[float]]:
        sent, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            sent += len(await producer.send_many(topic, bodies))
        return sent, []

    return send


async def made(cluster: rockoon.Cluster, topic: str, queues: int) -> str:
    created = await cluster.admin.create_topic(topic, queues_per_broker=queues)
    await cluster.route(topic, min_revision=created.modified_revision)
    return topic


async def measure(folder: Path, only: set[str], flushes: Sequence[str], seconds: float) -> None:
    for flush in flushes:
        print(f"flush = {flush:25}  CPU µs   client   broker   messages/s   p50 ms   p99 ms")
        settings = {"broker": {"flush": flush, "commit_log_file_bytes": "1GiB"}}
        async with (
            LocalCluster(folder / flush, brokers=1, settings=settings) as local,
            rockoon.connect(local.nameservers) as cluster,
        ):

            async def show(name: str, sending: Sending) -> None:
                work = await measured(local, cluster, sending, seconds)
                print(f"{name:32}{work.row()}", flush=True)

            topic = await made(cluster, "single", 8)
            if "awaited" in only:
                await show("awaited, one by one", one_by_one(topic, 1))
                await show(f"awaited, {TASKS} tasks", one_by_one(topic, TASKS))
            if "bulk" in only:
                await show("send()", by_topic([topic]))
                await show("send_many()", in_bulk(topic))
            for count in SPREADS if "spread" in only else ():
                topic = await made(cluster, f"keyed-{count}", count)
                await show(f"{count:,} keyed queues", by_key(topic, count))
            for count in SPREADS if "spread" in only else ():
                topics = [await made(cluster, f"of-{count}-{n}", 1) for n in range(count)]
                await show(f"{count:,} topics of one queue", by_topic(topics))


def main() -> None:
    """Print a row for each measure."""
    parts = ["awaited", "bulk", "spread"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=parts, action="append", help="one part; may be repeated")
    parser.add_argument("--flush", choices=("async", "sync"), action="append")
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of each measure")
    parser.add_argument("--dir", type=Path, default=Path(".bench"), help="directory for the stores")
    arguments = parser.parse_args()
    arguments.dir.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        only = set(arguments.only or parts)
        flushes = arguments.flush or ("async", "sync")
        uvloop.run(measure(Path(folder), only, flushes, arguments.seconds))


if __name__ == "__main__":
    main()
