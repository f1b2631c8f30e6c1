"""`new_queue_rule = classic` for a whole cluster: RocketMQ's guess, and both of its errors.

RocketMQ considers a queue as new to a group that has no progress on it while the queue begins at 0
and its first message is within 40 % of memory of the log's end.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import rockoon
from rockoon.cluster import Cluster
from rockoon.consumer.push_consumer import PushConsumer
from rockoon.local import LocalCluster
from rockoon.message import Message
from rockoon.offsets.local_offsets import LocalFileOffsetStore
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.nameserver_pb2 import CLASSIC, EXACT, GroupConfig
from support.eventually import eventually

MEMORY = "256KiB"
BEYOND_MEMORY = [b"x" * 4096] * 64
FEW = [b"%d" % number for number in range(10)]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    settings = {"offset": {"new_queue_rule": "classic"}, "broker": {"memory_bytes": MEMORY}}
    with LocalCluster(brokers=1, settings=settings) as cluster:
        yield cluster


@pytest.fixture
async def cluster(local: LocalCluster) -> AsyncIterator[Cluster]:
    async with rockoon.connect(local.nameservers) as connected:
        yield connected


@pytest.fixture(params=["in the service", "locally"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """Place of the progress; a reader decides for itself by the same rules as the service."""
    return tmp_path if request.param == "locally" else None


def named(topic: str, kept: Path | None) -> tuple[str, str]:
    """Names of one test only: of a topic, and the suffix of group names."""
    more = "" if kept is None else "-of-readers"
    return topic + more, more


class Visit:
    """Result of one run of a group's only member."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.starts: dict[MessageQueue, tuple[str, int]] = {}

    async def __call__(self, message: Message) -> None:
        self.bodies.append(message.body)


async def visit(cluster: Cluster, group: str, topic: str, kept: Path | None) -> Visit:
    """Start at LAST if there is no progress, read to the ends, and leave.

    Args:
        cluster, group, topic: as named.
        kept: place of a broadcasting reader's progress; None: the offset service.
    """
    seen = Visit()
    queues = set((await cluster.route(topic)).queues)
    ends = {
        each.queue: each.state.max_offset
        for each in (await cluster.admin.describe_topic(topic)).queues
        if each.state is not None
    }
    assert set(ends) == queues

    def read_all(consumer: PushConsumer) -> bool:
        views = consumer.queues()
        return set(consumer.starts) == queues and all(
            queue in views and views[queue].commit_offset >= end for queue, end in ends.items()
        )

    store = None
    if kept is not None:
        store = LocalFileOffsetStore(cluster, group, "reader", directory=kept)
    async with cluster.push_consumer(
        group,
        {topic: "*"},
        seen,
        consume_from="last",
        mode="clustering" if kept is None else "broadcasting",
        member_id="reader",
        offset_store=store,
    ) as consumer:
        await eventually(lambda: read_all(consumer))
        seen.starts = {
            queue: (start.reason, start.offset) for queue, start in consumer.starts.items()
        }
    return seen


async def test_a_new_group_that_asks_for_last_replays_a_young_queue(
    cluster: Cluster, kept: Path | None
) -> None:
    """Unless the group has the rule EXACT: then it starts where it requested."""
    young, more = named("young", kept)
    await cluster.admin.create_topic(young, queues_per_broker=1)
    async with cluster.producer() as producer:
        await producer.send_many(young, FEW)
    exact_group, classic_group = f"exact-newcomers{more}", f"said-classic{more}"
    await cluster.admin.create_group(GroupConfig(name=exact_group, new_queue_rule=EXACT))
    await cluster.admin.create_group(GroupConfig(name=classic_group, new_queue_rule=CLASSIC))
    (queue,) = (await cluster.route(young)).queues

    for group in (f"newcomers{more}", classic_group):
        replaying = await visit(cluster, group, young, kept)
        assert replaying.starts == {queue: ("NEW_QUEUE", 0)}, group
        assert replaying.bodies == FEW
    exact = await visit(cluster, exact_group, young, kept)
    assert (exact.starts, exact.bodies) == ({queue: ("LAST", len(FEW))}, [])


async def test_a_group_that_is_away_skips_a_new_queue_whose_start_has_left_memory(
    cluster: Cluster, kept: Path | None
) -> None:
    """Unless the group has the rule EXACT: the queue was created after it subscribed."""
    growing, more = named("growing", kept)
    await cluster.admin.create_topic(growing, queues_per_broker=1)
    await cluster.admin.create_group(GroupConfig(name=f"exact-readers{more}", new_queue_rule=EXACT))
    for group in (f"readers{more}", f"exact-readers{more}"):
        await visit(cluster, group, growing, kept)
    (old,) = (await cluster.route(growing)).queues
    grown = await cluster.admin.update_topic(growing, add={old.broker: 1})
    (new,) = set(grown.queues) - {old}
    async with cluster.producer() as producer:
        await producer.send_many(growing, BEYOND_MEMORY, queue=new)
        await producer.send_many(growing, FEW, queue=old)

    skipping = await visit(cluster, f"readers{more}", growing, kept)
    assert skipping.starts == {old: ("COMMITTED", 0), new: ("LAST", len(BEYOND_MEMORY))}
    assert skipping.bodies == FEW
    exact = await visit(cluster, f"exact-readers{more}", growing, kept)
    assert exact.starts == {old: ("COMMITTED", 0), new: ("NEW_QUEUE", 0)}
    assert sorted(exact.bodies) == sorted(FEW + BEYOND_MEMORY)


async def test_a_broker_added_under_groups_is_read_from_its_first_message(
    cluster: Cluster, local: LocalCluster
) -> None:
    """Rule EXACT, policy LAST: one group runs, one is blocked in its handler, one is stopped."""
    topic, groups = "spreading", ("running", "lagging", "stopped")
    await cluster.admin.create_topic(topic, queues_per_broker=1)
    (old,) = (await cluster.route(topic)).queues
    seen: dict[str, list[bytes]] = {group: [] for group in groups}
    resumed = asyncio.Event()

    def member(group: str) -> PushConsumer:
        async def handle(message: Message) -> None:
            seen[group].append(message.body)
            if group == "lagging":
                await resumed.wait()

        return cluster.push_consumer(group, {topic: "*"}, handle, create_group=False, concurrency=1)

    for group in (*groups, "latecomer"):
        await cluster.admin.create_group(GroupConfig(name=group, new_queue_rule=EXACT))
    async with member("running") as running, member("lagging") as lagging:
        async with member("stopped") as stopped:
            members = (running, lagging, stopped)
            await eventually(lambda: all(old in each.starts for each in members))
        async with cluster.producer() as producer:
            await producer.send(topic, FEW[0], queue=old)
            await eventually(lambda: seen["running"] == seen["lagging"] == FEW[:1])
            broker = await asyncio.to_thread(local.add_broker)
            grown = await cluster.admin.update_topic(topic, add={broker: 1})
            (new,) = set(grown.queues) - {old}
            await cluster.route(topic, min_revision=grown.modified_revision)
            await producer.send_many(topic, BEYOND_MEMORY, queue=new)
        resumed.set()
        async with member("stopped") as stopped:
            every = sorted([FEW[0], *BEYOND_MEMORY])
            await eventually(lambda: all(sorted(each) == every for each in seen.values()))
            for each in (running, lagging, stopped):
                assert (each.starts[new].reason, each.starts[new].offset) == ("NEW_QUEUE", 0)
    latecomer = await visit(cluster, "latecomer", topic, None)
    assert latecomer.starts == {old: ("LAST", 1), new: ("LAST", len(BEYOND_MEMORY))}
