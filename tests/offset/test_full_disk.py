"""The offset service's disk is full: it refuses changes, and accepts them later without an
operator."""

import asyncio
import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from grpc import aio
from offset.cluster import GROUP, Cluster, running
from offset.journals import found, numbers, opened, put, write

from rockoon_core.disk import Disk, Shortage
from rockoon_core.errors import OffsetServiceUnavailable, StoreFailed, StoreNotWritable
from rockoon_core.failed_call import from_rpc_error
from rockoon_offset.journal import frames, journal_files, journal_log
from rockoon_offset.journal import store as store_module
from rockoon_offset.journal.journal_files import generations
from rockoon_offset.journal.store import JournalStore
from rockoon_proto.v1 import nameserver_pb2 as ns
from rockoon_proto.v1 import offset_pb2 as pb
from rockoon_proto.v1.offset_pb2_grpc import OffsetServiceStub
from rockoon_runtime.process import Stop
from support.descriptors import no_descriptors
from support.eventually import answered, eventually


class FullDisk(Disk):
    """A file system with limited space for the files of one directory; the size of a file is the
    end of its last byte."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sizes: dict[int, int] = {}
        self.room_bytes: float = float("inf")

    def fill(self) -> None:
        """Leave no space."""
        self.room_bytes = self._used_bytes()

    def _used_bytes(self) -> int:
        used = 0
        for path in self._directory.iterdir():
            # The store removes files at the same time.
            with contextlib.suppress(FileNotFoundError):
                used += path.stat().st_size
        return used

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        left = self.room_bytes - self._used_bytes()
        fitting = max(os.fstat(fd).st_size - position, 0) + max(left, 0)
        if fitting < 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().pwrite(fd, memoryview(data)[: int(min(fitting, len(data)))], position)

    def allocate(self, fd: int, count: int) -> None:
        if self._used_bytes() - os.fstat(fd).st_size + count > self.room_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().allocate(fd, count)


@pytest.fixture(autouse=True)
def _soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(journal_files, "RESERVE_BYTES", 4096)
    monkeypatch.setattr(journal_log, "ROOM_SECONDS", 0.0)
    monkeypatch.setattr(journal_log, "ROTATION_RETRY_SECONDS", 0.0)


def full_disk(root: Path) -> FullDisk:
    (root / "journal").mkdir(exist_ok=True)
    return FullDisk(root / "journal")


def is_refused(store: JournalStore) -> bool:
    try:
        store.require_writable()
    except StoreNotWritable as refusal:
        assert refusal.retriable
        return True
    return False


async def test_what_was_taken_is_stored_and_the_rest_refused_until_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = full_disk(tmp_path)
    store = opened(tmp_path, disk)
    put(store, range(3))
    await store.durable()
    disk.fill()
    put(store, range(3, 5))
    await store.durable()
    with pytest.raises(StoreNotWritable, match="No space left") as refused:
        store.require_writable()
    assert refused.value.retriable
    assert "No space left" in store.journal_counts().shortage
    disk.room_bytes += 100_000
    # Without a request.
    await eventually(lambda: "progress is stored again" in caplog.text)
    assert not is_refused(store)
    put(store, [5])
    await store.durable()
    assert caplog.text.count("progress is not stored until there is room") == 1
    store.close()
    assert found(tmp_path) == list(range(6))


async def test_what_not_even_the_reserve_takes_waits_until_there_is_room(tmp_path: Path) -> None:
    disk = full_disk(tmp_path)
    store = opened(tmp_path, disk)
    disk.fill()
    put(store, [0], 10_000)
    with pytest.raises(StoreNotWritable, match="No space left"):
        await store.durable()
    assert store.is_stalled
    assert is_refused(store)
    put(store, [1])
    with pytest.raises(StoreNotWritable):
        await store.durable()
    assert found(tmp_path) == []
    disk.room_bytes += 100_000
    await eventually(lambda: not store.is_stalled)
    await store.durable()
    await eventually(lambda: not is_refused(store))
    store.close()
    assert found(tmp_path) == [0, 1]


async def test_a_stop_on_a_full_disk_leaves_out_what_nobody_was_told_of_and_all_behind_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Later records may be invalid without the earlier ones."""
    disk = full_disk(tmp_path)
    store = opened(tmp_path, disk)
    put(store, range(3))
    await store.durable()
    disk.fill()
    disk.room_bytes += 1000
    put(store, [3], 10_000)
    with pytest.raises(StoreNotWritable):
        await store.durable()
    put(store, [4])
    store.close()
    assert "dropped changes of progress that were not acknowledged" in caplog.text
    assert found(tmp_path) == [0, 1, 2]


async def test_a_start_on_a_full_disk_reads_and_refuses_changes(tmp_path: Path) -> None:
    disk = full_disk(tmp_path)
    await write(tmp_path, [range(3)], disk=disk)
    (tmp_path / "journal" / journal_files.RESERVE_FILE).unlink()
    disk.fill()
    store = opened(tmp_path, disk)
    assert numbers(store.ledger) == [0, 1, 2]
    assert is_refused(store)
    disk.room_bytes += 100_000
    await eventually(lambda: not store.journal_counts().shortage)
    assert not is_refused(store)
    store.close()


@pytest.mark.parametrize("room_bytes", [0, frames.FILE_HEADER_BYTES + 10, 300])
async def test_a_file_or_a_state_without_room_ends_nothing_and_comes_later(
    tmp_path: Path, room_bytes: int
) -> None:
    """It does not use the reserve either, which is for changes."""
    disk = full_disk(tmp_path)
    store = opened(tmp_path, disk, journal_bytes_max=1)
    put(store, range(50))
    await store.durable()
    await eventually(lambda: not store._is_writing_state)
    disk.fill()
    # Space for the next change only.
    disk.room_bytes += room_bytes + 500
    number = 50
    while not is_refused(store):
        put(store, [number])
        await store.durable()
        number += 1
    disk.room_bytes += 100_000
    await eventually(lambda: not is_refused(store))
    while generations(tmp_path / "journal")[0] < 2:
        put(store, [number])
        await store.durable()
        number += 1
    store.close()
    assert found(tmp_path) == list(range(number))
    assert not list((tmp_path / "journal").glob("*.new"))


async def test_without_descriptors_progress_is_stored_and_the_next_file_comes_later(
    tmp_path: Path,
) -> None:
    store = opened(tmp_path, Disk(), journal_bytes_max=1000)
    put(store, range(2))
    await store.durable()
    with no_descriptors():
        for number in range(2, 50):
            put(store, [number])
            await store.durable()
            assert not is_refused(store)
        assert generations_before(store) == 1
    put(store, [50])
    await store.durable()
    assert generations(tmp_path / "journal") == [1, 2]
    store.close()
    assert found(tmp_path) == list(range(51))


def generations_before(store: JournalStore) -> int:
    return len(store._journal._files.files)


async def test_a_directory_that_is_not_synced_for_lack_of_a_descriptor_is_synced_later(
    tmp_path: Path,
) -> None:
    class NoDescriptor(Disk):
        refuses = False

        def sync_directory(self, path: Path) -> None:
            if self.refuses:
                raise Shortage(errno.EMFILE, os.strerror(errno.EMFILE))
            super().sync_directory(path)

    disk = NoDescriptor()
    store = opened(tmp_path, disk, journal_bytes_max=1)
    disk.refuses = True
    put(store, [0])
    with pytest.raises(StoreNotWritable, match="Too many open files"):
        await store.durable()
    disk.refuses = False
    await eventually(lambda: not store.is_stalled)
    await store.durable()
    store.close()
    assert found(tmp_path) == [0]


async def test_a_sync_that_finds_no_room_is_a_failed_sync(tmp_path: Path) -> None:
    class NoRoomAtSync(Disk):
        full = False

        def fdatasync(self, fd: int) -> None:
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().fdatasync(fd)

    disk = NoRoomAtSync()
    store = JournalStore(tmp_path, lambda _: None, disk=disk)
    disk.full = True
    put(store, [0])
    with pytest.raises(StoreFailed):
        await store.durable()
    with pytest.raises(StoreFailed):
        store.close()


async def test_commits_are_refused_while_the_disk_is_full_and_taken_again_without_a_restart(
    cluster: Cluster,
) -> None:
    cluster.broker.queue("orders").append(10)
    policy = ns.StartPolicy(consume_from=ns.CONSUME_FROM_FIRST)
    epoch = (await cluster.start_of(policy=policy)).epoch
    await cluster.stop_service()
    settings = cluster.settings(export_seconds=0.0)
    disk, stop = FullDisk(settings.store_path / "journal"), Stop()
    async with running(settings, stop, disk) as address, aio.insecure_channel(address) as channel:
        stub: Any = OffsetServiceStub(channel)

        async def refusal(offset: int) -> str:
            entry = pb.CommitEntry(queue=cluster.ref(), offset=offset, epoch=epoch)
            try:
                await stub.Commit(pb.CommitRequest(group=GROUP, entries=[entry]))
            except aio.AioRpcError as failure:
                error = from_rpc_error(failure, OffsetServiceUnavailable)
                assert error.retriable
                return error.name
            return ""

        disk.fill()
        # The service's own writes may have found the disk full before.
        last = await refusal(3)
        assert last in ("", "STORE_NOT_WRITABLE")
        assert await refusal(4) == "STORE_NOT_WRITABLE"
        # Reads get replies, and so do heartbeats of known members.
        (progress,) = (await stub.ListProgress(pb.ListProgressRequest())).progress
        assert progress.offset in ((0, 3) if last else (3,))
        disk.room_bytes += 1_000_000
        await answered(lambda: refusal(5), lambda name: not name)
        (progress,) = (await stub.ListProgress(pb.ListProgressRequest())).progress
        assert progress.offset == 5
        assert stop.fatal is None


async def test_the_exported_file_waits_for_room_as_well(cluster: Cluster) -> None:
    cluster.broker.queue("orders").append(10)
    policy = ns.StartPolicy(consume_from=ns.CONSUME_FROM_FIRST)
    epoch = (await cluster.start_of(policy=policy)).epoch
    await cluster.stop_service()
    settings = cluster.settings(export_seconds=0.01)
    disk, stop = FullDisk(settings.store_path / "journal"), Stop()
    async with running(settings, stop, disk) as address, aio.insecure_channel(address) as channel:
        stub: Any = OffsetServiceStub(channel)

        async def is_stored(offset: int) -> bool:
            entry = pb.CommitEntry(queue=cluster.ref(), offset=offset, epoch=epoch)
            try:
                await stub.Commit(pb.CommitRequest(group=GROUP, entries=[entry]))
            except aio.AioRpcError as failure:
                assert from_rpc_error(failure, OffsetServiceUnavailable).name == (
                    "STORE_NOT_WRITABLE"
                )
                return False
            return True

        # The reserve is used up too: further changes wait.
        disk.room_bytes = 0
        assert not await is_stored(3)
        exported = settings.store_path / "config" / cluster.broker.name / "consumerOffset.json"
        exported.unlink(missing_ok=True)
        for _ in range(20):
            assert not await is_stored(4)
            await asyncio.sleep(settings.export_seconds)
        disk.room_bytes = float("inf")
        await answered(lambda: is_stored(5), bool)
        await eventually(lambda: exported.exists() and '"0":5' in exported.read_text())
        assert stop.fatal is None
