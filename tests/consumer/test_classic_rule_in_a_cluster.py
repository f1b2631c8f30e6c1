"""`new_queue_rule = classic` for a whole cluster: RocketMQ's guess, both ways it errs.

RocketMQ takes a queue for new to a group that has no progress on it while the queue begins at 0 and
its first message lies within 40 % of memory of the log's end.
"""

import sys
from collections.abc import AsyncIterator, Iterator

import pytest

import rockoon
from rockoon.connection import Cluster
from rockoon.local import LocalCluster
from rockoon.message import Message, MessageQueue
from rockoon.push_consumer import PushConsumer
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


class Visit:
    """What one stay of a group's only member came to."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.starts: dict[MessageQueue, tuple[str, int]] = {}

    async def __call__(self, message: Message) -> None:
        self.bodies.append(message.body)


async def visit(cluster: Cluster, group: str, topic: str) -> Visit:
    """Start at LAST where there is no progress, read to the ends, and leave."""
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

    async with cluster.push_consumer(group, {topic: "*"}, seen, consume_from="last") as consumer:
        await eventually(lambda: read_all(consumer))
        seen.starts = {
            queue: (start.reason, start.offset) for queue, start in consumer.starts.items()
        }
    return seen


async def test_a_new_group_that_asks_for_last_replays_a_young_queue(cluster: Cluster) -> None:
    """Unless the group has the rule EXACT: it then gets what it asked for."""
    await cluster.admin.create_topic("young", queues_per_broker=1)
    async with cluster.producer() as producer:
        await producer.send_many("young", FEW)
    await cluster.admin.create_group(GroupConfig(name="exact-newcomers", new_queue_rule=EXACT))
    await cluster.admin.create_group(GroupConfig(name="said-classic", new_queue_rule=CLASSIC))
    (queue,) = (await cluster.route("young")).queues

    for group in ("newcomers", "said-classic"):
        replaying = await visit(cluster, group, "young")
        assert replaying.starts == {queue: ("NEW_QUEUE", 0)}, group
        assert replaying.bodies == FEW
    exact = await visit(cluster, "exact-newcomers", "young")
    assert (exact.starts, exact.bodies) == ({queue: ("LAST", len(FEW))}, [])


async def test_a_group_that_is_away_skips_a_new_queue_whose_start_has_left_memory(
    cluster: Cluster,
) -> None:
    """Unless the group has the rule EXACT: the queue was born after it subscribed."""
    await cluster.admin.create_topic("growing", queues_per_broker=1)
    await cluster.admin.create_group(GroupConfig(name="exact-readers", new_queue_rule=EXACT))
    for group in ("readers", "exact-readers"):
        await visit(cluster, group, "growing")
    (old,) = (await cluster.route("growing")).queues
    grown = await cluster.admin.update_topic("growing", add={old.broker: 1})
    (new,) = set(grown.queues) - {old}
    async with cluster.producer() as producer:
        await producer.send_many("growing", BEYOND_MEMORY, queue=new)
        await producer.send_many("growing", FEW, queue=old)

    skipping = await visit(cluster, "readers", "growing")
    assert skipping.starts == {old: ("COMMITTED", 0), new: ("LAST", len(BEYOND_MEMORY))}
    assert skipping.bodies == FEW
    exact = await visit(cluster, "exact-readers", "growing")
    assert exact.starts == {old: ("COMMITTED", 0), new: ("NEW_QUEUE", 0)}
    assert sorted(exact.bodies) == sorted(FEW + BEYOND_MEMORY)
