"""Routes of a backup in a new store of routes: the same keys, with the same revisions."""

import asyncio
from pathlib import Path

import pytest

from rockoon_core.errors import StoreCorrupt
from rockoon_core.restored_stores import restored_store_id
from rockoon_nameserver.embedded_store import EmbeddedStore
from rockoon_nameserver.etcd import Etcd
from rockoon_nameserver.etcd_data import DeleteKey, Header, PutKey, RangeRead, only
from rockoon_nameserver.keyspace import (
    Keyspace,
    LogKey,
    TopicKey,
    identity_value,
    log_value,
    read_log,
)
from rockoon_nameserver.route_import import import_routes, parts
from rockoon_nameserver.route_store import RouteStore
from rockoon_proto.v1.logs_pb2 import LogState
from rockoon_proto.v1.nameserver_pb2 import BROKER, ReadRoutesReply
from support.etcd import EtcdServer

KEYSPACE = Keyspace("rockoon")
IDENTITY = 4711
LOG = LogKey(BROKER, "broker-a")
# More keys than one transaction repeats.
FILLERS = 1200


async def fill(store: RouteStore) -> RangeRead:
    """Make routes with deletions and foreign changes between them; return the remaining keys."""
    topic = KEYSPACE.key(TopicKey("orders"))
    state = LogState(log="broker-a", kind=BROKER, epoch=7, version=30, leader="x", copies=3)
    state.in_sync.extend("xyz")
    for who in "xyz":
        state.replicas.add(replica_id=who, name=f"broker-a-{who}")
    await store.transaction([], [PutKey(KEYSPACE.identity, identity_value(IDENTITY))])
    await store.transaction([], [PutKey(topic, b"{}"), PutKey("/rockoon/rockoon/gone", b"")])
    await store.transaction([], [DeleteKey(only("/rockoon/rockoon/gone"))])
    for _ in range(FILLERS):
        await store.transaction([], [PutKey("/elsewhere", b"")])
    await store.transaction([], [PutKey(KEYSPACE.key(LOG), log_value(state))])
    lease, _ = await store.grant_lease(600)
    await store.transaction([], [PutKey("/rockoon/rockoon/nodes/broker/a", b"{}", lease)])
    await store.transaction([], [PutKey(topic, b'{"permissions":4}')])
    return await store.read(KEYSPACE.everything)


def saved(found: RangeRead, path: Path) -> Path:
    routes = ReadRoutesReply()
    for part in parts(found, KEYSPACE, IDENTITY):
        routes.keys.extend(part.keys)
        routes.revision = part.revision
    path.write_bytes(routes.SerializeToString())
    return path


def embedded(path: Path) -> EmbeddedStore:
    return EmbeddedStore(path, pytest.fail)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> RangeRead:
    async def filled() -> RangeRead:
        async with embedded(tmp_path_factory.mktemp("left") / "routes.db") as store:
            return await fill(store)

    return asyncio.run(filled())


async def test_keys_get_their_former_revisions_in_a_new_etcd(
    own_etcd: EtcdServer, tmp_path: Path, left: RangeRead
) -> None:
    path = saved(left, tmp_path / "routes")
    async with Etcd([own_etcd.endpoint]) as etcd:
        assert await import_routes(etcd, KEYSPACE, path)
        found = await etcd.read(KEYSPACE.everything)
        wanted = [item for item in left.items if not item.lease_id]
        assert [item[2:4] for item in found.items] == [item[2:4] for item in wanted]
        # One change is the removal of the nodes, one is the mark of the import.
        assert found.header.revision == left.header.revision + 2
        values = {item.key: item.value for item in found.items}
        assert values[KEYSPACE.key(TopicKey("orders"))] == b'{"permissions":4}'
        # The restored store is the only copy of its log, in a later epoch.
        state = read_log(LOG, values[KEYSPACE.key(LOG)])
        store_id = restored_store_id(IDENTITY, "broker", "broker-a")
        assert (list(state.in_sync), state.leader, state.epoch) == ([store_id], store_id, 8)
        assert (state.copies, [each.replica_id for each in state.replicas]) == (3, [store_id])
        # The setting stays, and changes nothing any more.
        await etcd.transaction([], [DeleteKey(only(KEYSPACE.key(TopicKey("orders"))))])
        before = await etcd.read(KEYSPACE.everything)
        assert not await import_routes(etcd, KEYSPACE, path)
        assert await etcd.read(KEYSPACE.everything) == before


async def test_an_interrupted_import_continues(tmp_path: Path, left: RangeRead) -> None:
    path, file = saved(left, tmp_path / "routes"), tmp_path / "routes.db"

    class Interrupted(Exception):
        pass

    async with embedded(file) as store:
        done, transaction = 0, store.transaction

        async def killed(*arguments):  # type: ignore[no-untyped-def]
            nonlocal done
            if done == FILLERS // 2:
                raise Interrupted
            done += 1
            return await transaction(*arguments)

        store.transaction = killed  # type: ignore[method-assign]
        with pytest.raises(Interrupted):
            await import_routes(store, KEYSPACE, path)
    async with embedded(file) as store:
        assert 1 < (await store.header()).revision < left.header.revision
        assert await import_routes(store, KEYSPACE, path)
        assert (await store.header()).revision == left.header.revision + 2


async def test_a_store_with_other_keys_is_refused_and_not_changed(
    tmp_path: Path, left: RangeRead
) -> None:
    path = saved(left, tmp_path / "routes")
    async with embedded(tmp_path / "routes.db") as store:
        await store.transaction([], [PutKey("/rockoon/rockoon/topics/mine", b"{}")])
        before = await store.read(KEYSPACE.everything)
        with pytest.raises(StoreCorrupt, match="only be restored into a new etcd"):
            await import_routes(store, KEYSPACE, path)
        assert await store.read(KEYSPACE.everything) == before


async def test_an_import_that_failed_is_refused_after_a_restart_too(
    tmp_path: Path, left: RangeRead
) -> None:
    path = saved(left, tmp_path / "routes")
    async with embedded(tmp_path / "routes.db") as store:

        async def fails() -> None:
            with pytest.raises(StoreCorrupt):
                await import_routes(store, KEYSPACE, path)

        # Two nameservers have the setting.
        async with asyncio.TaskGroup() as tasks:
            for _ in range(2):
                tasks.create_task(fails())
        assert (await store.header()).revision > left.header.revision
        await fails()


async def test_a_file_without_routes_is_refused(tmp_path: Path) -> None:
    empty = RangeRead(Header(1, 1), [])
    for content in (b"", b"nonsense", saved(empty, tmp_path / "empty").read_bytes()):
        path = tmp_path / "routes"
        path.write_bytes(content)
        async with embedded(tmp_path / "routes.db") as store:
            with pytest.raises(StoreCorrupt, match="no routes of a backup"):
                await import_routes(store, KEYSPACE, path)
