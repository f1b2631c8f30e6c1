"""FIFO groups: messages of one ordering key come in order to all receivers of the group."""

import asyncio
import itertools
import random
from collections.abc import Sequence

import pytest
from receiving.orders import Orders, receive

import rockoon
from rockoon.local import LocalCluster
from rockoon.producer.forwarded_batches import ForwardingSettings
from rockoon.producer.forwarding import ForwardingProducer
from rockoon.receiving.kept_batches import message_group_hash
from rockoon.subscription import Subscription
from rockoon_format.properties import encode
from rockoon_proto.v1.nameserver_pb2 import GroupConfig
from support.seeds import seeds

KEYS = 7


async def send(orders: Orders, keys: Sequence[str]) -> None:
    """Send numbers as a gateway does: with the message group, which the SDK itself does not
    store."""
    async with ForwardingProducer(orders.cluster, ForwardingSettings()) as producer:
        for number, key in enumerate(keys):
            properties = encode({"UNIQ_KEY": f"{number:032}", "__SHARDINGKEY": key})
            await producer.forward(orders.topic, b"%d" % number, properties, ordering_key=key)


@pytest.fixture
async def fifo(orders: Orders) -> Orders:
    await orders.cluster.admin.create_group(GroupConfig(name=orders.group, fifo=True))
    return orders


async def test_the_next_of_a_key_come_when_those_before_are_done(fifo: Orders) -> None:
    await send(fifo, ["a"] * 5)
    async with fifo.consumer() as consumer:
        first = await receive(consumer, 3)
        assert [each.body for each in first] == [b"0", b"1", b"2"]
        assert await consumer.receive(wait=0) == []
        await send(fifo, ["b"])
        (beside,) = await consumer.receive()
        assert beside.properties["__SHARDINGKEY"] == "b"
        await consumer.ack([first[0], beside])
        await consumer.nack(first[1:], delay=0.1)
        again = await receive(consumer, 4)
        assert [each.body for each in again] == [b"1", b"2", b"3", b"4"]
        assert [each.attempt for each in again] == [2, 1, 1, 1]
        await consumer.ack(again)
    await fifo.all_settled()


async def test_a_try_that_is_repeated_gets_the_same_again(fifo: Orders) -> None:
    await fifo.send(range(3))
    engine = fifo.cluster.receiving

    async def tried(attempt_id: str) -> list[rockoon.ReceivedMessage]:
        got = await engine.receive(
            fifo.group,
            [Subscription.parse(fifo.topic, "*")],
            messages_max=8,
            visible_after_ms=30_000,
            wait_seconds=0,
            attempt_id=attempt_id,
            consume_from=rockoon.ConsumeFrom.FIRST,
        )
        return list(got)

    first, again, other = await tried("one"), await tried("one"), await tried("two")
    assert sorted(each.body for each in first) == sorted(each.body for each in again)
    assert (len(first) > 0, [each.attempt for each in again], other) == (True, [1] * len(first), [])
    # A gateway returns the first answer late, since its client has left.
    receipts = [each.receipt for each in first]
    assert await engine.change_visibility(fifo.group, receipts, 0) == [None] * len(first)
    assert await engine.acknowledge(fifo.group, [each.receipt for each in again]) == (
        [True] * len(first)
    )


@pytest.mark.parametrize("seed", seeds(2))
async def test_no_receiver_gets_ahead_of_another(
    fifo: Orders, local: LocalCluster, seed: int
) -> None:
    chance = random.Random(seed)
    count = 150
    left = {str(key): list(range(key, count, KEYS)) for key in range(KEYS)}
    holders: dict[str, int] = {}
    names = itertools.count()

    async def work(consumer: rockoon.SimpleConsumer, name: int) -> None:
        """Handle messages in order. After a failed one, none of its key is handled."""
        while any(left.values()):
            messages = await consumer.receive(chance.randint(1, 10), wait=0.2)
            by_key: dict[str, list[rockoon.ReceivedMessage]] = {}
            for message in messages:
                by_key.setdefault(message.properties["__SHARDINGKEY"], []).append(message)
            for key, some in by_key.items():
                assert holders.setdefault(key, name) == name, f"{key} has two receivers"
                assert [int(each.body) for each in some] == left[key][: len(some)], "in order"
            for key, some in by_key.items():
                await asyncio.sleep(chance.random() / 1000)
                good = chance.randint(0, len(some)) if chance.random() < 0.2 else len(some)
                del left[key][:good], holders[key]
                if done := some[:good]:
                    await consumer.ack(done)
                if failed := some[good:]:
                    await consumer.nack(failed, delay=chance.choice([0.0, 0.05]))

    async with rockoon.connect(local.nameservers) as other, asyncio.TaskGroup() as tasks:
        for consumer in (fifo.consumer(), fifo.consumer(), fifo.consumer(cluster=other)):
            for _ in range(3):
                tasks.create_task(work(consumer, next(names)))
        await send(fifo, [str(number % KEYS) for number in range(count)])
    await fifo.all_settled()


async def test_without_message_groups_a_queue_is_one(fifo: Orders) -> None:
    await fifo.send(range(4), ordering_key="a")
    async with fifo.consumer() as consumer:
        for expected in ([b"0", b"1", b"2"], [b"3"]):
            messages = await consumer.receive(3)
            assert [each.body for each in messages] == expected
            assert await consumer.receive(wait=0) == []
            await consumer.ack(messages)


async def test_more_than_are_looked_at_at_once_come_all(fifo: Orders) -> None:
    async with ForwardingProducer(fifo.cluster, ForwardingSettings()) as producer:
        for number in range(2500):
            key = str(number % 25)
            properties = encode({"UNIQ_KEY": f"{number:032}", "__SHARDINGKEY": key})
            await producer.wait_capacity()
            producer.forward(fifo.topic, b"%d" % number, properties, ordering_key="one queue")
    seen: set[int] = set()
    async with fifo.consumer() as consumer:
        while len(seen) < 2500:
            messages = await consumer.receive(1024)
            assert messages
            seen.update(int(message.body) for message in messages)
            await consumer.ack(messages)
    await fifo.all_settled()


async def test_a_topic_made_anew_is_received_from_although_it_is_shorter(fifo: Orders) -> None:
    async with fifo.consumer() as consumer:
        await send(fifo, ["a"] * 3)
        await consumer.ack(await receive(consumer, 3))
        await fifo.cluster.admin.delete_topic(fifo.topic)
        await fifo.cluster.admin.create_topic(fifo.topic, queues_per_broker=4)
        await send(fifo, ["a"])
        (message,) = await receive(consumer, 1)
        assert message.body == b"0"


def test_the_hash_of_a_message_group_is_never_another() -> None:
    """Receivers of other versions, and gateways, must agree."""
    assert message_group_hash("order-4711") == 0xA54547E8F3352621
    assert message_group_hash(None) == 0
