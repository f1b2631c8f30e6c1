"""FIFO groups: messages of one ordering key come one after the other, whoever receives them."""

import asyncio
import random
from collections.abc import Sequence

import pytest
from receiving.orders import Orders, numbers_of, receive

import rockoon
from rockoon.local import LocalCluster
from rockoon.producer.forwarded_batches import ForwardingSettings
from rockoon.producer.forwarding import ForwardingProducer
from rockoon.receiving.message_groups import message_group_hash
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


async def test_the_next_of_a_key_comes_when_the_one_before_is_done(fifo: Orders) -> None:
    await send(fifo, ["a", "b", "a", "b"])
    async with fifo.consumer() as consumer:
        first = await receive(consumer, 2)
        assert numbers_of(first) == [0, 1]
        assert await consumer.receive(wait=0) == []
        await consumer.ack([each for each in first if each.body == b"1"])
        (third,) = await consumer.receive()
        assert third.body == b"3"
        await consumer.nack([each for each in first if each.body == b"0"], delay=0.1)
        (again,) = await consumer.receive()
        assert (again.body, again.attempt) == (b"0", 2)
        await consumer.ack([again, third])
        (last,) = await consumer.receive()
        assert last.body == b"2"
        await consumer.ack(last)
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
    assert {each.receipt for each in first} == {each.receipt for each in again}
    assert (len(first) > 0, [each.attempt for each in again], other) == (True, [1] * len(first), [])


@pytest.mark.parametrize("seed", seeds(2))
async def test_no_receiver_gets_ahead_of_another(
    fifo: Orders, local: LocalCluster, seed: int
) -> None:
    chance = random.Random(seed)
    count = 150
    left = {str(key): list(range(key, count, KEYS)) for key in range(KEYS)}
    held: dict[str, int] = {}
    done = 0

    async def work(consumer: rockoon.SimpleConsumer) -> None:
        nonlocal done
        while done < count:
            for message in await consumer.receive(chance.randint(1, 10), wait=0.2):
                key, number = message.properties["__SHARDINGKEY"], int(message.body)
                assert key not in held, f"{number} while {held[key]} is in flight"
                assert left[key][0] == number, "in order"
                held[key] = number
                await asyncio.sleep(chance.random() / 1000)
                del held[key]
                if chance.random() < 0.1:
                    await consumer.nack(message, delay=chance.choice([0.0, 0.05]))
                else:
                    del left[key][0]
                    done += 1
                    await consumer.ack(message)

    async with rockoon.connect(local.nameservers) as other, asyncio.TaskGroup() as tasks:
        for consumer in (fifo.consumer(), fifo.consumer(), fifo.consumer(cluster=other)):
            for _ in range(3):
                tasks.create_task(work(consumer))
        await send(fifo, [str(number % KEYS) for number in range(count)])
    await fifo.all_settled()


async def test_without_message_groups_a_queue_is_one(fifo: Orders) -> None:
    await fifo.send(range(4), ordering_key="a")
    async with fifo.consumer() as consumer:
        for number in range(4):
            (message,) = await consumer.receive()
            assert message.body == b"%d" % number
            await consumer.ack(message)


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
        for _ in range(3):
            await consumer.ack(await receive(consumer, 1))
        await fifo.cluster.admin.delete_topic(fifo.topic)
        await fifo.cluster.admin.create_topic(fifo.topic, queues_per_broker=4)
        await send(fifo, ["a"])
        (message,) = await receive(consumer, 1)
        assert message.body == b"0"


def test_the_hash_of_a_message_group_is_never_another() -> None:
    """Receivers of other versions, and gateways, must agree."""
    assert message_group_hash("order-4711") == 0xA54547E8F3352621
    assert message_group_hash(None) == 0
