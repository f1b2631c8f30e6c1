"""Load on a cluster: as much as it takes (closed loop), or as much as is said (open loop)."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from rockoon.errors import BufferFull
from rockoon.producer.producer import Producer
from rockoon.producer.receipt import Receipt
from rockoon_proto.v1.broker_pb2 import AppendRequest

# Sends whose latency is looked at: each costs the load a task.
SAMPLES_PER_SECOND = 500.0
SENDS_PER_TURN = 500
STREAMS = 8
IN_FLIGHT = 8
BYTES_PER_TURN = 1 << 20


async def send_closed(
    producers: Sequence[Producer], topic: str, body: bytes, seconds: float
) -> tuple[int, float]:
    """Every producer sends as fast as acknowledgements let it; returns messages and seconds.

    The time ends when the last one is acknowledged.
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
    """What an open loop found.

    Attributes:
        seconds: of each sample, from when it was to be sent until it was acknowledged.
        late_seconds: how late the load itself was with each sample; part of the former.
        refused: sends that the producer's buffer had no room for.
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
    """Send at a set rate whatever the cluster does, each message at its own moment.

    A message that could not be sent in time counts from when it was to be sent, so a stall costs
    every message that fell into it.
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
    """Until a moment on `time.perf_counter`'s clock; at once if it is over."""
    if (seconds := due - time.perf_counter()) > 0:
        await asyncio.sleep(seconds)


async def call_closed(
    call: Callable[[int], Awaitable[None]], callers: int, seconds: float
) -> tuple[int, float, list[float]]:
    """So many callers, each with one call under way; returns calls, seconds, and each one's time.

    Args:
        call: does one; it is given the number of its caller.
        callers: how many.
        seconds: how long.
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
    """Call once for each number, some at a time; returns the seconds it took."""
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
    """Batches as they come, some under way in each of some streams, until there are no more.

    Args:
        stub: the broker's.
        requests: batches; endless ones need `seconds`.
        seconds: how long, at most.

    Returns:
        How many were acknowledged, seconds, and each one's time.
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
