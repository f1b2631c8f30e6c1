"""Load on a cluster: as fast as the cluster replies (closed loop), or at a fixed rate (open)."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from rockoon.errors import BufferFull
from rockoon.producer.producer import Producer
from rockoon.producer.receipt import Receipt
from rockoon_proto.v1.broker_pb2 import AppendRequest

# Sends whose latency is measured; each needs a task.
SAMPLES_PER_SECOND = 500.0
SENDS_PER_TURN = 500
STREAMS = 8
IN_FLIGHT = 8
BYTES_PER_TURN = 1 << 20


async def send_closed(
    producers: Sequence[Producer], topic: str, body: bytes, seconds: float
) -> tuple[int, float]:
    """Let each producer send as fast as it gets acknowledgements; return messages and seconds.

    The time ends when the last message is acknowledged.
    """
    began = time.perf_counter()
    sent = 0
    turn = max(1, min(SENDS_PER_TURN, BYTES_PER_TURN // max(len(body), 1)))

    async def run(producer: Producer) -> None:
        nonlocal sent
        send = producer.send
        while time.perf_counter() - began < seconds:
            for _ in range(turn):
                send(topic, body)
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


async def call_closed(
    call: Callable[[int], Awaitable[None]], callers: int, seconds: float
) -> tuple[int, float, list[float]]:
    """Run callers with one call in flight each; return calls, seconds, and seconds of each call.

    Args:
        call: makes a call; its argument is the number of the caller.
        callers: number of callers.
        seconds: duration.
    """
    done = 0
    took: list[float] = []
    began = time.perf_counter()

    async def run(number: int) -> None:
        nonlocal done
        while (start := time.perf_counter()) - began < seconds:
            await call(number)
            took.append(time.perf_counter() - start)
            done += 1

    async with asyncio.TaskGroup() as tasks:
        for number in range(callers):
            tasks.create_task(run(number), name=f"caller {number}")
    return done, time.perf_counter() - began, took


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
) -> tuple[int, float, list[float]]:
    """Append batches on several streams, with several batches in flight on each.

    Args:
        stub: stub of the broker.
        requests: batches; an endless iterator needs `seconds`.
        seconds: maximum duration.

    Returns:
        Number of acknowledged batches, elapsed seconds, and seconds of each batch.
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
    return len(took), time.perf_counter() - began, took
