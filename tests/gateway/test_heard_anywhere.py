"""Clients whose calls reach several gateways keep their messages, whichever gateway they call."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc import aio

import rockoon
from gateway.consumers import Consumer, bodies, handle, send, topic_with
from gateway.gateways import (
    START_SECONDS_MAX,
    RunningGateway,
    gateway_program,
    running_gateway,
)
from gateway.lite_consumers import LiteConsumer, lite_parent
from gateway.wire_client import WireClient
from rockoon.admin.descriptions import GroupClient
from rockoon.local.cluster import LocalCluster
from rockoon.local.directory import choose_port
from rockoon.local.process import end
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code
from support.eventually import answered, eventually
from support.tcp_gate import TcpGate

# A minute by default. Gateways report a client six times in a lease.
LEASE_SECONDS = 6.0
# Allowance for a busy machine.
LATE_SECONDS_MAX = 10.0
WORKER = "host@1@0@worker"


@pytest.fixture(scope="module")
def local_cluster() -> Iterator[LocalCluster]:
    settings = {"offset": {"client_lease_seconds": LEASE_SECONDS}}
    with LocalCluster(settings=settings) as cluster:
        yield cluster


@pytest.fixture
async def gateways(local_cluster: LocalCluster) -> AsyncIterator[Sequence[RunningGateway]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(running_gateway(local_cluster, name=f"gateway-{name}"))
            for name in "abc"
        ]


@asynccontextmanager
async def beating(
    group: str, addresses: Sequence[str], client_id: str = WORKER
) -> AsyncIterator[None]:
    """Send a client's heartbeats to one gateway after another."""
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(WireClient(address, client_id)) for address in addresses
        ]

        async def beat() -> None:
            while True:
                for client in clients:
                    answer = await client.heartbeat(d.PUSH_CONSUMER, group)
                    assert answer.status.code == Code.OK, answer
                    await asyncio.sleep(LEASE_SECONDS / 6)

        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        task = tasks.create_task(beat(), name="heartbeats")
        yield
        task.cancel()


async def received_within(consumer: Consumer, seconds: float) -> list[d.Message]:
    """Return the messages that arrive within a time."""
    ends_at = time.monotonic() + seconds
    while (left := ends_at - time.monotonic()) > 0:
        if got := await consumer.receive(wait=min(left, 5.0), renewed=True):
            return got
    return []


@pytest.mark.parametrize("heard_at", [(1,), (0, 1, 2)], ids=["another", "all in turn"])
async def test_a_client_that_any_gateway_hears_keeps_its_message(
    gateways: Sequence[RunningGateway], cluster: rockoon.Cluster, heard_at: Sequence[int]
) -> None:
    topic = await topic_with(cluster, f"kept-{len(heard_at)}", [b"work"])
    group = f"of-{topic}"
    async with (
        WireClient(gateways[0].address, WORKER) as first,
        WireClient(gateways[1].address, WORKER) as second,
        WireClient(gateways[0].address, "host@2@0@other") as other,
    ):
        (got,) = await Consumer(first, group, topic).receive_all(1, renewed=True)
        async with beating(group, [gateways[number].address for number in heard_at]):
            rival = Consumer(other, group, topic)
            assert await received_within(rival, 2.5 * LEASE_SECONDS) == []
            answer = await Consumer(second, group, topic).acknowledge(handle(got))
            assert answer.status.code == Code.OK


async def test_a_client_that_nobody_hears_loses_its_message_within_the_lease(
    gateways: Sequence[RunningGateway], cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "lost", [b"work"])
    async with WireClient(gateways[0].address, WORKER) as dies:
        await Consumer(dies, "losers", topic).receive_all(1, renewed=True)
    async with WireClient(gateways[1].address, "host@2@0@other") as other:
        rival = Consumer(other, "losers", topic)
        (got,) = await received_within(rival, LEASE_SECONDS + LATE_SECONDS_MAX)
        assert got.system_properties.delivery_attempt == 2


async def test_a_goodbye_at_another_gateway_frees_a_message_at_once(
    gateways: Sequence[RunningGateway], cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "freed", [b"work"])
    async with (
        WireClient(gateways[0].address, WORKER) as first,
        WireClient(gateways[1].address, WORKER) as second,
        WireClient(gateways[2].address, "host@2@0@other") as other,
        asyncio.TaskGroup() as tasks,
    ):
        await Consumer(first, "leavers", topic).receive_all(1, renewed=True)
        rival = tasks.create_task(
            received_within(Consumer(other, "leavers", topic), LEASE_SECONDS / 2)
        )
        goodbye = pb.NotifyClientTerminationRequest(group=d.Resource(name="leavers"))
        answer = await second.call("NotifyClientTermination", goodbye)
        assert answer.status.code == Code.OK
        assert bodies(await rival) == [b"work"]


async def test_clients_that_wait_together_hold_each_their_own_message(
    gateways: Sequence[RunningGateway], cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "together", queues=2)
    async with (
        AsyncExitStack() as stack,
        WireClient(gateways[1].address, "host@2@0@other") as other,
    ):
        clients = [
            await stack.enter_async_context(WireClient(gateways[0].address, f"host@{n}@0@each"))
            for n in range(4)
        ]
        consumers = [Consumer(each, "together", topic) for each in clients]
        async with asyncio.TaskGroup() as tasks:
            waiting = [
                tasks.create_task(each.receive(batch_size=1, renewed=True, wait=20))
                for each in consumers
            ]
            await send(cluster, topic, [b"%d" % n for n in range(4)])
        got = [task.result()[0] for task in waiting]
        goodbye = pb.NotifyClientTerminationRequest(group=d.Resource(name="together"))
        async with (
            beating("together", [gateways[1].address], "host@1@0@each"),
            beating("together", [gateways[1].address], "host@2@0@each"),
            beating("together", [gateways[1].address], "host@3@0@each"),
            beating("together", [gateways[1].address], "host@2@0@other"),
        ):
            await clients[0].call("NotifyClientTermination", goodbye)
            rival = Consumer(other, "together", topic)
            assert bodies(await received_within(rival, LEASE_SECONDS)) == [got[0].body]
            assert await received_within(rival, 1.5 * LEASE_SECONDS) == []
        for consumer, message in zip(consumers[1:], got[1:], strict=True):
            answer = await consumer.acknowledge(handle(message))
            assert answer.status.code == Code.OK


async def test_a_killed_gateway_costs_a_client_of_another_one_no_attempt(
    local_cluster: LocalCluster,
    gateways: Sequence[RunningGateway],
    cluster: rockoon.Cluster,
    tmp_path: Path,
) -> None:
    topic = await topic_with(cluster, "outlives", [b"work"])
    node = gateway_program(local_cluster, "doomed", choose_port(), tmp_path)
    try:
        node.launch()
        await asyncio.to_thread(node.wait_ready, time.monotonic() + START_SECONDS_MAX)
        async with (
            WireClient(node.address, WORKER) as first,
            beating("survivors", [gateways[0].address]),
            WireClient(gateways[0].address, WORKER) as second,
            WireClient(gateways[1].address, "host@2@0@other") as other,
        ):
            (got,) = await Consumer(first, "survivors", topic).receive_all(1, renewed=True)
            acquired = (await cluster.admin.in_flight("survivors")).queues[0]
            # The lease is extended only after the delivery was reported.
            await answered(
                lambda: cluster.admin.in_flight("survivors"),
                lambda now: now.queues[0].next_visible_at_ms > acquired.next_visible_at_ms,
            )
            node.signal(signal.SIGKILL)
            rival = Consumer(other, "survivors", topic)
            assert await received_within(rival, 1.5 * LEASE_SECONDS) == []
            answer = await Consumer(second, "survivors", topic).acknowledge(handle(got))
            assert answer.status.code == Code.OK
    finally:
        await asyncio.to_thread(end, [node])


async def test_an_answer_that_its_client_did_not_get_is_delivered_to_another_client(
    gateways: Sequence[RunningGateway], cluster: rockoon.Cluster
) -> None:
    topic, group = await topic_with(cluster, "cut", []), "cut-off"
    async with (
        TcpGate(gateways[0].address) as gate,
        WireClient(gate.address, WORKER) as first,
        WireClient(gateways[2].address, "host@2@0@other") as other,
    ):
        consumer = Consumer(first, group, topic)
        assert await consumer.receive(wait=0, renewed=True) == []
        # With its first report, the gateway learns how long a lease is.
        await answered(lambda: cluster.admin.list_clients(group), are_reported)
        answers = gate.lose_answers()
        async with asyncio.TaskGroup() as tasks:
            lost = tasks.create_task(is_cut(consumer.receive(wait=30, renewed=True)))
            await send(cluster, topic, [b"work"])
            await eventually(lambda: b"work" in answers)
            await gate.cut()
        assert lost.result()
        async with beating(group, [gateways[1].address]):
            rival = Consumer(other, group, topic)
            (got,) = await received_within(rival, LEASE_SECONDS + LATE_SECONDS_MAX)
            assert (got.body, got.system_properties.delivery_attempt) == (b"work", 1)


def are_reported(clients: Sequence[GroupClient]) -> bool:
    return any(each.is_at_gateway for each in clients)


async def is_cut(call: Awaitable[object]) -> bool:
    try:
        await call
    except aio.AioRpcError as failure:
        return failure.code() is grpc.StatusCode.UNAVAILABLE
    return False


async def test_a_restart_of_the_offset_service_is_no_silence_of_clients(
    local_cluster: LocalCluster, gateways: Sequence[RunningGateway], cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "restarted", [b"work"])
    async with (
        WireClient(gateways[0].address, WORKER) as first,
        WireClient(gateways[1].address, "host@2@0@other") as other,
    ):
        worker, rival = Consumer(first, "patient", topic), Consumer(other, "patient", topic)
        (got,) = await worker.receive_all(1, renewed=True)
        async with beating("patient", [gateways[1].address]):
            await asyncio.to_thread(local_cluster.stop, "offset")
            # The lease ends while the service is away.
            await asyncio.sleep(LEASE_SECONDS)
            await asyncio.to_thread(local_cluster.start, "offset")
            assert await received_within(rival, 1.5 * LEASE_SECONDS) == []
            assert (await worker.acknowledge(handle(got))).status.code == Code.OK


async def test_lite_topics_that_were_subscribed_to_at_one_gateway_are_received_at_another(
    gateways: Sequence[RunningGateway], cluster: rockoon.Cluster
) -> None:
    topic = await lite_parent(cluster, "rooms")
    async with (
        WireClient(gateways[0].address, WORKER) as first,
        WireClient(gateways[1].address, WORKER) as second,
    ):
        here, there = (LiteConsumer(each, "roomers", topic) for each in (first, second))
        await here.send("one", b"1")
        await here.subscribe("one")
        got = await there.receive(wait=10)
        assert bodies(got) == [b"1"]
        assert (await there.acknowledge(*map(handle, got))).status.code == Code.OK
        # Additions at one gateway are known to the other.
        await there.subscribe("two")
        await there.send("two", b"2")
        assert bodies(await here.receive(wait=10)) == [b"2"]
        await here.sync("one", action=d.PARTIAL_REMOVE)
        await here.send("one", b"3")

        async def received() -> list[d.Message]:
            got = await there.receive(wait=0)
            for each in got:
                await there.change(handle(each), 0.0, suspend=True)
            return got

        await answered(received, lambda got: not got)
