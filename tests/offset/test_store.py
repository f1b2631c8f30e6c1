"""The store: every reply is on the disk, and only one process may write it."""

import asyncio
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from grpc import aio
from offset.cluster import GROUP, TOPIC, Cluster, running

from rockoon_core.disk import Disk
from rockoon_core.errors import StoreCorrupt, StoreFailed, StoreLocked
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import Decision, StartReason
from rockoon_offset.journal import frames
from rockoon_offset.journal.journal_files import journal_path
from rockoon_offset.journal.store import JournalStore
from rockoon_offset.progress.reconciliation import Reconciliation
from rockoon_offset.replication.leader_endpoint import LeaderEndpoint
from rockoon_offset.replication.serving import OffsetCopy
from rockoon_proto.v1 import nameserver_pb2 as ns
from rockoon_proto.v1 import offset_pb2 as pb
from rockoon_proto.v1.offset_pb2_grpc import OffsetServiceStub
from rockoon_replica.replica_file import ACKNOWLEDGED
from rockoon_runtime.process import ExitStatus, Stop
from support.waiting import DEADLINE_SECONDS

QUEUE = MessageQueue("orders", "broker-a", 0)


class BreakableDisk(Disk):
    """Works until the test breaks it."""

    broken = False

    def fdatasync(self, fd: int) -> None:
        if self.broken:
            raise OSError(5, "Input/output error")
        super().fdatasync(fd)


def start_at(store: JournalStore, offset: int) -> None:
    decision = Decision(offset, StartReason.LAST, "because")
    store.write(store.ledger.start("g", 1, QUEUE, 1, decision, "m", 0))


async def test_a_store_that_was_closed_comes_back(tmp_path: Path) -> None:
    first = JournalStore(tmp_path, pytest.fail)
    start_at(first, 7)
    first.close()
    again = JournalStore(tmp_path, pytest.fail)
    progress = again.ledger.find("g", QUEUE)
    assert progress is not None
    assert progress.offset == 7
    assert again.store_id == first.store_id
    again.close()


@pytest.mark.parametrize("power_cut", [True, False])
async def test_a_bad_newest_frame_is_refused_or_said_to_be_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, power_cut: bool
) -> None:
    """After a power cut the acknowledged end may be lost: then the start cannot see the damage."""
    first = JournalStore(tmp_path, pytest.fail)
    begin = first.journal_counts().bytes
    start_at(first, 7)
    first.close()
    path = journal_path(tmp_path / "journal", 1)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    if not power_cut:
        with pytest.raises(StoreCorrupt, match=f"no valid frame at {begin}"):
            JournalStore(tmp_path, pytest.fail)
        return
    (tmp_path / ACKNOWLEDGED).unlink()
    again = JournalStore(tmp_path, pytest.fail)
    assert again.ledger.find("g", QUEUE) is None
    again.close()
    assert path.stat().st_size == frames.FILE_HEADER_BYTES + begin
    assert f"cut {path} at {begin}" in caplog.text
    assert "after a power cut they may be the newest changes, which are then lost" in caplog.text


async def test_a_damaged_store_of_one_copy_is_not_started_as_one_of_three(tmp_path: Path) -> None:
    """No other copy has its records."""
    first = JournalStore(tmp_path, pytest.fail)
    start_at(first, 7)
    first.close()
    path = journal_path(tmp_path / "journal", 1)
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    settings: Any = SimpleNamespace(store_path=tmp_path, journal_bytes_max=1 << 20)
    lost: list[str] = []
    copy = OffsetCopy(settings, first.store_id, LeaderEndpoint(), Stop(), Disk(), pytest.fail)
    with pytest.raises(StoreCorrupt, match="although it was synced"):
        copy.open_log(lost.append)
    path.write_bytes(data)
    log = copy.open_log(lost.append)
    assert log.end == len(data) - frames.FILE_HEADER_BYTES
    log.close()
    assert not lost


async def test_a_store_has_one_owner_also_within_a_process(tmp_path: Path) -> None:
    first = JournalStore(tmp_path, pytest.fail)
    with pytest.raises(StoreLocked):
        JournalStore(tmp_path, pytest.fail)
    first.close()
    JournalStore(tmp_path, pytest.fail).close()


async def test_a_store_whose_opening_failed_is_not_locked(tmp_path: Path) -> None:
    (tmp_path / "store_id").write_text("nonsense")
    with pytest.raises(StoreCorrupt, match="store_id"):
        JournalStore(tmp_path, pytest.fail)
    (tmp_path / "store_id").unlink()
    JournalStore(tmp_path, pytest.fail).close()


async def test_a_store_whose_lock_cannot_be_had_is_not_called_locked(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    for _ in range(2):
        with pytest.raises(IsADirectoryError):
            JournalStore(tmp_path, pytest.fail)
    (tmp_path / "lock").rmdir()
    JournalStore(tmp_path, pytest.fail).close()


async def test_a_record_of_an_unknown_kind_is_refused_not_skipped(tmp_path: Path) -> None:
    store = JournalStore(tmp_path, pytest.fail)
    store._waiting.append(b'["from the future",1]')
    store.close()
    with pytest.raises(
        StoreCorrupt, match="a newer version of the offset service wrote this record"
    ):
        JournalStore(tmp_path, pytest.fail)


async def test_after_a_failed_sync_nobody_is_told_anything(tmp_path: Path) -> None:
    disk, failures = BreakableDisk(), list[StoreFailed]()
    store = JournalStore(tmp_path, failures.append, disk=disk)
    start_at(store, 7)
    await store.durable()
    disk.broken = True
    start_at(store, 7)
    store.write(Reconciliation(store.ledger).delete_group("g", 9))
    with pytest.raises(StoreFailed):
        await store.durable()
    assert len(failures) == 1
    disk.broken = False
    with pytest.raises(StoreFailed):
        await store.durable()
    with pytest.raises(StoreFailed):
        store.require_writable()
    with pytest.raises(StoreFailed):
        store.close()


class HoldingDisk(Disk):
    """No sync returns while `held`."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.waiting = 0

    def fdatasync(self, fd: int) -> None:
        self.waiting += 1
        assert self.free.wait(DEADLINE_SECONDS)
        self.waiting -= 1
        super().fdatasync(fd)


async def resolve(stub: Any, cluster: Cluster, epoch: int) -> Any:
    request = pb.ResolveRequest(group=GROUP, member_id="other", queues=[cluster.ref()])
    return await stub.Resolve(request)


async def commit(stub: Any, cluster: Cluster, epoch: int) -> Any:
    entry = pb.CommitEntry(queue=cluster.ref(), offset=9, epoch=epoch)
    return await stub.Commit(pb.CommitRequest(group=GROUP, entries=[entry]))


async def reset(stub: Any, cluster: Cluster, epoch: int) -> Any:
    target = pb.ResetTarget(earliest=True)
    plan = await stub.PlanReset(pb.PlanResetRequest(group=GROUP, topic=TOPIC, target=target))
    return await stub.ApplyReset(pb.ApplyResetRequest(reset_id=plan.reset_id))


async def import_(stub: Any, cluster: Cluster, epoch: int) -> Any:
    line = {"group": GROUP, "topic": TOPIC, "broker": "broker-a", "queue_id": 1, "offset": 0}
    content = json.dumps(line).encode()
    return await stub.Import(pb.ImportRequest(format=pb.JSON_LINES, content=content))


async def listed(stub: Any) -> Any:
    return await stub.ListProgress(pb.ListProgressRequest())


@pytest.mark.parametrize("call", [resolve, commit, reset, import_])
async def test_nothing_is_answered_before_it_is_on_disk(cluster: Cluster, call: Any) -> None:
    cluster.broker.queue(TOPIC).append(10)
    policy = ns.StartPolicy(consume_from=ns.CONSUME_FROM_FIRST)
    epoch = (await cluster.start_of(policy=policy)).epoch
    await cluster.stop_service()
    disk = HoldingDisk()
    async with (
        running(cluster.settings(export_seconds=0.0), Stop(), disk) as address,
        aio.insecure_channel(address) as channel,
    ):
        stub: Any = OffsetServiceStub(channel)
        async with asyncio.TaskGroup() as tasks:
            await stub.ListProgress(pb.ListProgressRequest())
            disk.free.clear()
            changing = tasks.create_task(call(stub, cluster, epoch))
            await cluster.until(lambda: disk.waiting)
            # A reader must not see changes that a crash could still undo.
            looking = tasks.create_task(listed(stub))
            assert (await stub.ListMembers(pb.ListMembersRequest())).groups == []
            assert not changing.done()
            assert not looking.done()
            disk.free.set()
        assert looking.done()


async def test_a_failed_sync_ends_the_service(cluster: Cluster) -> None:
    cluster.broker.queue(TOPIC).append(10)
    await cluster.stop_service()
    disk, stop = BreakableDisk(), Stop()
    async with (
        running(cluster.settings(export_seconds=0.0), stop, disk) as address,
        aio.insecure_channel(address) as channel,
    ):
        stub: Any = OffsetServiceStub(channel)
        request = pb.ResolveRequest(
            group=GROUP, queues=[cluster.ref()], route_revision=cluster.nameserver.revision
        )
        (start,) = (await stub.Resolve(request)).starts
        disk.broken = True
        entry = pb.CommitEntry(queue=cluster.ref(), offset=10, epoch=start.epoch, metadata="x")
        # The second call may find no listener.
        for told in ("accepts no more data", "accepts no more data|UNAVAILABLE"):
            with pytest.raises(Exception, match=told):
                await stub.Commit(pb.CommitRequest(group=GROUP, entries=[entry]))
        assert "Input/output error" in await stop.wait()
    assert stop.fatal is not None
    assert stop.fatal.status is ExitStatus.DISK_FAILED
