"""Benchmark axes of the message path: producers, message size, rate, readers, group members."""

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc

import rockoon
from bench.capacity.bench_cluster import LOAD, Bench, bench_cluster
from bench.capacity.many_queues import create
from bench.capacity.point import Axes, Point, percentiles_ms
from bench.loops import (
    BODY,
    Offered,
    call_closed,
    is_settled,
    make_topic,
    read_columns,
    send_closed,
    send_open,
    until,
    wait_for,
)
from rockoon.message import Message
from rockoon.producer.producer import Producer
from rockoon_proto.v1.broker_pb2 import PullRequest

QUEUES = 8
QUEUES_OF_A_TOPIC_MAX = 4_000
# Share of a closed loop's rate at which latency is measured, and the limits of the load generator.
OPEN_SHARE = 0.3
OPEN_RATE_MAX = 10_000.0
OPEN_BYTES_MAX = 50e6
SENT_AT = struct.Struct("<d")


async def opened(bench: Bench, stack: AsyncExitStack, count: int) -> list[Producer]:
    """Open producers with one connection each."""
    producers = []
    for _ in range(count):
        cluster = await stack.enter_async_context(bench.connect())
        producers.append(await stack.enter_async_context(cluster.producer()))
    return producers


async def sending(
    bench: Bench, producers: list[Producer], topic: str, body: bytes, seconds: float
) -> tuple[Point, float]:
    """Measure the rate of a closed loop, then the latency at a share of this rate; return the point
    without its axis value, and the rate."""
    for producer in producers:
        await producer.send(topic, body)
    bench.meter.start()
    sent, elapsed = await send_closed(producers, topic, body, seconds)
    use = bench.meter.stop()
    rate = sent / elapsed
    offered_rate = min(rate * OPEN_SHARE, OPEN_RATE_MAX, OPEN_BYTES_MAX / len(body))
    offered = await send_open(producers, topic, body, offered_rate, seconds)
    point = Point(
        measure="append",
        at=0,
        rate=rate,
        latency_ms=percentiles_ms(offered.seconds),
        use=use,
        figures={
            "mb_per_second": rate * len(body) / 1e6,
            "latency_at_per_second": offered_rate,
            **late(offered),
        },
    )
    return point, rate


def late(offered: Offered) -> dict[str, float]:
    return {f"load_late_{name}_ms": ms for name, ms in percentiles_ms(offered.late_seconds).items()}


def placed(point: Point, measure: str, at: float) -> Point:
    return Point(measure, at, point.rate, point.latency_ms, point.use, point.figures)


async def producers(folder: Path, axes: Axes) -> AsyncIterator[Point]:
    """Measure increasing numbers of producers, with 100-byte bodies."""
    async with bench_cluster(folder) as bench:
        for count in axes.producers:
            async with AsyncExitStack() as stack:
                made = await opened(bench, stack, count)
                topic = f"producers-{count}"
                async with bench.connect() as cluster:
                    await make_topic(cluster, topic, QUEUES)
                point, _ = await sending(bench, made, topic, BODY, axes.seconds)
            yield placed(point, "append, by producers", count)


async def sizes(folder: Path, axes: Axes) -> AsyncIterator[Point]:
    """Measure sends of increasing message sizes with two producers, then reads of each size."""
    async with bench_cluster(folder) as bench:
        for body_bytes in axes.body_bytes:
            topic = f"sizes-{body_bytes}"
            async with AsyncExitStack() as stack:
                made = await opened(bench, stack, 2)
                async with bench.connect() as cluster:
                    await make_topic(cluster, topic, QUEUES)
                body = b"x" * body_bytes
                point, _ = await sending(bench, made, topic, body, axes.seconds)
            yield placed(point, "append, by body bytes", body_bytes)
            point = await reading(bench, topic, 1, axes.seconds)
            yield placed(point, "pull, by body bytes", body_bytes)


async def rates(folder: Path, axes: Axes) -> AsyncIterator[Point]:
    """Measure the latency at fixed rates, with two producers and 100-byte bodies."""
    async with bench_cluster(folder) as bench, AsyncExitStack() as stack:
        made = await opened(bench, stack, 2)
        async with bench.connect() as cluster:
            await make_topic(cluster, "rates", QUEUES)
        for producer in made:
            await producer.send("rates", BODY)
        for rate in axes.offered:
            bench.meter.start()
            offered = await send_open(made, "rates", BODY, rate, axes.seconds)
            yield Point(
                measure="send, by offered rate",
                at=rate,
                rate=offered.sent / offered.elapsed,
                latency_ms=percentiles_ms(offered.seconds),
                use=bench.meter.stop(),
                figures={"refused": offered.refused, **late(offered)},
            )


async def reading(bench: Bench, topic: str, readers: int, seconds: float) -> Point:
    """Measure readers that read all messages as columns, repeatedly from the beginning."""
    messages = 0

    def read(count: int, _: int) -> None:
        nonlocal messages
        messages += count

    async with AsyncExitStack() as stack:
        clusters = [await stack.enter_async_context(bench.connect()) for _ in range(readers)]
        described = await clusters[0].admin.describe_topic(topic)
        states = (ends.state for ends in described.queues)
        stored = sum(state.max_offset for state in states if state is not None)
        bench.meter.start()
        began = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for cluster in clusters:
                reading = read_columns(cluster, topic, seconds, read, stored=stored)
                tasks.create_task(reading, name="reader")
        elapsed = time.perf_counter() - began
        use = bench.meter.stop()
    return Point(measure="pull", at=readers, rate=messages / elapsed, use=use)


async def readers(folder: Path, axes: Axes) -> AsyncIterator[Point]:
    """Measure increasing numbers of readers of all messages (fan-out), and of pulls without
    messages."""
    # All pulls come from one address.
    settings = {"broker": {"calls_per_address_max": 2 * max(axes.waiting_pulls)}}
    async with bench_cluster(folder, settings) as bench:
        async with bench.connect() as cluster:
            await make_topic(cluster, "readers", QUEUES)
            async with cluster.producer() as producer:
                await producer.send("readers", BODY)
                await send_closed([producer], "readers", BODY, axes.seconds)
        for count in axes.readers:
            point = await reading(bench, "readers", count, axes.seconds)
            yield placed(point, "pull, by readers", count)
        for count in axes.waiting_pulls:
            yield await waiting(bench, count, axes.seconds)


async def waiting(bench: Bench, count: int, seconds: float) -> Point:
    """Measure pulls that find no message and return immediately, while `count` long polls wait."""
    topic = f"waiting-{count}"
    queues = min(count, QUEUES_OF_A_TOPIC_MAX)
    await bench.wait_routes_reach(await create(bench, topic, queues))
    before = bench.resident_bytes()
    enough = False

    async def wait_again_and_again(number: int) -> None:
        request = PullRequest(topic=topic, queue_id=number % queues, wait_ms=30_000)
        try:
            while True:
                await bench.broker.Pull(request, timeout=120)
        except grpc.RpcError:
            # gRPC can raise this error for our own cancellation too.
            if not enough:
                raise

    async def all_wait() -> bool:
        return (await bench.described()).waiting_pulls >= count

    async def pull(number: int) -> None:
        request = PullRequest(topic=topic, queue_id=number % queues)
        await bench.broker.Pull(request, timeout=60)

    async with asyncio.TaskGroup() as tasks:
        waiters = [
            tasks.create_task(wait_again_and_again(number), name="waiting pull")
            for number in range(count)
        ]
        await until(all_wait)
        after = bench.resident_bytes()
        bench.meter.start()
        done = await call_closed(pull, 64, seconds)
        use = bench.meter.stop()
        enough = True
        for waiter in waiters:
            waiter.cancel()
    name = bench.broker_name
    return Point(
        measure="pull of nothing, by pulls that wait",
        at=count,
        rate=done.per_second,
        latency_ms=percentiles_ms(done.waits),
        use=use,
        figures={"broker_bytes_per_waiting_pull": (after[name] - before[name]) / count},
    )


async def members(folder: Path, axes: Axes) -> AsyncIterator[Point]:
    """Measure groups whose members share 64 queues: rebalance time, and latency to the handler."""
    async with bench_cluster(folder) as bench:
        for count in axes.members:
            topic, group = f"members-{count}", f"group-{count}"
            async with bench.connect() as cluster:
                await make_topic(cluster, topic, 64)
                yield await shared(bench, cluster, topic, group, count, axes.seconds)


async def shared(
    bench: Bench, cluster: rockoon.Cluster, topic: str, group: str, count: int, seconds: float
) -> Point:
    handled: list[float] = []

    async def handle(message: Message) -> None:
        handled.append(time.perf_counter() - SENT_AT.unpack(bytes(message.body)[: SENT_AT.size])[0])

    consumers = [
        cluster.push_consumer(
            group, {topic: "*"}, handle, consume_from="first", member_id=f"m{number:03}"
        )
        for number in range(count)
    ]

    rate = 500.0
    async with AsyncExitStack() as stack:
        bench.meter.start()
        began = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for consumer in consumers:
                tasks.create_task(stack.enter_async_context(consumer), name="join")
        await until(lambda: is_settled(consumers, 64))
        join_seconds = time.perf_counter() - began
        joining = bench.meter.stop()
        async with cluster.producer() as producer:
            bench.meter.start()
            total = int(rate * seconds)
            began = time.perf_counter()
            for number in range(total):
                due = began + number / rate
                await wait_for(due)
                producer.send(topic, SENT_AT.pack(due) + BODY)
            await producer.flush()

            await until(lambda: len(handled) >= total)
            elapsed = time.perf_counter() - began
            use = bench.meter.stop()
    return Point(
        measure="send to handler, by members",
        at=count,
        rate=total / elapsed,
        latency_ms=percentiles_ms(handled),
        use=use,
        figures={
            "join_seconds": join_seconds,
            "join_offset_cpu_seconds": joining.processes["offset"].cpu_seconds,
            "join_load_cpu_seconds": joining.processes[LOAD].cpu_seconds,
        },
    )
