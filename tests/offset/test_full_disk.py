"""The offset service's disk is full: changes are refused, and it goes on by itself later."""

import asyncio
import contextlib
import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from grpc import aio
from offset.cluster import GROUP, Cluster, running
from offset.journals import Outcomes, numbered

from rockoon_core.disk import Disk
from rockoon_core.errors import OffsetServiceUnavailable, StoreFailed, StoreNotWritable
from rockoon_core.failed_call import from_rpc_error
from rockoon_offset.journal import former_frames as frames
from rockoon_offset.journal import journal
from rockoon_offset.journal.generation_files import read_contents
from rockoon_offset.journal.journal import Journal
from rockoon_proto.v1 import nameserver_pb2 as ns
from rockoon_proto.v1 import offset_pb2 as pb
from rockoon_proto.v1.offset_pb2_grpc import OffsetServiceStub
from rockoon_runtime.process import Stop
from support.descriptors import no_descriptors
from support.eventually import answered, eventually
from support.waiting import DEADLINE_SECONDS, wait_until


class FullDisk(Disk):
    """A file system with so much room for the files of one directory; a file is as large as its
    last byte says."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sizes: dict[int, int] = {}
        self.room_bytes: float = float("inf")

    def fill(self) -> None:
        """Leave no room at all."""
        self.room_bytes = self._used_bytes()

    def _used_bytes(self) -> int:
        used = 0
        for path in self._directory.iterdir():
            # The snapshot's thread renames and removes files meanwhile.
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


class Held(Outcomes):
    """Knows also of what is held up."""

    def __init__(self) -> None:
        super().__init__()
        self.held = threading.Event()

    def on_held(self, refusal: StoreNotWritable) -> None:
        assert refusal.retriable
        self.held.set()


@pytest.fixture(autouse=True)
def _soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(journal, "RESERVE_BYTES", 4096)
    monkeypatch.setattr(journal, "ROTATION_RETRY_SECONDS", 0.0)


def opened(directory: Path, disk: Disk, **more: Any) -> tuple[Journal, Held]:
    outcomes = Held()
    book = Journal(
        directory,
        outcomes.on_synced,
        outcomes.on_failed,
        on_held=outcomes.on_held,
        disk=disk,
        **more,
    )
    book.start()
    return book, outcomes


def is_refused(book: Journal) -> bool:
    try:
        book.admit()
    except StoreNotWritable:
        return True
    return False


def test_what_was_taken_is_stored_and_the_rest_refused_until_there_is_room(
    tmp_path: Path,
) -> None:
    disk = FullDisk(tmp_path)
    book, outcomes = opened(tmp_path, disk)
    outcomes.wait_synced(book.append(numbered(0, 3)))
    disk.fill()
    outcomes.wait_synced(book.append(numbered(3, 5)))
    with pytest.raises(StoreNotWritable, match="No space left") as refused:
        book.admit()
    assert refused.value.retriable
    assert "No space left" in book.counts().shortage
    disk.room_bytes += 100_000
    wait_until(lambda: not is_refused(book), "room")
    outcomes.wait_synced(book.append(numbered(5, 6)))
    assert not outcomes.held.is_set()
    book.close()
    assert read_contents(tmp_path).records == numbered(0, 6)


def test_what_not_even_the_reserve_takes_waits_until_there_is_room(tmp_path: Path) -> None:
    disk = FullDisk(tmp_path)
    book, outcomes = opened(tmp_path, disk)
    disk.fill()
    waiting = book.append([b"x" * 10_000])
    assert outcomes.held.wait(DEADLINE_SECONDS)
    behind = book.append(numbered(0, 1))
    assert outcomes.synced == 0
    assert outcomes.failure is None
    disk.room_bytes += 100_000
    outcomes.wait_synced(waiting)
    outcomes.wait_synced(behind)
    wait_until(lambda: not is_refused(book), "room")
    book.close()
    assert read_contents(tmp_path).records == [b"x" * 10_000, *numbered(0, 1)]


def test_a_stop_on_a_full_disk_leaves_out_what_nobody_was_told_of(tmp_path: Path) -> None:
    disk = FullDisk(tmp_path)
    book, outcomes = opened(tmp_path, disk)
    outcomes.wait_synced(book.append(numbered(0, 3)))
    disk.fill()
    book.append([b"x" * 10_000])
    assert outcomes.held.wait(DEADLINE_SECONDS)
    book.close()
    assert read_contents(tmp_path).records == numbered(0, 3)


def test_a_stop_on_a_full_disk_stores_nothing_behind_what_it_leaves_out(tmp_path: Path) -> None:
    """Later records may make no sense without those before them."""
    disk = FullDisk(tmp_path)
    book, outcomes = opened(tmp_path, disk)
    outcomes.wait_synced(book.append(numbered(0, 3)))
    disk.fill()
    disk.room_bytes += 1000
    book.append([b"x" * 10_000])
    assert outcomes.held.wait(DEADLINE_SECONDS)
    book.append([b"small"])
    book.close()
    assert read_contents(tmp_path).records == numbered(0, 3)


def test_a_generation_is_not_begun_behind_an_end_that_is_torn(tmp_path: Path) -> None:
    """There was no room for the mark, and there is for the next journal."""

    class TornMark(Disk):
        def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
            if bytes(data) == frames.mark(4):
                super().pwrite(fd, memoryview(data)[:10], position)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().pwrite(fd, data, position)

    book, outcomes = opened(tmp_path, TornMark(), bytes_max=1)
    outcomes.wait_synced(book.append(numbered(0, 3)))
    outcomes.wait_synced(book.append(numbered(3, 4)))
    book.rotate(iter(numbered(0, 4)))
    outcomes.wait_synced(book.append(numbered(4, 5)))
    book.close()
    # As a kill before there is a snapshot leaves it.
    for path in tmp_path.glob("*.snapshot"):
        path.unlink()
    assert read_contents(tmp_path).records == numbered(0, 5)


def test_a_start_on_a_full_disk_reads_and_refuses_changes(tmp_path: Path) -> None:
    disk = FullDisk(tmp_path)
    book, outcomes = opened(tmp_path, disk)
    outcomes.wait_synced(book.append(numbered(0, 3)))
    book.close()
    (tmp_path / journal.RESERVE_FILE).unlink()
    disk.fill()
    book, outcomes = opened(tmp_path, disk)
    assert book.records == numbered(0, 3)
    assert is_refused(book)
    disk.room_bytes += 100_000
    wait_until(lambda: not is_refused(book), "room")
    book.close()


@pytest.mark.parametrize("room_bytes", [0, frames.FILE_HEADER_BYTES + 10])
def test_a_generation_or_snapshot_without_room_ends_nothing_and_comes_later(
    tmp_path: Path, room_bytes: int
) -> None:
    disk = FullDisk(tmp_path)
    book, outcomes = opened(tmp_path, disk, bytes_max=1)
    records = numbered(0, 50)
    outcomes.wait_synced(book.append(records))
    disk.fill()
    disk.room_bytes += room_bytes
    book.rotate(iter(records))
    wait_until(lambda: book.wants_rotation, "the end of the attempt")
    assert outcomes.failure is None
    disk.room_bytes += 100_000
    records += numbered(50, 60)
    outcomes.wait_synced(book.append(numbered(50, 60)))
    wait_until(lambda: book.wants_rotation, "room")
    book.rotate(iter(list(records)))
    outcomes.wait_synced(book.append(numbered(60, 61)))
    book.close()
    newest = journal.generations(tmp_path, "journal")[-1]
    assert journal.generations(tmp_path, "snapshot") == [newest]
    assert read_contents(tmp_path).records == [*records, *numbered(60, 61)]
    assert not list(tmp_path.glob("*.new"))


def test_without_descriptors_progress_is_stored_and_the_generation_comes_later(
    tmp_path: Path,
) -> None:
    book, outcomes = opened(tmp_path, Disk(), bytes_max=1)
    outcomes.wait_synced(book.append(numbered(0, 50)))
    with no_descriptors():
        book.rotate(iter(numbered(0, 50)))
        wait_until(lambda: book.wants_rotation, "the end of the attempt")
        outcomes.wait_synced(book.append(numbered(50, 60)))
        assert not is_refused(book)
    book.rotate(iter(numbered(0, 60)))
    outcomes.wait_synced(book.append(numbered(60, 61)))
    book.close()
    assert journal.generations(tmp_path, "snapshot") == [2]
    assert read_contents(tmp_path).records == numbered(0, 61)


def test_a_sync_that_finds_no_room_is_a_failed_sync(tmp_path: Path) -> None:
    class NoRoomAtSync(Disk):
        full = False

        def fdatasync(self, fd: int) -> None:
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().fdatasync(fd)

    disk = NoRoomAtSync()
    book, outcomes = opened(tmp_path, disk)
    disk.full = True
    refused = book.append(numbered(0, 1))
    with pytest.raises(StoreFailed):
        outcomes.wait_synced(refused)
    with pytest.raises(StoreFailed):
        book.close()


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
        # Who only looks is answered, and so is a member that is known.
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

        # Not even what is kept in reserve is left: what is taken is held up.
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
