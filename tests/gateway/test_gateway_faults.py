"""Gateways, brokers and the offset service end while receivers continue; clients vanish."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress

import pytest
from grpc import aio

import rockoon
from gateway.consumers import Consumer, bodies, handle, topic_with
from gateway.gateways import running_gateway
from gateway.wire_client import WireClient
from rockoon.local.cluster import LocalCluster
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from support.eventually import answered


async def test_what_a_client_has_it_acknowledges_at_the_next_gateway(
    local_cluster: LocalCluster, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "held", [b"simple", b"pushed"])
    async with running_gateway(local_cluster) as first, WireClient(first.address) as client:
        consumer = Consumer(client, "holders", topic)
        (simple,) = await consumer.receive_all(1, batch_size=1)
        (pushed,) = await consumer.receive_all(1, batch_size=1, renewed=True)
    async with running_gateway(local_cluster) as second, WireClient(second.address) as client:
        consumer = Consumer(client, "holders", topic)
        answer = await consumer.acknowledge(handle(simple), handle(pushed))
        assert answer.status.code == d.OK
    assert (await cluster.admin.lag("holders", topic)).total_lag == 0


REST_SECONDS = 0.2


class Record:
    """Received messages, and those with a successful acknowledgement. If its reply is lost, a
    message may be settled without the receiver's knowledge."""

    def __init__(self, wanted: Sequence[bytes]) -> None:
        self.missing = set(wanted)
        self.settled: set[bytes] = set()
        self.is_complete = asyncio.Event()
        self.came_back: list[bytes] = []
        self.deliveries = 0

    def received(self, messages: Sequence[d.Message]) -> None:
        self.deliveries += len(messages)
        self.came_back += [each for each in bodies(messages) if each in self.settled]
        self.missing.difference_update(bodies(messages))
        if not self.missing:
            self.is_complete.set()

    async def rest(self) -> None:
        """Pause before the next call, as client libraries do."""
        await asyncio.sleep(REST_SECONDS)


async def work(consumer: Consumer, record: Record) -> None:
    """Receive and acknowledge until cancelled, through all faults."""
    while True:
        try:
            frames = await consumer.frames(batch_size=8, invisible=10, wait=5)
            messages = [each.message for each in frames if each.HasField("message")]
            record.received(messages)
            if not messages:
                # Some errors come immediately.
                await record.rest()
                continue
            answer = await consumer.acknowledge(*map(handle, messages))
        except aio.AioRpcError:
            await record.rest()
            continue
        for message, entry in zip(messages, answer.entries, strict=False):
            if entry.status.code == d.OK:
                record.settled.add(message.body)


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["broker-a", "offset", "nameserver-a", "gateway"])
async def test_a_process_is_killed_while_receivers_go_on(victim: str) -> None:
    sent = [b"%d" % number for number in range(2_000)]
    with LocalCluster(brokers=1, gateway=0) as local:
        address = local.gateway
        assert address is not None
        async with rockoon.connect(local.nameservers) as cluster, asyncio.timeout(240):
            topic = await topic_with(cluster, "killed-under", sent, queues=4)
            record = Record(sent)
            async with asyncio.TaskGroup() as tasks:
                clients = [WireClient(address, f"client-{n}") for n in range(4)]
                workers = [
                    tasks.create_task(work(Consumer(client, "survivors", topic), record))
                    for client in clients
                ]
                for _ in range(3):
                    if record.is_complete.is_set():
                        break
                    before = record.deliveries
                    while record.deliveries - before < 100 and not record.is_complete.is_set():
                        await record.rest()
                    await asyncio.to_thread(local.kill, victim)
                    await asyncio.to_thread(local.start, victim)
                await record.is_complete.wait()
                # Messages without an acknowledgement come again, and are acknowledged then.
                await answered(
                    lambda: cluster.admin.lag("survivors", topic), lambda lag: not lag.total_lag
                )
                for worker in workers:
                    worker.cancel()
            for client in clients:
                await client.__aexit__(None, None, None)
            # Acknowledged messages are on disk: no receiver gets them again.
            assert record.came_back == []


@pytest.mark.soak
async def test_of_a_thousand_push_consumers_half_vanish_and_others_get_what_those_had(
    local_cluster: LocalCluster, cluster: rockoon.Cluster
) -> None:
    sent = [b"%d" % number for number in range(1_000)]
    topic = await topic_with(cluster, "thousand", sent, queues=8)
    async with running_gateway(local_cluster) as gateway, asyncio.timeout(200):
        channels = [WireClient(gateway.address, f"channel-{n}") for n in range(10)]
        clients = [Sharing(channels[n % 10], f"client-{n}") for n in range(1_000)]
        held: dict[str, d.Message] = {}
        is_over = asyncio.Event()

        async def receive(client: WireClient) -> None:
            await client.heartbeat(d.PUSH_CONSUMER, "thousand")
            consumer = Consumer(client, "thousand", topic)
            (held[client.client_id],) = await consumer.receive_all(1, batch_size=1, renewed=True)

        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.TaskGroup() as tasks:
            for client in clients:
                tasks.create_task(receive(client))
        assert sorted(bodies(list(held.values())), key=int) == sent
        alive, dead = clients[:500], clients[500:]

        async def beat(client: WireClient) -> None:
            while True:
                await client.heartbeat(d.PUSH_CONSUMER, "thousand")
                with suppress(TimeoutError):
                    await asyncio.wait_for(is_over.wait(), 10)

        async with asyncio.TaskGroup() as tasks:
            beating = [tasks.create_task(beat(client)) for client in alive]
            heir = Consumer(channels[0], "thousand", topic)
            again = await heir.receive_all(500, batch_size=32, invisible=600, wait=20)
            lost = {held[client.client_id].body for client in dead}
            assert {message.body for message in again} == lost
            assert {each.system_properties.delivery_attempt for each in again} == {2}
            # Longer than a lease without a renewal.
            with suppress(TimeoutError):
                await asyncio.wait_for(is_over.wait(), max(began + 75 - loop.time(), 0))
            assert await heir.receive(wait=0) == []
            for task in beating:
                task.cancel()
        codes: dict[int, int] = defaultdict(int)
        for client in clients:
            message = held[client.client_id]
            answer = await Consumer(client, "thousand", topic).acknowledge(handle(message))
            codes[answer.status.code] += 1
        assert codes == {d.OK: 500, d.INVALID_RECEIPT_HANDLE: 500}
        for channel in channels:
            await channel.__aexit__(None, None, None)


class Sharing(WireClient):
    """A client on another client's connection.

    Args:
        other: the other client.
        client_id: its own client id.
    """

    def __init__(self, other: WireClient, client_id: str) -> None:
        self.address = other.address
        self.client_id = client_id
        self.metadata = (("x-mq-client-id", client_id), ("x-mq-language", "JAVA"))
        self.stub = other.stub
