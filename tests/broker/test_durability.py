"""flush = sync: no client gets an acknowledgement or a message before the message is on the
disk."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from rockoon_core import errors
from rockoon_proto.v1 import broker_pb2 as pb
from rockoon_runtime.process import ExitStatus
from support.broker import RunningBroker, batch, running_broker
from support.broker_routes import BrokerRoutes
from support.holding_disk import HoldingDisk
from support.store_directory import in_log


async def test_an_append_is_answered_and_seen_after_its_sync_only(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    disk = HoldingDisk()
    async with (
        running_broker(tmp_path, [nameserver.address], disk=disk) as broker,
        asyncio.TaskGroup() as tasks,
    ):
        disk.hold()
        appending = tasks.create_task(broker.append("T", 0, b"one"))
        described = await broker.until(lambda seen: seen.log_max_offset > 0)
        assert described.log_synced_offset == 0
        reply = await broker.pull("T")
        assert (reply.status, reply.max_offset) == (pb.NO_MESSAGE_IN_QUEUE, 0)
        assert not appending.done()

        disk.release()
        assert (await appending).first_queue_offset == 0
        assert await broker.bodies("T") == [b"one"]


async def test_appends_of_many_senders_share_one_sync(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 4})
    disk = HoldingDisk()
    async with (
        running_broker(tmp_path, [nameserver.address], disk=disk) as broker,
        asyncio.TaskGroup() as tasks,
    ):
        disk.hold()
        first = tasks.create_task(broker.append("T", 0, b"first"))
        await broker.until(lambda seen: seen.messages_appended == 1)
        rest = [tasks.create_task(broker.append("T", n % 4, b"rest")) for n in range(20)]
        await broker.until(lambda seen: seen.messages_appended == 21)
        syncs_before = len([path for path in disk.syncs if in_log(path)])
        disk.release()
        await first
        for each in rest:
            await each
        # One for the first message, one for all that arrived while it ran; a recovery point may add
        # one.
        assert len([path for path in disk.syncs if in_log(path)]) - syncs_before <= 3


async def test_flush_async_answers_without_waiting_for_a_sync(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    disk = HoldingDisk()
    settings = {"flush": "async"}
    async with running_broker(tmp_path, [nameserver.address], disk=disk, **settings) as broker:
        disk.hold()
        await broker.append("T", 0, b"one")
        assert await broker.bodies("T") == [b"one"]
        disk.release()


async def test_a_failed_sync_ends_the_broker_and_nothing_is_acknowledged_any_more(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    disk = HoldingDisk()
    async with (
        running_broker(tmp_path, [nameserver.address], disk=disk) as broker,
        asyncio.TaskGroup() as tasks,
    ):
        await broker.append("T", 0, b"good")
        disk.hold()
        call = broker.stub.AppendStream()
        for serial in range(5):
            await call.write(batch("T", 0, b"lost", request_id=serial))
        # If the broker takes too long to stop, it breaks calls that clients leave open.
        await call.done_writing()
        unary = tasks.create_task(refused(broker))
        await broker.until(lambda seen: seen.messages_appended == 7)
        disk.fail_sync = lambda path: errno.EIO if in_log(path) else 0
        disk.release()
        assert isinstance(await unary, errors.StoreFailed)
        replies = [reply async for reply in call]
        assert [reply.HasField("error") for reply in replies] == [True] * 5
        await broker.stop.wait()
    assert broker.stop.fatal is not None
    assert broker.stop.fatal.status is ExitStatus.DISK_FAILED

    async with running_broker(tmp_path, [nameserver.address]) as broker:
        assert (await broker.bodies("T"))[0] == b"good"


async def refused(broker: RunningBroker) -> errors.RockoonError:
    with pytest.raises(errors.RockoonError) as refusal:
        await broker.append("T", 0, b"lost")
    return refusal.value


async def told_of_no_topic(broker: RunningBroker) -> None:
    with pytest.raises(errors.TopicNotFound):
        await broker.append("T", 0, b"ghost")


async def test_an_append_that_waited_for_room_does_not_land_in_a_topic_deleted_meanwhile(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    await nameserver.create_topic("Other", {"broker-a": 1})
    disk = HoldingDisk()
    async with (
        running_broker(
            tmp_path, [nameserver.address], disk=disk, unsynced_bytes_max=4096
        ) as broker,
        asyncio.TaskGroup() as tasks,
    ):
        disk.hold()
        filling = tasks.create_task(broker.append("Other", 0, bytes(5000)))
        await broker.until(lambda seen: seen.messages_appended == 1)
        waiting = tasks.create_task(told_of_no_topic(broker))
        # Its reply comes after the append on the same connection: by now the append waits.
        await broker.describe()
        revision = await nameserver.delete_topic("T")
        await broker.until(lambda seen: seen.route_revision >= revision)
        disk.release()
        await filling
        await waiting
        revision = await nameserver.create_topic("T", {"broker-a": 1})
        appended = await broker.append("T", 0, b"new", route_revision=revision)
        assert appended.first_queue_offset == 0


async def test_a_broker_whose_log_descriptor_was_closed_by_other_code_ends(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    disk = HoldingDisk()
    async with running_broker(tmp_path, [nameserver.address], disk=disk) as broker:
        await broker.append("T", 0, b"good")
        number = next(number for number, path in disk.paths.items() if in_log(path))
        os.close(number)
        assert isinstance(await refused(broker), errors.RockoonError)
        await broker.stop.wait()
    assert broker.stop.fatal is not None
    assert broker.stop.fatal.status is ExitStatus.DISK_FAILED
    assert "closed by other code" in str(broker.stop.fatal)

    async with running_broker(tmp_path, [nameserver.address]) as broker:
        assert await broker.bodies("T") == [b"good"]
