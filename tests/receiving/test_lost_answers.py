"""Answers of the offset service that are lost on the way to receivers which gateways report."""

import asyncio
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
from rockoon_proto.v1.in_flight_pb2 import AcknowledgeRequest, ChangeVisibilityRequest
from rockoon_proto.v1.nameserver_pb2 import GroupConfig

HOUR_MS = 3_600_000


class LosingCluster(Cluster):
    """A connection that loses the first answer which grants messages."""

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
    """What a client gets for which a gateway asks, and which it reports."""
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
    # Another gateway asks: the one whose answer was lost has no receivers any more.
    (got,) = await received(orders.cluster, orders, "other")
    assert (got.body, got.attempt) == (b"1", 1)


class FailingCluster(Cluster):
    """A connection whose first settling calls fail, and are not repeated by their callers.

    Args:
        nameservers: of the cluster.
        failing: type of the requests that fail.
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
            # A receiver that is cancelled now has left before the answer is given out.
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
