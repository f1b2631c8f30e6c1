"""Members that each read all messages, as real processes: pods that return with their names."""

import asyncio
import itertools
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import rockoon
from rockoon.cluster import Cluster
from rockoon.errors import InvalidArgument
from rockoon.local import LocalCluster
from rockoon.message import Message
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.nameserver_pb2 import BROADCAST_SERVER, GroupConfig
from rockoon_proto.v1.offset_pb2 import LagReply, ResetTarget
from support import member_process
from support.eventually import answered, eventually

GROUP = "prices"
numbers = itertools.count()


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    settings = {"offset": {"heartbeat_seconds": 0.2, "lease_seconds": 1.0}}
    with LocalCluster(brokers=2, settings=settings) as cluster:
        yield cluster


@pytest.fixture
async def cluster(local: LocalCluster) -> AsyncIterator[Cluster]:
    async with rockoon.connect(local.nameservers) as connected:
        config = GroupConfig(name=GROUP, broadcast_progress=BROADCAST_SERVER)
        await connected.admin.create_group(config, if_absent=True)
        yield connected


@pytest.fixture
async def topic(cluster: Cluster) -> str:
    name = f"prices-{next(numbers)}"
    await cluster.admin.create_topic(name, queues_per_broker=2)
    return name


class Pod:
    """A reader in its own process, which knows only its name."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.bodies: list[bytes] = []
        self._process = process

    async def read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.bodies.append(line.strip())

    def kill(self) -> None:
        self._process.kill()


def make_empty(disk: Path) -> bool:
    disk.mkdir(exist_ok=True)
    return not list(disk.iterdir())


@asynccontextmanager
async def pod(local: LocalCluster, topic: str, name: str, disk: Path) -> AsyncIterator[Pod]:
    """Run until the block ends, then kill it; all lines of its output are read."""
    assert make_empty(disk)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(member_process.__file__)),
        ",".join(local.nameservers),
        GROUP,
        topic,
        "broadcasting",
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "ROCKOON_MEMBER": name, "HOME": str(disk)},
    )
    started = Pod(process)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(started.read(), name=f"read what {name} says")
        try:
            yield started
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
    assert make_empty(disk), "the service keeps progress, not the pod"


class Sent:
    """Return the position of each message."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self.places: dict[bytes, tuple[MessageQueue, int]] = {}

    async def more(self, count: int) -> None:
        first = len(self.places)
        bodies = [str(number).encode() for number in range(first, first + count)]
        async with self._cluster.producer() as producer:
            for body, receipt in zip(
                bodies, await producer.send_many(self._topic, bodies), strict=True
            ):
                self.places[body] = (receipt.queue, receipt.queue_offset)


async def lag(cluster: Cluster, topic: str) -> LagReply:
    return await cluster.admin.lag(GROUP, topic)


async def committed_by(cluster: Cluster, topic: str, member: str) -> dict[MessageQueue, int]:
    """Return the progress of a member, by queue."""
    return {
        MessageQueue(each.queue.topic, each.queue.broker, each.queue.queue_id): each.offset
        for each in await cluster.admin.progress(GROUP, topic)
        if each.member == member
    }


async def test_a_pod_killed_and_started_anew_on_an_empty_disk_goes_on_where_it_was(
    cluster: Cluster, local: LocalCluster, topic: str, tmp_path: Path
) -> None:
    sent = Sent(cluster, topic)
    await sent.more(2000)
    other: list[bytes] = []

    async def handle(message: Message) -> None:
        other.append(message.body)

    async with cluster.push_consumer(
        GROUP, {topic: "*"}, handle, mode="broadcasting", member_id="pod-1", consume_from="first"
    ):
        async with pod(local, topic, "pod-0", tmp_path / "one") as first:
            await eventually(lambda: len(first.bodies) > 200)
            await sent.more(2000)
            await eventually(lambda: len(first.bodies) > 2500)
            await answered(
                lambda: committed_by(cluster, topic, "pod-0"), lambda seen: any(seen.values())
            )
            first.kill()
        committed = await committed_by(cluster, topic, "pod-0")
        # While it is away the topic grows; messages of the new queue must not be skipped.
        await cluster.admin.update_topic(topic, add={"broker-a": 1})
        await sent.more(1000)
        absent = {row.member: row.absent for row in (await lag(cluster, topic)).queues}
        assert absent.keys() == {"pod-0", "pod-1"}
        async with pod(local, topic, "pod-0", tmp_path / "two") as second:
            await eventually(
                lambda: set(first.bodies) | set(second.bodies) >= sent.places.keys(),
            )
        read_again = set(first.bodies) & set(second.bodies)
        for body in second.bodies:
            queue, offset = sent.places[body]
            assert offset >= committed.get(queue, 0), "committed, and delivered again"
        for runs in (first.bodies, second.bodies):
            assert len(runs) == len(set(runs))
        assert len(read_again) < len(first.bodies)
        await eventually(lambda: len(other) == 5000)
    assert sorted(other) == sorted(sent.places), "everybody reads everything, once"


async def test_a_reset_of_one_member_reaches_it_and_leaves_the_others_alone(
    cluster: Cluster, topic: str
) -> None:
    sent = Sent(cluster, topic)
    await sent.more(100)
    seen: dict[str, list[bytes]] = {"pod-0": [], "pod-1": []}

    def reader(name: str) -> rockoon.PushConsumer:
        async def handle(message: Message) -> None:
            seen[name].append(message.body)

        return cluster.push_consumer(
            GROUP, {topic: "*"}, handle, mode="broadcasting", member_id=name, consume_from="first"
        )

    async with reader("pod-0") as zero, reader("pod-1") as one:
        await eventually(lambda: all(len(each) == 100 for each in seen.values()))
        for consumer in (zero, one):
            await consumer.commit()
        plan = await cluster.admin.plan_reset(
            GROUP, topic, ResetTarget(earliest=True), member="pod-1"
        )
        await cluster.admin.apply_reset(plan.reset_id, "ada")
        await eventually(lambda: len(seen["pod-1"]) == 200)
    assert len(seen["pod-0"]) == 100


async def test_lag_tells_what_a_running_member_holds(cluster: Cluster, topic: str) -> None:
    """Also for members that share queues."""
    sent = Sent(cluster, topic)
    await sent.more(80)
    may_go_on = asyncio.Event()

    async def wait(message: Message) -> None:
        await may_go_on.wait()

    group = f"sharing-{topic}"
    async with cluster.push_consumer(group, {topic: "*"}, wait, consume_from="first"):

        async def in_flight() -> int | None:
            rows = (await cluster.admin.lag(group, topic)).queues
            if not all(row.HasField("in_flight") for row in rows):
                return None
            assert all(row.in_flight + row.ready == row.lag for row in rows)
            return sum(row.in_flight for row in rows)

        await answered(in_flight, lambda seen: seen == 80)
        may_go_on.set()
    reply = await cluster.admin.lag(group, topic)
    assert [(row.lag, row.in_flight, row.ready) for row in reply.queues] == [(0, 0, 0)] * 4


async def test_a_member_without_a_name_that_lasts_is_refused(cluster: Cluster, topic: str) -> None:
    async def handle(message: Message) -> None:
        pass

    consumer = cluster.push_consumer(GROUP, {topic: "*"}, handle, mode="broadcasting")
    with pytest.raises(InvalidArgument, match="ROCKOON_MEMBER"):
        await consumer.start()
