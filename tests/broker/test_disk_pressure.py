"""A broker on a full disk, with or without an offset service that reports the groups' progress."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc import aio
from offset.cluster import running

from rockoon_core import errors
from rockoon_offset.settings import OffsetSettings
from rockoon_proto.v1 import broker_pb2 as pb
from rockoon_proto.v1 import nameserver_pb2 as ns
from rockoon_proto.v1 import offset_pb2
from rockoon_proto.v1.offset_pb2_grpc import OffsetServiceStub
from rockoon_runtime.process import Stop
from support.aside_desk import AsideDesk
from support.broker import RunningBroker, batch, running_broker
from support.broker_routes import BrokerRoutes
from support.store_directory import FailingDisk

TOPIC, GROUP = "T", "billing"
FILE_BYTES = 4096
FULL: dict[str, Any] = {
    "commit_log_file_bytes": FILE_BYTES,
    "consume_queue_file_entries": 10,
    "disk_forced_percent": 85,
    "disk_full_percent": 90,
    "disk_check_interval_ms": 20,
}


class Group:
    """Calls of a consumer group that reads queue 0 from its beginning."""

    def __init__(self, stub: Any, revision: int) -> None:
        self._stub = stub
        self._queue = offset_pb2.QueueRef(topic=TOPIC, broker="broker-a", queue_id=0)
        self._revision = revision

    async def start(self) -> offset_pb2.Start:
        policy = ns.StartPolicy(consume_from=ns.CONSUME_FROM_FIRST)
        request = offset_pb2.ResolveRequest(
            group=GROUP, queues=[self._queue], policy=policy, route_revision=self._revision
        )
        (start,) = (await self._stub.Resolve(request)).starts
        assert not start.HasField("error"), start.error.message
        return start

    async def commit(self, offset: int) -> None:
        epoch = (await self.start()).epoch
        entry = offset_pb2.CommitEntry(queue=self._queue, offset=offset, epoch=epoch)
        (result,) = (
            await self._stub.Commit(offset_pb2.CommitRequest(group=GROUP, entries=[entry]))
        ).results
        assert not result.HasField("error"), result.error.message


@asynccontextmanager
async def offset_service(root: Path, nameserver: BrokerRoutes) -> AsyncIterator[Group]:
    settings = OffsetSettings(
        listen="127.0.0.1:0", nameservers=(nameserver.address,), store_path=root / "offset"
    )
    stop = Stop()
    group = ns.GroupConfig(name=GROUP)
    await nameserver.CreateGroup(ns.CreateGroupRequest(config=group), None)
    async with (
        running(settings, stop, quiet_seconds=0) as address,
        aio.insecure_channel(address) as channel,
    ):
        yield Group(OffsetServiceStub(channel), nameserver.revision)


async def fill(broker: RunningBroker, batches: int) -> None:
    """Append five messages at a time; each batch fills a separate file."""
    for _ in range(batches):
        await broker.append(TOPIC, 0, *[bytes(500)] * 5)


async def test_files_go_as_far_as_every_group_has_read(
    tmp_path: Path, nameserver: BrokerRoutes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await nameserver.create_topic(TOPIC, {"broker-a": 1})
    disk = FailingDisk()
    addresses = [nameserver.address]
    async with (
        offset_service(tmp_path, nameserver) as group,
        running_broker(tmp_path / "broker", addresses, disk=disk, **FULL) as broker,
    ):
        await fill(broker, 6)
        await group.start()
        disk.usage_percent = 91
        seen = await broker.until(lambda now: GROUP in now.not_writable_reason)
        assert f"unread by groups: {GROUP} 5 of {TOPIC}@broker-a:0" in seen.not_writable_reason
        assert seen.log_min_offset == 0
        with pytest.raises(errors.StoreNotWritable, match=GROUP) as refusal:
            await fill(broker, 1)
        assert refusal.value.retriable
        assert refusal.value.is_pressure
        # Delayed and half messages are messages of clients, too.
        for handling in (pb.DELAYED, pb.HALF):
            request = batch(TOPIC, 0, b"x")
            request.handling = handling
            with pytest.raises(errors.StoreNotWritable, match="91 % full"):
                await broker.call("Append", request)
        await group.commit(12)
        seen = await broker.until(lambda now: now.log_min_offset == 2 * FILE_BYTES)
        disk.usage_percent = 50
        await broker.until(lambda now: now.writable)
        reply = await broker.pull(TOPIC, 0, 3)
        assert reply.status == pb.OFFSET_TOO_SMALL
        assert reply.deletion == pb.DELETED_DISK_PRESSURE
        assert (await group.start()).offset == 12
    lines = [each for each in caplog.messages if "is deleted" in each]
    assert len(lines) == 2
    assert all("disk pressure" in each and "read by every known group" in each for each in lines)


async def test_without_an_offset_service_nothing_counts_as_read(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic(TOPIC, {"broker-a": 1})
    disk = FailingDisk()
    async with running_broker(tmp_path, [nameserver.address], disk=disk, **FULL) as broker:
        await fill(broker, 4)
        disk.usage_percent = 91
        seen = await broker.until(lambda now: "offset service" in now.not_writable_reason)
        assert seen.log_min_offset == 0


async def test_a_reader_is_told_the_true_reason(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    await nameserver.create_topic(TOPIC, {"broker-a": 1})
    disk = FailingDisk()
    policy = {"disk_pressure_policy": "delete", "reserved_hours": 48}
    addresses = [nameserver.address]
    async with (
        offset_service(tmp_path, nameserver) as group,
        running_broker(tmp_path / "broker", addresses, disk=disk, **FULL, **policy) as broker,
    ):
        await fill(broker, 4)
        await group.start()
        disk.usage_percent = 86
        await broker.until(lambda now: now.log_min_offset >= 2 * FILE_BYTES)
        disk.usage_percent = 50
        start = await group.start()
        assert start.reason == offset_pb2.BELOW_MIN
        assert "messages were deleted under disk pressure unread" in start.explanation


async def test_expired_files_wait_for_a_group(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    await nameserver.create_topic(TOPIC, {"broker-a": 1})
    waits = FULL | {
        "reserved_hours": 0,
        "disk_used_percent_max": 10,
        "retention_wait_for_groups": (GROUP,),
        "retention_wait_bytes_max": 3 * FILE_BYTES,
    }
    disk = FailingDisk()
    disk.usage_percent = 5
    addresses = [nameserver.address]
    async with (
        offset_service(tmp_path, nameserver) as group,
        running_broker(tmp_path / "broker", addresses, disk=disk, **waits) as broker,
    ):
        await fill(broker, 6)
        await group.start()
        disk.usage_percent = 50
        # Five files have expired, and three may wait.
        await broker.until(lambda now: now.log_min_offset == 2 * FILE_BYTES)
        assert "retention_wait_bytes_max" in (await group.start()).explanation
        await group.commit(20)
        await broker.until(lambda now: now.log_min_offset == 4 * FILE_BYTES)


async def test_delayed_messages_below_a_place_are_counted(tmp_path: Path) -> None:
    desk = AsideDesk(tmp_path)
    await desk.send({"DELAY": 18}, {"TIMER_DELAY_SEC": 3600})
    await desk.turns()
    end = desk.store.appended_end
    assert desk.aside.pending_index.waiting_below(end) == 2
    assert desk.aside.pending_index.waiting_below(0) == 0
    desk.store.close()


async def test_a_store_of_rocketmq_says_that_it_keeps_its_files(
    tmp_path: Path, nameserver: BrokerRoutes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(bytes(FILE_BYTES))
    async with running_broker(tmp_path, [nameserver.address], **FULL) as broker:
        (problem,) = (await broker.describe()).problems
        assert "RocketMQ wrote this store" in problem
        assert caplog.text.count("reserved_hours") == 1
    async with running_broker(tmp_path, [nameserver.address], reserved_hours=72, **FULL) as broker:
        assert not (await broker.describe()).problems
