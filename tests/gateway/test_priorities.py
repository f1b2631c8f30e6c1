"""Priorities through the gateway: of the messages that can be received the highest comes first."""

import random
from itertools import pairwise

import pytest

import rockoon
from gateway.consumers import Consumer, bodies, handle
from gateway.wire_client import WireClient, message
from rockoon_core.message_queue import MessageQueue
from rockoon_gateway.producing.sending import queue_of_priority
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code
from support.seeds import seeds

PRIORITIES = {"message.type": "PRIORITY"}


async def with_priorities(
    client: WireClient, cluster: rockoon.Cluster, name: str, priorities: list[int]
) -> Consumer:
    """Create a topic of ten queues with a message of each priority, in this order; return its
    consumer."""
    await cluster.admin.create_topic(name, queues_per_broker=10, attributes=PRIORITIES)
    for number, priority in enumerate(priorities):
        sent = message(
            name, b"%d" % priority, f"id-{number}", message_type=d.PRIORITY, priority=priority
        )
        assert (await client.send(sent)).status.code == Code.OK
    return Consumer(client, f"workers-of-{name}", name)


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("batch_size", [1, 5])
async def test_of_a_backlog_higher_priorities_come_first(
    client: WireClient, cluster: rockoon.Cluster, seed: int, batch_size: int
) -> None:
    order = [number % 10 for number in range(30)]
    random.Random(seed).shuffle(order)
    consumer = await with_priorities(client, cluster, f"backlog-{seed}-{batch_size}", order)
    found: list[d.Message] = []
    while len(found) < len(order):
        found += await consumer.receive(batch_size=batch_size)
    priorities = [each.system_properties.priority for each in found]
    assert all(one >= other for one, other in pairwise(priorities)), priorities
    assert [int(body) for body in bodies(found)] == priorities
    assert {each.system_properties.message_type for each in found} == {d.PRIORITY}
    assert dict(found[0].user_properties) == {}


async def test_receivers_of_the_sdk_get_higher_priorities_first(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    name = "received-by-the-sdk"
    await with_priorities(client, cluster, name, [1, 9, 0, 5, 3])
    async with cluster.simple_consumer("workers", {name: "*"}, consume_from="first") as consumer:
        found: list[bytes] = []
        while len(found) < 5:
            found += [each.body for each in await consumer.receive(2)]
    assert found == [b"9", b"5", b"3", b"1", b"0"]


async def test_what_comes_later_with_a_higher_priority_overtakes_and_what_failed_keeps_its_own(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer = await with_priorities(client, cluster, "overtaking", [3, 3, 8])
    (high,) = await consumer.receive_all(1, batch_size=1)
    assert high.body == b"8"
    await consumer.change(handle(high), 0)
    again, low = await consumer.receive_all(2, batch_size=1)
    assert (again.body, again.system_properties.delivery_attempt) == (b"8", 2)
    assert low.body == b"3"
    late = message("overtaking", b"9", "late", message_type=d.PRIORITY, priority=9)
    assert (await client.send(late)).status.code == Code.OK
    # The gateway has learnt of deliveries to another group.
    assert b"9" in bodies(await Consumer(client, "witnesses", consumer.topic).receive_all(4))
    assert bodies(await consumer.receive_all(1, batch_size=1)) == [b"9"]


async def test_a_priority_is_refused_where_there_are_none_and_below_0(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    await with_priorities(client, cluster, "strict", [])
    await cluster.admin.create_topic("without", queues_per_broker=1)
    plain = await client.send(message("strict"))
    assert plain.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    elsewhere = await client.send(message("without", priority=1, message_type=d.PRIORITY))
    assert elsewhere.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    below = await client.send(message("strict", priority=-1, message_type=d.PRIORITY))
    assert below.status.code == Code.BAD_REQUEST


@pytest.mark.parametrize(("priority", "queue_id"), [(0, 0), (2, 2), (3, 3), (9, 3)])
def test_the_queue_of_a_priority_is_its_number_or_the_last_and_brokers_take_turns(
    priority: int, queue_id: int
) -> None:
    queues = [MessageQueue("t", broker, number) for broker in "ab" for number in range(4)]
    chosen = [queue_of_priority(queues, priority, turn) for turn in range(4)]
    assert [each.queue_id for each in chosen] == [queue_id] * 4
    assert [each.broker for each in chosen] == ["a", "b", "a", "b"]
