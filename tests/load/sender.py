"""A sender: numbered messages to some streams, at a rate or as fast as acknowledgements arrive.

With a rate each message has a due time, and its latency counts from then on, not from the actual
send: if a cluster stops for a second, all messages of that second are late, as for independent
clients. Without a rate a sender keeps a fixed number of messages in flight, and latencies count
from `send`.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from load import payload
from load.account import Account
from rockoon.cluster import Cluster
from rockoon.errors import RockoonError
from rockoon.producer.producer import Producer
from rockoon.producer.receipt import Receipt

SEND = "send"
TICK_SECONDS = 0.005
STRETCH_MAX = 256
"""Messages of one stream before the next stream is served."""


@dataclass
class Lane:
    """One stream: its destination, and its progress.

    Args:
        topic: its topic.
        stream: see `load.payload`.
        options: of `Producer.send`: the key or the queue that keeps it in order.
        share: weight among the lanes of the sender.
    """

    topic: str
    stream: int
    options: dict[str, Any]
    share: float = 1.0
    next: int = 0
    stretches: "asyncio.Queue[_Stretch | None]" = field(default_factory=asyncio.Queue)


@dataclass
class _Stretch:
    """Consecutive messages of a lane in flight."""

    first: int
    receipts: list[Receipt]
    due_us: NDArray[np.int64]


class Sender:
    """See the module.

    Args:
        cluster: the connection.
        account: receives the sent and acknowledged messages, and the latencies.
        run: id of the run, 32 bits.
        lanes: its streams.
        body_bytes: of each message.
        rate: messages a second; 0: as fast as they are acknowledged.
        window: maximum of messages in flight.
    """

    def __init__(
        self,
        cluster: Cluster,
        account: Account,
        run: int,
        lanes: Sequence[Lane],
        *,
        body_bytes: int = 100,
        rate: float = 0,
        window: int = 10_000,
    ) -> None:
        self._cluster = cluster
        self._account = account
        self._run = run
        self._lanes = lanes
        self._body_bytes = body_bytes
        self._rate = rate
        self._window = window
        self._under_way = 0
        self._room = asyncio.Event()
        self._turns = turns(lanes)
        self._turn = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Send until the stop event is set, then wait for the messages in flight.

        Raises:
            RockoonError: a first message, which waits for routes and streams, was not acknowledged.
        """
        async with self._cluster.producer() as producer:
            await self._open(producer)
            async with asyncio.TaskGroup() as tasks:
                for lane in self._lanes:
                    tasks.create_task(self._settle(lane), name=f"settle {lane.stream}")
                try:
                    if self._rate:
                        await self._send_at_rate(producer, stop)
                    else:
                        await self._send_flat_out(producer, stop)
                finally:
                    for lane in self._lanes:
                        lane.stretches.put_nowait(None)
        for lane in self._lanes:
            self._account.closed(lane.stream)

    async def _open(self, producer: Producer) -> None:
        """Send the first message of each lane, whose latency does not count."""
        for lane in self._lanes:
            await self._cluster.route(lane.topic)
        now_us = np.full(1, time.time_ns() // 1000)
        first = []
        for lane in self._lanes:
            self._account.sent(lane.topic, lane.stream, 1)
            (body,) = payload.encode(self._run, lane.stream, 0, now_us, self._body_bytes)
            first.append(producer.send(lane.topic, body, **lane.options))
            lane.next = 1
        for lane, receipt in zip(self._lanes, first, strict=True):
            await receipt
            self._account.acknowledged(lane.topic, lane.stream, 0, 1)

    async def _send_at_rate(self, producer: Producer, stop: asyncio.Event) -> None:
        began_us = time.time_ns() // 1000
        began = time.perf_counter()
        spacing_us = 1e6 / self._rate
        sent = 0
        while not stop.is_set():
            due = int((time.perf_counter() - began) * self._rate)
            while sent < due and self._under_way < self._window and not stop.is_set():
                count = min(due - sent, STRETCH_MAX, self._window - self._under_way)
                numbers = np.arange(sent, sent + count)
                self._send(producer, began_us + (numbers * spacing_us).astype(np.int64))
                sent += count
                await self._drain(producer)
            await asyncio.sleep(TICK_SECONDS)

    async def _send_flat_out(self, producer: Producer, stop: asyncio.Event) -> None:
        while not stop.is_set():
            room = self._window - self._under_way
            if room <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            count = min(room, STRETCH_MAX)
            self._send(producer, np.full(count, time.time_ns() // 1000))
            await self._drain(producer)

    async def _drain(self, producer: Producer) -> None:
        try:
            await producer.wait_capacity()
        except RockoonError:
            # The task that waits for this message counts it.
            await asyncio.sleep(0)

    def _send(self, producer: Producer, due_us: NDArray[np.int64]) -> None:
        lane = self._lanes[self._turns[self._turn % len(self._turns)]]
        self._turn += 1
        first = lane.next
        lane.next += len(due_us)
        self._account.sent(lane.topic, lane.stream, lane.next)
        bodies = payload.encode(self._run, lane.stream, first, due_us, self._body_bytes)
        topic, options = lane.topic, lane.options
        receipts = [producer.send(topic, body, **options) for body in bodies]
        self._under_way += len(receipts)
        lane.stretches.put_nowait(_Stretch(first, receipts, due_us))

    async def _settle(self, lane: Lane) -> None:
        """Wait for a lane's messages, whose batches are acknowledged in order."""
        while (stretch := await lane.stretches.get()) is not None:
            receipts = stretch.receipts
            start = 0
            while start < len(receipts):
                end = _end_of_batch(receipts, start)
                await self._complete_batch(lane, stretch, start, end)
                start = end

    async def _complete_batch(self, lane: Lane, stretch: _Stretch, start: int, end: int) -> None:
        first = stretch.first
        try:
            await stretch.receipts[end - 1]
        except RockoonError as error:
            self._account.failed(SEND, error, end - start)
        else:
            latencies = time.time_ns() // 1000 - stretch.due_us[start:end]
            self._account.acknowledged(lane.topic, lane.stream, first + start, first + end)
            self._account.took(SEND, latencies, (end - start) * self._body_bytes)
        finally:
            self._under_way -= end - start
            self._room.set()


def _end_of_batch(receipts: Sequence[Receipt], start: int) -> int:
    """Return the index after the last receipt of the batch of this one: they share their result."""
    batch = receipts[start].batch
    if receipts[-1].batch is batch:
        return len(receipts)
    end = start + 1
    while receipts[end].batch is batch:
        end += 1
    return end


def turns(lanes: Sequence[Lane]) -> list[int]:
    """Yield the next lane: each as often as its share, evenly distributed."""
    smallest = min(lane.share for lane in lanes)
    counts = [max(round(lane.share / smallest), 1) for lane in lanes]
    spread = [((n + 0.5) / count, i) for i, count in enumerate(counts) for n in range(count)]
    return [index for _, index in sorted(spread)]
