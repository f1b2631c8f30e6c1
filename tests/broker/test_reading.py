"""Read, QueueStatus, SearchOffset and DescribeBroker: calls of tools and of the offset service."""

import sys
from pathlib import Path
from typing import Any

import pytest

from rockoon_broker.topics.topics import PERMISSION_READ
from rockoon_core import errors
from rockoon_format.batch import decode_columns
from rockoon_format.message_id import encode_offset_id
from rockoon_format.record import encode_host
from rockoon_proto.v1 import broker_pb2 as pb
from rockoon_proto.v1.errors_pb2 import Error
from support.broker import RunningBroker, bodies_of, running_broker
from support.broker_routes import BrokerRoutes


async def read_range(broker: RunningBroker, **fields: Any) -> list[bytes]:
    request = pb.ReadRequest(range=pb.QueueRange(**fields))
    return bodies_of(await broker.call("Read", request))


async def read_id(broker: RunningBroker, message_id: str) -> list[bytes]:
    return bodies_of(await broker.call("Read", pb.ReadRequest(message_id=message_id)))


async def test_messages_are_read_by_offset(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    await nameserver.create_topic("WriteOnly", {"broker-a": 1}, permissions=2)
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"0", b"1", b"2")
        assert await read_range(broker, topic="T", offset=1) == [b"1"]
        assert await read_range(broker, topic="T", offset=1, messages=1024) == [b"1", b"2"]
        refusals: list[tuple[dict[str, Any], type[errors.RockoonError]]] = [
            ({"topic": "T", "offset": 3}, errors.MessageNotFound),
            ({"topic": "T", "offset": -1}, errors.InvalidOffset),
            ({"topic": "T", "messages": 1025}, errors.InvalidArgument),
            ({"topic": "T", "queue_id": 1}, errors.QueueNotFound),
            ({"topic": "Nowhere"}, errors.TopicNotFound),
            ({"topic": "WriteOnly"}, errors.TopicNotReadable),
        ]
        for fields, error in refusals:
            with pytest.raises(error):
                await read_range(broker, **fields)


async def test_a_message_is_read_by_its_id(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        appended = await broker.append("T", 0, b"0", b"1")
        first, host = appended.first_physical_offset, appended.store_host
        assert await read_id(broker, encode_offset_id(host, first)) == [b"0"]
        size = (await broker.describe()).log_max_offset // 2
        assert await read_id(broker, encode_offset_id(host, first + size)) == [b"1"]

        other_broker = encode_host("10.1.2.3", 10911)
        for message_id in (
            encode_offset_id(other_broker, first),
            encode_offset_id(host, first + 1),
            encode_offset_id(host, first + 2 * size),
            encode_offset_id(host, 1 << 40),
        ):
            with pytest.raises(errors.MessageNotFound):
                await read_id(broker, message_id)
        for message_id in ("", "12", "x" * 32):
            with pytest.raises(errors.InvalidArgument):
                await read_id(broker, message_id)


async def test_an_id_stays_valid_when_the_broker_has_moved(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        appended = await broker.append("T", 0, b"0")
    message_id = encode_offset_id(appended.store_host, appended.first_physical_offset)
    moved = {"store_host": "127.0.0.9:4711"}
    async with running_broker(tmp_path, [nameserver.address], **moved) as broker:
        assert await read_id(broker, message_id) == [b"0"]
        assert (await broker.append("T", 0, b"1")).store_host == encode_host("127.0.0.9", 4711)


async def test_a_deleted_topics_message_is_not_found_by_its_id(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        appended = await broker.append("T", 0, b"0")
        await nameserver.delete_topic("T")
        await broker.until(lambda seen: seen.topics == 0)
        with pytest.raises(errors.MessageNotFound):
            await read_id(
                broker, encode_offset_id(appended.store_host, appended.first_physical_offset)
            )


async def test_the_status_of_queues_tells_ends_times_residency_and_refusals(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 2})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        appended = await broker.append("T", 1, b"0", b"1")
        queues = [pb.BrokerQueue(topic=t, queue_id=q) for t, q in (("T", 1), ("T", 0), ("U", 0))]
        asked = pb.QueueStatusRequest(queues=queues, with_residency=True)
        reply = await broker.call("QueueStatus", asked)
        filled, empty, unknown = reply.queues
        assert [state.queue for state in reply.queues] == queues
        assert (filled.min_offset, filled.max_offset) == (0, 2)
        stored_ms = appended.store_timestamp_ms
        assert filled.first_store_timestamp_ms == filled.last_store_timestamp_ms == stored_ms
        assert filled.first_in_memory_by_distance
        assert filled.HasField("first_pages_resident") == (sys.platform == "linux")
        assert reply.as_of_ms >= stored_ms
        assert (empty.min_offset, empty.max_offset) == (0, 0)
        assert not empty.HasField("first_store_timestamp_ms")
        assert not empty.HasField("first_in_memory_by_distance")
        assert not empty.HasField("error")
        assert unknown.error.code == Error.TOPIC_NOT_FOUND
        assert (filled.next_offset, empty.next_offset) == (2, 0)
        assert filled.writable
        assert reply.route_revision > 0
        only = pb.QueueStatusRequest(queues=queues, offsets_only=True)
        filled, empty, unknown = (await broker.call("QueueStatus", only)).queues
        assert filled == pb.QueueState(queue=queues[0], max_offset=2, writable=True)
        assert empty == pb.QueueState(queue=queues[1], writable=True)
        assert unknown.error.code == Error.TOPIC_NOT_FOUND
        fewer = pb.QueueStatusRequest(queues=queues[:1], without_times=True)
        [state] = (await broker.call("QueueStatus", fewer)).queues
        assert not state.HasField("first_store_timestamp_ms")
        assert not state.HasField("last_store_timestamp_ms")
        assert (state.max_offset, state.next_offset, state.first_in_memory_by_distance) == (
            2,
            2,
            True,
        )
        closed = await nameserver.permit("T", PERMISSION_READ)
        asked.route_revision = closed
        reply = await broker.call("QueueStatus", asked)
        assert [each.writable for each in reply.queues] == [False] * 3
        assert reply.route_revision >= closed

        too_many = pb.QueueStatusRequest(queues=[queues[0]] * 4097)
        with pytest.raises(errors.InvalidArgument, match="4097 queues"):
            await broker.call("QueueStatus", too_many)


async def test_offsets_are_searched_by_time(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    await nameserver.create_topic("T", {"broker-a": 2})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        appended = await broker.append("T", 0, b"0", b"1")
        time_ms = appended.store_timestamp_ms
        queues = [pb.BrokerQueue(topic=t, queue_id=q) for t, q in (("T", 0), ("T", 1), ("U", 0))]
        expected = {
            (time_ms - 1, pb.LOWER): 0,
            (time_ms, pb.LOWER): 0,
            (time_ms + 1, pb.LOWER): 2,
            (time_ms - 1, pb.UPPER): 0,
            (time_ms, pb.UPPER): 1,
            (time_ms + 1, pb.UPPER): 1,
        }
        for (timestamp_ms, boundary), offset in expected.items():
            request = pb.SearchOffsetRequest(
                queues=queues, timestamp_ms=timestamp_ms, boundary=boundary
            )
            filled, empty, unknown = (await broker.call("SearchOffset", request)).offsets
            assert filled.offset == offset, (timestamp_ms - time_ms, boundary)
            assert empty.offset == 0
            assert unknown.error.code == Error.TOPIC_NOT_FOUND


async def test_a_broker_describes_itself(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    revision = await nameserver.create_topic("T", {"broker-a": 3})
    await nameserver.create_topic("Elsewhere", {"broker-b": 3})
    async with running_broker(tmp_path, [nameserver.address], flush="async") as broker:
        appended = await broker.append("T", 0, b"0", b"1")
        pulled = await broker.pull("T")
        seen = await broker.until(lambda seen: seen.log_synced_offset == seen.log_max_offset > 0)
        assert (seen.name, seen.cluster, seen.flush) == ("broker-a", "rockoon", "async")
        assert (seen.topics, seen.queues) == (1, 3)
        assert seen.log_min_offset == 0
        assert seen.writable
        assert 0 < seen.disk_used_ratio < 1
        assert seen.route_revision > revision
        assert (seen.messages_appended, seen.messages_pulled) == (appended.messages, 2)
        assert seen.bytes_appended == seen.bytes_pulled == len(pulled.frames)
        assert len(decode_columns(pulled.frames, [len(pulled.frames) // 2] * 2).bodies) == 2
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        seen = await broker.describe()
        assert seen.recovery_was_clean
        assert seen.recovery_records_scanned == 0
