"""Reads of records that are not in the page cache: only their readers wait for the disk."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rockoon_broker import cold_reads
from rockoon_broker.settings import BrokerSettings
from rockoon_broker.store.log import file_reads
from rockoon_core import errors
from rockoon_core.disk import CHUNK_BYTES, Disk
from rockoon_format.hashes import java_hash_code
from rockoon_proto.v1 import broker_pb2 as pb
from support.broker import RunningBroker, bodies_of, running_broker
from support.broker_routes import BrokerRoutes
from support.cold_disk import PAGE_BYTES, ColdDisk
from support.eventually import eventually
from support.pull_stream import reading

OLD = [b"old %d" % number + bytes(3 * PAGE_BYTES) for number in range(6)]
TAG = java_hash_code("Tag")
NO_INDEX: dict[str, Any] = {"index": "off"}


@asynccontextmanager
async def restarted(
    root: Path, nameserver: BrokerRoutes, **more: Any
) -> AsyncIterator[tuple[RunningBroker, ColdDisk]]:
    """A broker without any message in memory: it has two queues, and OLD in the first one."""
    await nameserver.create_topic("T", {"broker-a": 2})
    await nameserver.create_topic("Between", {"broker-a": 1})
    async with running_broker(root, [nameserver.address], **more) as broker:
        for body in OLD:
            await broker.append("T", 0, body)
            # So that no two records are in one read.
            await broker.append("Between", 0, bytes(3 * PAGE_BYTES))
    disk = ColdDisk()
    async with running_broker(root, [nameserver.address], disk=disk, **more) as broker:
        await broker.describe()
        disk.evict()
        try:
            yield broker, disk
        finally:
            disk.moves.set()


async def by_pull(broker: RunningBroker) -> list[bytes]:
    return bodies_of(await broker.pull("T", 0, 0))


async def by_tag(broker: RunningBroker) -> list[bytes]:
    # The log first confirms the tag codes of skipped entries.
    other = await broker.pull("T", 0, 0, tag_hashes=[TAG])
    assert (other.status, other.next_offset) == (pb.NO_MATCHED_MESSAGE, len(OLD))
    return OLD


async def by_stream(broker: RunningBroker) -> list[bytes]:
    async with reading(broker.stub) as reader:
        return await reader.bodies(await reader.subscribe("T", 0))


async def by_log(broker: RunningBroker) -> list[bytes]:
    request = pb.ReadLogRequest(physical_offset=0, end_offset=1 << 40)
    return [
        body for body in bodies_of(await broker.call("ReadLog", request)) if body.startswith(b"old")
    ]


async def by_log_from_anywhere(broker: RunningBroker) -> list[bytes]:
    request = pb.ReadLogRequest(physical_offset=1, end_offset=1 << 40)
    behind = bodies_of(await broker.call("ReadLog", request))
    return [OLD[0], *(body for body in behind if body.startswith(b"old"))]


async def by_range(broker: RunningBroker) -> list[bytes]:
    wanted = pb.QueueRange(topic="T", queue_id=0, offset=0, messages=len(OLD))
    return bodies_of(await broker.call("Read", pb.ReadRequest(range=wanted)))


async def by_time(broker: RunningBroker) -> list[bytes]:
    queue = pb.BrokerQueue(topic="T", queue_id=0)
    request = pb.SearchOffsetRequest(queues=[queue], timestamp_ms=1, boundary=pb.LOWER)
    (found,) = (await broker.call("SearchOffset", request)).offsets
    assert not found.HasField("error")
    return OLD[found.offset :]


async def by_status(broker: RunningBroker) -> list[bytes]:
    queue = pb.BrokerQueue(topic="T", queue_id=0)
    request = pb.QueueStatusRequest(queues=[queue], offsets=[0])
    (state,) = (await broker.call("QueueStatus", request)).queues
    assert 0 < state.first_store_timestamp_ms <= state.last_store_timestamp_ms
    assert state.asked_store_timestamp_ms == state.first_store_timestamp_ms
    return OLD[state.min_offset : state.max_offset]


WAYS = (by_pull, by_tag, by_stream, by_log, by_log_from_anywhere, by_range, by_time, by_status)


@pytest.mark.parametrize("way", WAYS)
async def test_while_a_reader_waits_for_the_disk_others_do_not(
    tmp_path: Path,
    nameserver: BrokerRoutes,
    way: Callable[[RunningBroker], Awaitable[list[bytes]]],
) -> None:
    async with (
        restarted(tmp_path, nameserver, **NO_INDEX) as (broker, disk),
        asyncio.TaskGroup() as tasks,
    ):
        disk.moves.clear()
        cold = tasks.create_task(way(broker))
        await eventually(lambda: disk.loaded)
        async with reading(broker.stub) as reader:
            listener = await reader.subscribe("T", 1)
            for number in range(3):
                await broker.append("T", 1, b"new %d" % number)
                assert await reader.bodies(listener) == [b"new %d" % number]
        assert not cold.done()
        disk.moves.set()
        assert await cold == OLD
        assert disk.waited == 0
        await eventually(lambda: not disk.lent)
        # Any other read on this thread waits for the disk.
        assert not file_reads.mode.cached_only


async def test_a_stream_goes_on_with_its_other_queues(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with restarted(tmp_path, nameserver, **NO_INDEX) as (broker, disk):
        disk.moves.clear()
        async with reading(broker.stub) as reader:
            cold, warm = await reader.subscribe("T", 0), await reader.subscribe("T", 1)
            await broker.append("T", 1, b"new")
            assert await reader.bodies(warm) == [b"new"]
            await eventually(lambda: disk.loaded)
            # Credit that arrives in the meantime causes no other read of a queue that is being
            # read.
            await reader.give(cold, 1, 1)
            empty = await reader.subscribe("T", 1, 1)
            assert (await reader.answer()).subscription_id == empty
            assert disk.loaded == 1
            disk.moves.set()
            assert await reader.bodies(cold) == OLD
        assert disk.waited == 0


async def test_records_far_apart_are_brought_by_one_load(
    tmp_path: Path, nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[int] = []
    load = file_reads.load

    def counted(disk: Disk, missing: list[file_reads.FileRange]) -> bool:
        loads.append(len(missing))
        return load(disk, missing)

    monkeypatch.setattr(file_reads, "load", counted)
    async with restarted(tmp_path, nameserver, **NO_INDEX) as (broker, _):
        assert await by_pull(broker) == OLD
        # The queue's beginning, its entries and its records are read one after another.
        assert loads[-1] == len(OLD)
        assert len(loads) <= 3


async def test_what_is_evicted_at_once_is_waited_for_in_the_end(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with restarted(tmp_path, nameserver, **NO_INDEX) as (broker, disk):
        disk.keeps = False
        for way in (by_pull, by_stream):
            disk.evict()
            assert await way(broker) == OLD
            assert disk.loaded > cold_reads.EVICTED_MAX
            assert disk.waited > 0


async def test_many_blocks_of_a_queue_are_proved_without_waiting_for_the_disk(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    count, more = 20_000, {**NO_INDEX, "consume_queue_file_entries": 30_000}
    async with running_broker(tmp_path, [nameserver.address], **more) as broker:
        for _ in range(count // 1000):
            await broker.append("T", 0, *[b"old"] * 1000)
    disk = ColdDisk()
    async with running_broker(tmp_path, [nameserver.address], disk=disk, **more) as broker:
        await broker.describe()
        disk.evict()
        wanted = await broker.pull("T", 0, 0, tag_hashes=[TAG])
        while wanted.next_offset < count:
            wanted = await broker.pull("T", 0, wanted.next_offset, tag_hashes=[TAG])
        assert disk.waited == 0


async def test_more_cold_queues_than_may_be_open(
    tmp_path: Path, nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_settings, queues, more = BrokerSettings.for_store, 40, NO_INDEX
    monkeypatch.setattr(
        BrokerSettings,
        "for_store",
        lambda self, host: replace(of_settings(self, host), open_queue_files_max=8),
    )
    await nameserver.create_topic("T", {"broker-a": queues})
    async with running_broker(tmp_path, [nameserver.address], **more) as broker:
        for queue_id in range(queues):
            await broker.append("T", queue_id, b"%d" % queue_id + bytes(PAGE_BYTES))
    disk = ColdDisk()
    async with (
        running_broker(tmp_path, [nameserver.address], disk=disk, **more) as broker,
        reading(broker.stub) as reader,
    ):
        await broker.describe()
        disk.evict()
        subscribed = {await reader.subscribe("T", queue_id) for queue_id in range(queues)}
        found = {(await reader.answer()).subscription_id for _ in subscribed}
        assert found == subscribed
        assert disk.waited == 0


async def test_a_stream_that_ends_takes_its_loads_with_it(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    queues = 40
    await nameserver.create_topic("T", {"broker-a": queues})
    async with running_broker(tmp_path, [nameserver.address], **NO_INDEX) as broker:
        for queue_id in range(queues):
            await broker.append("T", queue_id, bytes(PAGE_BYTES))
    disk = ColdDisk()
    async with running_broker(tmp_path, [nameserver.address], disk=disk, **NO_INDEX) as broker:
        await broker.describe()
        disk.evict()
        disk.moves.clear()
        async with reading(broker.stub) as reader:
            for queue_id in range(queues):
                await reader.subscribe("T", queue_id)
            await eventually(lambda: disk.loaded)
            assert (await broker.describe()).pull_subscriptions == queues
        await broker.until(lambda described: described.pull_subscriptions == 0)
        disk.moves.set()
        await broker.append("T", 0, b"new")
        assert len(await broker.bodies("T", 0)) == 2
        # Reads that ran when the stream ended, and those of the last pull.
        assert disk.loaded < queues


async def test_a_topic_that_is_made_anew_while_the_disk_is_read_is_not_the_one_meant(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with (
        restarted(tmp_path, nameserver, **NO_INDEX) as (broker, disk),
        asyncio.TaskGroup() as tasks,
    ):
        disk.moves.clear()

        async def pull() -> None:
            with pytest.raises(errors.TopicNotFound):
                await broker.pull("T", 0, 0)

        pulling = tasks.create_task(pull())
        await eventually(lambda: disk.loaded)
        await nameserver.delete_topic("T")
        await broker.until(lambda described: described.route_revision >= nameserver.revision)
        disk.moves.set()
        await pulling


async def test_an_index_is_made_again_without_waiting_for_the_disk(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address], **NO_INDEX) as broker:
        for body in OLD:
            await broker.append("T", 0, body, keys="k")
    disk = ColdDisk()
    disk.evict()
    async with running_broker(tmp_path, [nameserver.address], disk=disk) as broker:
        reply = await broker.query("T", "k", max_messages=len(OLD))
        assert reply.whole_range_searched, reply.not_searched_because
        assert sorted(bodies_of(reply)) == OLD
        assert disk.waited == 0


async def test_a_disk_that_refuses_is_asked_by_a_thread_once_and_told_as_ever(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with restarted(tmp_path, nameserver, **NO_INDEX) as (broker, disk):
        disk.fail_read = lambda path: errno.EIO if "commitlog" in str(path) else 0
        with pytest.raises(errors.StoreCorrupt):
            await by_log(broker)
        assert (disk.loaded, disk.waited) == (1, 1)
        async with reading(broker.stub) as reader:
            refusal = await reader.refusal(await reader.subscribe("T", 0))
            assert "Input/output error" in str(refusal)
        # For this, its cached entries were read once more.
        assert disk.waited == 3
        disk.fail_read = lambda _: 0
        assert await by_log(broker) == OLD


async def test_a_broker_stops_while_a_reader_waits_for_the_disk(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with restarted(tmp_path, nameserver, **NO_INDEX) as (broker, disk):
        disk.moves.clear()
        async with reading(broker.stub) as reader:
            await reader.subscribe("T", 0)
            await eventually(lambda: disk.loaded)
            broker.stop.request("the test wants it")
            with pytest.raises(errors.RockoonError):
                await reader.answer()
        disk.moves.set()


def test_the_page_cache_is_asked(tmp_path: Path) -> None:
    disk, path = Disk(), tmp_path / "file"
    content = bytes(range(256)) * (CHUNK_BYTES // 256 * 3)
    path.write_bytes(content)
    fd = disk.open(path)
    try:
        assert disk.pread_cached(fd, 5000, 123) == content[123:5123]
        assert disk.pread_cached(fd, 5000, len(content) - 99) == content[-99:]
        assert disk.pread_cached(fd, 10, len(content)) == b""
        disk.fdatasync(fd)
        disk.drop_clean(fd)
        found = disk.pread_cached(fd, len(content), 0)
        # A file system in memory has no pages to evict.
        assert found in (None, content)
        disk.will_read(fd, len(content), 0)
        assert disk.pread(fd, len(content), 0) == content
        assert disk.pread_cached(fd, len(content), 0) == content
    finally:
        disk.close(fd)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        # As the system does if a part of it, or nothing, is cached; Linux 5.9 and 5.10 return 0.
        ([4096, BlockingIOError()], None),
        ([BlockingIOError()], None),
        ([0], None),
        ([4096, 0], None),
        ([4096, 904], bytes(5000)),
        ([OSError(errno.EOPNOTSUPP, "no")], bytes(5000)),
    ],
)
def test_what_the_system_may_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[Any], found: bytes | None
) -> None:
    def preadv(_fd: int, buffers: Any, _position: int, _flags: int) -> int:
        what = said.pop(0)
        if isinstance(what, OSError):
            raise what
        buffers[0][:what] = bytes(what)
        return int(what)

    disk, path = Disk(), tmp_path / "file"
    path.write_bytes(bytes(9000))
    fd = disk.open(path)
    monkeypatch.setattr(os, "preadv", preadv)
    try:
        assert disk.pread_cached(fd, 5000, 0) == found
    finally:
        disk.close(fd)
