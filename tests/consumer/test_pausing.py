"""A paused group: its members stay, read nothing, and then continue at their offsets."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rockoon.cluster import Cluster
from rockoon.consumer.push_consumer import PushConsumer
from rockoon.errors import ConsumeDisabled
from rockoon.message import Message
from rockoon.offsets.local_offsets import LocalFileOffsetStore
from rockoon_core.message_queue import MessageQueue
from support.consumer_settings import grouped
from support.eventually import eventually
from support.fake_cluster import FakeCluster

PLACE = ("orders", "broker-a", 0)
Q0 = MessageQueue(*PLACE)


class Seen:
    """A handler that records its messages, and can be made to wait."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.begun = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, message: Message) -> None:
        self.begun += 1
        await self.gate.wait()
        self.bodies.append(message.body)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def consumer_of(cluster: Cluster, seen: Seen, **settings: Any) -> PushConsumer:
    chosen: dict[str, Any] = {"consume_from": "first", "commit_seconds": 60, **settings}
    return cluster.push_consumer("billing", {"orders": "*"}, seen, **grouped(chosen))


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_running_member_finishes_what_it_handles_stores_it_and_rests(
    fake: FakeCluster, cluster: Cluster, orderly: bool
) -> None:
    # A member that waits for the next heartbeat to see the pause waits in vain.
    fake.offset.heartbeat_seconds = fake.offset.lease_seconds = 3600
    fake.create_topic("orders")
    fake.append("orders", numbered(10))
    seen = Seen()
    seen.gate.clear()
    async with consumer_of(cluster, seen, concurrency=1, orderly=orderly) as consumer:
        await eventually(lambda: seen.begun == 1)
        fake.offset.pause("billing")
        await eventually(lambda: not consumer.queues())
        seen.gate.set()
        # Running calls count, and pulled messages come after the pause.
        await eventually(lambda: fake.offset.progress["billing", PLACE].offset == 1)
        await eventually(lambda: fake.offset.progress["billing", PLACE].owner == "")
        fake.append("orders", numbered(10, 10))
        assert consumer.members == [consumer.member_id]
        assert seen.begun == 1
        fake.offset.pause("billing", paused=False)
        await eventually(lambda: len(seen.bodies) == 20)
        assert consumer.starts[Q0].reason == "COMMITTED"
    assert seen.bodies == numbered(20)


async def test_a_member_that_starts_in_a_paused_group_waits(
    fake: FakeCluster, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(10))
    fake.offset.pause("billing")
    seen = Seen()
    async with consumer_of(cluster, seen) as consumer:
        await eventually(lambda: consumer.statistics.rebalances > 0)
        assert "group billing is paused" in caplog.text
        assert "idles" not in caplog.text
        assert ("billing", PLACE) not in fake.offset.progress
        fake.offset.pause("billing", paused=False)
        await eventually(lambda: len(seen.bodies) == 10)


async def test_a_member_that_has_not_heard_of_the_pause_is_refused_and_tries_again(
    fake: FakeCluster, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(10))
    fake.offset.pause("billing")
    fake.offset.tells_of_pauses = False
    seen = Seen()
    async with consumer_of(cluster, seen) as consumer:
        await eventually(lambda: "cannot be resolved yet" in caplog.text)
        assert consumer.queues() == {}
        fake.offset.pause("billing", paused=False)
        await eventually(lambda: len(seen.bodies) == 10)


async def test_a_member_with_progress_of_its_own_rests_too(
    fake: FakeCluster, cluster: Cluster, tmp_path: Path
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(10))
    seen = Seen()
    store = LocalFileOffsetStore(cluster, "billing", "shop-7", directory=tmp_path)
    async with consumer_of(
        cluster, seen, mode="broadcasting", member_id="shop-7", offset_store=store
    ) as consumer:
        await eventually(lambda: len(seen.bodies) == 10)
        fake.offset.pause("billing")
        await eventually(lambda: not consumer.queues())
        fake.append("orders", numbered(10, 10))
        fake.offset.pause("billing", paused=False)
        await eventually(lambda: len(seen.bodies) == 20)
    assert seen.bodies == numbered(20)


async def test_a_pull_consumer_of_a_paused_group_is_told(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.offset.pause("billing")
    async with cluster.pull_consumer("billing") as consumer:
        with pytest.raises(ConsumeDisabled):
            await consumer.assign([Q0])


async def test_a_pull_consumer_that_reads_is_told_with_its_next_commit_and_assigns_again(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", numbered(10))
    async with cluster.pull_consumer("billing", consume_from="first") as consumer:
        await consumer.assign([Q0])
        assert len(await consumer.poll(4)) == 4
        fake.offset.pause("billing")
        await consumer.commit()
        assert fake.offset.progress["billing", PLACE].offset == 4
        for _ in range(2):
            with pytest.raises(ConsumeDisabled):
                await consumer.poll()
            with pytest.raises(ConsumeDisabled):
                await consumer.assign([Q0])
        fake.offset.pause("billing", paused=False)
        await consumer.assign([Q0])
        found = []

        async def read() -> None:
            async for message in consumer:
                found.append(message.body)
                if len(found) == 2:
                    fake.offset.pause("billing")
                    await consumer.commit()

        with pytest.raises(ConsumeDisabled):
            await read()
        assert found == numbered(2, 4)
        fake.offset.pause("billing", paused=False)
        await consumer.assign([Q0])
        assert [message.body for message in await consumer.poll()] == numbered(4, 6)
