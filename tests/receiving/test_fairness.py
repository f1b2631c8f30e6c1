"""Fair shares: topics are served in turn, and a fault affects only the receivers of its topic."""

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from receiving.orders import Orders, failure_of, receive

import rockoon
from rockoon.errors import Closed
from rockoon.receiving.settler import CallBatcher
from rockoon.subscription import Subscription
from support.waiting import DEADLINE_SECONDS


async def test_topics_take_turns(orders: Orders) -> None:
    other = Orders(orders.cluster, f"{orders.topic}-z")
    await orders.cluster.admin.create_topic(other.topic)
    await orders.send(range(12))
    await other.send(range(12))
    both = {orders.topic: "*", other.topic: "*"}
    async with orders.cluster.simple_consumer(orders.group, both, consume_from="first") as consumer:
        found = [each for _ in range(8) for each in await receive(consumer, 1)]
    assert {each.topic for each in found} == set(both)


async def test_what_came_back_for_a_topic_that_nobody_here_reads_is_left_alone(
    orders: Orders,
) -> None:
    other = Orders(orders.cluster, f"{orders.topic}-z")
    await orders.cluster.admin.create_topic(other.topic)
    await orders.send([1])
    failed = asyncio.Event()

    async def fail(message: rockoon.Message) -> rockoon.ConsumeResult:
        failed.set()
        return rockoon.ConsumeResult.later(seconds=0.05)

    async with orders.cluster.push_consumer(
        orders.group, {orders.topic: "*"}, fail, consume_from="first"
    ):
        await failed.wait()
    async with orders.cluster.simple_consumer(orders.group, {other.topic: "*"}) as consumer:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                assert await consumer.receive(wait=0.2) == []
                listed = await orders.cluster.admin.in_flight(orders.group)
                put_off_ms = [each.next_visible_at_ms - listed.as_of_ms for each in listed.queues]
                if any(30_000 < each < 61_000 for each in put_off_ms):
                    return


async def test_one_whose_messages_cannot_be_given_out_costs_no_other_his(orders: Orders) -> None:
    engine = orders.cluster.receiving
    whole = Subscription.parse(orders.topic, "*")
    broken = dataclasses.replace(whole, sql_expression="(((")

    async def received(group: str, wanted: Subscription, wait: float) -> list[Any]:
        got = await engine.receive(
            f"{group}-{orders.topic}",
            [wanted],
            messages_max=1,
            visible_after_ms=600_000,
            wait_seconds=wait,
            consume_from=rockoon.ConsumeFrom.FIRST,
        )
        return list(got)

    wishes = [("first", broken), ("second", whole)]
    for wish in wishes:
        assert await received(*wish, 0) == []
    async with asyncio.TaskGroup() as tasks:
        # The growing queue serves both in one call.
        failing = tasks.create_task(failure_of(received(*wishes[0], DEADLINE_SECONDS)))
        waiting = tasks.create_task(received(*wishes[1], DEADLINE_SECONDS))
        await asyncio.sleep(0)
        await orders.send([1])
        (message,) = await waiting
    assert message.body == b"1"
    assert failing.result() is not None


@pytest.mark.parametrize("is_sent", [False, True])
async def test_who_waits_for_an_answer_when_the_connection_is_closed_is_not_cancelled(
    *, is_sent: bool
) -> None:
    sent = asyncio.Event()

    async def send(_: object) -> Any:
        sent.set()
        await asyncio.Event().wait()

    cluster: Any = SimpleNamespace(tasks=asyncio, retry_seconds=DEADLINE_SECONDS)
    gathered: Any = CallBatcher(cluster, "answers", send)

    async def close() -> None:
        if is_sent:
            await sent.wait()
        gathered.close()

    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(failure_of(gathered.settle({"key": [1]})))
        tasks.create_task(close())
    assert isinstance(waiting.result(), Closed)
