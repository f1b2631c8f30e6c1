"""Batches of many queues in one message: only to brokers that accept them, each with its own
result."""

from collections import Counter

import rockoon
from rockoon.cluster import Cluster
from rockoon.errors import Busy
from rockoon.producer.producer import Producer
from rockoon_proto.v1 import broker_pb2 as pb
from support.fake_append_broker import FakeAppendBroker, Fault
from support.scripted_nameserver import ScriptedNameserver

QUEUES = 40


async def send_to_all(producer: Producer, topic: str, count: int, first: int = 0) -> None:
    """Send this many numbered messages to each queue, and wait for all."""
    keys = [f"key-{number}" for number in range(3 * QUEUES)]
    for number in range(first, first + count):
        for key in keys:
            producer.send(topic, b"%s %d" % (key.encode(), number), ordering_key=key)
        await producer.wait_capacity()
    await producer.flush()


def numbers(broker: FakeAppendBroker, topic: str) -> dict[bytes, list[int]]:
    """Return the stored messages of each key, in the order of its queue."""
    found: dict[bytes, list[int]] = {}
    for queue_id in range(QUEUES):
        for body in broker.bodies(topic, queue_id):
            key, number = body.split()
            found.setdefault(key, []).append(int(number))
    return found


async def test_many_queues_share_messages_and_each_key_keeps_its_order(
    nameserver: ScriptedNameserver, broker: FakeAppendBroker, cluster: Cluster
) -> None:
    broker.batches_max = 16
    nameserver.put_topic("wide", {"broker-a": QUEUES})
    async with cluster.producer() as producer:
        await producer.send("wide", b"first -1")
        await send_to_all(producer, "wide", 5)
    stored = numbers(broker, "wide")
    assert stored.pop(b"first") == [-1]
    assert set(map(tuple, stored.values())) == {(0, 1, 2, 3, 4)}
    assert len(stored) == 3 * QUEUES
    assert broker.requests >= QUEUES
    assert broker.messages <= broker.requests / 4


async def test_a_broker_that_says_nothing_of_them_gets_one_batch_in_a_message(
    nameserver: ScriptedNameserver, broker: FakeAppendBroker, cluster: Cluster
) -> None:
    nameserver.put_topic("wide", {"broker-a": QUEUES})
    async with cluster.producer() as producer:
        await send_to_all(producer, "wide", 2)
    assert broker.messages == broker.requests >= QUEUES
    assert set(map(tuple, numbers(broker, "wide").values())) == {(0, 1)}


async def test_a_broker_that_is_replaced_by_an_older_one_gets_single_batches_again(
    nameserver: ScriptedNameserver, broker: FakeAppendBroker, cluster: Cluster
) -> None:
    broker.batches_max = 100
    nameserver.put_topic("wide", {"broker-a": QUEUES})
    async with cluster.producer() as producer:
        await producer.send("wide", b"first -1")
        await send_to_all(producer, "wide", 1)
        assert broker.messages < broker.requests
        await broker.stop()
        broker.batches_max = broker.messages = broker.requests = 0
        await broker.start()
        # The fake refuses a message with several.
        await send_to_all(producer, "wide", 1, first=1)
        assert broker.messages == broker.requests
    stored = numbers(broker, "wide")
    del stored[b"first"]
    assert set(map(tuple, stored.values())) == {(0, 1)}


async def test_a_batch_that_is_refused_is_sent_again_and_no_other_of_its_message(
    nameserver: ScriptedNameserver, broker: FakeAppendBroker, cluster: Cluster
) -> None:
    broker.batches_max = 100
    nameserver.put_topic("wide", {"broker-a": QUEUES})
    refused = Counter[int]()

    def plan(request: pb.AppendRequest) -> Busy | None:
        if request.queue_id % 3 or request.topic != "wide" or refused[request.queue_id]:
            return None
        refused[request.queue_id] += 1
        return Busy(reason="a test")

    async with cluster.producer() as producer:
        await producer.send("orders", b"so that it says how many it takes")
        broker.plan = plan
        await send_to_all(producer, "wide", 3)
    assert len(refused) == len(range(0, QUEUES, 3))
    assert set(map(tuple, numbers(broker, "wide").values())) == {(0, 1, 2)}


async def test_what_a_broken_stream_has_not_answered_is_sent_again_as_a_whole(
    nameserver: ScriptedNameserver, broker: FakeAppendBroker
) -> None:
    broker.batches_max = 100
    nameserver.put_topic("wide", {"broker-a": QUEUES})
    broken: list[int] = []

    def plan(request: pb.AppendRequest) -> Fault | None:
        if request.more and len(request.more) > 3 and not broken:
            broken.append(len(request.more))
            return Fault.BREAK
        return None

    async with (
        rockoon.connect(nameserver.address) as cluster,
        cluster.producer(idempotent=True) as producer,
    ):
        await producer.send("wide", b"first -1")
        broker.plan = plan
        await send_to_all(producer, "wide", 2)
    assert broken
    stored = numbers(broker, "wide")
    del stored[b"first"]
    assert set(map(tuple, stored.values())) == {(0, 1)}
