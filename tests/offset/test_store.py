"""The store: what is told is on disk, and only one process may write it."""

from pathlib import Path
from typing import Any

import pytest
from grpc import aio
from offset.cluster import GROUP, TOPIC, Cluster, running

from rockoon_offset.disk import Disk
from rockoon_offset.queues import Queue
from rockoon_offset.start_position import Decision, StartReason
from rockoon_offset.store import Store
from rockoon_proto.errors import StoreCorrupt, StoreFailed, StoreLocked
from rockoon_proto.v1 import offset_pb2 as pb
from rockoon_proto.v1.offset_pb2_grpc import OffsetServiceStub
from rockoon_runtime.process import ExitStatus, Stop

QUEUE = Queue("orders", "broker-a", 0)


class BreakableDisk(Disk):
    """Works until it is broken."""

    broken = False

    def fdatasync(self, fd: int) -> None:
        if self.broken:
            raise OSError(5, "Input/output error")
        super().fdatasync(fd)


def start_at(store: Store, offset: int) -> None:
    decision = Decision(offset, StartReason.LAST, "because")
    store.write(store.ledger.start("g", 1, QUEUE, 1, decision, "m", 0))


async def test_a_store_that_was_closed_comes_back(tmp_path: Path) -> None:
    first = Store(tmp_path, pytest.fail)
    start_at(first, 7)
    first.close()
    again = Store(tmp_path, pytest.fail)
    progress = again.ledger.find("g", QUEUE)
    assert progress is not None
    assert progress.offset == 7
    assert again.store_id == first.store_id
    again.close()


async def test_a_store_has_one_owner_also_within_a_process(tmp_path: Path) -> None:
    first = Store(tmp_path, pytest.fail)
    with pytest.raises(StoreLocked):
        Store(tmp_path, pytest.fail)
    first.close()
    Store(tmp_path, pytest.fail).close()


async def test_a_store_whose_opening_failed_is_not_locked(tmp_path: Path) -> None:
    (tmp_path / "store_id").write_text("nonsense")
    with pytest.raises(StoreCorrupt, match="store_id"):
        Store(tmp_path, pytest.fail)
    (tmp_path / "store_id").unlink()
    Store(tmp_path, pytest.fail).close()


async def test_a_record_of_an_unknown_kind_is_refused_not_skipped(tmp_path: Path) -> None:
    store = Store(tmp_path, pytest.fail)
    store._journal.append([b'["from the future",1]'])
    store.close()
    with pytest.raises(StoreCorrupt, match="unknown kind of record"):
        Store(tmp_path, pytest.fail)


async def test_after_a_failed_sync_nobody_is_told_anything(tmp_path: Path) -> None:
    disk, failures = BreakableDisk(), list[StoreFailed]()
    store = Store(tmp_path, failures.append, disk=disk)
    start_at(store, 7)
    await store.durable()
    disk.broken = True
    start_at(store, 7)
    store.write(store.ledger.forget_group("g", 9))
    with pytest.raises(StoreFailed):
        await store.durable()
    assert len(failures) == 1
    disk.broken = False
    with pytest.raises(StoreFailed):
        await store.durable()
    with pytest.raises(StoreFailed):
        store.admit()
    with pytest.raises(StoreFailed):
        store.close()


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
        for _ in range(2):
            with pytest.raises(Exception, match="takes nothing more"):
                await stub.Commit(pb.CommitRequest(group=GROUP, entries=[entry]))
        assert "Input/output error" in await stop.wait()
    assert stop.fatal is not None
    assert stop.fatal.status is ExitStatus.DISK_FAILED
