"""A consumer's memory of its progress, and its commits to the offset service."""

import pytest

from rockoon.cluster import Cluster
from rockoon.errors import CommitBehind, Fenced, GroupNotFound, OffsetServiceUnavailable
from rockoon.offsets.offset_store import RemoteOffsetStore
from rockoon.offsets.start import ConsumeFrom, Start
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.nameserver_pb2 import SubscribeRequest
from support.eventually import answered
from support.fake_cluster import FakeCluster

PLACE = ("orders", "broker-a", 0)
Q0 = MessageQueue(*PLACE)
Q1 = MessageQueue("orders", "broker-a", 1)
UNKNOWN = MessageQueue("orders", "broker-a", 9)


@pytest.fixture
async def store(fake: FakeCluster, cluster: Cluster) -> RemoteOffsetStore:
    fake.create_topic("orders", queues=2)
    for queue_id in (0, 1):
        fake.append("orders", [b"x"] * 100, queue_id=queue_id)
    request = SubscribeRequest(group="billing", topic="orders", create_group=True)
    await cluster.call_nameserver("Subscribe", request)
    return RemoteOffsetStore(cluster, "billing")


async def test_what_is_resolved_is_remembered_and_what_is_not_is_asked_for(
    fake: FakeCluster, store: RemoteOffsetStore
) -> None:
    found = await store.resolve([Q0, UNKNOWN], ConsumeFrom.FIRST)
    start = found[Q0]
    assert isinstance(start, Start)
    assert (start.offset, start.reason, start.epoch) == (0, "FIRST", 1)
    assert isinstance(found[UNKNOWN], Exception)
    assert await store.read(Q0) == store.read_memory(Q0) == 0
    assert store.read_memory(Q1) is None
    assert await store.read(Q1) is None


async def test_memory_goes_back_only_when_told_to(store: RemoteOffsetStore) -> None:
    await store.resolve([Q0], ConsumeFrom.FIRST)
    store.update(Q0, 10)
    store.update(Q0, 4)
    assert store.read_memory(Q0) == 10
    store.update(Q0, 4, increase_only=False)
    assert store.read_memory(Q0) == 4
    assert store.clone("orders") == {Q0: 4}
    assert store.clone("other") == {}


async def test_only_what_changed_is_sent(fake: FakeCluster, store: RemoteOffsetStore) -> None:
    await store.resolve([Q0, Q1], ConsumeFrom.FIRST)
    store.update(Q0, 10)
    assert (await store.persist_all()).stored == {Q0: 10}
    assert (await store.persist_all()).stored == {}
    assert fake.offset.commits == [("", PLACE, 10)]
    assert await store.read_store(Q0) == 10


async def test_a_queue_that_was_given_up_cannot_be_committed(
    fake: FakeCluster, store: RemoteOffsetStore
) -> None:
    await store.resolve([Q0], ConsumeFrom.FIRST)
    store.remove(Q0)
    store.update(Q0, 10)
    assert store.read_memory(Q0) is None
    assert (await store.persist([Q0])).stored == {}
    assert fake.offset.commits == []


async def test_what_cannot_be_stored_now_is_kept_and_stored_later(
    fake: FakeCluster, store: RemoteOffsetStore
) -> None:
    await store.resolve([Q0], ConsumeFrom.FIRST)
    store.update(Q0, 10)
    await fake.offset.listener.stop()
    assert isinstance((await store.persist_all()).kept[Q0], OffsetServiceUnavailable)
    await fake.offset.listener.start()
    await answered(store.persist_all, lambda told: told.stored)
    assert fake.offset.progress["billing", PLACE].offset == 10


async def test_a_queue_that_somebody_took_is_reported_until_it_is_resolved_again(
    fake: FakeCluster, store: RemoteOffsetStore
) -> None:
    await store.resolve([Q0, Q1], ConsumeFrom.FIRST)
    store.update(Q0, 10)
    store.update(Q1, 20)
    fake.offset.reset("billing", PLACE, 3)
    persisted = await store.persist_all()
    assert isinstance(persisted.lost[Q0], Fenced)
    assert persisted.stored == {Q1: 20}
    await store.resolve([Q0], ConsumeFrom.FIRST)
    assert store.read_memory(Q0) == 3
    store.update(Q0, 5)
    assert (await store.persist_all()).stored == {Q0: 5}


async def test_an_offset_that_others_have_passed_counts_as_stored(
    fake: FakeCluster, store: RemoteOffsetStore
) -> None:
    await store.resolve([Q0], ConsumeFrom.FIRST)
    fake.offset.progress["billing", PLACE].offset = 50
    store.update(Q0, 10)
    assert (await store.persist_all()).stored == {Q0: 50}
    assert fake.offset.progress["billing", PLACE].offset == 50
    with pytest.raises(CommitBehind):
        await store.commit(Q0, 20)
    await store.commit(Q0, 20, force=True)
    assert fake.offset.progress["billing", PLACE].offset == 20
    assert store.read_memory(Q0) == 20


async def test_a_group_that_is_gone_is_an_error(
    fake: FakeCluster, store: RemoteOffsetStore
) -> None:
    await store.resolve([Q0], ConsumeFrom.FIRST)
    store.update(Q0, 10)
    fake.delete_group("billing")
    with pytest.raises(GroupNotFound):
        await store.persist_all()
