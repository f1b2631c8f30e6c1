"""The store as a log with copies, as replication uses it."""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rockoon_broker.replication.store_log import StoreLog
from rockoon_broker.store.errors import StoreSyncFailed
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.settings import Flush
from rockoon_broker.store.store import Store
from rockoon_core.replication_rules import consistent_point, rank_of
from rockoon_format.batch import encode_batch
from rockoon_format.log_marks import LOG_TOPIC
from rockoon_replica.log import ReplicatedLog
from support.aside_desk import TwoClocks
from support.cold_disk import ColdDisk
from support.eventually import eventually
from support.holding_disk import HoldingDisk
from support.store_check import verify_store
from support.store_directory import (
    BORN_HOST,
    NOW_MS,
    FailingDisk,
    batch_of,
    in_log,
    settings,
)


class Seen:
    """Events of a log."""

    def __init__(self) -> None:
        self.queues: list[QueueKey] = []
        self.failures: list[OSError] = []


@asynccontextmanager
async def opened(
    root: Path,
    disk: FailingDisk | None = None,
    seen: Seen | None = None,
    clock: TwoClocks | None = None,
) -> AsyncIterator[StoreLog]:
    seen = seen or Seen()
    log = StoreLog(
        root.name,
        lambda synced, failed: Store.open(
            settings(root, flush=Flush.SYNC),
            disk=disk or FailingDisk(),
            on_synced=synced,
            on_failed=failed,
            by_quorum=True,
        ),
        clock or TwoClocks(),
        advanced=seen.queues.extend,
        failed=seen.failures.append,
    )
    try:
        yield log
    finally:
        if log.store.failure is None:
            log.close()


def append(log: StoreLog, body: bytes, topic: str = "T") -> int:
    frames, lengths = encode_batch(topic.encode(), 0, [body], [b""], NOW_MS, BORN_HOST)
    return log.store.append(batch_of(topic, 0, frames, lengths), NOW_MS).end_offset


def copy(leader: ReplicatedLog, follower: ReplicatedLog) -> None:
    """Match, and copy the following bytes, as a session does."""
    point = leader.min_offset
    if follower.end > follower.min_offset:
        found = consistent_point(leader.boundaries(), follower.boundaries())
        assert found is not None
        point = found
    follower.truncate(point)
    while data := leader.read(follower.end, 700):
        follower.write(follower.end, data)
    assert follower.boundaries() == leader.boundaries()
    size = leader.end - leader.min_offset
    assert leader.tail_crc(leader.end, size) == follower.tail_crc(follower.end, size)


async def test_a_replica_whose_clock_jumped_opens_its_epoch_with_the_time_of_the_log(
    tmp_path: Path,
) -> None:
    clock = TwoClocks()
    async with opened(tmp_path / "a", clock=clock) as log:
        log.open_epoch(1)
        append(log, b"one")
        clock.pass_ms(5000)
        clock.wall_ms += 86_400_000
        log.open_epoch(2)
        assert log.store.runs.newest_ms == NOW_MS + 5000


async def test_replicas_whose_logs_went_apart_come_together(tmp_path: Path) -> None:
    seen = Seen()
    async with opened(tmp_path / "a") as a, opened(tmp_path / "b", seen=seen) as b:
        a.open_epoch(1)
        committed = [append(a, bytes(900)) for _ in range(6)][-1]
        copy(a, b)
        await a.sync()
        await b.sync()
        assert a.durable_end == b.durable_end == committed
        b.commit(committed)
        assert seen.queues == [(LOG_TOPIC, 0), ("T", 0)]
        # No other copy has the following records; b is elected.
        append(a, b"lost", "U")
        b.open_epoch(2)
        append(b, b"kept", "V")
        assert rank_of(b.boundaries(), b.end) > rank_of(a.boundaries(), a.end)
        copy(b, a)
        await a.sync()
        a.commit(a.end)
        b.commit(b.end)
        assert a.store.queues() == b.store.queues()
        assert ("U", 0) not in a.store.queues()
        with pytest.raises(ValueError, match="is not between"):
            a.truncate(committed)
    for name in "ab":
        assert verify_store(tmp_path / name) == []


async def test_a_sync_is_waited_for_and_a_failed_one_is_told(tmp_path: Path) -> None:
    disk, seen = HoldingDisk(), Seen()
    async with opened(tmp_path, disk, seen) as log:
        disk.hold()
        end = append(log, b"one")
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(log.sync())
            await asyncio.sleep(0)
            assert not waiting.done()
            assert log.durable_end == 0
            disk.release()
        assert log.durable_end == end
        disk.fail_sync = lambda path: errno.EIO if in_log(path) else 0
        append(log, b"two")
        with pytest.raises(StoreSyncFailed):
            await log.sync()
        assert [failure.errno for failure in seen.failures] == [errno.EIO]
        with pytest.raises(StoreSyncFailed):
            log.commit(log.end)
    log.store.close()


async def test_a_truncated_log_is_another_store(tmp_path: Path) -> None:
    seen = Seen()
    async with opened(tmp_path, seen=seen) as log:
        log.open_epoch(1)
        end = append(log, b"one")
        append(log, b"two")
        former = log.store
        former.retain_from = 7
        log.truncate(end)
        assert log.store.retain_from == 7
        assert log.end == log.durable_end == end
        assert log.store is not former
        former = log.store
        log.truncate(end)
        assert log.store is former, "nothing was to be cut"
        with pytest.raises(ValueError, match="epoch 1 cannot begin"):
            log.open_epoch(1)
        assert append(log, b"two again") > end
        await log.sync()


async def test_what_a_follower_far_behind_lacks_is_read_while_the_loop_does_other_work(
    tmp_path: Path,
) -> None:
    disk = ColdDisk()
    async with opened(tmp_path / "a", disk) as log:

        async def fetch() -> bytes:
            disk.evict()
            disk.moves.clear()
            return await log.fetch(0, 1 << 20)

        async def go_on() -> None:
            await eventually(lambda: disk.loaded)
            append(log, b"new")
            await log.sync()
            disk.moves.set()

        async def cut() -> None:
            await eventually(lambda: disk.loaded)
            log.truncate(len(whole))
            disk.moves.set()

        log.open_epoch(1)
        append(log, bytes(900))
        whole = log.read(0, 1 << 20)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(go_on())
            found = await fetch()
        assert found.startswith(whole)
        assert len(found) > len(whole)
        assert disk.waited == 0
        # A leader that was deposed in the meantime has cut its log: the former records are gone.
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(cut())
            with pytest.raises(ValueError, match="during the read"):
                await fetch()
