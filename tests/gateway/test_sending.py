"""Messages of clients are stored unchanged, refused with the right code, and kept in order."""

import asyncio
import gzip
import signal
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

import rockoon
from gateway.gateways import running_gateway
from gateway.reading import read
from gateway.wire_client import WireClient, due, message, producer_settings
from rockoon.local.cluster import LocalCluster
from rockoon_gateway.producing.sending import parse_recall_handle, recall_handle
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code

DAY_MS = 86_400_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def test_a_message_is_stored_with_all_that_it_bears(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    await cluster.admin.create_topic("sent", queues_per_broker=1)
    sent = message(
        "sent",
        b"hello",
        "010000000000000000000000000000000A",
        tag="red",
        keys=["k1", "k2"],
        trace_context="trace",
        user_properties={"color": "blue", "empty": ""},
    )
    answer = await client.send(sent)
    assert answer.status.code == Code.OK
    (entry,) = answer.entries
    assert entry.status.code == Code.OK
    assert entry.message_id == entry.transaction_id == "010000000000000000000000000000000A"
    assert (entry.offset, entry.recall_handle) == (0, "")
    (got,) = await read(cluster, "sent", 1)
    assert (got.body, got.message_id, got.tags) == (b"hello", entry.message_id, "red")
    assert got.keys == ["k1", "k2"]
    assert got.properties == {
        "TAGS": "red",
        "UNIQ_KEY": entry.message_id,
        "KEYS": "k1 k2",
        "color": "blue",
        "TRACE_CONTEXT": "trace",
        "BORN_TIMESTAMP": "1700000000123",
        "__BORNHOST": "client.example.org",
    }


async def test_messages_of_one_call_are_answered_each_in_their_order(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    await cluster.admin.create_topic("several", queues_per_broker=1)
    answer = await client.send(*(message("several", b"%d" % n, f"id-{n}") for n in range(5)))
    assert answer.status.code == Code.OK
    assert [entry.message_id for entry in answer.entries] == [f"id-{n}" for n in range(5)]
    assert [entry.offset for entry in answer.entries] == list(range(5))
    assert [got.body for got in await read(cluster, "several", 5)] == [b"%d" % n for n in range(5)]


async def test_a_message_group_is_in_one_queue_whatever_queue_its_clients_choose(
    client: WireClient, cluster: rockoon.Cluster, local_cluster: LocalCluster
) -> None:
    """Clients of different languages hash differently, and would tear a group apart."""
    await cluster.admin.create_topic("in-order", queues_per_broker=4)
    async with (
        running_gateway(local_cluster) as second,
        WireClient(second.address, "another@2@0@test") as other,
    ):
        for number in range(20):
            sender = other if number % 2 else client
            answer = await sender.send(
                message(
                    "in-order",
                    b"%d" % number,
                    f"id-{number}",
                    message_type=d.FIFO,
                    message_group="account 7",
                    queue_id=number % 4,
                )
            )
            assert answer.status.code == Code.OK
    async with cluster.producer() as sdk:
        await sdk.send("in-order", b"20", ordering_key="account 7")
    got = await read(cluster, "in-order", 21)
    assert [int(each.body) for each in got] == list(range(21))
    assert len({each.queue for each in got}) == 1
    assert got[0].properties["__SHARDINGKEY"] == "account 7"


async def test_calls_that_come_together_share_batches(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    await cluster.admin.create_topic("crowd", queues_per_broker=1)
    async with asyncio.TaskGroup() as tasks:
        sends = [
            tasks.create_task(client.send(message("crowd", b"%d" % n, f"id-{n}")))
            for n in range(200)
        ]
    assert {send.result().status.code for send in sends} == {Code.OK}
    assert sorted(send.result().entries[0].offset for send in sends) == list(range(200))


async def test_a_delayed_message_comes_at_its_time_or_is_recalled(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    await cluster.admin.create_topic("later", queues_per_broker=1)
    soon, late, past = now_ms() + 700, now_ms() + DAY_MS // 2, now_ms() - 20_000
    sent = [
        (
            await client.send(
                message("later", name, name.decode(), message_type=d.DELAY, delivery_timestamp=at)
            )
        ).entries[0]
        for name, at in ((b"soon", due(soon)), (b"late", due(late)), (b"past", due(past)))
    ]
    assert all(entry.status.code == Code.OK and entry.recall_handle for entry in sent)
    late_entry = sent[1]
    recall = pb.RecallMessageRequest(
        topic=d.Resource(name="later"), recall_handle=late_entry.recall_handle
    )
    made_up = parse_recall_handle(late_entry.recall_handle)._replace(topic="anothers")
    foreign = pb.RecallMessageRequest(
        topic=d.Resource(name="anothers"), recall_handle=recall_handle(made_up)
    )
    assert (await client.call("RecallMessage", foreign)).status.code == Code.NOT_FOUND
    answer = await client.call("RecallMessage", recall)
    assert (answer.status.code, answer.message_id) == (Code.OK, "late")
    assert (await client.call("RecallMessage", recall)).status.code == Code.NOT_FOUND
    got = {each.body: each for each in await read(cluster, "later", 2)}
    assert got.keys() == {b"past", b"soon"}
    assert got[b"soon"].store_timestamp_ms >= soon
    waiting = await cluster.admin.delayed.list()
    assert waiting.pending == 0
    for topic, handle in (("later", "no handle"), ("sent", late_entry.recall_handle)):
        request = pb.RecallMessageRequest(topic=d.Resource(name=topic), recall_handle=handle)
        assert (await client.call("RecallMessage", request)).status.code == Code.BAD_REQUEST


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        ("MESSAGE_BODY_EMPTY", {"body": b""}),
        ("MESSAGE_BODY_TOO_LARGE", {"body": bytes((4 << 20) + 1)}),
        ("MESSAGE_CORRUPTED", {"body": b"no gzip", "body_encoding": d.GZIP}),
        ("MESSAGE_CORRUPTED", {"body": zlib.compress(b"cut")[:-2], "body_encoding": d.GZIP}),
        (
            "MESSAGE_CORRUPTED",
            {"body": gzip.compress(b"cut", mtime=0)[:-2], "body_encoding": d.GZIP},
        ),
        ("ILLEGAL_MESSAGE_ID", {"message_id": " "}),
        ("ILLEGAL_MESSAGE_ID", {"message_id": "a\x01b"}),
        ("ILLEGAL_MESSAGE_ID", {"message_id": "i" * 256}),
        ("MESSAGE_PROPERTIES_TOO_LARGE", {"born_host": "é" * 128}),
        ("MESSAGE_PROPERTIES_TOO_LARGE", {"trace_context": "t" * 4097}),
        ("MESSAGE_PROPERTIES_TOO_LARGE", {"keys": ["k"] * 8193}),
        ("MESSAGE_PROPERTIES_TOO_LARGE", {"tag": "t" * 16_385}),
        ("MESSAGE_CORRUPTED", {"body_encoding": 99}),
        ("MESSAGE_PROPERTY_CONFLICT_WITH_TYPE", {"message_type": 99}),
        (
            "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
            {"message_type": d.TRANSACTION, "delivery_timestamp": due(1000)},
        ),
        ("MESSAGE_PROPERTY_CONFLICT_WITH_TYPE", {"message_type": d.TRANSACTION, "priority": 1}),
        (
            "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
            {"delivery_timestamp": due(1000), "lite_topic": "lite"},
        ),
        ("ILLEGAL_MESSAGE_TAG", {"tag": " "}),
        ("ILLEGAL_MESSAGE_TAG", {"tag": "a|b"}),
        ("ILLEGAL_MESSAGE_TAG", {"tag": "a\nb"}),
        ("ILLEGAL_MESSAGE_KEY", {"keys": ["k", " "]}),
        ("ILLEGAL_MESSAGE_KEY", {"keys": ["a\x02"]}),
        ("ILLEGAL_MESSAGE_GROUP", {"message_group": " "}),
        ("ILLEGAL_MESSAGE_GROUP", {"message_group": "g" * 64}),
        ("ILLEGAL_MESSAGE_PROPERTY_KEY", {"user_properties": {"UNIQ_KEY": "x"}}),
        ("ILLEGAL_MESSAGE_PROPERTY_KEY", {"user_properties": {"__SEQ": "x"}}),
        ("ILLEGAL_MESSAGE_PROPERTY_KEY", {"user_properties": {"a\x00": "x"}}),
        ("ILLEGAL_MESSAGE_PROPERTY_KEY", {"user_properties": {"a": "\x7f"}}),
        (
            "MESSAGE_PROPERTIES_TOO_LARGE",
            {"user_properties": {f"p{n}": "v" for n in range(129)}},
        ),
        ("MESSAGE_PROPERTIES_TOO_LARGE", {"user_properties": {"p": "v" * 16_384}}),
        ("ILLEGAL_DELIVERY_TIME", {"delivery_timestamp": due(32_503_680_000_000)}),
        (
            "BAD_REQUEST",
            {
                "message_type": d.TRANSACTION,
                "orphaned_transaction_recovery_duration": Duration(seconds=3601),
            },
        ),
        ("MESSAGE_PROPERTY_CONFLICT_WITH_TYPE", {"priority": 1}),
        ("MESSAGE_PROPERTY_CONFLICT_WITH_TYPE", {"lite_topic": "lite"}),
        ("ILLEGAL_TOPIC", {"topic": "white space"}),
        ("TOPIC_NOT_FOUND", {"topic": "nowhere"}),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_what_cannot_be_stored_is_refused_with_its_code(
    client: WireClient, cluster: rockoon.Cluster, code: str, changed: dict[str, Any]
) -> None:
    await cluster.admin.create_topic("strict", if_absent=True)
    fields = {"topic": "strict", **changed}
    answer = await client.send(message(**fields))
    assert Code.Name(answer.status.code) == code
    assert answer.status.message.startswith(code)
    assert not answer.entries


async def test_many_half_messages_are_no_request(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    await cluster.admin.create_topic("halves", queues_per_broker=1)
    halves = [message("halves", message_type=d.TRANSACTION)] * 33
    assert (await client.send(*halves)).status.code == Code.BAD_REQUEST
    assert (await client.send(*halves[:2])).status.code == Code.OK


async def test_messages_of_several_topics_or_none_are_no_request(client: WireClient) -> None:
    for messages in ([], [message("sent"), message("several")]):
        assert (await client.send(*messages)).status.code == Code.MESSAGE_CORRUPTED


@pytest.mark.parametrize("kind", ["NORMAL", "FIFO", "DELAY", "TRANSACTION"])
async def test_a_topic_of_one_type_takes_no_other(
    client: WireClient, cluster: rockoon.Cluster, kind: str
) -> None:
    await cluster.admin.create_topic(f"type-{kind}", attributes={"message.type": kind})
    own: dict[str, dict[str, Any]] = {
        "NORMAL": {},
        "FIFO": {"message_group": "g"},
        "DELAY": {"delivery_timestamp": due(now_ms() + 60_000)},
        "TRANSACTION": {"message_type": d.TRANSACTION},
    }
    for each, fields in own.items():
        answer = await client.send(message(f"type-{kind}", **fields))
        wanted = "OK" if each == kind else "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"
        assert Code.Name(answer.status.code) == wanted, each


async def test_bounds_are_inclusive_and_packed_bodies_are_stored_plain(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    await cluster.admin.create_topic("large", queues_per_broker=1)
    sent = [
        message("large", bytes(4 << 20), "largest"),
        message("large", gzip.compress(b"plain"), "packed", body_encoding=d.GZIP),
        message("large", zlib.compress(b"of C++"), "zlib", body_encoding=d.GZIP),
        message("large", b"tagged", "tagged", tag="t" * 16_384),
        message("large", b"long", "i" * 255, born_host="h" * 255, trace_context="t" * 4096),
    ]
    for each in sent:
        assert (await client.send(each)).status.code == Code.OK
    got = {each.message_id: each.body for each in await read(cluster, "large", 5)}
    assert got == {
        "largest": bytes(4 << 20),
        "packed": b"plain",
        "zlib": b"of C++",
        "tagged": b"tagged",
        "i" * 255: b"long",
    }
    for compress in (gzip.compress, zlib.compress):
        bomb = message("large", compress(bytes(64 << 20)), "bomb", body_encoding=d.GZIP)
        assert (await client.send(bomb)).status.code == Code.MESSAGE_BODY_TOO_LARGE


async def test_bounds_are_those_of_the_settings(
    local_cluster: LocalCluster, cluster: rockoon.Cluster
) -> None:
    await cluster.admin.create_topic("bounded")
    bounds = {"body_bytes_max": 2000, "delay_seconds_max": 3600.0}
    async with (
        running_gateway(local_cluster, **bounds) as small,
        WireClient(small.address) as client,
    ):
        stream = client.telemetry()
        told = (await stream.tell(producer_settings("bounded"))).settings
        assert told.publishing.max_body_size == 2000
        await stream.close()
        for size, code in ((2000, Code.OK), (2001, Code.MESSAGE_BODY_TOO_LARGE)):
            assert (await client.send(message("bounded", bytes(size)))).status.code == code
        for seconds, code in ((3500, Code.OK), (3700, Code.ILLEGAL_DELIVERY_TIME)):
            at = due(now_ms() + seconds * 1000)
            delayed = message("bounded", message_type=d.DELAY, delivery_timestamp=at)
            assert (await client.send(delayed)).status.code == code


async def test_sends_beyond_the_buffer_are_refused_and_the_others_are_stored(
    local_cluster: LocalCluster, cluster: rockoon.Cluster, stopped: Callable[[signal.Signals], None]
) -> None:
    await cluster.admin.create_topic("full", queues_per_broker=1)
    bounds = {"buffer_bytes_max": 16 << 20, "send_seconds_max": 60.0}
    async with (
        running_gateway(local_cluster, **bounds) as gateway,
        WireClient(gateway.address) as client,
    ):
        assert (await client.send(message("full", message_id="first"))).status.code == Code.OK
        stopped(signal.SIGSTOP)
        async with asyncio.TaskGroup() as tasks:
            large = [message("full", bytes(4 << 20), f"id-{number}") for number in range(6)]
            sends = [tasks.create_task(client.send(each)) for each in large]
            await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
            stopped(signal.SIGCONT)
    answers = [send.result() for send in sends]
    stored = [each for each in answers if each.status.code == Code.OK]
    assert len(stored) >= 4
    assert {each.status.code for each in answers} == {Code.OK, Code.TOO_MANY_REQUESTS}
    assert len(await read(cluster, "full", 1 + len(stored))) == 1 + len(stored)


async def test_a_send_that_no_broker_stores_is_answered_after_the_time_of_the_settings(
    local_cluster: LocalCluster, cluster: rockoon.Cluster, stopped: Callable[[signal.Signals], None]
) -> None:
    await cluster.admin.create_topic("slow", queues_per_broker=1)
    async with (
        running_gateway(local_cluster, send_seconds_max=0.5) as gateway,
        WireClient(gateway.address) as client,
    ):
        assert (await client.send(message("slow", message_id="first"))).status.code == Code.OK
        stopped(signal.SIGSTOP)
        began = time.monotonic()
        answer = await client.send(message("slow", message_id="second"))
        assert Code.Name(answer.status.code) == "PROXY_TIMEOUT"
        assert time.monotonic() - began > 0.4
        stopped(signal.SIGCONT)


async def test_a_read_only_topic_takes_nothing(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    await cluster.admin.create_topic("read-only", permissions=4)
    assert (await client.send(message("read-only"))).status.code == Code.FORBIDDEN


async def test_a_request_whose_bodies_unpack_to_too_much_is_refused(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    await cluster.admin.create_topic("bombs")
    packed = gzip.compress(bytes(4 << 20))
    bombs = [message("bombs", packed, f"id-{n}", body_encoding=d.GZIP) for n in range(33)]
    assert (await client.send(*bombs)).status.code == Code.MESSAGE_BODY_TOO_LARGE
    # Members without bytes: hardly compressed, and slow to check.
    empty = gzip.compress(b"") * (5 << 20 >> 4)
    answer = await client.send(message("bombs", empty, body_encoding=d.GZIP))
    assert answer.status.code == Code.MESSAGE_BODY_TOO_LARGE


async def test_a_topic_with_a_name_too_long_for_a_group_takes_no_transactions(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    topic = "t" * 127
    await cluster.admin.create_topic(topic)
    answer = await client.send(message(topic, message_type=d.TRANSACTION))
    assert answer.status.code == Code.ILLEGAL_TOPIC
