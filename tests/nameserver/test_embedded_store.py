"""Routes in the nameserver's own file: across starts, crashes and failing disks."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from rockoon_core.errors import EtcdUnavailable, StoreCorrupt, StoreLocked
from rockoon_nameserver import embedded_store
from rockoon_nameserver.embedded_store import EmbeddedStore
from rockoon_nameserver.etcd import Etcd
from rockoon_nameserver.etcd_data import DeleteKey, PutKey, absent, only, under
from rockoon_nameserver.route_file import CLUSTER_ID, NEW, RouteFile
from rockoon_nameserver.route_store import Compacted
from rockoon_nameserver.route_transfer import to_etcd, to_file
from rockoon_proto.v1 import nameserver_pb2 as pb
from support.etcd import EtcdServer
from support.nameserver import broker_node, running_nameserver
from support.waiting import DEADLINE_SECONDS

EVERYTHING = under("/rockoon/")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "names" / "routes.db"


def opened(path: Path) -> EmbeddedStore:
    return EmbeddedStore(path, pytest.fail)


async def put(store: EmbeddedStore, key: str, value: bytes = b"v", lease: int = 0) -> int:
    return (await store.transaction([], [PutKey(key, value, lease)])).revision


async def test_what_was_answered_is_there_after_a_kill_with_its_revisions(path: Path) -> None:
    async with opened(path) as store:
        first = await put(store, "/rockoon/a")
        await put(store, "/rockoon/gone")
        last = (await store.transaction([], [DeleteKey(only("/rockoon/gone"))])).revision
        before = await store.read(EVERYTHING)
        # State after a kill: the files after the last reply.
        killed = path.parent.with_name("killed")
        shutil.copytree(path.parent, killed)
        await put(store, "/rockoon/later")
    async with opened(killed / path.name) as store:
        assert await store.read(EVERYTHING) == before
        assert before.header == (last, CLUSTER_ID)
        assert before.items[0].create_revision == first == NEW.revision + 1
        assert await put(store, "/rockoon/b") == last + 1
    assert os.stat(path).st_mode & 0o777 == 0o600


async def test_a_lease_lives_its_whole_time_again_after_a_start(path: Path) -> None:
    async with opened(path) as store:
        kept, _ = await store.grant_lease(600)
        short, _ = await store.grant_lease(600)
        await put(store, "/rockoon/kept", lease=kept)
        await put(store, "/rockoon/short", lease=short)
        await store.revoke_lease(short)
    async with opened(path) as store:
        assert [item.key for item in (await store.read(EVERYTHING)).items] == ["/rockoon/kept"]
        assert 590 < await store.lease_seconds_left(kept) <= 600
        assert await store.renew_lease(short) == 0


async def test_a_failure_beside_it_is_raised_as_it_is_and_what_is_under_way_gets_written(
    path: Path,
) -> None:
    async def fail_beside_a_write(tasks: asyncio.TaskGroup) -> None:
        async with opened(path) as store:
            writing = tasks.create_task(put(store, "/rockoon/a"))
            # Begun, without a reply.
            await asyncio.sleep(0)
            assert not writing.done()
            raise ZeroDivisionError

    async with asyncio.TaskGroup() as tasks:
        with pytest.raises(ZeroDivisionError):
            await fail_beside_a_write(tasks)
    async with opened(path) as store:
        assert [item.key for item in (await store.read(EVERYTHING)).items] == ["/rockoon/a"]


async def test_a_second_process_is_refused(path: Path) -> None:
    async with opened(path):
        with pytest.raises(StoreLocked, match="in use by another process"):
            async with opened(path):
                pass


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "routes.db"
    path.write_bytes(b"these are no routes" * 1000)
    with pytest.raises(StoreCorrupt, match="damaged"):
        RouteFile(path)
    assert path.read_bytes().startswith(b"these are no routes")


async def test_a_watch_that_is_too_far_behind_reads_everything_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_store, "HISTORY_REVISIONS_MAX", 3)
    async with opened(path) as store:
        start = await put(store, "/rockoon/a")
        async with store.watch(EVERYTHING, start) as (_, batches):
            for number in range(3):
                await put(store, f"/rockoon/{number}")
            with pytest.raises(Compacted):
                await anext(batches)
        with pytest.raises(Compacted):
            async with store.watch(EVERYTHING, start):
                pass


async def test_changes_that_come_together_are_one_write(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []

    class Counted(RouteFile):
        def write(self, *changes: object) -> None:
            writes.append(1)
            super().write(*changes)  # type: ignore[arg-type]

    monkeypatch.setattr(embedded_store, "RouteFile", Counted)
    async with opened(path) as store:
        async with asyncio.TaskGroup() as tasks:
            for number in range(100):
                tasks.create_task(put(store, f"/rockoon/{number}"))
        assert (await store.header()).revision == NEW.revision + 100
    assert len(writes) <= 2


class SmallDisk(RouteFile):
    """SQLite has no space for more pages, while `is_full`."""

    is_full = True

    def write(self, *changes: object) -> None:
        pages = 8 if SmallDisk.is_full else 1000
        self._database.execute(f"PRAGMA max_page_count = {pages}")
        super().write(*changes)  # type: ignore[arg-type]


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_store, "RouteFile", SmallDisk)
    monkeypatch.setattr(embedded_store, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(SmallDisk, "is_full", True)


async def test_on_a_full_disk_nothing_is_answered_until_there_is_room(
    path: Path, small_disk: None
) -> None:
    async with opened(path) as store:
        await put(store, "/rockoon/a")
        with pytest.raises(EtcdUnavailable, match="no room"):
            await put(store, "/rockoon/large", bytes(100_000))
        with pytest.raises(EtcdUnavailable, match="no room"):
            await store.read(EVERYTHING)
        SmallDisk.is_full = False
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                try:
                    found = await store.read(EVERYTHING)
                    break
                except EtcdUnavailable:
                    await asyncio.to_thread(path.stat)
        # It may have been done, and it was.
        assert [item.key for item in found.items] == ["/rockoon/a", "/rockoon/large"]
    async with opened(path) as store:
        assert (await store.read(EVERYTHING)).items == found.items


async def test_after_a_write_that_failed_nothing_is_answered_any_more(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(RouteFile):
        def write(self, *changes: object) -> None:
            self._database.execute("PRAGMA query_only = ON")
            super().write(*changes)  # type: ignore[arg-type]

    monkeypatch.setattr(embedded_store, "RouteFile", Failing)
    reasons: list[str] = []
    async with EmbeddedStore(path, reasons.append) as store:
        for _ in range(2):
            with pytest.raises(EtcdUnavailable, match="cannot be written"):
                await put(store, "/rockoon/a")
        with pytest.raises(EtcdUnavailable):
            await store.read(EVERYTHING)
    assert len(reasons) == 1
    async with opened(path) as store:
        assert (await store.read(EVERYTHING)).items == []


async def test_routes_go_to_etcd_and_back_with_all_their_revisions(
    own_etcd: EtcdServer, path: Path
) -> None:
    async with Etcd([own_etcd.endpoint]) as etcd:
        await etcd.transaction([], [PutKey("/rockoon/one/a", b"1"), PutKey("/rockoon/one/b", b"1")])
        await etcd.transaction([], [PutKey("/rockoon/one/a", b"2")])
        lease_id, _ = await etcd.grant_lease(600)
        await etcd.transaction([], [PutKey("/rockoon/one/node", b"n", lease_id)])
        await etcd.transaction([], [PutKey("/elsewhere", b"")])
        await etcd.transaction(
            [], [DeleteKey(only("/rockoon/one/b")), PutKey("/rockoon/two/c", b"3")]
        )
        header, items = await etcd.read(EVERYTHING)
        items = [item for item in items if not item.lease_id]
        path.parent.mkdir()
        await to_file(etcd, path)
    async with opened(path) as store:
        found = await store.read(EVERYTHING)
        assert found.items == items
        # The removal of the node is a change.
        assert found.header == (header.revision + 1, header.cluster_id)
        assert await put(store, "/rockoon/two/d") == header.revision + 2
        await store.transaction([absent(only("/rockoon/x"))], [DeleteKey(only("/rockoon/one/a"))])
        moved = await store.read(EVERYTHING)
    own_etcd.stop()
    own_etcd.erase()
    own_etcd.start()
    async with Etcd([own_etcd.endpoint]) as etcd:
        await to_etcd(etcd, path)
        assert await etcd.read(EVERYTHING) == moved
        await etcd.transaction([], [PutKey("/rockoon/two/more", b"")])
        with pytest.raises(StoreCorrupt, match="not have the same routes"):
            await to_etcd(etcd, path)


async def test_a_nameserver_keeps_its_routes_in_a_file(path: Path) -> None:
    create = pb.CreateTopicRequest(config=pb.TopicConfig(name="kept"), queues_per_broker=2)
    async with running_nameserver(etcd=(), routes_path=path) as nameserver:
        await nameserver.call("RegisterNode", pb.RegisterNodeRequest(node=broker_node()))
        made = await nameserver.call("CreateTopic", create)
        first = await nameserver.call("GetRoute", pb.GetRouteRequest(topics=["kept"]))
        assert first.topics[0] == made.topic
    async with running_nameserver(etcd=(), routes_path=path) as nameserver:
        again = await nameserver.call("GetRoute", pb.GetRouteRequest(topics=["kept"]))
        assert list(again.topics) == [made.topic]
        assert list(again.nodes) == list(first.nodes), "its lease begins anew"
        assert again.etcd_cluster_id == first.etcd_cluster_id
