"""State that receivers of one connection share, and state that they must not share."""

import asyncio
from collections import Counter
from time import monotonic
from typing import Any

from receiving.orders import Orders, numbers_of, receive

import rockoon
from rockoon.cluster import Cluster
from rockoon.local import LocalCluster
from rockoon_proto.v1.broker_pb2 import DescribeBrokerRequest
from support.waiting import DEADLINE_SECONDS


async def subscriptions(orders: Orders) -> int:
    """Return the queues that the broker has on pull streams."""
    (queue, *_) = (await orders.cluster.route(orders.topic)).queues
    stub = orders.cluster.broker(queue.broker)
    return (await stub.DescribeBroker(DescribeBrokerRequest())).pull_subscriptions


async def test_hundreds_of_receivers_follow_a_queue_once(orders: Orders) -> None:
    before = await subscriptions(orders)
    async with orders.consumer() as consumer, asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(receive(consumer, 1)) for _ in range(400)]
        # Once the first has received a message, all wait.
        await orders.send([0])
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        # Four queues, and one of the retry topic.
        assert await subscriptions(orders) - before <= 5
        async with orders.cluster.producer() as producer:
            await producer.send_many(orders.topic, [b"%d" % each for each in range(1, 400)])
    assert numbers_of([each for task in waiting for each in task.result()]) == list(range(400))


class CountingCluster(Cluster):
    """A connection that counts its calls."""

    def __init__(self, nameservers: list[str]) -> None:
        super().__init__(nameservers)
        self.calls: Counter[str] = Counter()

    async def call(self, method: Any, request: Any, **options: Any) -> Any:
        self.calls[type(request).__name__] += 1
        return await super().call(method, request, **options)


async def test_a_message_for_a_waiting_receiver_costs_one_call(
    orders: Orders, local: LocalCluster
) -> None:
    async with CountingCluster(local.nameservers) as counting:
        began_at = monotonic()
        async with orders.consumer(cluster=counting) as consumer:
            for number in range(50):
                async with asyncio.TaskGroup() as tasks:
                    waiting = tasks.create_task(consumer.receive(32, wait=DEADLINE_SECONDS))
                    await orders.send([number])
                await consumer.ack(waiting.result())
        ticks = 4 * (monotonic() - began_at)
    assert counting.calls["AcknowledgeRequest"] == 50
    assert 50 <= counting.calls["AcquireRequest"] < 60 + ticks


async def test_groups_get_each_message_by_itself(orders: Orders) -> None:
    topics = {orders.topic: "*"}
    consumers = [
        orders.cluster.simple_consumer(f"{orders.group}-{each}", topics, consume_from="first")
        for each in range(10)
    ]
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(receive(consumer, 20)) for consumer in consumers]
        await orders.send(range(20))
    assert [numbers_of(task.result()) for task in waiting] == [list(range(20))] * 10


async def test_a_topic_of_the_same_name_is_another_one(orders: Orders) -> None:
    async with orders.consumer() as consumer:
        await orders.send(range(8))
        await consumer.ack(await receive(consumer, 8))
        await orders.cluster.admin.delete_topic(orders.topic)
        await orders.cluster.admin.create_topic(orders.topic, queues_per_broker=4)
        await orders.send(range(100, 104))
        found = []
        while len(found) < 4:
            messages = await failure_or_messages(consumer)
            found += messages
        assert numbers_of(found) == list(range(100, 104))


async def failure_or_messages(
    consumer: rockoon.SimpleConsumer,
) -> list[rockoon.ReceivedMessage]:
    """Receive; it is no failure if the topic does not exist (yet)."""
    try:
        return await consumer.receive(wait=1.0)
    except rockoon.errors.TopicNotFound:
        return []


async def test_a_queue_that_a_member_holds_gives_nothing_until_it_leaves(orders: Orders) -> None:
    stuck, begun = asyncio.Event(), asyncio.Event()

    async def handle(message: rockoon.Message) -> None:
        begun.set()
        await stuck.wait()

    await orders.send([1])
    async with asyncio.TaskGroup() as tasks:
        async with orders.cluster.push_consumer(
            orders.group,
            {orders.topic: "*"},
            handle,
            consume_from="first",
            timing=rockoon.Timing(drain_seconds=0.1),
        ):
            await begun.wait()
            assert await orders.consumer().receive(wait=0.5) == []
            waiting = tasks.create_task(receive(orders.consumer(), 1))
        (message,) = await waiting
    assert message.body == b"1"
    stuck.set()


async def test_large_messages_come_whole(orders: Orders) -> None:
    bodies = [bytes([each]) * (3 << 20) for each in range(6)]
    async with orders.cluster.producer() as producer:
        for body in bodies:
            await producer.send(orders.topic, body)
    async with orders.consumer() as consumer:
        found = await receive(consumer, 6)
        assert sorted(message.body for message in found) == bodies


async def test_what_others_have_taken_hides_nothing_in_other_queues(
    orders: Orders, local: LocalCluster
) -> None:
    cluster, topic = orders.cluster, orders.topic
    first, second = (await cluster.route(topic)).queues[:2]
    async with cluster.producer() as producer:
        for _ in range(8):
            await producer.send(topic, b"taken", queue=first)
    async with (
        rockoon.connect(local.nameservers) as elsewhere,
        cluster.simple_consumer("sharing-others", {topic: "*"}, consume_from="first") as mine,
        elsewhere.simple_consumer("sharing-others", {topic: "*"}) as theirs,
    ):
        # By now it is known here that the first queue has more.
        await mine.ack(await mine.receive(1, wait=DEADLINE_SECONDS))
        await mine.ack(await mine.receive(1, wait=DEADLINE_SECONDS))
        taken = 0
        while taken < 6:
            found = await theirs.receive(6, wait=DEADLINE_SECONDS)
            taken += len(found)
        async with cluster.producer() as producer:
            await producer.send(topic, b"left", queue=second)
        # A receiver that does not wait is served from all queues, too.
        found = []
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not found:
                found = await mine.receive(1, wait=0)
        assert [each.body for each in found] == [b"left"]
