"""A real disk refuses writes, the service restarts, and then the power is cut."""

import errno
import os
from pathlib import Path

import pytest
from offset.journals import found, numbers, opened, put

from rockoon_broker.store.errors import StoreSyncFailed
from rockoon_broker.store.settings import Flush
from rockoon_core.errors import StoreFailed as JournalFailed
from rockoon_offset.journal.store import JournalStore
from support.eventually import eventually
from support.loop_device import LoopDisk, why_not
from support.store_directory import Owner, recovered, settings
from support.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.skipif(bool(why_not()), reason=why_not())]


def fill(owner: Owner, acknowledged: list[bytes]) -> None:
    """Append until the disk refuses."""
    store = owner.store
    while True:
        body = os.urandom(60_000)
        end = owner.append(bodies=[body]).end_offset
        wait_until(lambda end=end: store.durable_end >= end or store.failure, "a sync")
        store.confirm(store.durable_end)
        acknowledged.append(body)


async def write_on(store: JournalStore, told: list[int]) -> None:
    """Write until the disk refuses."""
    while True:
        number = len(told)
        put(store, [number], 60_000)
        await store.durable()
        told.append(number)


def test_a_broker_takes_nothing_back_that_it_showed(tmp_path: Path) -> None:
    with LoopDisk(tmp_path, room_mib=16) as disk:
        configured = settings(
            disk.path / "store",
            flush=Flush.SYNC,
            commit_log_file_bytes=64 << 20,
            consume_queue_file_entries=1000,
        )
        owner = Owner(configured)
        acknowledged: list[bytes] = []
        with pytest.raises(StoreSyncFailed):
            fill(owner, acknowledged)
        owner.store.close()
        disk.grow()
        owner = Owner(configured)
        shown = owner.bodies()
        assert shown[: len(acknowledged)] == acknowledged
        after = recovered(configured, disk.cut() / "store")
        assert after.bodies() == shown
        after.store.close()
        for number in range(20):
            owner.append_durably(bodies=[b"later %d" % number])
        shown = owner.bodies()
        after = recovered(configured, disk.cut() / "store")
        assert after.bodies() == shown
        after.store.close()
        owner.store.close()


async def test_an_offset_service_takes_nothing_back_and_starts_again(tmp_path: Path) -> None:
    with LoopDisk(tmp_path, room_mib=16) as disk:
        root = disk.path / "store"
        store = JournalStore(root, lambda _: None)
        told: list[int] = []
        with pytest.raises(JournalFailed):
            await write_on(store, told)
        with pytest.raises(JournalFailed):
            store.close()
        disk.grow()
        store = opened(root)
        shown = numbers(store.ledger)
        assert shown[: len(told)] == told
        assert found(disk.cut() / "store") == shown
        put(store, [99_999])
        await store.durable()
        assert found(disk.cut() / "store") == [*shown, 99_999]
        store.close()


def fill_up(path: Path) -> None:
    """Use the whole space of a file system."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    count = 64 << 20
    position = 0
    while count:
        try:
            os.posix_fallocate(fd, position, count)
            position += count
        except OSError as error:
            assert error.errno == errno.ENOSPC
            count //= 2
    os.close(fd)


async def test_a_full_file_system_ends_neither_service_and_both_start_on_it(tmp_path: Path) -> None:
    with LoopDisk(tmp_path, room_mib=512) as disk:
        filler = disk.path / "filler"
        configured = settings(
            disk.path / "store", flush=Flush.SYNC, consume_queue_file_entries=1000
        )
        owner = Owner(configured)
        owner.append_durably(bodies=[b"stored"])
        progress = opened(disk.path / "progress")
        put(progress, [0])
        await progress.durable()
        fill_up(filler)
        put(progress, [1], 100_000)
        await progress.durable()
        assert "No space left" in progress.journal_counts().shortage
        progress.close()
        owner.append_durably(bodies=[b"reserved before"])
        owner.write_point()
        owner.store._syncer.stop()
        owner.store._lock.release()
        again = Owner(configured)
        assert again.store.recovery.was_clean is False
        assert again.bodies() == [b"stored", b"reserved before"]
        again.append_durably(bodies=[b"after"])
        again.store.close()
        progress = opened(disk.path / "progress")
        assert numbers(progress.ledger) == [0, 1]
        assert progress.journal_counts().shortage
        filler.unlink()
        await eventually(lambda: not progress.journal_counts().shortage)
        progress.require_writable()
        put(progress, [2])
        await progress.durable()
        progress.close()
