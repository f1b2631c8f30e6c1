"""Client load in this process: gRPC calls of the protocol, or the Python SDK."""

import asyncio
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import rockoon
from bench.compare.programs import MeasureFailed
from bench.loops import BODY
from bench.usage import used
from gateway.consumers import Consumer, handle
from gateway.wire_client import WireClient, consumer_settings, message, producer_settings
from rockoon.producer.producer import Producer
from rockoon.receiving.simple_consumer import SimpleConsumer
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_rpc.channel import Channel

WARM_SHARE = 0.3
POLL_SECONDS = 2.0
INVISIBLE_SECONDS = 300.0
HEARTBEAT_SECONDS = 10.0
FIRST_SECONDS_MAX, LOOK_SECONDS = 60.0, 0.02
# Connections that are opened in parallel.
TOGETHER = 50


@dataclass
class Done:
    """Result of measured clients.

    Attributes:
        count: number of messages or calls.
        before: number of messages or calls of the warm-up.
        own_seconds: CPU seconds of this process.
        used: CPU seconds of each server process.
        waits: latency of each call in seconds; for receives, including the acknowledgement.
    """

    count: int = 0
    before: int = 0
    seconds: float = 0.0
    own_seconds: float = 0.0
    used: dict[str, float] = field(default_factory=dict)
    waits: list[float] = field(default_factory=list)


async def stored_first(endpoint: str, topic: str) -> None:
    """Send one message; retry until it is stored. Raises MeasureFailed: it was not stored within a
    minute."""
    async with WireClient(endpoint, "bench@1@0@first", channel=Channel(endpoint)) as client:
        deadline = time.monotonic() + FIRST_SECONDS_MAX
        while (answer := await client.send(message(topic, BODY))).status.code != d.OK:
            if time.monotonic() > deadline:
                raise MeasureFailed(f"no send is taken: {answer.status}")
            await asyncio.sleep(LOOK_SECONDS)


@asynccontextmanager
async def connected(
    endpoint: str, count: int, settings: d.Settings
) -> AsyncIterator[Sequence[WireClient]]:
    """Context manager that opens clients, each with a connection and a Telemetry stream that has
    received its settings."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    async with AsyncExitStack() as stack:
        clients: list[WireClient] = []

        async def connect(number: int) -> None:
            client = WireClient(endpoint, f"bench@1@0@{number}", channel=Channel(endpoint))
            clients.append(await stack.enter_async_context(client))
            stream = client.telemetry()
            await stream.tell(settings)
            stack.push_async_callback(stream.close)

        for first in range(0, count, TOGETHER):
            async with asyncio.TaskGroup() as tasks:
                for number in range(first, min(first + TOGETHER, count)):
                    tasks.create_task(connect(number), name="connect")
        yield clients


Turn = Callable[[], Awaitable[int]]
"""Type of one step of a client, which is repeated; it returns the number of messages."""

Turns = Callable[[str, int, int], AbstractAsyncContextManager[Sequence[Turn]]]
"""Type of a function that opens clients with one connection each, and closes them.

Args: the topic, the number of clients, and the messages of one receive; 0: the clients send. A
receiver is in the group that has the topic's name, and acknowledges the received messages.
"""


async def measured(turns: Sequence[Turn], seconds: float, processes: Mapping[str, int]) -> Done:
    """Run the turns of all clients concurrently and repeatedly; the first turns are not
    measured."""
    done = Done()
    end = time.perf_counter() + seconds * WARM_SHARE

    async def repeat(turn: Turn) -> None:
        while (began := time.perf_counter()) < end:
            count = await turn()
            done.count += count
            if count:
                done.waits.append(time.perf_counter() - began)

    for is_warm in (False, True):
        before, own = used(processes), time.process_time()
        began = time.perf_counter()
        end = began + (seconds if is_warm else seconds * WARM_SHARE)
        done = Done(before=done.count)
        async with asyncio.TaskGroup() as tasks:
            for turn in turns:
                tasks.create_task(repeat(turn), name="turns")
        done.seconds = time.perf_counter() - began
        done.own_seconds = time.process_time() - own
        done.used = {name: now - before[name] for name, now in used(processes).items()}
    return done


async def send_by_protocol(client: WireClient, topic: str) -> int:
    """Send one message. Raises MeasureFailed: the send was refused."""
    answer = await client.send(message(topic, BODY))
    if answer.status.code != d.OK:
        raise MeasureFailed(f"a send was refused: {answer.status}")
    return 1


async def receive_by_protocol(client: WireClient, topic: str, batch: int) -> int:
    """Receive up to `batch` messages and acknowledge them with one call. Raises MeasureFailed: an
    acknowledgement was refused."""
    consumer = Consumer(client, topic, topic)
    found = await consumer.receive(batch_size=batch, invisible=INVISIBLE_SECONDS, wait=POLL_SECONDS)
    if found:
        answer = await consumer.acknowledge(*map(handle, found))
        if any(entry.status.code != d.OK for entry in answer.entries):
            raise MeasureFailed(f"an acknowledgement was refused: {answer.entries[0].status}")
    return len(found)


@asynccontextmanager
async def by_protocol(
    endpoint: str, topic: str, count: int, batch: int
) -> AsyncIterator[Sequence[Turn]]:
    """Open clients that send the protocol's gRPC calls to an endpoint; see `Turns`."""
    if batch:
        settings = consumer_settings(topic, topic, client_type=d.SIMPLE_CONSUMER)
    else:
        settings = producer_settings(topic)
    async with connected(endpoint, count, settings) as clients:
        if batch:
            yield [partial(receive_by_protocol, each, topic, batch) for each in clients]
        else:
            yield [partial(send_by_protocol, each, topic) for each in clients]


@asynccontextmanager
async def by_sdk(
    nameservers: Sequence[str], topic: str, count: int, batch: int
) -> AsyncIterator[Sequence[Turn]]:
    """Open producers or simple consumers of the Python SDK with default settings; see `Turns`."""

    async def send(producer: Producer) -> int:
        await producer.send(topic, BODY)
        return 1

    async def receive(consumer: SimpleConsumer) -> int:
        found = await consumer.receive(batch, visible_after=INVISIBLE_SECONDS, wait=POLL_SECONDS)
        if found:
            await consumer.ack(found)
        return len(found)

    async with AsyncExitStack() as stack:
        turns: list[Turn] = []
        for _ in range(count):
            cluster = await stack.enter_async_context(rockoon.connect(nameservers))
            if batch:
                consumer = cluster.simple_consumer(topic, {topic: "*"})
                turns.append(partial(receive, await stack.enter_async_context(consumer)))
            else:
                turns.append(partial(send, await stack.enter_async_context(cluster.producer())))
        yield turns


async def measured_turns(
    opened: Turns, topic: str, count: int, batch: int, seconds: float, processes: Mapping[str, int]
) -> Done:
    """Open clients, measure their turns, and close the clients."""
    async with opened(topic, count, batch) as turns:
        return await measured(turns, seconds, processes)


async def modest(
    clients: Sequence[WireClient],
    topic: str,
    rate: float,
    seconds: float,
    processes: Mapping[str, int],
) -> Done:
    """Measure producers with a given total rate that also send a heartbeat every ten seconds.
    Raises MeasureFailed: a send was refused."""
    pause = len(clients) / rate
    waits: list[float] = []
    began = time.perf_counter()

    async def sends(client: WireClient, number: int) -> None:
        due = began + pause * number / len(clients)
        beat = due + HEARTBEAT_SECONDS * number / len(clients)
        while due < began + seconds:
            await asyncio.sleep(max(due - time.perf_counter(), 0.0))
            before = time.perf_counter()
            answer = await client.send(message(topic, BODY, f"{number}-{before}"))
            if answer.status.code != d.OK:
                raise MeasureFailed(f"a send was refused: {answer.status}")
            waits.append(time.perf_counter() - before)
            if due >= beat:
                beat += HEARTBEAT_SECONDS
                await client.heartbeat(d.PRODUCER)
            due += pause

    before, own = used(processes), time.process_time()
    async with asyncio.TaskGroup() as tasks:
        for number, client in enumerate(clients):
            tasks.create_task(sends(client, number), name="sends")
    return Done(
        count=len(waits),
        seconds=time.perf_counter() - began,
        own_seconds=time.process_time() - own,
        used={name: now - before[name] for name, now in used(processes).items()},
        waits=waits,
    )
