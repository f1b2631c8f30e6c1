"""Receives while brokers and the offset service are killed and restarted."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from receiving.orders import Orders, numbers_of, receive

import rockoon
from rockoon.errors import BrokerUnavailable, NotAcquired, RockoonError
from rockoon.local import LocalCluster
from rockoon_core.message_queue import MessageQueue
from support.eventually import answered, eventually
from support.waiting import DEADLINE_SECONDS

topics = (f"orders-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as cluster:
        yield cluster


@pytest.fixture
async def orders(local: LocalCluster) -> AsyncIterator[Orders]:
    async with rockoon.connect(local.nameservers) as connected:
        topic = next(topics)
        await connected.admin.create_topic(topic, queues_per_broker=2)
        yield Orders(connected, topic)


class Work:
    """Receivers that acknowledge and record all their messages."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.done: list[int] = []
        self.refused = 0
        self.failures: list[RockoonError] = []

    async def go_on(self) -> None:
        consumer = self.orders.consumer()
        while True:
            try:
                messages = await consumer.receive(20, visible_after=60.0)
                for message in messages:
                    await consumer.ack(message)
                    self.done.append(int(message.body))
            except NotAcquired:
                self.refused += 1
            except RockoonError as failure:
                self.failures.append(failure)
                assert failure.retriable

    async def has_done(self, numbers: range) -> None:
        await eventually(lambda: set(numbers) <= set(self.done))


async def test_a_broker_that_dies_holds_up_its_own_messages_only(
    orders: Orders, local: LocalCluster
) -> None:
    work = Work(orders)

    async def send(first: int, brokers: str) -> None:
        for number in range(first, first + 20):
            queue = MessageQueue(orders.topic, f"broker-{brokers[number % len(brokers)]}", 0)
            await orders.send([number], queue=queue)

    async with asyncio.TaskGroup() as tasks:
        working = [tasks.create_task(work.go_on()) for _ in range(3)]
        await send(0, "ab")
        await work.has_done(range(20))
        local.kill("broker-b")
        await send(20, "a")
        await work.has_done(range(40))
        await asyncio.to_thread(local.restart, "broker-b")
        await send(40, "ab")
        await work.has_done(range(60))
        for task in working:
            task.cancel()
    assert sorted(work.done) == list(range(60)), "each once"
    await orders.all_settled()


@pytest.mark.soak
async def test_what_a_dead_broker_has_comes_when_it_is_back(
    orders: Orders, local: LocalCluster
) -> None:
    await orders.send(range(8))
    local.kill("broker-b")
    consumer = orders.consumer()
    try:
        found = []
        while messages := await consumer.receive(wait=2.0):
            found += messages
        assert all(message.queue.broker == "broker-a" for message in found)
    finally:
        await asyncio.to_thread(local.restart, "broker-b")
    found += await receive(consumer, 8 - len(found))
    assert numbers_of(found) == list(range(8))


@pytest.mark.soak
async def test_with_all_brokers_away_it_is_said_why_nothing_comes(
    orders: Orders, local: LocalCluster
) -> None:
    for broker in ("broker-a", "broker-b"):
        local.kill(broker)
    try:
        with pytest.raises(BrokerUnavailable):
            await orders.consumer().receive(wait=1.0)
    finally:
        for broker in ("broker-a", "broker-b"):
            await asyncio.to_thread(local.restart, broker)
    await orders.send([1])
    assert len(await orders.consumer().receive(wait=DEADLINE_SECONDS)) == 1


async def test_an_offset_service_that_is_killed_forgets_nothing_that_was_answered(
    orders: Orders, local: LocalCluster
) -> None:
    work = Work(orders)
    async with asyncio.TaskGroup() as tasks:
        working = [tasks.create_task(work.go_on()) for _ in range(3)]
        for first in (0, 30):
            await orders.send(range(first, first + 15))
            local.kill("offset")
            sending = tasks.create_task(orders.send(range(first + 15, first + 30)))
            await asyncio.to_thread(local.restart, "offset")
            await sending
        # Messages of a lost reply wait for their invisible time, which is long.
        await eventually(lambda: len(set(work.done)) > 40)
        for task in working:
            task.cancel()
    assert len(work.done) == len(set(work.done)), "what was acknowledged never comes again"


@pytest.mark.soak
async def test_leaders_of_the_log_and_of_progress_die(tmp_path: Path) -> None:
    """With copies no call waits for the killed process."""
    async with (
        LocalCluster(tmp_path, replicas=3) as local,
        rockoon.connect(local.nameservers) as cluster,
    ):
        await cluster.admin.create_topic("orders", queues_per_broker=2)
        orders = Orders(cluster, "orders")
        work = Work(orders)
        async with asyncio.TaskGroup() as tasks:
            working = [tasks.create_task(work.go_on()) for _ in range(3)]
            for turn, log in enumerate(["broker-a", "offset"] * 2):
                await orders.send(range(20 * turn, 20 * turn + 10))
                described = await cluster.admin.logs.describe(log)
                assert described.leader is not None
                local.kill(described.leader.name)
                await orders.send(range(20 * turn + 10, 20 * turn + 20))
                await asyncio.to_thread(local.restart, described.leader.name)
                await answered(
                    lambda log=log: cluster.admin.logs.describe(log),  # type: ignore[misc]
                    lambda found: found.confirmed and len(found.in_sync) == 3,
                )
            # Messages of a lost reply wait for their invisible time.
            await eventually(lambda: len(set(work.done)) > 60)
            for task in working:
                task.cancel()
        assert len(work.done) == len(set(work.done))
