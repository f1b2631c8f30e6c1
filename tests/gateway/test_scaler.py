"""KEDA asks how much work there is."""

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
from rockoon_gateway.scaling.trigger import Trigger
from rockoon_proto.keda.externalscaler_pb2 import GetMetricsRequest, ScaledObjectRef
from rockoon_proto.keda.externalscaler_pb2_grpc import ExternalScalerStub
from rockoon_proto.v1.nameserver_pb2 import SubscribeRequest
from support.eventually import answered
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
    """A topic with so many messages, all of which are before a group that has begun."""
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
    """Wait until the offset service has heard of a group."""

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
