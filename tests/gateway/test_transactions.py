"""Half messages of clients: committed, rolled back, and checked if no client ends them."""

import asyncio
from collections.abc import Iterator

import pytest
from google.protobuf.duration_pb2 import Duration

import rockoon
from gateway.gateways import running_gateway
from gateway.reading import read
from gateway.wire_client import TelemetryStream, WireClient, message, producer_settings
from rockoon.local.cluster import LocalCluster
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code

CHECK_SECONDS_MAX = 60.0


@pytest.fixture(scope="module")
def local_cluster() -> Iterator[LocalCluster]:
    soon = {"transaction_check_interval_ms": 200, "transaction_timeout_ms": 400}
    with LocalCluster(single=True, settings={"broker": soon}) as cluster:
        yield cluster


def half(topic: str, body: bytes, message_id: str = "half") -> d.Message:
    return message(topic, body, message_id, message_type=d.TRANSACTION)


async def check_of(stream: TelemetryStream) -> pb.RecoverOrphanedTransactionCommand:
    async with asyncio.timeout(CHECK_SECONDS_MAX):
        while True:
            command = await stream.next()
            if command.HasField("recover_orphaned_transaction_command"):
                return command.recover_orphaned_transaction_command


async def test_what_is_committed_is_read_and_what_is_rolled_back_is_not(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    await cluster.admin.create_topic("paid", queues_per_broker=1)
    kept = (await client.send(half("paid", b"kept", "kept"))).entries[0]
    dropped = (await client.send(half("paid", b"dropped", "dropped"))).entries[0]
    assert kept.status.code == Code.OK
    assert kept.transaction_id != dropped.transaction_id
    assert await client.end("paid", dropped, d.ROLLBACK) == Code.OK
    assert await client.end("paid", kept, d.TRANSACTION_RESOLUTION_UNSPECIFIED) == Code.OK
    for _ in range(2):
        assert await client.end("paid", kept, d.COMMIT) == Code.OK
    (got,) = await read(cluster, "paid", 1)
    assert (got.body, got.message_id) == (b"kept", "kept")
    assert await client.end("paid", kept, d.ROLLBACK) == Code.INVALID_TRANSACTION_ID
    for wrong in (
        "",
        " ",
        "kept",
        "00000000000fffff@broker-a",
        "0000000000000001@broker-a",
        # Brokers without a queue of the topic.
        "0000000000000001@nowhere",
        "0000000000000001@" + "b" * 101,
        # Larger than an offset's 64 bits.
        "8000000000000000@broker-a",
        "ffffffffffffffff@broker-a",
    ):
        code = await client.end("paid", kept, d.COMMIT, transaction_id=wrong)
        assert code == Code.INVALID_TRANSACTION_ID, wrong
    assert await client.end("paid", kept, d.TransactionResolution.ValueType(99)) == Code.BAD_REQUEST
    assert await client.end("paid", kept, d.COMMIT, source=99) == Code.BAD_REQUEST


async def test_any_gateway_ends_what_another_one_began(
    client: WireClient, cluster: rockoon.Cluster, local_cluster: LocalCluster
) -> None:
    await cluster.admin.create_topic("elsewhere", queues_per_broker=1)
    begun = (await client.send(half("elsewhere", b"kept"))).entries[0]
    async with (
        running_gateway(local_cluster) as second,
        WireClient(second.address, "another@2@0@test") as other,
    ):
        assert await other.end("elsewhere", begun, d.COMMIT) == Code.OK
    (got,) = await read(cluster, "elsewhere", 1)
    assert got.body == b"kept"


async def test_a_producer_of_the_topic_is_asked_when_the_sender_says_nothing(
    client: WireClient, cluster: rockoon.Cluster, local_cluster: LocalCluster
) -> None:
    """Also a client that called another gateway, and has never sent a message."""
    await cluster.admin.create_topic("orphaned", queues_per_broker=1)
    sent = half("orphaned", b"who knows", "orphan")
    sent.system_properties.orphaned_transaction_recovery_duration.CopyFrom(Duration(seconds=1))
    begun = (await client.send(sent)).entries[0]
    async with (
        running_gateway(local_cluster) as second,
        WireClient(second.address, "another@2@0@test") as other,
    ):
        stream = other.telemetry()
        await stream.tell(producer_settings("unrelated", "orphaned"))
        check = await check_of(stream)
        assert check.transaction_id == begun.transaction_id
        assert check.message.topic.name == "orphaned"
        assert check.message.body == b"who knows"
        assert check.message.system_properties.message_id == "orphan"
        assert check.message.system_properties.message_type == d.TRANSACTION
        assert check.message.system_properties.HasField("body_digest")
        # Not known: it is asked again, until it knows.
        unknown = {"source": d.SOURCE_SERVER_CHECK, "transaction_id": check.transaction_id}
        code = await other.end("orphaned", begun, d.TRANSACTION_RESOLUTION_UNSPECIFIED, **unknown)
        assert code == Code.OK
        again = await check_of(stream)
        assert again == check
        assert await other.end("orphaned", begun, d.COMMIT, **unknown) == Code.OK
        await stream.close()
    (got,) = await read(cluster, "orphaned", 1)
    assert got.body == b"who knows"


async def test_beyond_the_bound_the_topic_used_last_is_checked(
    cluster: rockoon.Cluster, local_cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    for topic in ("unchecked", "checked"):
        await cluster.admin.create_topic(topic, queues_per_broker=1)
    async with (
        running_gateway(local_cluster, checked_topics_max=1) as gateway,
        WireClient(gateway.address) as client,
    ):
        await client.send(half("unchecked", b"1"))
        stream = client.telemetry()
        await stream.tell(producer_settings("unchecked", "checked"))
        await client.send(half("checked", b"2"))
        asked = [(await check_of(stream)).message.topic.name]
        while asked[-1] != "checked":
            asked.append((await check_of(stream)).message.topic.name)
        assert "transactions of topic unchecked are not checked here any more" in caplog.text
        await stream.close()


async def test_a_lower_bound_ends_the_checks_of_other_topics_at_once(
    cluster: rockoon.Cluster, local_cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    for topic in ("released", "remaining"):
        await cluster.admin.create_topic(topic, queues_per_broker=1)
    async with (
        running_gateway(local_cluster, name="bounded", admin_listen="127.0.0.1:0") as gateway,
        WireClient(gateway.address) as client,
    ):
        stream = client.telemetry()
        await stream.tell(producer_settings("released", "remaining"))
        await client.send(half("released", b"1"))
        await client.send(half("remaining", b"2"))
        names = set()
        while len(names) < 2:
            names.add((await check_of(stream)).message.topic.name)
        await cluster.admin.settings.set("gateway", "checked_topics_max", "1", "bounded")
        assert "transactions of topic released are not checked here any more" in caplog.text
        await client.send(half("remaining", b"3", "later"))
        checked = [await check_of(stream)]
        while checked[-1].message.system_properties.message_id != "later":
            checked.append(await check_of(stream))
        # Checks that were sent before the change precede the first check of the later message.
        checked = [await check_of(stream) for _ in range(6)]
        assert {each.message.topic.name for each in checked} == {"remaining"}
        await stream.close()


async def test_producers_take_turns_in_being_asked(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    """A client without a checker never replies, and its settings do not show this."""
    await cluster.admin.create_topic("shared", queues_per_broker=1)
    clients = [WireClient(client.address, f"producer@{number}") for number in range(2)]
    streams = [each.telemetry() for each in clients]
    for stream in streams:
        await stream.tell(producer_settings("shared"))
    await client.send(half("shared", b"asked of both"))
    checks = [await check_of(stream) for stream in streams]
    assert checks[0] == checks[1]
    for each in clients:
        await each.__aexit__(None, None, None)
