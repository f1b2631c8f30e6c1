"""KEDA queries the number of waiting messages."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc import aio

import rockoon
from gateway.gateways import running_gateway
from rockoon.errors import GroupNotFound
from rockoon.local.cluster import LocalCluster
from rockoon.offsets.offset_store import RemoteOffsetStore
from rockoon.offsets.start import ConsumeFrom
from rockoon_core.errors import InvalidArgument
from rockoon_gateway.scaler import Trigger, waiting
from rockoon_proto.keda.externalscaler_pb2 import GetMetricsRequest, ScaledObjectRef
from rockoon_proto.keda.externalscaler_pb2_grpc import ExternalScalerStub
from rockoon_proto.v1.nameserver_pb2 import SubscribeRequest
from rockoon_proto.v1.offset_pb2 import LagReply, QueueLag
from support.eventually import answered, eventually
from support.waiting import DEADLINE_SECONDS


def free_address() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
async def scaler(local_cluster: LocalCluster) -> AsyncIterator[Any]:
    address = free_address()
    async with (
        running_gateway(local_cluster, scaler_listen=address),
        aio.insecure_channel(address) as channel,
    ):
        yield ExternalScalerStub(channel)


def trigger(group: str, **metadata: str) -> ScaledObjectRef:
    return ScaledObjectRef(name="app", scalerMetadata={"group": group, **metadata})


async def send(cluster: rockoon.Cluster, topic: str, count: int) -> None:
    async with cluster.producer() as producer:
        for _ in range(count):
            await producer.send(topic, b"work")


async def work(cluster: rockoon.Cluster, topic: str, group: str, count: int) -> None:
    """Create a topic with this number of messages, all of which a group has yet to read."""
    route = await cluster.admin.create_topic(topic, queues_per_broker=1)
    await send(cluster, topic, count)
    request = SubscribeRequest(group=group, topic=topic, create_group=True)
    joined = await cluster.call_nameserver("Subscribe", request)
    store = RemoteOffsetStore(cluster, group)
    await store.resolve(list(route.queues), ConsumeFrom.FIRST, joined.revision)


async def test_lag_is_the_metric_and_its_target_what_the_trigger_says(
    scaler: Any, cluster: rockoon.Cluster
) -> None:
    await work(cluster, "scaled", "workers", 3)
    wanted = trigger("workers", topic="scaled", lagThreshold="20")
    spec = await scaler.GetMetricSpec(wanted)
    assert [each.targetSizeFloat for each in spec.metricSpecs] == [20]
    name = spec.metricSpecs[0].metricName
    request = GetMetricsRequest(scaledObjectRef=wanted, metricName=name)
    answer = await scaler.GetMetrics(request)
    assert [(each.metricName, each.metricValueFloat) for each in answer.metricValues] == [(name, 3)]


async def metric(scaler: Any, group: str) -> float:
    (found,) = (
        await scaler.GetMetrics(GetMetricsRequest(scaledObjectRef=trigger(group)))
    ).metricValues
    return float(found.metricValueFloat)


async def test_what_was_acknowledged_behind_a_slow_message_does_not_count(
    scaler: Any, cluster: rockoon.Cluster
) -> None:
    await cluster.admin.create_topic("slow", queues_per_broker=1)
    await send(cluster, "slow", 20)
    async with cluster.simple_consumer(
        "slow-readers", {"slow": "*"}, consume_from="first"
    ) as reader:
        received: list[rockoon.ReceivedMessage] = []
        while len(received) < 20:
            received += await reader.receive(20)
        slow = min(received, key=lambda each: each.queue_offset)
        for each in received:
            if each is not slow:
                await reader.ack(each)
        # A consumer still handles it.
        assert await metric(scaler, "slow-readers") == 1
        await reader.ack(slow)
        assert await metric(scaler, "slow-readers") == 0


async def test_what_a_push_consumer_finished_behind_a_slow_message_does_not_count(
    scaler: Any, cluster: rockoon.Cluster
) -> None:
    await cluster.admin.create_topic("pushed", queues_per_broker=1)
    await send(cluster, "pushed", 20)
    finished = 0
    slow = asyncio.Event()

    async def handle(message: rockoon.Message) -> None:
        nonlocal finished
        if message.queue_offset == 0:
            await slow.wait()
        finished += 1

    async def counted() -> float:
        return await metric(scaler, "pushed-readers")

    subscriptions = {"pushed": "*"}
    async with cluster.push_consumer(
        "pushed-readers", subscriptions, handle, consume_from="first", concurrency=4
    ):
        await eventually(lambda: finished == 19)
        # After the next heartbeat has reported it; nothing is committed yet.
        await answered(counted, lambda count: count == 1)
        (queue,) = (await cluster.admin.lag("pushed-readers", "pushed")).queues
        assert (queue.committed_offset, queue.lag) == (0, 20)
        assert (queue.settled_above, queue.in_flight, queue.ready) == (19, 1, 0)
        slow.set()


def test_what_retention_deleted_does_not_count() -> None:
    def queue(**more: Any) -> QueueLag:
        return QueueLag(known=True, **more)

    reply = LagReply(
        queues=[
            queue(lag=2400, lost=1753, min_offset=1753, max_offset=2400),
            queue(lag=600, lost=600, min_offset=600, max_offset=600),
            queue(lag=40, lost=5, settled_above=30, in_flight=1),
            queue(min_offset=3, max_offset=9),
            queue(min_offset=9, max_offset=9),
            QueueLag(unknown_because="its broker is away", lag=7),
        ],
        total_lag=3040,
    )
    assert waiting(reply) == 647 + 0 + 5 + 1


async def test_there_is_work_above_the_activation_threshold(
    scaler: Any, cluster: rockoon.Cluster
) -> None:
    await work(cluster, "activated", "activists", 3)
    assert (await scaler.IsActive(trigger("activists"))).result
    assert (await scaler.IsActive(trigger("activists", activationLagThreshold="2"))).result
    assert not (await scaler.IsActive(trigger("activists", activationLagThreshold="3"))).result


async def test_a_group_that_never_began_is_active_as_soon_as_there_is_a_message(
    scaler: Any, cluster: rockoon.Cluster
) -> None:
    route = await cluster.admin.create_topic("never-begun", queues_per_broker=1)
    subscribed = SubscribeRequest(group="beginners", topic=route.name, create_group=True)
    await cluster.call_nameserver("Subscribe", subscribed)
    await eventually_known(cluster, "beginners")
    assert not (await scaler.IsActive(trigger("beginners"))).result
    await send(cluster, route.name, 5)
    assert (await scaler.IsActive(trigger("beginners"))).result


async def eventually_known(cluster: rockoon.Cluster, group: str) -> None:
    """Wait until the offset service knows a group."""

    async def is_known() -> bool:
        try:
            await cluster.admin.lag(group)
        except GroupNotFound:
            return False
        return True

    await answered(is_known, bool)


async def test_a_stream_tells_at_once_and_when_work_comes(
    scaler: Any, cluster: rockoon.Cluster
) -> None:
    await work(cluster, "streamed", "streamers", 0)
    call = scaler.StreamIsActive(
        trigger("streamers", topic="streamed", pollSeconds="1"), timeout=DEADLINE_SECONDS
    )
    assert not (await call.read()).result
    await send(cluster, "streamed", 1)
    assert (await call.read()).result
    call.cancel()


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ({}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"group": "no-such-group"}, grpc.StatusCode.NOT_FOUND),
    ],
)
async def test_errors_are_grpcs(
    scaler: Any, metadata: dict[str, str], code: grpc.StatusCode
) -> None:
    with pytest.raises(aio.AioRpcError) as failed:
        await scaler.IsActive(ScaledObjectRef(scalerMetadata=metadata))
    assert failed.value.code() == code


def test_a_trigger_has_defaults() -> None:
    parsed = Trigger.parse({"group": " g ", "scalerAddress": "x:1", "topic": ""})
    assert parsed == Trigger("g", "", 100, 0, 5)
    assert parsed.metric_name == "rockoon-lag-g"
    assert Trigger.parse({"group": "g", "topic": "t"}).metric_name == "rockoon-lag-g-t"
    # Kubernetes refuses a percent sign.
    of_namespace = Trigger.parse({"group": "shop%g", "topic": "shop%t"})
    assert of_namespace.metric_name == "rockoon-lag-shop.g-shop.t"


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"group": " "},
        {"group": "g", "lagThreshold": "0"},
        {"group": "g", "lagThreshold": "ten"},
        {"group": "g", "lagThreshold": "1.5"},
        {"group": "g", "activationLagThreshold": "-1"},
        {"group": "g", "pollSeconds": "301"},
        {"group": "g", "lagThreshold": "9" * 5000},
    ],
)
def test_a_trigger_that_makes_no_sense_is_refused(metadata: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument):
        Trigger.parse(metadata)
