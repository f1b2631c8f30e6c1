"""flush = sync, on a disk with short syncs: the event loop itself syncs small appends."""

import asyncio
import errno
import math
import threading
from pathlib import Path

import pytest

from rockoon_broker.broker import INLINE_BYTES_MAX
from rockoon_broker.store.log import syncer
from rockoon_core import errors
from rockoon_runtime.process import ExitStatus
from support.broker import batch, running_broker
from support.broker_routes import BrokerRoutes
from support.store_directory import FailingDisk, in_log


class WatchedDisk(FailingDisk):
    """Records the thread of each sync of the CommitLog."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []

    def fdatasync(self, fd: int) -> None:
        if in_log(self.paths[fd]):
            self.threads.append(threading.current_thread().name)
        super().fdatasync(fd)


@pytest.fixture(autouse=True)
def every_sync_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count each sync as short: the disk of a test machine may be busy."""
    monkeypatch.setattr(syncer, "SHORT_SECONDS_MAX", math.inf)
    monkeypatch.setattr(syncer, "IN_A_ROW", 0)


async def test_small_appends_are_synced_before_they_are_answered_and_large_ones_in_the_thread(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    disk = WatchedDisk()
    own = threading.current_thread().name
    async with running_broker(tmp_path, [nameserver.address], disk=disk) as broker:
        for number in range(20):
            appended = await broker.append("T", 0, b"%d" % number)
            assert appended.first_queue_offset == number
            assert await broker.bodies("T", 0, number) == [b"%d" % number]
            described = await broker.describe()
            assert described.log_synced_offset == described.log_max_offset
        assert disk.threads.count(own) >= 20
        before = disk.threads.count(own)
        await broker.append("T", 0, bytes(INLINE_BYTES_MAX))
        assert disk.threads.count(own) == before
        assert set(disk.threads) - {own}, "the Syncer's"
        # On a stream, and several at a time.
        call = broker.stub.AppendStream()
        for number in range(50):
            await call.write(batch("T", 0, b"x", request_id=number))
        await call.done_writing()
        assert [reply.request_id async for reply in call] == list(range(50))
        assert len(await broker.bodies("T")) == 71
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        assert len(await broker.bodies("T")) == 71


async def test_a_sync_that_fails_in_the_loop_ends_the_broker_and_acknowledges_nothing(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    disk = WatchedDisk()
    async with running_broker(tmp_path, [nameserver.address], disk=disk) as broker:
        await broker.append("T", 0, b"good")
        failed_in: list[str] = []

        def fail(path: Path) -> int:
            if not in_log(path):
                return 0
            failed_in.append(threading.current_thread().name)
            return errno.EIO

        disk.fail_sync = fail
        for _ in range(2):
            with pytest.raises((errors.StoreFailed, errors.NotReady, errors.BrokerUnavailable)):
                await broker.append("T", 0, b"lost")
        await broker.stop.wait()
        assert failed_in == [threading.current_thread().name], "and nobody synced after that"
    assert broker.stop.fatal is not None
    assert broker.stop.fatal.status is ExitStatus.DISK_FAILED
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        assert (await broker.bodies("T"))[0] == b"good"


async def test_appends_and_recovery_points_share_the_log_without_losing_a_sync(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    """Both threads sync; every acknowledged message is durable."""
    await nameserver.create_topic("T", {"broker-a": 4})
    async with (
        running_broker(tmp_path, [nameserver.address]) as broker,
        asyncio.TaskGroup() as tasks,
    ):

        async def send(queue_id: int) -> None:
            for number in range(60):
                size = INLINE_BYTES_MAX if number % 7 == 0 else 10
                appended = await broker.append("T", queue_id, b"%d" % number + bytes(size))
                described = await broker.describe()
                assert described.log_synced_offset > appended.first_physical_offset

        for queue_id in range(4):
            tasks.create_task(send(queue_id))
