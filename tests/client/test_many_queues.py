"""Topics with more queues on one broker than a call may name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import rockoon
from rockoon.admin.reads import ask_queue_ends
from rockoon.cluster import Cluster
from rockoon.offsets.offset_lookup import OffsetLookup
from rockoon.offsets.offset_store import RemoteOffsetStore
from rockoon.offsets.start import ConsumeFrom, Start
from rockoon_core.message_queue import QUEUES_PER_CALL_MAX, MessageQueue, in_calls
from rockoon_proto.v1.nameserver_pb2 import SubscribeRequest
from support.fake_cluster import FakeCluster

QUEUES, TOPIC, GROUP = 5000, "wide", "job"


@asynccontextmanager
async def wide_topic() -> AsyncIterator[tuple[FakeCluster, Cluster, list[MessageQueue]]]:
    async with FakeCluster() as fake:
        fake.create_topic(TOPIC, QUEUES)
        for number in (0, QUEUES - 1):
            fake.append(TOPIC, [b"1", b"2", b"3"], queue_id=number)
        async with rockoon.connect(fake.address) as cluster:
            queues = list((await cluster.route(TOPIC)).queues)
            assert len(queues) == QUEUES
            yield fake, cluster, queues


async def test_offsets_of_all_queues_of_a_wide_topic_are_found() -> None:
    async with wide_topic() as (_, cluster, queues):
        lookup = OffsetLookup(cluster)
        ends = await lookup.ends(queues)
        assert list(ends) == queues
        assert [ends[queues[0]], ends[queues[1]], ends[queues[-1]]] == [(0, 3), (0, 0), (0, 3)]
        # The fake broker stores message n at 1000 + n.
        found = await lookup.search(dict.fromkeys(queues, 1002))
        assert [found[queues[0]], found[queues[1]], found[queues[-1]]] == [2, 0, 2]
        for policy, expected in (
            (ConsumeFrom.LAST, 3),
            (ConsumeFrom.timestamp(1001), 1),
            (ConsumeFrom.ago(10_000 - 1001), 1),
        ):
            chosen = await lookup.choose(queues, policy)
            assert list(chosen) == queues
            assert chosen[queues[-1]].offset == expected
        asked = await ask_queue_ends(cluster, await cluster.route(TOPIC))
        assert [each.error for each in asked] == [None] * QUEUES


async def test_a_reader_of_a_wide_topic_stores_its_progress() -> None:
    async with wide_topic() as (fake, cluster, queues):
        await cluster.call_nameserver(
            "Subscribe", SubscribeRequest(group=GROUP, topic=TOPIC, create_group=True)
        )
        store = RemoteOffsetStore(cluster, GROUP)
        found = await store.resolve(queues, ConsumeFrom.FIRST)
        assert all(isinstance(each, Start) for each in found.values())
        for queue in queues:
            store.update(queue, 1)
        persisted = await store.persist_all()
        assert len(persisted.stored) == QUEUES
        assert not persisted.lost
        assert len(fake.offset.commits) == QUEUES
        await store.release(queues)


@pytest.mark.parametrize("count", [0, 1, QUEUES_PER_CALL_MAX, QUEUES_PER_CALL_MAX + 1, 10_000])
def test_a_bulk_call_is_cut_into_calls_that_hold_each_entry_once(count: int) -> None:
    calls = list(in_calls(range(count)))
    assert [each for call in calls for each in call] == list(range(count))
    assert all(1 <= len(call) <= QUEUES_PER_CALL_MAX for call in calls)
    assert len(calls) == -(-count // QUEUES_PER_CALL_MAX)
