"""Reads by offset: calls of RocketMQ's protocol that its proxy does not serve."""

import zlib
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

import rockoon
from gateway.wire_client import WireClient
from rockoon.errors import Internal
from rockoon_format.record import Record, encode_record
from rockoon_gateway.calls import GatewayCall
from rockoon_gateway.consuming.offset_reads import OffsetReads
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from support.fake_cluster import FakeCluster

GROUP = d.Resource(name="readers")
NOBODY = GatewayCall("client", "", "", "", None, None)


async def filled(cluster: rockoon.Cluster, topic: str, count: int = 5) -> d.MessageQueue:
    """Create a topic of one queue with messages; return its queue."""
    route = await cluster.admin.create_topic(topic, queues_per_broker=1)
    (queue,) = route.queues
    async with cluster.producer() as producer:
        for number in range(count):
            await producer.send(topic, b"%d" % number, tags="even" if number % 2 == 0 else "odd")
    return d.MessageQueue(
        topic=d.Resource(name=topic), id=queue.queue_id, broker=d.Broker(name=queue.broker)
    )


def bodies(frames: list[Any]) -> list[bytes]:
    return [frame.message.body for frame in frames if frame.WhichOneof("content") == "message"]


async def test_a_pull_answers_status_messages_and_where_to_go_on(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    queue = await filled(cluster, "pulled")
    request = pb.PullMessageRequest(group=GROUP, message_queue=queue, offset=1, batch_size=2)
    frames = await client.frames("PullMessage", request)
    assert frames[0].status.code == d.OK
    assert bodies(frames) == [b"1", b"2"]
    assert frames[-1].next_offset == 3
    system = frames[1].message.system_properties
    assert (system.queue_offset, system.HasField("receipt_handle")) == (1, False)


async def test_a_pull_leaves_out_what_the_filter_does(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    queue = await filled(cluster, "pulled-odd")
    odd = d.FilterExpression(type=d.TAG, expression="odd")
    request = pb.PullMessageRequest(
        group=GROUP, message_queue=queue, batch_size=32, filter_expression=odd
    )
    frames = await client.frames("PullMessage", request)
    assert bodies(frames) == [b"1", b"3"]


@pytest.mark.parametrize("kind", ["body", "record", "place"])
async def test_damaged_messages_hide_none_of_those_behind_them(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeCluster() as fake, rockoon.connect(fake.address) as cluster:
        fake.create_topic("orders")
        fake.append("orders", [b"<%d>" % each for each in range(6)])
        damaged = {0, 3, 5}
        stored = fake.brokers["broker-a"]
        if kind == "record":
            stored.damaged = {("orders", 0, offset) for offset in damaged}
        for offset in damaged:
            frames = stored.queues["orders", 0].frames
            frames[offset] = frames[offset].replace(b"<", b"(")
            if kind == "place":
                frames[offset] = encode_record(Record(topic=b"orders", queue_offset=77))
        queue = d.MessageQueue(topic=d.Resource(name="orders"), broker=d.Broker(name="broker-a"))
        found: list[bytes] = []
        offset = 0
        while offset < 6:
            request = pb.PullMessageRequest(
                group=GROUP, message_queue=queue, offset=offset, batch_size=32
            )
            answers = [each async for each in OffsetReads(cluster).pull(request, NOBODY)]
            found += bodies(answers)
            assert (answers[0].status.code == d.OK) == bool(bodies(answers))
            assert answers[-1].next_offset > offset
            offset = answers[-1].next_offset
    assert found == [b"<1>", b"<2>", b"<4>"]
    said = [each.getMessage() for each in caplog.records if "left out" in each.getMessage()]
    assert len(said) == 3


ORDERS = d.MessageQueue(topic=d.Resource(name="orders"), broker=d.Broker(name="broker-a"))


async def test_a_disk_that_fails_for_a_while_hides_no_message() -> None:
    async with FakeCluster() as fake, rockoon.connect(fake.address) as cluster:
        fake.create_topic("orders")
        fake.append("orders", [b"0", b"1"])
        request = pb.PullMessageRequest(group=GROUP, message_queue=ORDERS, batch_size=32)
        reads = OffsetReads(cluster)
        fake.brokers["broker-a"].refused = {("orders", 0, 0)}
        with pytest.raises(Internal):
            [each async for each in reads.pull(request, NOBODY)]
        fake.brokers["broker-a"].refused = {("orders", 0, 1)}
        assert bodies([each async for each in reads.pull(request, NOBODY)]) == [b"0"]
        fake.brokers["broker-a"].refused = set()
        assert bodies([each async for each in reads.pull(request, NOBODY)]) == [b"0", b"1"]


async def test_only_what_is_damaged_is_said_to_be_where_a_filter_looks_further(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeCluster() as fake, rockoon.connect(fake.address) as cluster:
        fake.create_topic("orders")
        fake.append("orders", [b"0", b"1"], tags=["no", "no"])
        fake.append("orders", [b"2", b"3"], tags=["yes", "yes"])
        fake.brokers["broker-a"].damaged = {("orders", 0, 2)}
        found: list[bytes] = []
        request = pb.PullMessageRequest(
            group=GROUP,
            message_queue=ORDERS,
            batch_size=32,
            filter_expression=d.FilterExpression(type=d.TAG, expression="yes"),
        )
        while request.offset < 4:
            answers = [each async for each in OffsetReads(cluster).pull(request, NOBODY)]
            found += bodies(answers)
            request.offset = answers[-1].next_offset
    assert found == [b"3"]
    said = [each.getMessage() for each in caplog.records if "left out" in each.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("message 2 of")


async def test_a_pull_of_much_goes_on_where_it_ended() -> None:
    async with FakeCluster() as fake, rockoon.connect(fake.address) as cluster:
        fake.create_topic("orders")
        big = bytes(5 << 20)
        packed = Record(topic=b"orders", body=zlib.compress(big), sys_flag=1)
        for offset in range(3):
            frames = fake.brokers["broker-a"].queues["orders", 0].frames
            fake.append("orders", [b""])
            frames[offset] = encode_record(replace(packed, queue_offset=offset))
        request = pb.PullMessageRequest(group=GROUP, message_queue=ORDERS, batch_size=32)
        answers = [each async for each in OffsetReads(cluster).pull(request, NOBODY)]
    assert bodies(answers) == [big, big]
    assert answers[-1].next_offset == 2


async def test_at_the_end_of_a_queue_there_is_no_message_but_a_place_to_go_on(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    queue = await filled(cluster, "pulled-empty")
    request = pb.PullMessageRequest(
        group=GROUP, message_queue=queue, offset=5, long_polling_timeout=Duration(nanos=1_000_000)
    )
    frames = await client.frames("PullMessage", request)
    assert [frame.WhichOneof("content") for frame in frames] == ["status", "next_offset"]
    assert (frames[0].status.code, frames[1].next_offset) == (d.MESSAGE_NOT_FOUND, 5)


async def test_an_offset_outside_of_the_queue_is_illegal_and_the_end_is_named(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    queue = await filled(cluster, "pulled-beyond")
    request = pb.PullMessageRequest(group=GROUP, message_queue=queue, offset=1000)
    frames = await client.frames("PullMessage", request)
    assert (frames[0].status.code, frames[1].next_offset) == (d.ILLEGAL_OFFSET, 5)
    request.offset = -1
    (frame,) = await client.frames("PullMessage", request)
    assert frame.status.code == d.ILLEGAL_OFFSET


async def test_a_queue_or_topic_that_is_not_there_is_not_found(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    queue = await filled(cluster, "pulled-where")
    queue.id = 77
    request = pb.PullMessageRequest(group=GROUP, message_queue=queue)
    (frame,) = await client.frames("PullMessage", request)
    assert frame.status.code == d.TOPIC_NOT_FOUND
    queue.topic.name = "no-such-topic"
    (frame,) = await client.frames("PullMessage", request)
    assert frame.status.code == d.TOPIC_NOT_FOUND


async def test_an_offset_is_found_again_may_go_back_and_is_the_groups(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    queue = await filled(cluster, "kept-offsets")
    asked = pb.GetOffsetRequest(group=d.Resource(name="keepers"), message_queue=queue)
    assert (await client.call("GetOffset", asked)).status.code == d.OFFSET_NOT_FOUND
    for offset in (4, 2):
        update = pb.UpdateOffsetRequest(group=asked.group, message_queue=queue, offset=offset)
        assert (await client.call("UpdateOffset", update)).status.code == d.OK
        answer = await client.call("GetOffset", asked)
        assert (answer.status.code, answer.offset) == (d.OK, offset)
    (progress,) = await cluster.admin.progress("keepers")
    assert progress.offset == 2


async def test_an_offset_beyond_the_end_is_refused(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    queue = await filled(cluster, "kept-beyond")
    update = pb.UpdateOffsetRequest(group=GROUP, message_queue=queue, offset=1000)
    assert (await client.call("UpdateOffset", update)).status.code == d.ILLEGAL_OFFSET


async def test_beginning_end_and_the_offset_of_a_time(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    queue = await filled(cluster, "asked-offsets")
    pulled = pb.PullMessageRequest(group=GROUP, message_queue=queue, offset=3, batch_size=1)
    stored = (await client.frames("PullMessage", pulled))[1].message.system_properties
    at: Timestamp = stored.store_timestamp

    async def asked(policy: d.QueryOffsetPolicy, **fields: Any) -> int:
        request = pb.QueryOffsetRequest(message_queue=queue, query_offset_policy=policy, **fields)
        answer = await client.call("QueryOffset", request)
        assert answer.status.code == d.OK
        return int(answer.offset)

    assert await asked(d.BEGINNING) == 0
    assert await asked(d.END) == 5
    # Messages of one millisecond are one position in time.
    assert 0 <= await asked(d.TIMESTAMP, timestamp=at) <= 3
    later = Timestamp(seconds=at.seconds + 3600)
    assert await asked(d.TIMESTAMP, timestamp=later) == 5
