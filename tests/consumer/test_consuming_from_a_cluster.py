"""Groups on a cluster of real processes: membership, expansion, crashes, resets."""

import asyncio
import itertools
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import rockoon
from rockoon.cluster import Cluster
from rockoon.consumer.push_consumer import PushConsumer
from rockoon.errors import OffsetServiceUnavailable
from rockoon.local import LocalCluster
from rockoon.message import Message
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.nameserver_pb2 import GroupConfig
from rockoon_proto.v1.offset_pb2 import ResetPlan, ResetTarget
from support import member_process
from support.consumer_settings import grouped
from support.eventually import answered, eventually
from support.waiting import DEADLINE_SECONDS

numbers = itertools.count()


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    settings = {"offset": {"heartbeat_seconds": 0.2, "lease_seconds": 3.0}}
    with LocalCluster(brokers=2, settings=settings) as cluster:
        yield cluster


@pytest.fixture
async def cluster(local: LocalCluster) -> AsyncIterator[Cluster]:
    async with rockoon.connect(local.nameservers) as connected:
        yield connected


@pytest.fixture
async def topic(cluster: Cluster) -> str:
    name = f"orders-{next(numbers)}"
    await cluster.admin.create_topic(name, queues_per_broker=2)
    return name


class Seen:
    """A handler that records its messages."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, message: Message) -> None:
        self.bodies.append(message.body)

    async def wait_all(self, bodies: Sequence[bytes]) -> None:
        await eventually(lambda: set(bodies) <= set(self.bodies))


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


async def send(cluster: Cluster, topic: str, bodies: Sequence[bytes], **more: Any) -> None:
    async with cluster.producer() as producer:
        await producer.send_many(topic, bodies, **more)


async def add_queues(cluster: Cluster, topic: str, queues: dict[str, int]) -> None:
    route = await cluster.admin.update_topic(topic, add=queues)
    await cluster.route(topic, min_revision=route.modified_revision)


def member(cluster: Cluster, topic: str, seen: Seen, **settings: Any) -> PushConsumer:
    chosen: dict[str, Any] = {"consume_from": "first", "commit_seconds": 0.1, **settings}
    return cluster.push_consumer(f"group-of-{topic}", {topic: "*"}, seen, **grouped(chosen))


async def committed(cluster: Cluster, topic: str) -> dict[MessageQueue, int]:
    progress = await cluster.admin.progress(f"group-of-{topic}", topic)
    return {
        MessageQueue(topic, each.queue.broker, each.queue.queue_id): each.offset
        for each in progress
    }


async def wait_read(cluster: Cluster, topic: str) -> None:
    """Wait until the group has no lag."""

    async def is_read() -> bool:
        try:
            lag = await cluster.admin.lag(f"group-of-{topic}", topic)
        except OffsetServiceUnavailable:  # it was killed a moment ago
            return False
        return lag.complete and lag.total_lag == 0

    await answered(is_read, bool)


async def test_members_share_the_queues_and_those_of_one_that_leaves(
    cluster: Cluster, topic: str
) -> None:
    seen = Seen()
    await send(cluster, topic, numbered(2000))
    async with member(cluster, topic, seen, member_id="a") as first:
        await eventually(lambda: len(first.assignment) == 4)
        async with member(cluster, topic, seen, member_id="b") as second:
            await eventually(lambda: len(first.assignment) == 2 == len(second.assignment))
            await send(cluster, topic, numbered(2000, 2000))
            await seen.wait_all(numbered(4000))
        await eventually(lambda: len(first.assignment) == 4)
        await send(cluster, topic, numbered(100, 4000))
        await seen.wait_all(numbered(4100))
        await wait_read(cluster, topic)
    assert sum((await committed(cluster, topic)).values()) == 4100


async def test_a_member_that_is_killed_is_replaced_and_nothing_is_left_out(
    cluster: Cluster, local: LocalCluster, topic: str
) -> None:
    seen = Seen()
    victim = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(member_process.__file__)),
        ",".join(local.nameservers),
        f"group-of-{topic}",
        topic,
        stdout=asyncio.subprocess.PIPE,
    )
    assert victim.stdout is not None
    try:
        async with member(cluster, topic, seen) as survivor:
            await eventually(lambda: len(survivor.members) == 2)
            await eventually(lambda: len(survivor.assignment) == 2)
            for part, queue in enumerate((await cluster.route(topic)).queues):
                await send(cluster, topic, numbered(750, 750 * part), queue=queue)
            handled_first = await victim.stdout.readline()
            assert handled_first
            victim.send_signal(signal.SIGKILL)
            rest = await victim.stdout.read()
            elsewhere = {line.strip() for line in [handled_first, *rest.splitlines()]}
            await eventually(lambda: len(survivor.assignment) == 4)
            await eventually(lambda: elsewhere | set(seen.bodies) >= set(numbered(3000)))
            await wait_read(cluster, topic)
    finally:
        if victim.returncode is None:
            victim.kill()
        await victim.wait()


async def test_queues_added_while_running_are_read_from_their_first_message(
    cluster: Cluster, topic: str
) -> None:
    seen = Seen()
    await send(cluster, topic, numbered(10))
    async with member(cluster, topic, seen, consume_from="last") as consumer:
        await eventually(lambda: len(consumer.assignment) == 4)
        assert {start.reason for start in consumer.starts.values()} == {"LAST"}
        await add_queues(cluster, topic, {"broker-b": 1})
        await send(cluster, topic, [b"new"], queue=MessageQueue(topic, "broker-b", 2))
        await seen.wait_all([b"new"])
        assert seen.bodies == [b"new"]


async def test_queues_added_while_stopped_are_read_from_their_first_message(
    cluster: Cluster, topic: str
) -> None:
    seen = Seen()
    await send(cluster, topic, numbered(10))
    async with member(cluster, topic, seen, consume_from="last") as consumer:
        await eventually(lambda: len(consumer.assignment) == 4)
    await add_queues(cluster, topic, {"broker-a": 1, "broker-b": 1})
    await send(cluster, topic, [b"while stopped"], queue=MessageQueue(topic, "broker-a", 2))
    async with member(cluster, topic, seen, consume_from="last") as consumer:
        await seen.wait_all([b"while stopped"])
        await eventually(lambda: len(consumer.assignment) == 6)
        assert consumer.starts[MessageQueue(topic, "broker-a", 2)].reason == "NEW_QUEUE"
        assert consumer.starts[MessageQueue(topic, "broker-a", 0)].reason == "COMMITTED"
    assert seen.bodies == [b"while stopped"]


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_broker_that_is_started_again_is_read_on(
    cluster: Cluster, local: LocalCluster, topic: str, end: str
) -> None:
    seen = Seen()
    async with member(cluster, topic, seen) as consumer:
        await send(cluster, topic, numbered(500))
        await seen.wait_all(numbered(500))
        await asyncio.to_thread(getattr(local, end), "broker-b")
        on_a = MessageQueue(topic, "broker-a", 0)
        await send(cluster, topic, numbered(100, 500), queue=on_a)
        await seen.wait_all(numbered(600))
        assert len(consumer.assignment) == 4
        await asyncio.to_thread(local.start, "broker-b")
        await send(cluster, topic, numbered(400, 600))
        await seen.wait_all(numbered(1000))
        await wait_read(cluster, topic)


async def test_the_offset_service_is_killed_while_members_consume(
    cluster: Cluster, local: LocalCluster, topic: str
) -> None:
    seen = Seen()
    async with member(cluster, topic, seen) as consumer:
        await send(cluster, topic, numbered(500))
        await seen.wait_all(numbered(500))
        await wait_read(cluster, topic)
        await asyncio.to_thread(local.kill, "offset")
        await send(cluster, topic, numbered(500, 500))
        await seen.wait_all(numbered(1000))
        await eventually(lambda: consumer.statistics.commits_failed > 0)
        await asyncio.to_thread(local.start, "offset")
        await send(cluster, topic, numbered(500, 1000))
        await seen.wait_all(numbered(1500))
        await wait_read(cluster, topic)


async def test_a_reset_moves_members_that_run(cluster: Cluster, topic: str) -> None:
    seen = Seen()
    async with member(cluster, topic, seen) as consumer:
        await send(cluster, topic, numbered(400))
        await seen.wait_all(numbered(400))
        await wait_read(cluster, topic)
        plan = await cluster.admin.plan_reset(consumer.group, topic, ResetTarget(earliest=True))
        await cluster.admin.apply_reset(plan.reset_id, "a test")
        await eventually(lambda: len(seen.bodies) >= 800)
        assert sorted(seen.bodies[:800]) == sorted(2 * numbered(400))
        await eventually(lambda: consumer.statistics.resets == 4)
        await wait_read(cluster, topic)
        # After the undo it continues at its former offset: new messages are read, and none again.
        before = {step.from_offset for step in plan.steps}
        await cluster.admin.undo_reset(plan.reset_id, "a test")
        await eventually(lambda: consumer.statistics.resets == 8)
        await eventually(lambda: {start.offset for start in consumer.starts.values()} == before)
        await send(cluster, topic, numbered(10, 400))
        await seen.wait_all(numbered(10, 400))
        assert len(seen.bodies) == 810


async def test_resets_are_applied_once_each_while_the_offset_service_is_killed(
    cluster: Cluster, local: LocalCluster, topic: str
) -> None:
    seen = Seen()
    async with member(cluster, topic, seen) as consumer:
        on_a = MessageQueue(topic, "broker-a", 0)
        await send(cluster, topic, numbered(400), queue=on_a)
        await wait_read(cluster, topic)

        async def reset(number: int) -> ResetPlan:
            return await cluster.admin.reset_offsets(
                consumer.group,
                topic,
                ResetTarget(offset=number),
                operator="a test",
                reset_id=f"{topic}-{number}",
            )

        async with asyncio.TaskGroup() as tasks:
            resets = [tasks.create_task(reset(number)) for number in range(40)]
            await eventually(lambda: any(each.done() for each in resets))
            await asyncio.to_thread(local.kill, "offset")
            await asyncio.to_thread(local.start, "offset")
        for number, each in enumerate(resets):
            assert max(step.to_offset for step in each.result().steps) == number
            # Applied before the kill or after it, and not again by this call.
            assert (await reset(number)).as_of_ms == each.result().as_of_ms
        # Whichever reset was the last one, message 39 and all later ones are read again.
        await eventually(lambda: len(seen.bodies) >= 400 + 361)
        await wait_read(cluster, topic)


async def test_a_paused_group_rests_also_when_members_come_and_go_on_when_it_is_resumed(
    cluster: Cluster, topic: str
) -> None:
    group = f"group-of-{topic}"
    first, second = Seen(), Seen()
    await send(cluster, topic, numbered(200))
    async with member(cluster, topic, first) as one:
        await first.wait_all(numbered(200))
        await cluster.admin.update_group(GroupConfig(name=group, consume_disabled=True))
        await eventually(lambda: not one.queues())
        await wait_read(cluster, topic)
        await send(cluster, topic, numbered(200, 200))
        async with member(cluster, topic, second) as two:
            await eventually(lambda: len(two.members) == 2)
            waiting = await cluster.admin.lag(group)
            assert (waiting.total_lag, two.queues(), one.queues()) == (200, {}, {})
            await cluster.admin.update_group(GroupConfig(name=group))
            await eventually(lambda: len(first.bodies + second.bodies) >= 400)
    assert sorted(map(int, first.bodies + second.bodies)) == list(range(400))


async def test_a_pull_consumer_reads_everything_and_goes_on_after_a_restart(
    cluster: Cluster, topic: str
) -> None:
    await send(cluster, topic, numbered(5000))
    found: list[bytes] = []
    for half in (2500, 5000):
        async with cluster.pull_consumer(f"group-of-{topic}", consume_from="first") as consumer:
            await consumer.assign_all(topic)
            while len(found) < half:
                messages = await consumer.poll(half - len(found), timeout=DEADLINE_SECONDS)
                assert messages
                found += [message.body for message in messages]
            await consumer.commit()
    assert sorted(map(int, found)) == list(range(5000))
