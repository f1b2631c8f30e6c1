"""Pull calls: every status, limits, tags, and waits for later messages."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from rockoon_broker.rpc.pull_answers import answer_with, stream_reply
from rockoon_core import errors
from rockoon_format.hashes import java_hash_code
from rockoon_proto.v1 import broker_pb2 as pb
from support.broker import bodies_of, running_broker
from support.broker_routes import BrokerRoutes

TAG_A, TAG_B = java_hash_code("TagA"), java_hash_code("TagB")


async def test_each_status_comes_with_the_offset_to_go_on_from(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 2})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"0", b"1", b"2", tags=["TagA", "TagB", "TagA"])
        cases: list[tuple[dict[str, Any], Any, int]] = [
            ({"queue_id": 0, "offset": 0}, pb.FOUND, 3),
            ({"queue_id": 0, "offset": 0, "max_messages": 2}, pb.FOUND, 2),
            ({"queue_id": 0, "offset": 0, "max_bytes": 1}, pb.FOUND, 1),
            ({"queue_id": 0, "offset": 1, "tag_hashes": [TAG_A]}, pb.FOUND, 3),
            ({"queue_id": 0, "offset": 0, "tag_hashes": [12345]}, pb.NO_MATCHED_MESSAGE, 3),
            ({"queue_id": 0, "offset": 3}, pb.OFFSET_OVERFLOW_ONE, 3),
            ({"queue_id": 0, "offset": 9}, pb.OFFSET_OVERFLOW_BADLY, 3),
            ({"queue_id": 1, "offset": 0}, pb.NO_MATCHED_LOGIC_QUEUE, 0),
            ({"queue_id": 1, "offset": 7}, pb.NO_MATCHED_LOGIC_QUEUE, 0),
        ]
        for fields, status, next_offset in cases:
            reply = await broker.pull("T", **fields)
            assert (reply.status, reply.next_offset) == (status, next_offset), fields
            ends = (0, 3) if fields["queue_id"] == 0 else (0, 0)
            assert (reply.min_offset, reply.max_offset) == ends


async def test_offsets_that_retention_took_are_too_small(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    settings = {
        "commit_log_file_bytes": 4096,
        "disk_check_interval_ms": 1,
        "reserved_hours": 0,
        "delete_when": ";".join(f"{hour:02d}" for hour in range(24)),
    }
    async with running_broker(tmp_path, [nameserver.address], **settings) as broker:
        for serial in range(3):
            await broker.append("T", 0, b"%d" % serial * 3000)
        # The last file stays, whatever its age.
        await broker.until(lambda seen: seen.log_min_offset == 8192)
        reply = await broker.pull("T", 0, 0)
        assert (reply.status, reply.next_offset, reply.min_offset) == (pb.OFFSET_TOO_SMALL, 2, 2)
        assert await broker.bodies("T", 0, 2) == [b"2" * 3000]


async def test_what_cannot_be_pulled_is_refused(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    await nameserver.create_topic("WriteOnly", {"broker-a": 1}, permissions=2)
    cases: list[tuple[dict[str, Any], type[errors.RockoonError]]] = [
        ({"topic": "Nowhere"}, errors.TopicNotFound),
        ({"topic": "T", "queue_id": 1}, errors.QueueNotFound),
        ({"topic": "WriteOnly"}, errors.TopicNotReadable),
        ({"topic": "T", "offset": -1}, errors.InvalidOffset),
        ({"topic": "T", "offset": (1 << 62) + 1}, errors.InvalidOffset),
        ({"topic": "T", "max_messages": -1}, errors.InvalidArgument),
        ({"topic": "T", "tag_hashes": [1] * 5000}, errors.InvalidArgument),
    ]
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        for fields, error in cases:
            with pytest.raises(error):
                await broker.pull(**fields)


async def test_a_waiting_pull_is_woken_by_what_arrives(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 2})
    async with (
        running_broker(tmp_path, [nameserver.address]) as broker,
        asyncio.TaskGroup() as tasks,
    ):
        await broker.append("T", 0, b"old")
        # The caller's deadline is earlier than the broker's: the test passes only if the broker
        # wakes it.
        held = [
            pb.PullRequest(topic="T", queue_id=queue_id, offset=offset, wait_ms=30_000)
            for queue_id, offset in ((0, 1), (1, 0))
        ]
        at_end, empty = (
            tasks.create_task(broker.call("Pull", request, seconds=25.0)) for request in held
        )
        await broker.until(lambda seen: seen.waiting_pulls == 2)
        await broker.append("T", 0, b"new")
        appended = time.monotonic()
        reply = await at_end
        assert time.monotonic() - appended < 25, "it was woken"
        assert (reply.status, bodies_of(reply)) == (pb.FOUND, [b"new"])
        await broker.until(lambda seen: seen.waiting_pulls == 1)
        await broker.append("T", 1, b"first")
        assert bodies_of(await empty) == [b"first"]


async def test_a_waiting_pull_sleeps_through_what_its_tags_do_not_want(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with (
        running_broker(tmp_path, [nameserver.address]) as broker,
        asyncio.TaskGroup() as tasks,
    ):
        await broker.append("T", 0, b"0", b"1", tags="TagA")
        pulling = tasks.create_task(broker.pull("T", 0, 0, wait_ms=30_000, tag_hashes=[TAG_B]))
        await broker.until(lambda seen: seen.waiting_pulls == 1)
        for serial in range(5):
            await broker.append("T", 0, b"%d" % serial, tags="TagA")
            await broker.until(lambda seen: seen.waiting_pulls == 1)
        assert not pulling.done()
        await broker.append("T", 0, b"wanted", tags="TagB")
        reply = await pulling
        assert (reply.status, reply.next_offset) == (pb.FOUND, 8)
        assert bodies_of(reply) == [b"wanted"]


async def test_a_pull_that_waited_in_vain_says_how_far_it_looked(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"0", b"1", tags="TagA")
        reply = await broker.pull("T", 0, 0, wait_ms=20, tag_hashes=[TAG_B])
        assert (reply.status, reply.next_offset) == (pb.NO_MATCHED_MESSAGE, 2)
        reply = await broker.pull("T", 0, 2, wait_ms=20)
        assert (reply.status, reply.next_offset) == (pb.OFFSET_OVERFLOW_ONE, 2)


async def test_a_rare_tag_is_found_behind_many_others_in_one_pull(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        for _ in range(30):
            await broker.append("T", 0, *[b"x"] * 1000, tags="TagA")
        await broker.append("T", 0, b"rare", tags="TagB")
        reply = await broker.pull("T", 0, 0, wait_ms=30_000, tag_hashes=[TAG_B])
        assert (reply.status, reply.next_offset) == (pb.FOUND, 30_001)
        assert bodies_of(reply) == [b"rare"]


async def test_a_reader_that_goes_away_does_not_wait_any_more(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        call = broker.stub.Pull(pb.PullRequest(topic="T", wait_ms=30_000))
        await broker.until(lambda seen: seen.waiting_pulls == 1)
        call.cancel()
        await broker.until(lambda seen: seen.waiting_pulls == 0)


# A connection may have 1,000 calls. The test uses one to ask for the number of waiting calls.
WAITING = 999


async def test_all_pulls_that_one_connection_may_have_wait_together(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with (
        running_broker(tmp_path, [nameserver.address]) as broker,
        asyncio.TaskGroup() as tasks,
    ):
        for _ in range(WAITING):
            tasks.create_task(broker.pull("T", wait_ms=30_000))
        await broker.until(lambda seen: seen.waiting_pulls == WAITING)
        await broker.append("T", 0, b"for all")


async def test_a_pull_too_many_is_answered_at_once(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    settings = {"waiting_pulls_max": 1}
    async with (
        running_broker(tmp_path, [nameserver.address], **settings) as broker,
        asyncio.TaskGroup() as tasks,
    ):
        waiting = tasks.create_task(broker.pull("T", 0, 0, wait_ms=30_000))
        await broker.until(lambda seen: seen.waiting_pulls == 1)
        assert (await broker.pull("T", 0, 0, wait_ms=30_000)).status == pb.NO_MATCHED_LOGIC_QUEUE
        await broker.append("T", 0, b"x")
        assert (await waiting).status == pb.FOUND


async def test_a_topic_deleted_under_a_waiting_pull_is_not_found(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with (
        running_broker(tmp_path, [nameserver.address]) as broker,
        asyncio.TaskGroup() as tasks,
    ):
        waiting = tasks.create_task(refused_pull(broker))
        await broker.until(lambda seen: seen.waiting_pulls == 1)
        await nameserver.delete_topic("T")
        assert isinstance(await waiting, errors.TopicNotFound)


async def refused_pull(broker: Any) -> errors.RockoonError:
    with pytest.raises(errors.RockoonError) as refusal:
        await broker.pull("T", 0, 0, wait_ms=30_000)
    return refusal.value


async def test_limits_are_cut_to_what_is_allowed(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    settings = {"consume_queue_file_entries": 10_000}
    async with running_broker(tmp_path, [nameserver.address], **settings) as broker:
        for _ in range(3):
            await broker.append("T", 0, *[b"x"] * 1000)
        assert len(bodies_of(await broker.pull("T"))) == 1024
        assert len(bodies_of(await broker.pull("T", max_messages=1 << 30))) == 3000
        assert len(bodies_of(await broker.pull("T", max_messages=3000, max_bytes=1 << 30))) == 3000


@pytest.mark.parametrize("count", [0, 1, 127, 128, 16_383, 16_384, 3_000_000])
def test_frames_that_go_out_uncopied_are_the_same_message(count: int) -> None:
    fields: dict[str, Any] = {"status": pb.FOUND, "next_offset": 7, "record_lengths": b"1234"}
    answer = answer_with(pb.PullReply(**fields), b"x" * count)
    whole = pb.PullReply(**fields, frames=b"x" * count)
    assert pb.PullReply.FromString(b"".join(stream_reply([answer]))) == whole
