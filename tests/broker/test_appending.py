"""Append calls: accepted and refused batches, the reasons of refusals, and the order of replies."""

import asyncio
import struct
from pathlib import Path
from typing import Any

import pytest

from rockoon_core import errors
from rockoon_proto.v1 import broker_pb2 as pb
from rockoon_proto.v1.errors_pb2 import Error
from support.broker import NOW_MS, RunningBroker, batch, bodies_of, running_broker
from support.broker_routes import BrokerRoutes
from support.eventually import eventually
from support.holding_disk import HoldingDisk


def lengths(*sizes: int) -> bytes:
    return struct.pack(f"<{len(sizes)}I", *sizes)


def changed(request: Any, **fields: Any) -> Any:
    other = pb.AppendRequest()
    other.CopyFrom(request)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def with_bytes_at(request: Any, position: int, value: bytes) -> Any:
    frames = bytearray(request.frames)
    frames[position : position + len(value)] = value
    return changed(request, frames=bytes(frames))


async def test_what_was_appended_is_pulled(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    await nameserver.create_topic("T", {"broker-a": 2})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        first = await broker.append("T", 1, b"one", b"two")
        second = await broker.append("T", 1, b"three")
        assert (first.first_queue_offset, first.messages) == (0, 2)
        assert second.first_queue_offset == 2
        assert second.first_physical_offset > first.first_physical_offset
        assert first.store_timestamp_ms > NOW_MS
        port = int(broker.address.rpartition(":")[2])
        assert first.store_host == bytes([127, 0, 0, 1]) + port.to_bytes(4)
        reply = await broker.pull("T", 1)
        assert bodies_of(reply) == [b"one", b"two", b"three"]
        assert (reply.min_offset, reply.max_offset, reply.next_offset) == (0, 3, 3)


async def test_each_refusal_says_what_is_wrong_and_stores_nothing(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    """One broker gets one request after another: (request, error, text of the error)."""
    await nameserver.create_topic("T", {"broker-a": 2})
    await nameserver.create_topic("Elsewhere", {"broker-b": 2})
    await nameserver.create_topic("ReadOnly", {"broker-a": 1}, permissions=4)
    good = batch("T", 0, b"one", b"two")
    size = len(good.frames) // 2
    cases: list[tuple[Any, type[errors.RockoonError], str]] = [
        (batch("Nowhere", 0, b"x"), errors.TopicNotFound, "'Nowhere' does not exist"),
        (batch("T", 2, b"x"), errors.QueueNotFound, "no queue 2 on broker 'broker-a'"),
        (batch("T", -1, b"x"), errors.QueueNotFound, "no queue -1"),
        (batch("Elsewhere", 0, b"x"), errors.QueueNotFound, "'Elsewhere' has no queue 0"),
        (batch("ReadOnly", 0, b"x"), errors.TopicNotWritable, "'ReadOnly' is read-only"),
        (pb.AppendRequest(topic="T"), errors.MalformedBatch, "0 bytes of record lengths"),
        (changed(good, record_lengths=b"1234567"), errors.MalformedBatch, "7 bytes of record"),
        (changed(good, record_lengths=lengths(size)), errors.MalformedBatch, "add up to"),
        (changed(good, record_lengths=lengths(size, 7)), errors.MalformedBatch, "record 1"),
        (changed(good, record_lengths=lengths(*[91] * 9)), errors.MalformedBatch, "9 messages"),
        (changed(good, queue_id=1), errors.MalformedBatch, "record 0: not of queue 1"),
        (with_bytes_at(good, 4, b"XXXX"), errors.MalformedBatch, "record 0: unknown magic"),
        (with_bytes_at(good, size + 88, b"X"), errors.MalformedBatch, "record 1: .* CRC"),
        (batch("T", 0, *[b"x" * 900] * 8), errors.MalformedBatch, "bytes, more than 4096"),
        (batch("T", 0, b"x", b"x" * 1025), errors.BodyTooLarge, "message 1 .* 1024 bytes"),
        (batch("T", 0, b"x", tags="t" * 600), errors.PropertiesTooLarge, "message 0 .* 500 bytes"),
    ]
    limits = {
        "body_bytes_max": 1024,
        "properties_bytes_max": 500,
        "batch_bytes_max": 4096,
        "batch_messages_max": 8,
    }
    async with running_broker(tmp_path, [nameserver.address], **limits) as broker:
        for request, error, text in cases:
            with pytest.raises(error, match=text):
                await broker.call("Append", request)
        appended = await broker.append("T", 0, b"good")
        assert (appended.first_queue_offset, appended.first_physical_offset) == (0, 0)


async def test_a_batch_that_fits_into_no_file_is_refused_for_good(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    settings = {"commit_log_file_bytes": 4096}
    async with running_broker(tmp_path, [nameserver.address], **settings) as broker:
        with pytest.raises(errors.MalformedBatch, match="does not fit into a file of 4096"):
            await broker.append("T", 0, b"x" * 5000)
        await broker.append("T", 0, b"x" * 3000)
        await broker.append("T", 0, b"y" * 3000)
        assert await broker.bodies("T") == [b"x" * 3000, b"y" * 3000]


async def test_a_full_disk_refuses_appends_until_there_is_room_again(
    tmp_path: Path, nameserver: BrokerRoutes, caplog: pytest.LogCaptureFixture
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    disk = HoldingDisk()
    caplog.set_level("INFO")
    settings = {
        "disk_full_percent": 90,
        "disk_forced_percent": 89,
        "disk_check_interval_ms": 1,
    }
    disk.usage_percent = 50
    async with running_broker(tmp_path, [nameserver.address], disk=disk, **settings) as broker:
        await broker.append("T", 0, b"before")
        disk.usage_percent = 95
        described = await broker.until(lambda seen: not seen.writable)
        assert "95 % full" in described.not_writable_reason
        assert list(described.problems) == [
            f"it takes no messages: {described.not_writable_reason}"
        ]
        assert described.disk_used_ratio == pytest.approx(0.95)
        with pytest.raises(errors.StoreNotWritable, match="95 % full") as refusal:
            await broker.append("T", 0, b"during")
        assert refusal.value.retriable
        assert await broker.bodies("T") == [b"before"]
        disk.usage_percent = 96
        await broker.until(lambda seen: "96 % full" in seen.not_writable_reason)
        disk.usage_percent = 50
        described = await broker.until(lambda seen: seen.writable)
        assert list(described.problems) == []
        await eventually(lambda: "messages are accepted again" in caplog.text)
        assert caplog.text.count("messages are refused: ") == 1
        await broker.append("T", 0, b"after")
        assert await broker.bodies("T") == [b"before", b"after"]


async def stream_of(broker: RunningBroker, *requests: Any) -> list[Any]:
    """Send all requests, end the stream, and return the replies."""
    call = broker.stub.AppendStream(iter_async(requests))
    return [reply async for reply in call]


async def iter_async(requests: Any) -> Any:
    for request in requests:
        yield request


def outcome(reply: Any) -> object:
    if reply.HasField("error"):
        return Error.Code.Name(reply.error.code)
    return reply.appended.first_queue_offset


async def test_a_stream_answers_in_order_and_goes_on_after_a_refused_batch(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 2})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        replies = await stream_of(
            broker,
            batch("T", 0, b"a", b"b", request_id=11),
            batch("Nowhere", 0, b"x", request_id=12),
            batch("T", 1, b"c", request_id=13),
            pb.AppendRequest(topic="T", request_id=14),
            batch("T", 0, b"d", request_id=15),
        )
        assert [(reply.request_id, outcome(reply)) for reply in replies] == [
            (11, 0),
            (12, "TOPIC_NOT_FOUND"),
            (13, 0),
            (14, "MALFORMED_BATCH"),
            (15, 2),
        ]
        assert replies[1].error.details["topic"] == "Nowhere"
        assert await broker.bodies("T", 0) == [b"a", b"b", b"d"]


async def test_a_stream_stops_reading_while_too_much_is_unanswered(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    """Up to 64 batches of a stream may wait for their sync; the producer holds the rest."""
    await nameserver.create_topic("T", {"broker-a": 1})
    disk = HoldingDisk()
    async with running_broker(tmp_path, [nameserver.address], disk=disk) as broker:
        await broker.append("T", 0, b"first")
        disk.hold()
        call = broker.stub.AppendStream()
        for serial in range(200):
            await call.write(batch("T", 0, b"%d" % serial, request_id=serial))
        await call.done_writing()
        await broker.until(lambda seen: seen.messages_appended >= 65)
        # Other streams are served in the meantime, and this stream does not advance.
        for _ in range(50):
            assert (await broker.describe()).messages_appended == 65
        disk.release()
        assert [reply.request_id async for reply in call] == list(range(200))
        assert len(await broker.bodies("T")) == 201


async def test_appends_wait_while_too_many_bytes_are_unsynced(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    disk = HoldingDisk()
    settings = {"unsynced_bytes_max": 4096}
    async with running_broker(tmp_path, [nameserver.address], disk=disk, **settings) as broker:
        disk.hold()
        requests = [batch("T", 0, b"x" * 2000, request_id=serial) for serial in range(5)]
        call = broker.stub.AppendStream(iter_async(requests))
        await broker.until(lambda seen: seen.messages_appended >= 2)
        for _ in range(20):
            assert (await broker.describe()).messages_appended == 2
        disk.release()
        assert [outcome(reply) async for reply in call] == [0, 1, 2, 3, 4]


async def test_a_sender_that_goes_away_leaves_the_broker_as_it_was(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    disk = HoldingDisk()
    async with running_broker(tmp_path, [nameserver.address], disk=disk) as broker:
        disk.hold()
        call = broker.stub.AppendStream()
        for serial in range(10):
            await call.write(batch("T", 0, b"%d" % serial))
        await broker.until(lambda seen: seen.messages_appended >= 10)
        call.cancel()
        disk.release()
        assert (await broker.append("T", 0, b"next")).first_queue_offset == 10
        assert len(await broker.bodies("T")) == 11


async def test_single_appends_that_wait_for_room_are_bounded(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    disk = HoldingDisk()
    settings = {"unsynced_bytes_max": 4096}
    async with (
        running_broker(tmp_path, [nameserver.address], disk=disk, **settings) as broker,
        asyncio.TaskGroup() as tasks,
    ):
        disk.hold()
        sent = []
        for body in (b"0", b"1"):
            sent.append(tasks.create_task(broker.append("T", 0, body * 5000)))
            await broker.describe()
        with pytest.raises(errors.Busy, match="bytes wait for room") as refusal:
            await broker.append("T", 0, b"2")
        assert refusal.value.retriable
        disk.release()
        assert [(await each).first_queue_offset for each in sent] == [0, 1]
        assert (await broker.append("T", 0, b"2")).first_queue_offset == 2
