"""Benchmark axes of the routes and of the broker's store: queues, topics, route watchers."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path

import grpc
import numpy as np
from grpc import aio

from bench.capacity.bench_cluster import OPTIONS, Bench, bench_cluster
from bench.capacity.point import Axes, Point, percentiles_ms
from bench.loops import append_in_streams, in_parallel, until
from bench.usage import disk_bytes
from rockoon_broker.store.recovery.checkpoint_files import read_recovery_point
from rockoon_format.batch import encode_batch
from rockoon_proto.v1.broker_pb2 import AppendRequest
from rockoon_proto.v1.nameserver_pb2 import (
    CreateTopicRequest,
    TopicConfig,
    UpdateTopicRequest,
    WatchRoutesRequest,
)
from rockoon_proto.v1.nameserver_pb2_grpc import NameServerStub

QUEUES_PER_TOPIC = 1000
CREATORS = 8
BODY = b"x" * 100
HOST = b"\x7f\x00\x00\x01" + (10911).to_bytes(4)
# The same choices in every run.
SEED = 5

Place = tuple[str, int]


async def create(bench: Bench, topic: str, queues: int) -> int:
    """Create a topic; return the route revision at which it exists."""
    request = CreateTopicRequest(config=TopicConfig(name=topic), queues_per_broker=queues)
    return int((await bench.nameserver.CreateTopic(request, timeout=60)).revision)


def one_message(topic: str, queue_id: int) -> AppendRequest:
    frames, lengths = encode_batch(topic.encode(), queue_id, [BODY], [b""], 0, HOST)
    packed = np.asarray(lengths, "<u4").tobytes()
    return AppendRequest(topic=topic, queue_id=queue_id, frames=frames, record_lengths=packed)


async def queues(folder: Path, axes: Axes) -> AsyncIterator[Point]:
    """Measure increasing numbers of queues with messages on a broker, in topics of 1,000 queues."""
    async with bench_cluster(folder) as bench:
        places: list[Place] = []
        empty = bench.resident_bytes()
        per_topic = min(QUEUES_PER_TOPIC, axes.queues[0])
        for count in axes.queues:
            new: list[Place] = []
            revision = 0
            while len(places) + len(new) < count:
                topic = f"queues-{(len(places) + len(new)) // per_topic}"
                revision = await create(bench, topic, per_topic)
                new += [(topic, number) for number in range(per_topic)]
            await bench.wait_routes_reach(revision)
            bench.meter.start()
            first_seconds = await append_to_each(bench, new)
            first = bench.meter.stop()
            places += new
            settle_seconds = await settled(bench)
            size = disk_bytes(folder / bench.broker_name / "consumequeue")
            resident = bench.resident_bytes()

            bench.meter.start()
            done = await append_in_streams(bench.broker, anywhere(places), axes.seconds)
            use = bench.meter.stop()
            spread_settle_seconds = await settled(bench)
            began = time.perf_counter()
            snapshot = await bench.routes()
            snapshot_seconds = time.perf_counter() - began
            serves_seconds = await bench.restart_seconds(bench.broker_name)
            await serves_all(bench, count)
            broker = bench.broker_name
            yield Point(
                measure="append to any queue, by queues",
                at=len(places),
                rate=done.per_second,
                latency_ms=percentiles_ms(done.waits),
                use=use,
                figures={
                    "first_appends_per_second": len(new) / first_seconds,
                    "first_append_broker_cpu_us": first.processes[broker].cpu_seconds
                    / len(new)
                    * 1e6,
                    "point_seconds_all_touched": settle_seconds,
                    "point_seconds_some_touched": spread_settle_seconds,
                    "consume_queue_disk_bytes": size,
                    "broker_empty_bytes": empty[broker],
                    "broker_bytes": resident[broker] - empty[broker],
                    "nameserver_bytes": resident[bench.nameserver_name]
                    - empty[bench.nameserver_name],
                    "offset_bytes": resident["offset"] - empty["offset"],
                    "snapshot_bytes": snapshot.ByteSize(),
                    "snapshot_seconds": snapshot_seconds,
                    "recovery_seconds": (await bench.described()).recovery_seconds,
                    "restart_seconds": serves_seconds,
                },
            )


async def serves_all(bench: Bench, queues: int) -> None:
    async def reached() -> bool:
        return int((await bench.described()).queues) >= queues

    await until(reached)


async def append_to_each(bench: Bench, places: Sequence[Place]) -> float:
    """Append a message to each queue; return the elapsed seconds."""
    requests = (one_message(*place) for place in places)
    return (await append_in_streams(bench.broker, requests)).seconds


def anywhere(places: Sequence[Place]) -> Iterator[AppendRequest]:
    """Yield endless messages for pseudo-random queues; each run yields the same sequence."""
    chance = random.Random(SEED)
    while True:
        yield one_message(*chance.choice(places))


async def settled(bench: Bench) -> float:
    """Wait until a recovery point covers the log, which syncs each changed file; return the
    seconds."""
    began = time.perf_counter()
    end = (await bench.described()).log_max_offset
    root = bench.folder / bench.broker_name

    async def covered() -> bool:
        point = await asyncio.to_thread(read_recovery_point, root)
        return point is not None and point.log_end >= end

    await until(covered)
    return time.perf_counter() - began


async def topics(folder: Path, axes: Axes) -> AsyncIterator[Point]:
    """Measure increasing numbers of one-queue topics: the cost of a creation in each service and
    etcd."""
    async with bench_cluster(folder) as bench:
        made = 0
        etcd_empty, empty = bench.etcd_bytes(), bench.resident_bytes()
        for count in axes.topics:
            revisions: list[int] = []

            async def make(number: int, revisions: list[int] = revisions) -> None:
                revisions.append(await create(bench, f"topics-{number}", 1))

            bench.meter.start()
            seconds = await in_parallel(make, range(made, count), CREATORS)
            began = time.perf_counter()
            await bench.wait_routes_reach(max(revisions))
            behind_seconds = time.perf_counter() - began
            use = bench.meter.stop()
            new, made = count - made, count
            began = time.perf_counter()
            snapshot = await bench.routes()
            snapshot_seconds = time.perf_counter() - began
            resident = bench.resident_bytes()
            nameserver = bench.nameserver_name
            yield Point(
                measure="make a topic, by topics",
                at=count,
                rate=new / use.seconds,
                use=use,
                figures={
                    "made_per_second": new / seconds,
                    "broker_behind_seconds": behind_seconds,
                    "snapshot_bytes": snapshot.ByteSize(),
                    "snapshot_seconds": snapshot_seconds,
                    "etcd_bytes": bench.etcd_bytes() - etcd_empty,
                    "nameserver_bytes": resident[nameserver] - empty[nameserver],
                    "broker_bytes": resident[bench.broker_name] - empty[bench.broker_name],
                    "offset_bytes": resident["offset"] - empty["offset"],
                },
            )


async def watchers(folder: Path, axes: Axes) -> AsyncIterator[Point]:
    """Measure the delivery of a route change to increasing numbers of clients that watch the
    topic."""
    # All connections come from one address.
    settings = {"nameserver": {"connections_per_address_max": 4 * max(axes.watchers)}}
    async with bench_cluster(folder, settings) as bench:
        revision = await create(bench, "watched", 8)
        await bench.wait_routes_reach(revision)
        for count in axes.watchers:
            yield await watched(bench, count, axes)


class Watcher:
    """Route watch of one client, and the last revision that it received."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.revision = 0
        self.at = 0.0

    async def run(self, changed: asyncio.Event) -> None:
        request = WatchRoutesRequest(topics=["watched"])
        async with aio.insecure_channel(self._address, options=OPTIONS) as channel:
            with contextlib.suppress(grpc.RpcError):
                async for update in NameServerStub(channel).WatchRoutes(request):
                    self.revision, self.at = update.revision, time.perf_counter()
                    changed.set()


async def watched(bench: Bench, count: int, axes: Axes) -> Point:
    changed = asyncio.Event()
    nameserver = bench.nameserver_name
    before = bench.resident_bytes()
    streams = [Watcher(bench.local.node(nameserver).address) for _ in range(count)]
    async with asyncio.TaskGroup() as tasks:
        runs = [tasks.create_task(each.run(changed), name="watcher") for each in streams]

        async def all_told(revision: int) -> bool:
            return all(each.revision >= revision for each in streams)

        await until(partial(all_told, 1))
        after = bench.resident_bytes()
        bench.meter.start()
        # The server sends keepalives every five seconds; some must be in the measured time.
        await asyncio.sleep(max(axes.seconds, 1.0))
        idle = bench.meter.stop()
        last_told: list[float] = []
        told: list[float] = []
        bench.meter.start()
        for number in range(axes.route_changes):
            request = UpdateTopicRequest(
                name="watched", attributes={"message.type": f"{count}-{number}"}
            )
            began = time.perf_counter()
            reply = await bench.nameserver.UpdateTopic(request, timeout=60)
            await until(partial(all_told, reply.revision))
            told += [each.at - began for each in streams]
            last_told.append(max(each.at for each in streams) - began)
        use = bench.meter.stop()
        for run in runs:
            run.cancel()
    busy = use.processes[nameserver].cpu_seconds
    return Point(
        measure="a change of one route, by watchers",
        at=count,
        rate=axes.route_changes * count / sum(last_told),
        latency_ms=percentiles_ms(told),
        use=use,
        figures={
            "all_told_ms": sum(last_told) / len(last_told) * 1e3,
            "nameserver_cpu_us_per_watcher_and_change": busy / (count * axes.route_changes) * 1e6,
            "idle_nameserver_cpu_us_per_watcher_second": idle.processes[nameserver].cpu_seconds
            / idle.seconds
            / count
            * 1e6,
            "nameserver_bytes_per_watcher": (after[nameserver] - before[nameserver]) / count,
        },
    )
