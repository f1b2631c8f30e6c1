"""Promises of every offset store, tested for each of them: RocketMQ's interface by method."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from rockoon.cluster import Cluster
from rockoon.errors import CommitBehind, RockoonError
from rockoon.offsets.custom_offset_store import CustomOffsetStore, OffsetSnapshot
from rockoon.offsets.local_offsets import BroadcastOffsetStore, LocalFileOffsetStore
from rockoon.offsets.offset_store import OffsetStore, RemoteOffsetStore
from rockoon.offsets.start import ConsumeFrom, Start
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.nameserver_pb2 import BROADCAST_SERVER, GroupConfig, SubscribeRequest
from support.fake_cluster import FakeCluster

Q0 = MessageQueue("orders", "broker-a", 0)
Q1 = MessageQueue("orders", "broker-a", 1)
ELSEWHERE = MessageQueue("payments", "broker-a", 0)
UNKNOWN = MessageQueue("orders", "broker-a", 9)


class InMemory:
    """The least that a user must write: an `OffsetBackend`."""

    def __init__(self) -> None:
        self.kept = OffsetSnapshot()

    async def load(self) -> OffsetSnapshot:
        return OffsetSnapshot(dict(self.kept.positions), dict(self.kept.since))

    async def write(self, changed: OffsetSnapshot) -> None:
        self.kept.positions.update(changed.positions)
        self.kept.since.update(changed.since)

    async def close(self) -> None:
        pass


class Stores:
    """Opens a store on the same progress repeatedly, as restarts do."""

    def __init__(self, kind: str, fake: FakeCluster, cluster: Cluster, folder: Path) -> None:
        self._kind = kind
        self._fake = fake
        self._cluster = cluster
        self._folder = folder
        self._backend = InMemory()

    async def open(self) -> OffsetStore:
        store = self._made()
        await store.load()
        return store

    def _made(self) -> OffsetStore:
        if self._kind == "remote":
            return RemoteOffsetStore(self._cluster, "billing")
        if self._kind == "backend":
            return CustomOffsetStore(self._cluster, "billing", self._backend)
        if self._kind == "file":
            return LocalFileOffsetStore(self._cluster, "billing", "pod-0", directory=self._folder)
        store = BroadcastOffsetStore(self._cluster, "billing", "pod-0")
        store.config = GroupConfig(name="billing", broadcast_progress=BROADCAST_SERVER)
        return store


@pytest.fixture(params=["remote", "member", "file", "backend"])
async def stores(
    request: pytest.FixtureRequest, fake: FakeCluster, cluster: Cluster, tmp_path: Path
) -> Stores:
    fake.create_topic("orders", queues=2)
    fake.create_topic("payments")
    for queue in (Q0, Q1, ELSEWHERE):
        fake.append(queue.topic, [b"x"] * 100, queue_id=queue.queue_id)
        subscribe = SubscribeRequest(group="billing", topic=queue.topic, create_group=True)
        await cluster.call_nameserver("Subscribe", subscribe)
    return Stores(request.param, fake, cluster, tmp_path)


@pytest.fixture
async def store(stores: Stores) -> AsyncIterator[OffsetStore]:
    async with AsyncExitStack() as stack:
        store = await stores.open()
        stack.push_async_callback(store.close)
        found = await store.resolve([Q0, Q1, ELSEWHERE, UNKNOWN], ConsumeFrom.FIRST)
        assert isinstance(found.pop(UNKNOWN), RockoonError)
        assert {q: s.offset for q, s in found.items() if isinstance(s, Start)} == {
            Q0: 0,
            Q1: 0,
            ELSEWHERE: 0,
        }
        yield store


async def test_updates_only_increase_unless_told_otherwise(store: OffsetStore) -> None:
    store.update(Q0, 10)
    store.update(Q0, 4)
    assert store.read_memory(Q0) == 10
    store.update(Q0, 4, increase_only=False)
    assert store.read_memory(Q0) == 4
    store.update(UNKNOWN, 7)
    assert store.read_memory(UNKNOWN) is None


async def test_memory_the_store_and_memory_before_the_store_are_read(store: OffsetStore) -> None:
    store.update(Q0, 10)
    assert (store.read_memory(Q0), await store.read_store(Q0), await store.read(Q0)) == (10, 0, 10)
    await store.persist([Q0])
    assert await store.read_store(Q0) == 10
    store.update(Q0, 12)
    store.remove(Q0)
    assert (store.read_memory(Q0), await store.read(Q0)) == (None, 10)
    assert await store.read(UNKNOWN) is None


async def test_some_are_persisted_or_all_and_each_change_once(store: OffsetStore) -> None:
    for queue, offset in {Q0: 10, Q1: 20, ELSEWHERE: 30}.items():
        store.update(queue, offset)
    assert (await store.persist([Q1])).stored == {Q1: 20}
    assert await store.read_store(Q0) == 0
    assert (await store.persist_all()).stored == {Q0: 10, ELSEWHERE: 30}
    assert (await store.persist_all()).stored == {}


async def test_what_was_removed_is_forgotten_and_what_is_stored_of_it_stays(
    store: OffsetStore,
) -> None:
    store.update(Q0, 10)
    store.remove(Q0)
    store.update(Q0, 11)
    assert (await store.persist_all()).stored == {}
    assert await store.read_store(Q0) == 0


async def test_the_memory_of_a_topic_is_cloned(store: OffsetStore) -> None:
    store.update(Q0, 10)
    cloned = store.clone("orders")
    assert cloned == {Q0: 10, Q1: 0}
    cloned[Q1] = 99
    assert store.read_memory(Q1) == 0


async def test_a_commit_is_stored_now_and_none_goes_back(store: OffsetStore) -> None:
    await store.commit(Q0, 10)
    assert (store.read_memory(Q0), await store.read_store(Q0)) == (10, 10)
    with pytest.raises(CommitBehind):
        await store.commit(Q0, 9)
    assert (await store.persist_all()).stored == {}


async def test_what_was_stored_or_released_is_there_for_the_next(stores: Stores) -> None:
    first = await stores.open()
    await first.resolve([Q0, Q1], ConsumeFrom.FIRST)
    first.update(Q0, 10)
    first.update(Q1, 20)
    assert (await first.persist([Q0])).stored == {Q0: 10}
    assert (await first.release([Q1])).stored == {Q1: 20}
    first.update(Q0, 11)
    await first.close()
    second = await stores.open()
    found = await second.resolve([Q0, Q1], ConsumeFrom.LAST)
    assert {q: (s.offset, s.reason) for q, s in found.items() if isinstance(s, Start)} == {
        Q0: (10, "COMMITTED"),
        Q1: (20, "COMMITTED"),
    }
    await second.close()
