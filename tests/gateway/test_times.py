"""Times in requests: each has a range, and a time outside it is the caller's fault."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

import rockoon
from gateway.consumers import Consumer, handle, topic_with
from gateway.gateways import RunningGateway
from gateway.lite_consumers import lite_consumer
from gateway.wire_client import WireClient, consumer_settings, message
from rockoon_gateway.codes import Refusal
from rockoon_gateway.names import checked_epoch_ms, duration_ms, epoch_ms
from rockoon_proto.apache.rocketmq.v2 import admin_pb2 as a
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.admin_pb2_grpc import AdminStub

ODD_TIMES = (
    *((253_402_300_800, 0), (-1, 0), (-62_135_596_801, 0), ((1 << 63) - 1, 0), (-(1 << 63), 0)),
    *((0, -1), (0, 10**9), (0, (1 << 31) - 1)),
)
ODD_DURATIONS = (
    *((315_576_000_001, 0), (-315_576_000_001, 0), ((1 << 63) - 1, 0), (-(1 << 63), 0)),
    *((0, 10**9), (0, -(1 << 31)), (1, -1), (-1, 1)),
)


@pytest.mark.parametrize(
    ("seconds", "nanos", "milliseconds"),
    [(0, 0, 0), (1, 999_999, 1000), (253_402_300_799, 999_999_999, 253_402_300_799_999)],
)
def test_a_time_is_read(seconds: int, nanos: int, milliseconds: int) -> None:
    assert epoch_ms(Timestamp(seconds=seconds, nanos=nanos), "it") == milliseconds
    assert checked_epoch_ms(milliseconds, "it") == milliseconds


@pytest.mark.parametrize(("seconds", "nanos"), ODD_TIMES)
def test_a_time_out_of_range_is_refused(seconds: int, nanos: int) -> None:
    with pytest.raises(Refusal, match="it is ") as refused:
        epoch_ms(Timestamp(seconds=seconds, nanos=nanos), "it", d.ILLEGAL_DELIVERY_TIME)
    assert refused.value.code == d.ILLEGAL_DELIVERY_TIME


@pytest.mark.parametrize(
    ("seconds", "nanos", "milliseconds"),
    [
        (0, 0, 0),
        (1, 999_999, 1000),
        (-1, -999_999, -1000),
        (0, -1_000_000, -1),
        (10, 10**6, 10_001),
    ],
)
def test_a_duration_is_read(seconds: int, nanos: int, milliseconds: int) -> None:
    assert duration_ms(Duration(seconds=seconds, nanos=nanos), "it") == milliseconds


@pytest.mark.parametrize(("seconds", "nanos"), ODD_DURATIONS)
def test_what_is_no_duration_is_refused(seconds: int, nanos: int) -> None:
    with pytest.raises(Refusal, match="it is ") as refused:
        duration_ms(Duration(seconds=seconds, nanos=nanos), "it")
    assert refused.value.code == d.BAD_REQUEST


def named(name: str) -> d.Resource:
    return d.Resource(name=name)


async def test_each_call_refuses_times_out_of_range_with_its_code(
    gateway: RunningGateway, client: WireClient, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "timed", [b"one"])
    consumer = Consumer(client, "timed-readers", topic)
    (received,) = await consumer.receive_all(1)
    queue = d.MessageQueue(topic=named(topic), id=0, broker=d.Broker(name="broker-a"))
    group, receipt = named(consumer.group), handle(received)

    async def sent(**system: Any) -> int:
        return int((await client.send(message(topic, **system))).status.code)

    async def answered(rpc: str, request: Any) -> int:
        return int((await client.call(rpc, request)).status.code)

    async def framed(rpc: str, request: Any) -> int:
        return int((await client.frames(rpc, request))[0].status.code)

    async def received_with(**times: Duration) -> int:
        request = consumer.request()
        for name, value in times.items():
            getattr(request, name).CopyFrom(value)
        return await framed("ReceiveMessage", request)

    async def changed(value: Duration) -> int:
        request = pb.ChangeInvisibleDurationRequest(
            group=group, topic=named(topic), receipt_handle=receipt, invisible_duration=value
        )
        return await answered("ChangeInvisibleDuration", request)

    async def pulled(value: Duration) -> int:
        request = pb.PullMessageRequest(
            group=group, message_queue=queue, batch_size=1, long_polling_timeout=value
        )
        return await framed("PullMessage", request)

    async def offset_at(value: Timestamp) -> int:
        request = pb.QueryOffsetRequest(
            message_queue=queue, query_offset_policy=d.TIMESTAMP, timestamp=value
        )
        return await answered("QueryOffset", request)

    for seconds, nanos in ODD_TIMES:
        time = Timestamp(seconds=seconds, nanos=nanos)
        assert await sent(delivery_timestamp=time) == d.ILLEGAL_DELIVERY_TIME
        assert await sent(born_timestamp=time) == d.BAD_REQUEST
        assert await offset_at(time) == d.BAD_REQUEST
    recovery = "orphaned_transaction_recovery_duration"
    for seconds, nanos in ODD_DURATIONS:
        length = Duration(seconds=seconds, nanos=nanos)
        half = {"message_type": d.TRANSACTION, recovery: length}
        assert await sent(**half) == d.BAD_REQUEST
        assert await received_with(invisible_duration=length) == d.ILLEGAL_INVISIBLE_TIME
        assert await received_with(long_polling_timeout=length) == d.ILLEGAL_POLLING_TIME
        assert await changed(length) == d.ILLEGAL_INVISIBLE_TIME
        assert await pulled(length) == d.ILLEGAL_POLLING_TIME
    async with aio.insecure_channel(gateway.address) as channel:
        console: Any = AdminStub(channel)
        ask: Callable[..., Awaitable[Any]]
        for ask, request in (
            (console.ResetGroupOffset, a.ResetGroupOffsetRequest(group=group, topic=named(topic))),
            (console.QueryMessage, a.ListMessageRequest(topic=named(topic), message_id="x")),
        ):
            times = [each for each in request.DESCRIPTOR.fields if "timestamp" in each.name]
            for field in times:
                odd = type(request)()
                odd.CopyFrom(request)
                getattr(odd, field.name).seconds = -1
                answer = await ask(odd, metadata=client.metadata)
                assert answer.status.code == d.BAD_REQUEST, field.name


async def test_a_lite_subscription_begins_at_no_time_out_of_range(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer = await lite_consumer(client, cluster, "timed-lite")
    for time_ms in (-1, 253_402_300_800_000, (1 << 63) - 1):
        option = d.OffsetOption(timestamp=time_ms)
        answer = await consumer.sync("one", offset_option=option)
        assert answer.status.code == d.BAD_REQUEST


async def test_settings_with_a_request_timeout_that_is_none_end_the_stream(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    await cluster.admin.create_topic("timed-settings")
    settings = consumer_settings("timed-settings", "timed-settings")
    settings.request_timeout.seconds = 1 << 62
    stream = client.telemetry()
    await stream.send(pb.TelemetryCommand(settings=settings))
    with pytest.raises(aio.AioRpcError, match="BAD_REQUEST: request_timeout is"):
        async for _ in stream.rest():
            pass
