"""A gateway that stops: waiting calls get replies, and messages in transit are stored."""

import asyncio
import signal
import time
from collections.abc import Callable

from google.protobuf.duration_pb2 import Duration
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

import rockoon
from gateway.gateways import running_gateway
from gateway.metrics_page import metrics_page
from gateway.reading import read
from gateway.wire_client import WireClient, message
from rockoon.local.cluster import LocalCluster
from rockoon.local.directory import choose_port
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code
from support.eventually import answered

# Longer than the test may run: the test does not wait for it.
POLL_SECONDS = 20


def poll(topic: str) -> pb.ReceiveMessageRequest:
    return pb.ReceiveMessageRequest(
        group=d.Resource(name="waiting"),
        message_queue=d.MessageQueue(
            topic=d.Resource(name=topic), broker=d.Broker(name="broker-a")
        ),
        filter_expression=d.FilterExpression(type=d.TAG, expression="*"),
        batch_size=8,
        invisible_duration=Duration(seconds=30),
        long_polling_timeout=Duration(seconds=POLL_SECONDS),
    )


async def test_receivers_that_wait_are_told_at_once_that_there_is_nothing(
    local_cluster: LocalCluster, cluster: rockoon.Cluster
) -> None:
    await cluster.admin.create_topic("quiet", queues_per_broker=1)
    async with running_gateway(local_cluster, drain_seconds_max=60.0) as gateway:
        async with WireClient(gateway.address) as client, asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(client.frames("ReceiveMessage", poll("quiet")))
            await client.route("quiet")
            # The receiver waits once it has received an earlier message.
            await client.send(message("quiet", b"first"))
            assert [frame.status.code for frame in (await waiting)[:1]] == [Code.OK]
            waiting = tasks.create_task(client.frames("ReceiveMessage", poll("quiet")))
            await client.heartbeat(d.SIMPLE_CONSUMER, "waiting")
            began = time.monotonic()
            gateway.stop.request("it is replaced")
            frames = await waiting
        assert [frame.status.code for frame in frames if frame.HasField("status")] == [
            Code.MESSAGE_NOT_FOUND
        ]
        assert time.monotonic() - began < POLL_SECONDS / 2


async def test_health_says_that_a_gateway_stops(local_cluster: LocalCluster) -> None:
    async with (
        running_gateway(local_cluster) as gateway,
        aio.insecure_channel(gateway.address) as channel,
    ):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        gateway.stop.request("it is replaced")
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()


async def test_what_is_on_its_way_is_stored_and_answered(
    local_cluster: LocalCluster, cluster: rockoon.Cluster, stopped: Callable[[signal.Signals], None]
) -> None:
    await cluster.admin.create_topic("last-words", queues_per_broker=1)
    port = choose_port(set())
    patient = {"drain_seconds_max": 60.0, "send_seconds_max": 60.0}
    async with (
        running_gateway(local_cluster, metrics_listen=f"127.0.0.1:{port}", **patient) as gateway,
        WireClient(gateway.address) as client,
    ):
        messages = [message("last-words", b"%02d" % n, f"id-{n:02}") for n in range(50)]
        await client.send(messages.pop())

        async def waiting_bytes() -> float:
            return (await metrics_page(port)).total("rockoon_gateway_buffered_bytes")

        # The gateway has all sends before it stops: no broker stores one until then.
        stopped(signal.SIGSTOP)
        async with asyncio.TaskGroup() as tasks:
            sends = [tasks.create_task(client.send(messages.pop()))]
            one_bytes = await answered(waiting_bytes, bool)
            sends += [tasks.create_task(client.send(each)) for each in messages]
            await answered(waiting_bytes, lambda waiting: waiting == one_bytes * len(sends))
            gateway.stop.request("it is replaced")
            stopped(signal.SIGCONT)
        assert {send.result().status.code for send in sends} == {Code.OK}
    assert len(await read(cluster, "last-words", 50)) == 50
