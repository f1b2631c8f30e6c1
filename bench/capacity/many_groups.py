"""Benchmark axes of the offset service, measured by gRPC calls without the SDK."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from bench.capacity.bench_cluster import Bench, bench_cluster
from bench.capacity.many_queues import append_to_each, create
from bench.capacity.point import Axes, Point, Use, percentiles_ms
from bench.loops import call_closed, in_parallel
from rockoon_proto.v1.nameserver_pb2 import SubscribeRequest
from rockoon_proto.v1.offset_pb2 import (
    CLUSTERING,
    CommitEntry,
    CommitRequest,
    HeartbeatRequest,
    ListMembersRequest,
    QueueRef,
    ResolveRequest,
    TopicSubscription,
    WatchGroupRequest,
)

TOPIC = "read"
QUEUES = 64
QUEUES_PER_GROUP = 8
CALLERS = 64
READS = [TopicSubscription(topic=TOPIC, expression="*")]
# A lease that does not expire while thousands of groups are created.
LEASE_SECONDS = 600.0
SETTINGS = {"offset": {"lease_seconds": LEASE_SECONDS}}


def group_name(number: int) -> str:
    return f"group-{number}"


class Groups:
    """Consumer groups of one member each; each group reads eight of the topic's queues."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.count = 0
        # Offset and epoch by group and queue.
        self._starts: dict[tuple[int, int], tuple[int, int]] = {}
        self._streams: list[Any] = []
        self._turn = 0

    def queues(self, group: int) -> list[QueueRef]:
        broker = self._bench.broker_name
        return [
            QueueRef(topic=TOPIC, broker=broker, queue_id=(group + number) % QUEUES)
            for number in range(QUEUES_PER_GROUP)
        ]

    async def subscribe(self, group: int) -> None:
        request = SubscribeRequest(group=group_name(group), topic=TOPIC, create_group=True)
        await self._bench.nameserver.Subscribe(request, timeout=60)

    async def heartbeat(self, group: int, member: str = "m", wanted: str = "") -> None:
        request = HeartbeatRequest(
            group=wanted or group_name(group),
            member_id=member,
            instance=member,
            mode=CLUSTERING,
            subscriptions=READS,
        )
        await self._bench.offset.Heartbeat(request, timeout=60)

    async def watch(self, group: int) -> None:
        request = WatchGroupRequest(group=group_name(group), member_id="m")
        stream = self._bench.offset.WatchGroup(request)
        await stream.read()
        self._streams.append(stream)

    async def resolve(self, group: int) -> None:
        queues = self.queues(group)
        request = ResolveRequest(group=group_name(group), member_id="m", queues=queues)
        reply = await self._bench.offset.Resolve(request, timeout=60)
        for queue, start in zip(queues, reply.starts, strict=True):
            assert not start.HasField("error"), start.error
            self._starts[group, queue.queue_id] = start.offset, start.epoch

    async def commit(self, group: int, queues: int) -> None:
        """Commit some of a group's queues; new metadata makes each commit a change."""
        self._turn += 1
        entries = []
        for queue in self.queues(group)[:queues]:
            offset, epoch = self._starts[group, queue.queue_id]
            entries.append(
                CommitEntry(queue=queue, offset=offset, epoch=epoch, metadata=str(self._turn))
            )
        request = CommitRequest(group=group_name(group), member_id="m", entries=entries)
        reply = await self._bench.offset.Commit(request, timeout=60)
        assert not any(result.HasField("error") for result in reply.results), reply

    def leave_streams(self) -> None:
        for stream in self._streams:
            stream.cancel()
        self._streams.clear()


async def groups(folder: Path, axes: Axes) -> AsyncIterator[Point]:
    """Measure the offset service's cost to create, store and commit increasing numbers of
    groups."""
    async with bench_cluster(folder, SETTINGS) as bench:
        await bench.wait_routes_reach(await create(bench, TOPIC, QUEUES))
        await append_to_each(bench, [(TOPIC, queue) for queue in range(QUEUES)])
        made = Groups(bench)
        empty, etcd_empty = bench.resident_bytes(), bench.etcd_bytes()
        for count in axes.groups:
            new = range(made.count, count)
            figures: dict[str, float] = {}
            for name, step in (
                ("subscribe", made.subscribe),
                ("join", made.heartbeat),
                ("watch", made.watch),
                ("resolve", made.resolve),
            ):
                bench.meter.start()
                seconds = await in_parallel(step, new, CALLERS)
                figures |= cost(bench, name, bench.meter.stop(), len(new), seconds)
            made.count = count
            resident = bench.resident_bytes()
            figures["offset_bytes"] = resident["offset"] - empty["offset"]
            figures["nameserver_bytes"] = (
                resident[bench.nameserver_name] - empty[bench.nameserver_name]
            )
            figures["offset_empty_bytes"] = empty["offset"]
            figures["nameserver_empty_bytes"] = empty[bench.nameserver_name]
            figures["snapshot_bytes"] = (await bench.routes()).ByteSize()
            figures["etcd_bytes"] = bench.etcd_bytes() - etcd_empty
            yield await calling(bench, made, "heartbeat", axes, {})
            yield await calling(bench, made, "commit 8 queues", axes, {})
            yield await calling(bench, made, "commit 1 queue", axes, figures)
        made.leave_streams()
        yield await restarted(bench, made.count)


def cost(bench: Bench, name: str, use: Use, count: int, seconds: float) -> dict[str, float]:
    return {
        f"{name}_per_second": count / seconds,
        f"{name}_offset_cpu_us": use.processes["offset"].cpu_seconds / count * 1e6,
        f"{name}_nameserver_cpu_us": use.processes[bench.nameserver_name].cpu_seconds / count * 1e6,
    }


async def calling(
    bench: Bench, made: Groups, measure: str, axes: Axes, figures: dict[str, float]
) -> Point:
    """Measure one kind of call in a closed loop, made for one group after the other."""
    turn = 0

    async def call(_: int) -> None:
        nonlocal turn
        turn += 1
        group = turn % made.count
        if measure == "heartbeat":
            await made.heartbeat(group)
        else:
            await made.commit(group, 8 if "8" in measure else 1)

    bench.meter.start()
    done = await call_closed(call, CALLERS, axes.seconds)
    return Point(
        measure=f"{measure}, by groups",
        at=made.count,
        rate=done.per_second,
        latency_ms=percentiles_ms(done.waits),
        use=bench.meter.stop(),
        figures=figures,
    )


async def restarted(bench: Bench, count: int) -> Point:
    """Kill the offset service; measure the time until it is ready and has listed all groups."""
    seconds = await bench.restart_seconds("offset")
    began = time.perf_counter()
    await bench.offset.ListMembers(ListMembersRequest(), timeout=120, wait_for_ready=True)
    listed_ms = (time.perf_counter() - began) * 1e3
    return Point(
        measure="offset service restarts, by groups",
        at=count,
        figures={"restart_seconds": seconds, "list_members_ms": listed_ms},
    )


async def heartbeats(folder: Path, axes: Axes) -> AsyncIterator[Point]:
    """Measure heartbeats of one group with increasing numbers of members; each reply lists all
    members."""
    async with bench_cluster(folder, SETTINGS) as bench:
        await bench.wait_routes_reach(await create(bench, TOPIC, QUEUES))
        made = Groups(bench)
        await made.subscribe(0)
        for count in axes.heartbeat_members:
            group = group_name(count)

            async def beat(number: int, count: int = count, group: str = group) -> None:
                await made.heartbeat(0, f"member-{number % count:04}", group)

            bench.meter.start()
            seconds = await in_parallel(beat, range(count), CALLERS)
            joined = bench.meter.stop()
            bench.meter.start()
            done = await call_closed(beat, CALLERS, axes.seconds)
            yield Point(
                measure="heartbeat, by members of the group",
                at=count,
                rate=done.per_second,
                latency_ms=percentiles_ms(done.waits),
                use=bench.meter.stop(),
                figures={
                    "join_seconds": seconds,
                    "join_offset_cpu_us": joined.processes["offset"].cpu_seconds / count * 1e6,
                },
            )
