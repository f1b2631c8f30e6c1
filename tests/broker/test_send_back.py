"""SendBack: failed messages of consumers are stored durably in topics of the group."""

import asyncio
import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rockoon_core import errors
from rockoon_format.batch import decode_columns
from rockoon_format.message_id import encode_offset_id
from rockoon_format.names import TRANSACTION_HALF_TOPIC
from rockoon_format.record import Record, encode_record
from rockoon_proto.v1 import broker_pb2 as pb
from rockoon_proto.v1.nameserver_pb2 import CreateGroupRequest, DeleteGroupRequest, GroupConfig
from support.broker import RunningBroker, running_broker
from support.broker_routes import BrokerRoutes
from support.half_messages import begin
from support.holding_disk import HoldingDisk
from support.store_directory import in_log
from support.waiting import DEADLINE_SECONDS

RETRY, DEAD = "%RETRY%g", "%DLQ%g"
SOON = {"delay_ms": 1}


async def create_group(nameserver: BrokerRoutes, **config: Any) -> int:
    request = CreateGroupRequest(config=GroupConfig(name="g", **config))
    return int((await nameserver.CreateGroup(request, None)).revision)


async def records(broker: RunningBroker, topic: str, offset: int = 0) -> list[Record]:
    """Return the messages of a queue from an offset on; wait for the first if there is none."""
    reply = await broker.pull(topic, 0, offset, wait_ms=30_000)
    lengths = [
        int.from_bytes(reply.record_lengths[at : at + 4], "little")
        for at in range(0, len(reply.record_lengths), 4)
    ]
    columns = decode_columns(reply.frames, lengths)
    return [columns.record(index) for index in range(len(columns))]


def failed(original: Record, **more: Any) -> pb.FailedMessage:
    return pb.FailedMessage(
        topic=original.topic.decode(),
        queue_id=original.queue_id,
        queue_offset=original.queue_offset,
        physical_offset=original.physical_offset,
        **more,
    )


async def send_back(
    broker: RunningBroker, *messages: pb.FailedMessage, group: str = "g", **more: Any
) -> list[pb.SentBack]:
    request = pb.SendBackRequest(group=group, messages=messages, **more)
    return list((await broker.call("SendBack", request)).results)


async def test_a_failed_message_comes_again_and_again_and_then_is_a_dead_letter(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    await create_group(nameserver, retry_attempts_max=2)
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        appended = await broker.append("T", 0, b"good", b"bad")
        current = (await records(broker, "T"))[1]
        origin = encode_offset_id(appended.store_host, current.physical_offset)
        for attempt in (1, 2):
            [result] = await send_back(broker, failed(current, failure="why", **SOON))
            assert (result.topic, result.dead, result.attempts) == (RETRY, False, attempt)
            assert result.origin_message_id == origin
            [current] = await records(broker, RETRY, attempt - 1)
            assert (current.body, current.reconsume_times) == (b"bad", attempt)
        [result] = await send_back(broker, failed(current, failure="why", **SOON))
        assert (result.topic, result.dead, result.attempts) == (DEAD, True, 3)
        [dead] = await records(broker, DEAD)
        assert b"ROCKOON_FAILURE\x01why\x02" in dead.properties
        assert b"RETRY_TOPIC\x01T\x02" in dead.properties
        described = await broker.describe()
        assert (described.messages_sent_back, described.messages_dead) == (2, 1)


async def test_many_in_one_call_are_answered_each_for_itself(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    await create_group(nameserver)
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"0", b"1", b"2", b"3")
        found = await records(broker, "T")
        wrong_place, wrong_offset = failed(found[1]), failed(found[2])
        wrong_place.physical_offset += 1
        wrong_offset.queue_offset = 3
        results = await send_back(
            broker,
            failed(found[0], delay_level=-1),
            wrong_place,
            wrong_offset,
            failed(found[3], **SOON),
        )
        assert [(result.topic, result.error.code) for result in results] == [
            (DEAD, 0),
            ("", errors.MessageNotFound.code),
            ("", errors.MessageNotFound.code),
            (RETRY, 0),
        ]
        assert [record.body for record in await records(broker, DEAD)] == [b"0"]
        assert [record.body for record in await records(broker, RETRY)] == [b"3"]


async def test_another_broker_takes_the_record_itself_and_keeps_its_origin(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    await create_group(nameserver)
    async with running_broker(tmp_path / "a", [nameserver.address]) as home:
        appended = await home.append("T", 0, b"bad")
        [original] = await records(home, "T")
        pulled = await home.pull("T")
    async with running_broker(tmp_path / "b", [nameserver.address], name="broker-b") as other:
        # It does not serve T: the record is sufficient.
        message = failed(original, record=pulled.frames, **SOON)
        [result] = await send_back(other, message)
        assert not result.HasField("error")
        assert result.origin_message_id == encode_offset_id(
            appended.store_host, original.physical_offset
        )
        [again] = await records(other, RETRY)
        assert (again.body, again.reconsume_times) == (b"bad", 1)

        torn = pb.FailedMessage()
        torn.CopyFrom(message)
        torn.record = pulled.frames[:-1]
        elsewhere = pb.FailedMessage()
        elsewhere.CopyFrom(message)
        elsewhere.queue_offset = 8
        [first, second] = await send_back(other, torn, elsewhere)
        assert first.error.code == errors.InvalidArgument.code
        assert second.error.code == errors.MessageNotFound.code


async def test_one_message_that_cannot_come_again_spoils_no_other(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    """(content of the request, error text or result)"""
    await nameserver.create_topic("T", {"broker-a": 1})
    await create_group(nameserver)
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"good", b"bad")
        good, bad = await records(broker, "T")

        def forged(**fields: Any) -> pb.FailedMessage:
            record = replace(bad, **fields)
            return failed(record, record=encode_record(record, room=True))

        retry = {"topic": RETRY.encode()}
        for message, fate in (
            (failed(bad, delay_ms=10**15), RETRY),
            (forged(body=bytes((4 << 20) + 1)), errors.BodyTooLarge),
            (forged(properties=b"x\x01" + b"y" * 32_700), errors.PropertiesTooLarge),
            (forged(physical_offset=-1), errors.InvalidArgument),
            (forged(reconsume_times=-9, **retry), RETRY),
            (forged(reconsume_times=2**31 - 1, **retry), DEAD),
        ):
            first, second, third = await send_back(
                broker, failed(good, **SOON), message, failed(good, **SOON)
            )
            assert (first.topic, third.topic) == (RETRY, RETRY)
            found = second.topic if isinstance(fate, str) else second.error.code
            assert found == (fate if isinstance(fate, str) else fate.code)


async def test_the_largest_properties_that_can_be_sent_leave_room_for_what_a_retry_notes(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    """Otherwise its consumer could never get rid of the message."""
    await nameserver.create_topic("T", {"broker-a": 1})
    await create_group(nameserver)
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        largest = "y" * (31_743 - len(b"TAGS\x01\x02"))
        with pytest.raises(errors.PropertiesTooLarge):
            await broker.append("T", 0, b"x", tags=largest + "y")
        await broker.append("T", 0, b"x", tags=largest)
        [message] = await records(broker, "T")
        for level, fate in ((1, RETRY), (-1, DEAD)):
            [result] = await send_back(broker, failed(message, delay_level=level))
            assert result.topic == fate


async def test_what_waits_aside_cannot_be_had_by_sending_it_back(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    await create_group(nameserver)
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        place = await begin(broker, b"not committed", topic="T")
        [result] = await send_back(
            broker,
            pb.FailedMessage(
                topic=TRANSACTION_HALF_TOPIC,
                queue_offset=place.first_queue_offset,
                physical_offset=place.first_physical_offset,
                **SOON,
            ),
        )
        assert result.error.code == errors.InvalidArgument.code


async def test_a_broker_of_small_batches_takes_many_back(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    await create_group(nameserver)
    async with running_broker(
        tmp_path, [nameserver.address], batch_messages_max=2, batch_bytes_max=1024
    ) as broker:
        for body in (b"0", b"1", b"2", b"3" * 700, b"4" * 700):
            await broker.append("T", 0, body)
        found: list[Record] = []
        while len(found) < 5:
            found += await records(broker, "T", len(found))
        results = await send_back(broker, *(failed(each, delay_level=-1) for each in found))
        assert [result.topic for result in results] == [DEAD] * 5


async def test_large_messages_go_back_in_portions(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    await create_group(nameserver)
    bodies = [bytes([number]) * (1 << 20) for number in range(9)]
    async with running_broker(
        tmp_path, [nameserver.address], commit_log_file_bytes=32 << 20, batch_bytes_max=6 << 20
    ) as broker:
        for body in bodies:
            await broker.append("T", 0, body)
        found: list[Record] = []
        while len(found) < len(bodies):
            found += await records(broker, "T", len(found))
        results = await send_back(broker, *(failed(each, delay_level=-1) for each in found))
        assert all(result.dead for result in results)
        assert await broker.bodies(DEAD) == bodies


async def test_what_is_answered_survives_a_restart(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    await create_group(nameserver)
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"late", b"dead")
        late, dead = await records(broker, "T")
        # It still waits when the broker stops.
        await send_back(broker, failed(late, delay_ms=1500), failed(dead, delay_level=-1))
        assert not (await broker.pull(RETRY)).frames
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        assert [record.body for record in await records(broker, DEAD)] == [b"dead"]
        assert [record.body for record in await records(broker, RETRY)] == [b"late"]


@pytest.mark.parametrize("how", [{"delay_level": -1}, {"delay_level": 1}])
async def test_nothing_is_answered_before_it_is_on_disk(
    tmp_path: Path, nameserver: BrokerRoutes, how: dict[str, int]
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    await create_group(nameserver)
    disk = HoldingDisk()
    async with (
        running_broker(tmp_path, [nameserver.address], disk=disk) as broker,
        asyncio.TaskGroup() as tasks,
    ):
        await broker.append("T", 0, b"bad")
        [bad] = await records(broker, "T")
        end = (await broker.describe()).log_max_offset
        disk.hold()
        sending = tasks.create_task(send_back(broker, failed(bad, **how)))
        described = await broker.until(lambda seen: seen.log_max_offset > end)
        assert described.log_synced_offset == end
        assert described.messages_sent_back == described.messages_dead == 0
        assert not sending.done()
        disk.release()
        [result] = await sending
        assert not result.HasField("error")


async def test_a_failed_sync_is_told_and_not_taken_for_stored(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    await create_group(nameserver)
    disk = HoldingDisk()
    async with running_broker(tmp_path, [nameserver.address], disk=disk) as broker:
        await broker.append("T", 0, b"bad")
        [bad] = await records(broker, "T")
        disk.fail_sync = lambda path: errno.EIO if in_log(path) else 0
        [result] = await send_back(broker, failed(bad, delay_level=-1))
        assert result.error.code == errors.StoreFailed.code
        await broker.stop.wait()


async def test_a_group_of_no_retries_keeps_what_fails_as_dead_letters(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    await create_group(nameserver, retry_queues=0)
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"bad")
        [bad] = await records(broker, "T")
        [result] = await send_back(broker, failed(bad))
        assert result.dead
        assert [record.body for record in await records(broker, DEAD)] == [b"bad"]
        assert RETRY not in nameserver.topics


async def test_several_retry_queues_are_filled_call_by_call(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    await create_group(nameserver, retry_queues=2)
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"0", b"1")
        for record in await records(broker, "T"):
            await send_back(broker, failed(record, **SOON))
        async with asyncio.timeout(DEADLINE_SECONDS):
            for queue_id in (0, 1):
                reply = await broker.pull(RETRY, queue_id, wait_ms=30_000)
                assert reply.status == pb.FOUND


async def test_groups_that_are_unknown_deleted_or_not_heard_of_yet(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"bad")
        [bad] = await records(broker, "T")
        with pytest.raises(errors.GroupNotFound):
            await send_back(broker, failed(bad))
        # The consumer subscribed a moment ago, and the broker does not know it yet.
        revision = await create_group(nameserver)
        [result] = await send_back(broker, failed(bad, delay_level=-1), route_revision=revision)
        assert result.dead
        deletion = await nameserver.DeleteGroup(DeleteGroupRequest(name="g"), None)
        await broker.until(lambda described: described.route_revision >= deletion.revision)
        with pytest.raises(errors.GroupNotFound):
            await send_back(broker, failed(bad))
        # Its topics were deleted with it, and a new group of the name does not read the old dead
        # letters.
        await create_group(nameserver)
        await send_back(broker, failed(bad, delay_level=-1), route_revision=nameserver.revision)
        assert len(await records(broker, DEAD)) == 1


async def test_nothing_is_stored_while_the_topic_cannot_be_made(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    await create_group(nameserver)
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"bad")
        [bad] = await records(broker, "T")
        end = (await broker.describe()).log_max_offset
        await nameserver.stop()
        [result] = await send_back(broker, failed(bad, delay_level=-1))
        assert result.error.retriable
        assert (await broker.describe()).log_max_offset == end
        await nameserver.start()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not result.dead:
                [result] = await send_back(broker, failed(bad, delay_level=-1))


async def test_calls_that_make_no_sense_are_refused(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await create_group(nameserver)
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        with pytest.raises(errors.InvalidArgument):
            await send_back(broker)
        with pytest.raises(errors.InvalidArgument):
            await send_back(broker, *[pb.FailedMessage(topic="T")] * 1025)
        with pytest.raises(errors.InvalidArgument):
            await send_back(broker, pb.FailedMessage(topic="T"), attempts_max=-1)
