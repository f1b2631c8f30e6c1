"""Lost replies of the offset service to receivers that gateways report."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from receiving.orders import Orders

import rockoon
from rockoon.cluster import Cluster
from rockoon.errors import OffsetServiceUnavailable
from rockoon.local import LocalCluster
from rockoon.receiving.received import ReceivedMessages
from rockoon.subscription import Subscription
from rockoon_proto.v1.in_flight_pb2 import (
    AcknowledgeRequest,
    AcquireRequest,
    ChangeVisibilityRequest,
)
from rockoon_proto.v1.nameserver_pb2 import GroupConfig
from support.seeds import seeds

HOUR_MS = 3_600_000


class LosingCluster(Cluster):
    """A connection that loses the first reply with granted messages."""

    def __init__(self, nameservers: list[str]) -> None:
        super().__init__(nameservers)
        self.lost = asyncio.Event()

    async def call(self, method: Any, request: Any, **options: Any) -> Any:
        reply = await super().call(method, request, **options)
        granted = getattr(reply, "granted", ())
        if not self.lost.is_set() and any(each.acquired for each in granted):
            self.lost.set()
            raise OffsetServiceUnavailable
        return reply


@pytest.fixture
async def losing(local: LocalCluster) -> AsyncIterator[LosingCluster]:
    async with LosingCluster(local.nameservers) as cluster:
        yield cluster


async def received(
    cluster: Cluster, orders: Orders, client: str, *, tags: str = "*", **more: Any
) -> ReceivedMessages:
    """Return the messages of a client for which a gateway calls, and which it reports."""
    return await cluster.receiving.receive(
        orders.group,
        [Subscription.parse(orders.topic, tags)],
        messages_max=8,
        visible_after_ms=60_000,
        wait_seconds=15.0,
        receiver=client,
        held_ms_max=3 * HOUR_MS,
        consume_from=rockoon.ConsumeFrom.FIRST,
        **more,
    )


@pytest.mark.parametrize("is_fifo", [False, True], ids=["plain", "fifo"])
async def test_messages_of_a_lost_answer_come_again_without_an_attempt(
    orders: Orders, losing: LosingCluster, *, is_fifo: bool
) -> None:
    if is_fifo:
        await orders.cluster.admin.create_group(GroupConfig(name=orders.group, fifo=True))
    await orders.send([1])
    (got,) = await received(losing, orders, "client", attempt_id="first")
    assert losing.lost.is_set()
    assert (got.body, got.attempt) == (b"1", 1)
    assert await losing.receiving.acknowledge(orders.group, [got.receipt]) == [True]


async def test_messages_of_a_lost_answer_come_to_another_client_if_its_receiver_has_gone(
    orders: Orders, losing: LosingCluster
) -> None:
    await orders.send([1])
    async with asyncio.TaskGroup() as tasks:
        leaving = tasks.create_task(received(losing, orders, "leaving"))
        await losing.lost.wait()
        leaving.cancel()
    # Another gateway calls: the one whose reply was lost has no receivers any more.
    (got,) = await received(orders.cluster, orders, "other")
    assert (got.body, got.attempt) == (b"1", 1)


class FailingCluster(Cluster):
    """A connection whose first settling calls fail, and are not repeated by their callers.

    Args:
        nameservers: of the cluster.
        failing: type of the failing requests.
    """

    def __init__(self, nameservers: list[str], failing: type[Any]) -> None:
        super().__init__(nameservers, retry_seconds=0.0)
        self._failing = failing
        self._failures_left = 2
        self.granted = asyncio.Event()

    async def call(self, method: Any, request: Any, **options: Any) -> Any:
        if isinstance(request, self._failing) and self._failures_left:
            self._failures_left -= 1
            raise OffsetServiceUnavailable
        reply = await super().call(method, request, **options)
        if any(each.acquired for each in getattr(reply, "granted", ())):
            self.granted.set()
            # A receiver that is cancelled now has left before the reply is distributed.
            await asyncio.sleep(0)
        return reply


async def test_messages_that_a_receiver_left_behind_are_returned_after_failures(
    orders: Orders, local: LocalCluster
) -> None:
    await orders.send([1])
    async with FailingCluster(local.nameservers, ChangeVisibilityRequest) as failing:
        async with asyncio.TaskGroup() as tasks:
            leaving = tasks.create_task(received(failing, orders, "leaving"))
            await failing.granted.wait()
            leaving.cancel()
        (got,) = await received(orders.cluster, orders, "other")
    assert (got.body, got.attempt) == (b"1", 1)


async def test_messages_that_a_filter_leaves_out_are_settled_after_failures(
    orders: Orders, local: LocalCluster
) -> None:
    await orders.send([1])
    async with (
        FailingCluster(local.nameservers, AcknowledgeRequest) as failing,
        asyncio.TaskGroup() as tasks,
    ):
        reading = tasks.create_task(received(failing, orders, "client", tags="some"))
        await failing.granted.wait()
        await orders.all_settled()
        reading.cancel()


class LossyCluster(Cluster):
    """A connection that loses one of twenty replies about messages."""

    def __init__(self, nameservers: list[str], chance: random.Random) -> None:
        super().__init__(nameservers)
        self._chance = chance

    async def call(self, method: Any, request: Any, **options: Any) -> Any:
        reply = await super().call(method, request, **options)
        is_about_messages = isinstance(request, AcquireRequest | ChangeVisibilityRequest)
        if is_about_messages and self._chance.random() < 0.05:
            raise OffsetServiceUnavailable
        return reply


@pytest.mark.parametrize("is_fifo", [False, True], ids=["plain", "fifo"])
@pytest.mark.parametrize("seed", seeds(1))
async def test_clients_that_leave_at_random_get_each_message_once(
    orders: Orders, local: LocalCluster, seed: int, *, is_fifo: bool
) -> None:
    chance = random.Random(seed)
    if is_fifo:
        await orders.cluster.admin.create_group(GroupConfig(name=orders.group, fifo=True))
    count = 200
    handled: list[bytes] = []

    async def read(cluster: Cluster, client: str) -> None:
        while len(handled) < count:
            try:
                async with asyncio.timeout(chance.choice((0.005, 0.02, 0.1, 1.0))):
                    got = await received(
                        cluster, orders, client, attempt_id=f"{chance.getrandbits(60)}"
                    )
            except (TimeoutError, OffsetServiceUnavailable):
                continue
            assert {each.attempt for each in got} <= {1}
            handled.extend(each.body for each in got)
            taken = await cluster.receiving.acknowledge(
                orders.group, [each.receipt for each in got]
            )
            assert all(taken)

    async with LossyCluster(local.nameservers, chance) as lossy, asyncio.TaskGroup() as tasks:
        for number in range(12):
            # Some have two receivers.
            tasks.create_task(read(lossy, f"client-{number % 9}"), name=f"reader {number}")
        await orders.send(range(count))
    assert sorted(handled) == sorted(b"%d" % number for number in range(count))
    await orders.all_settled()
