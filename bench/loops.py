"""Loads on a cluster, shared by all benchmarks, and a cluster with one broker.

A closed loop sends as fast as the cluster replies; an open loop has a fixed rate.
"""

import asyncio
import inspect
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

import rockoon
from rockoon.consumer.push_consumer import PushConsumer
from rockoon.errors import BufferFull
from rockoon.local import LocalCluster
from rockoon.message import Message
from rockoon.producer.producer import Producer
from rockoon.producer.receipt import Receipt
from rockoon_proto.v1.broker_pb2 import AppendRequest

BODY = b"x" * 100
# Sends of an open loop whose latency is measured; each needs a task.
SAMPLES_PER_SECOND = 500.0
SENDS_PER_TURN = 500
BYTES_PER_TURN = 1 << 20
STREAMS = 8
IN_FLIGHT = 8
SETTLED_SECONDS_MAX = 300.0
LOOK_SECONDS = 0.01
FIRST_SECONDS_MAX = 60.0


@asynccontextmanager
async def one_broker(
    folder: Path,
    flush: str = "async",
    *,
    broker: Mapping[str, object] | None = None,
    **options: Any,
) -> AsyncIterator[tuple[LocalCluster, rockoon.Cluster]]:
    """Start a cluster with one broker, and connect to it.

    Args:
        flush: setting of the broker.
        broker: more settings of the broker; by default, a CommitLog file has a GiB.
        options: of `LocalCluster`.
    """
    settings = {"broker": {"flush": flush, "commit_log_file_bytes": "1GiB", **(broker or {})}}
    async with (
        LocalCluster(folder, brokers=1, settings=settings, **options) as local,
        rockoon.connect(local.nameservers, access=local.access, tls=local.tls) as cluster,
    ):
        yield local, cluster


async def make_topic(cluster: rockoon.Cluster, name: str, queues: int) -> str:
    """Create a topic whose route is known to this process; return its name."""
    made = await cluster.admin.create_topic(name, queues_per_broker=queues)
    await cluster.route(name, min_revision=made.modified_revision)
    return name


async def nothing(_: Message) -> None:
    """Handler without effect."""


async def until(holds: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait until a condition holds. Raises TimeoutError after `SETTLED_SECONDS_MAX`."""
    deadline = time.perf_counter() + SETTLED_SECONDS_MAX
    while True:
        with suppress(grpc.RpcError):
            found = holds()
            if await found if inspect.isawaitable(found) else found:
                return
        if time.perf_counter() > deadline:
            raise TimeoutError(f"not settled after {SETTLED_SECONDS_MAX:.0f} s")
        await asyncio.sleep(LOOK_SECONDS)


def is_settled(consumers: Sequence[PushConsumer], queues: int) -> bool:
    """Return whether each queue has one owner, and the shares of the members are equal."""
    shares = [len(consumer.assignment) for consumer in consumers]
    return sum(shares) == queues and max(shares) - min(shares) <= 1


async def send_closed(
    producers: Sequence[Producer], topic: str, body: bytes, seconds: float, **more: Any
) -> tuple[int, float]:
    """Let each producer send as fast as it gets acknowledgements; return messages and seconds.

    The time ends when the last message is acknowledged. `more`: arguments of each send.
    """
    began = time.perf_counter()
    sent = 0
    turn = max(1, min(SENDS_PER_TURN, BYTES_PER_TURN // max(len(body), 1)))

    async def run(producer: Producer) -> None:
        nonlocal sent
        send = producer.send
        while time.perf_counter() - began < seconds:
            for _ in range(turn):
                send(topic, body, **more)
            sent += turn
            await producer.wait_capacity()
        await producer.flush()

    async with asyncio.TaskGroup() as tasks:
        for number, producer in enumerate(producers):
            tasks.create_task(run(producer), name=f"producer {number}")
    return sent, time.perf_counter() - began


class Offered:
    """Result of an open-loop load.

    Attributes:
        seconds: latency of each sample, from its due time to its acknowledgement.
        late_seconds: delay of each sample by the load generator; part of `seconds`.
        refused: sends that failed because the producer's buffer was full.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.late_seconds: list[float] = []
        self.refused = 0
        self.sent = 0
        self.elapsed = 0.0


async def send_open(
    producers: Sequence[Producer], topic: str, body: bytes, rate: float, seconds: float
) -> Offered:
    """Send messages at a fixed rate, independent of the cluster's replies; each has a due time.

    Latency is measured from the due time, so a stall counts for every message that was due in it.
    """
    offered = Offered()
    total = max(1, int(rate * seconds))
    every = max(1, int(rate / SAMPLES_PER_SECOND))
    began = time.perf_counter()

    async def note(receipt: Receipt, due: float) -> None:
        await receipt
        offered.seconds.append(time.perf_counter() - due)

    async with asyncio.TaskGroup() as tasks:
        for number in range(total):
            due = began + number / rate
            await wait_for(due)
            try:
                receipt = producers[number % len(producers)].send(topic, body)
            except BufferFull:
                offered.refused += 1
                await asyncio.sleep(0)
                continue
            offered.sent += 1
            if number % every == 0:
                offered.late_seconds.append(time.perf_counter() - due)
                tasks.create_task(note(receipt, due), name="sample")
            if number % SENDS_PER_TURN == 0:
                await asyncio.sleep(0)
        for producer in producers:
            await producer.flush()
    offered.elapsed = time.perf_counter() - began
    return offered


async def wait_for(due: float) -> None:
    """Wait until a time of `time.perf_counter`; return immediately if it has passed."""
    if (seconds := due - time.perf_counter()) > 0:
        await asyncio.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Calls:
    """Result of a closed loop of calls. `waits`: latency of each call in seconds, in any order."""

    seconds: float
    waits: list[float]

    @property
    def per_second(self) -> float:
        return len(self.waits) / self.seconds


async def call_closed(
    call: Callable[[int], Awaitable[object]], callers: int, seconds: float
) -> Calls:
    """Run callers with one call in flight each; `call` gets the number of its caller."""
    waits: list[float] = []
    began = time.perf_counter()

    async def run(number: int) -> None:
        while (start := time.perf_counter()) - began < seconds:
            await call(number)
            waits.append(time.perf_counter() - start)

    async with asyncio.TaskGroup() as tasks:
        for number in range(callers):
            tasks.create_task(run(number), name=f"caller {number}")
    return Calls(time.perf_counter() - began, waits)


async def in_parallel(
    call: Callable[[int], Awaitable[None]], numbers: Sequence[int], under_way: int = 64
) -> float:
    """Run a call for each number, with `under_way` calls in flight; return the elapsed seconds."""
    left = iter(numbers)
    began = time.perf_counter()

    async def run() -> None:
        for number in left:
            await call(number)

    async with asyncio.TaskGroup() as tasks:
        for worker in range(min(under_way, len(numbers))):
            tasks.create_task(run(), name=f"worker {worker}")
    return time.perf_counter() - began


async def append_in_streams(
    stub: Any, requests: Iterator[AppendRequest], seconds: float = float("inf")
) -> Calls:
    """Append batches on several streams, with several batches in flight on each.

    Args:
        requests: batches; an endless iterator needs `seconds`.
        seconds: maximum duration.

    Returns:
        The acknowledged batches as calls.
    """
    took: list[float] = []
    began = time.perf_counter()

    async def run() -> None:
        call = stub.AppendStream()
        sent: deque[float] = deque()

        async def write_one() -> None:
            if time.perf_counter() - began < seconds:
                request = next(requests, None)
                if request is not None:
                    sent.append(time.perf_counter())
                    await call.write(request)

        for _ in range(IN_FLIGHT):
            await write_one()
        while sent:
            reply = await call.read()
            assert reply.HasField("appended"), reply
            took.append(time.perf_counter() - sent.popleft())
            await write_one()
        await call.done_writing()

    async with asyncio.TaskGroup() as tasks:
        for number in range(STREAMS):
            tasks.create_task(run(), name=f"stream {number}")
    return Calls(time.perf_counter() - began, took)


async def read_columns(
    cluster: rockoon.Cluster,
    topic: str,
    seconds: float,
    read: Callable[[int, int], None],
    *,
    stored: int | None = None,
) -> float:
    """Read offsets and bodies of all queues as columns, from the beginning.

    At least one batch is read, even after the time, so that a rate exists.

    Args:
        seconds: maximum duration.
        read: called with the messages and the bytes of the records of each batch.
        stored: number of stored messages, which are read again and again; None reads once.

    Returns:
        The elapsed seconds.
    """
    async with cluster.pull_consumer() as consumer:
        await consumer.assign_all(topic)
        await consumer.seek_to_beginning()
        began, elapsed, left, has_read = time.perf_counter(), 0.0, stored, False
        while not has_read or elapsed < seconds:
            timeout = seconds - elapsed if has_read else FIRST_SECONDS_MAX
            batch = await consumer.poll_batch(timeout=timeout)
            elapsed = time.perf_counter() - began
            if batch is None:
                break
            has_read = True
            assert len(batch.bodies) == len(batch.offsets)
            read(len(batch), int(batch.columns.lengths.sum()))
            if left is not None and (left := left - len(batch)) <= 0:
                await consumer.seek_to_beginning()
                left = stored
        return elapsed
