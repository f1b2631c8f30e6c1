"""A topic of a receiver is deleted, or deleted and created again."""

import asyncio

import pytest
from receiving.orders import Orders, numbers_of, receive

import rockoon
from rockoon.errors import TopicNotFound
from support.waiting import DEADLINE_SECONDS


async def two(orders: Orders, missing_topics: str = "wait") -> rockoon.SimpleConsumer:
    other = f"other-{orders.topic}"
    await orders.cluster.admin.create_topic(other, queues_per_broker=1)
    return orders.cluster.simple_consumer(
        orders.group,
        {orders.topic: "*", other: "*"},
        consume_from="first",
        missing_topics=missing_topics,  # type: ignore[arg-type]
    )


async def test_messages_of_the_other_topic_come_and_later_those_of_the_new_topic(
    orders: Orders, caplog: pytest.LogCaptureFixture
) -> None:
    other = Orders(orders.cluster, f"other-{orders.topic}")
    async with await two(orders) as consumer:
        await orders.send([1])
        await consumer.ack(await receive(consumer, 1))
        waiting = orders.cluster.tasks.create_task(consumer.receive(wait=DEADLINE_SECONDS))
        await orders.cluster.admin.delete_topic(orders.topic)
        await other.send([2])
        found = await waiting
        await consumer.ack(found or await receive(consumer, 1))
        await other.send([3])
        assert numbers_of(await receive(consumer, 1)) == [3]
        await orders.cluster.admin.create_topic(orders.topic, queues_per_broker=4)
        await orders.send([4])
        assert numbers_of(await receive(consumer, 1)) == [4]
    said = [r.message for r in caplog.records if r.name == "rockoon.subscription"]
    assert [f"topic {orders.topic} was" in each for each in said] == [True, True]


async def test_a_receiver_without_topics_waits_for_one(orders: Orders) -> None:
    async with orders.consumer() as consumer:
        await orders.send([1])
        await consumer.ack(await receive(consumer, 1))
        await orders.cluster.admin.delete_topic(orders.topic)
        assert await consumer.receive(wait=0.1) == []
        waiting = orders.cluster.tasks.create_task(consumer.receive(wait=DEADLINE_SECONDS))
        await orders.cluster.admin.create_topic(orders.topic, queues_per_broker=1)
        await orders.send([2])
        assert numbers_of(await waiting) == [2]


async def test_a_receiver_may_refuse_to_go_without_a_topic(orders: Orders) -> None:
    async with await two(orders, "end") as consumer:
        await orders.send([1])
        await consumer.ack(await receive(consumer, 1))
        await orders.cluster.admin.delete_topic(orders.topic)
        with pytest.raises(TopicNotFound, match=orders.topic):
            await receive(consumer, 1)


async def test_a_topic_that_never_existed_is_refused(orders: Orders) -> None:
    consumer = orders.cluster.simple_consumer("billing", {"nothing": "*"})
    with pytest.raises(TopicNotFound, match="nothing"):
        await consumer.receive(wait=0)


@pytest.mark.parametrize("settings", [{}, {"batch_max": 10}, {"orderly": True}])
async def test_a_member_of_a_real_group_reads_a_topic_that_was_created_again(
    orders: Orders, settings: dict[str, int]
) -> None:
    other = f"other-{orders.topic}"
    await orders.cluster.admin.create_topic(other, queues_per_broker=1)
    seen: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

    async def handle(argument: rockoon.Message | list[rockoon.Message]) -> None:
        for message in argument if isinstance(argument, list) else [argument]:
            seen.put_nowait((message.topic, message.body))

    topics = {orders.topic: "*", other: "*"}
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        orders.cluster.push_consumer(
            orders.group,
            topics,
            handle,
            consume_from="first",
            **settings,  # type: ignore[arg-type]
        ),
    ):
        await orders.send([1])
        assert await seen.get() == (orders.topic, b"1")
        await orders.cluster.admin.delete_topic(orders.topic)
        await Orders(orders.cluster, other).send([2])
        assert await seen.get() == (other, b"2")
        await orders.cluster.admin.create_topic(orders.topic, queues_per_broker=4)
        await orders.send([3])
        assert await seen.get() == (orders.topic, b"3")
