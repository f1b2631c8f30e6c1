"""Sends while the topic's route is unknown, or disappears during a batch."""

import asyncio

import pytest

import rockoon
from rockoon.cluster import Cluster
from rockoon.errors import NotReady, QueueNotFound, RockoonError
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.broker_pb2 import AppendRequest
from support.eventually import eventually
from support.fake_append_broker import FakeAppendBroker, Fault
from support.scripted_nameserver import ScriptedNameserver
from support.waiting import DEADLINE_SECONDS


async def test_closing_waits_for_messages_whose_queue_is_not_known_yet(
    nameserver: ScriptedNameserver, broker: FakeAppendBroker
) -> None:
    nameserver.put_topic("orders", {"broker-a": 4})
    async with asyncio.timeout(DEADLINE_SECONDS), rockoon.connect(nameserver.address) as cluster:
        async with cluster.producer() as producer:
            receipts = [producer.send("orders", b"%d" % n, ordering_key="k") for n in range(10)]
        for receipt in receipts:
            await receipt
    assert broker.all_bodies("orders") == [b"%d" % n for n in range(10)]


async def test_messages_whose_queue_never_becomes_known_fail_at_their_deadline(
    nameserver: ScriptedNameserver, broker: FakeAppendBroker
) -> None:
    async with rockoon.connect(nameserver.address) as cluster:
        nameserver.failure = NotReady(service="the nameserver", reason="no etcd")
        producer = cluster.producer(delivery_timeout_seconds=0.5)
        async with asyncio.timeout(DEADLINE_SECONDS):
            # The second one begins while the producer has no other message.
            for _ in range(2):
                with pytest.raises(NotReady):
                    await producer.send("orders", b"one", ordering_key="k")
        assert producer.buffered_bytes == 0
        nameserver.failure = None
        nameserver.put_topic("orders", {"broker-a": 1})
        await producer.send("orders", b"two", ordering_key="k")
    assert broker.all_bodies("orders") == [b"two"]


async def test_a_batch_whose_queue_goes_away_while_it_is_out_fails(
    cluster: Cluster, broker: FakeAppendBroker, nameserver: ScriptedNameserver
) -> None:
    producer = cluster.producer(delivery_timeout_seconds=3)
    gone = MessageQueue("orders", "broker-a", 3)
    await producer.send("orders", b"before")

    def plan(request: AppendRequest) -> Fault | RockoonError | None:
        if request.queue_id != gone.queue_id:
            return None
        return QueueNotFound(topic="orders", queue=request.queue_id, broker="broker-a")

    broker.gate.clear()
    broker.plan = plan
    requests = broker.requests
    receipt = producer.send("orders", b"lost", queue=gone)
    await eventually(lambda: broker.requests > requests)
    revision = nameserver.put_topic("orders", {"broker-a": 1})
    await eventually(lambda: cluster.routes.topic_revision("orders") >= revision)
    broker.gate.set()
    async with asyncio.timeout(DEADLINE_SECONDS):
        with pytest.raises(RockoonError):
            await receipt
    assert producer.buffered_bytes == 0
