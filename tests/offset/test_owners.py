"""Owners of queues: for operators, and for members that share queues by owners."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from grpc import aio
from offset.cluster import GROUP, TOPIC, Cluster

from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import Decision, StartReason
from rockoon_offset.members.membership import OWNED_QUEUES_MAX, SINCE_MAX, Owners
from rockoon_offset.progress.ledger import Ledger
from rockoon_proto.v1 import offset_pb2 as pb
from rockoon_proto.v1.nameserver_pb2 import SubscribeRequest
from rockoon_proto.v1.offset_pb2_grpc import OffsetServiceStub
from support.fake_cluster import FakeCluster

QUEUES = 4


class Members:
    """Members of one group of an offset service of either kind."""

    def __init__(self, stub: Any, revision: int) -> None:
        self.stub = stub
        self._revision = revision

    async def beat(self, member: str, *, version: int = 0, wants: bool = True) -> pb.HeartbeatReply:
        return await self.stub.Heartbeat(  # type: ignore[no-any-return]
            pb.HeartbeatRequest(
                group=GROUP,
                member_id=member,
                instance="i",
                mode=pb.CLUSTERING,
                subscriptions=[pb.TopicSubscription(topic=TOPIC, expression="*")],
                allocation="STICKY",
                wants_owners=wants,
                owners_version=version,
            )
        )

    async def owners(self, member: str) -> dict[int, str]:
        reply = await self.beat(member)
        assert reply.owners_known
        return {each.queue.queue_id: each.member_id for each in reply.owners}

    async def resolve(self, member: str, *queue_ids: int) -> None:
        reply = await self.stub.Resolve(
            pb.ResolveRequest(
                group=GROUP,
                member_id=member,
                queues=map(ref, queue_ids),
                route_revision=self._revision,
            )
        )
        self.failed = [each.error for each in reply.starts if each.HasField("error")]

    async def release(self, member: str, queue_id: int) -> None:
        request = pb.CommitRequest(group=GROUP, member_id=member, release=[ref(queue_id)])
        await self.stub.Commit(request)

    async def locks(self) -> list[pb.QueueLock]:
        reply = await self.stub.ListLocks(pb.ListLocksRequest(group=GROUP))
        return list(reply.locks)


def ref(queue_id: int) -> pb.QueueRef:
    return pb.QueueRef(topic=TOPIC, broker="broker-a", queue_id=queue_id)


@pytest.fixture(params=["fake", "real"])
async def members(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Members]:
    if request.param == "real":
        async with Cluster(tmp_path) as cluster:
            await cluster.create_topic(queues=QUEUES)
            await cluster.set_group()
            yield Members(cluster.stub, cluster.nameserver.revision)
        return
    async with FakeCluster() as fake, aio.insecure_channel(fake.offset.listener.address) as channel:
        fake.create_topic(TOPIC, queues=QUEUES)
        subscribe = SubscribeRequest(group=GROUP, topic=TOPIC, create_group=True)
        await fake.nameserver.Subscribe(subscribe, None)
        yield Members(OffsetServiceStub(channel), fake.nameserver.revision)


async def test_all_members_are_told_the_same_owners_of_one_version_whatever_happens_in_between(
    members: Members,
) -> None:
    await members.beat("a")
    await members.resolve("a", 0, 1, 2, 3)
    await members.beat("b")
    told = dict.fromkeys(range(QUEUES), "a")
    assert await members.owners("a") == told
    await members.release("a", 3)
    await members.resolve("b", 3)
    assert await members.owners("b") == told
    await members.beat("c")
    assert (
        await members.owners("c") == await members.owners("a") == {0: "a", 1: "a", 2: "a", 3: "b"}
    )


async def test_owners_are_sent_to_who_wants_them_and_only_once(members: Members) -> None:
    await members.beat("a")
    await members.resolve("a", 0)
    await members.beat("b")
    reply = await members.beat("a")
    assert len(reply.owners) == 1
    again = await members.beat("a", version=reply.membership_version)
    assert again.owners_known
    assert not again.owners
    unasked = await members.beat("a", wants=False)
    assert not unasked.owners
    assert not unasked.owners_known


async def test_what_a_member_says_of_its_allocation_is_told_to_all(members: Members) -> None:
    await members.beat("a")
    reply = await members.beat("b")
    assert [each.allocation for each in reply.members] == ["STICKY", "STICKY"]


async def test_locks_name_owner_epoch_lease_and_who_waits(members: Members) -> None:
    await members.beat("a")
    await members.beat("b")
    await members.resolve("a", 0, 2)
    await members.resolve("b", 2)
    assert len(members.failed) == 1
    first, second = await members.locks()
    assert [(each.queue.queue_id, each.owner) for each in (first, second)] == [(0, "a"), (2, "a")]
    assert (list(first.waiting), list(second.waiting)) == ([], ["b"])
    assert first.lease_left_ms > 0
    assert first.since_ms > 0
    await members.release("a", 2)
    await members.resolve("b", 2)
    _, taken = await members.locks()
    assert (taken.owner, list(taken.waiting)) == ("b", [])
    assert taken.epoch > second.epoch


async def test_a_restart_knows_owners_but_not_since_when(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.create_topic(queues=1)
        await cluster.set_group()
        members = Members(cluster.stub, cluster.nameserver.revision)
        version = (await members.beat("a")).membership_version
        await members.resolve("a", 0)
        await cluster.restart_service()
        members = Members(cluster.stub, cluster.nameserver.revision)
        (lock,) = await members.locks()
        assert (lock.owner, lock.since_ms) == ("a", 0)
        reply = await members.beat("a", version=version)
        assert reply.membership_version > version
        assert [each.member_id for each in reply.owners] == ["a"]
        assert reply.members[0].allocation == "STICKY"


async def test_a_lock_of_a_member_that_left_has_no_lease(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.create_topic(queues=1)
        await cluster.set_group()
        members = Members(cluster.stub, cluster.nameserver.revision)
        await members.beat("a")
        await members.resolve("a", 0)
        await cluster.stub.Leave(pb.LeaveRequest(group=GROUP, member_id="a", instance="i"))
        (lock,) = await members.locks()
        assert (lock.owner, lock.lease_left_ms) == ("a", 0)


def test_owners_of_very_many_queues_are_told_to_nobody() -> None:
    ledger, owners = Ledger(), Owners()
    stored = Decision(0, StartReason.COMMITTED, "as stored")
    for number in range(OWNED_QUEUES_MAX + 1):
        ledger.start("g", 5, MessageQueue("t", "b", number), 7, stored, "a", 1000)
    held = list(ledger.table.of("g").values())
    assert owners.as_of("g", 1, held).owners is None
    assert len(owners.as_of("g", 2, held[1:]).owners or ()) == OWNED_QUEUES_MAX


def test_since_when_queues_are_held_is_forgotten_from_the_oldest_on() -> None:
    owners = Owners()
    for number in range(SINCE_MAX + 1):
        owners.record("g", MessageQueue("t", "b", number), "a", 1 + number)
    assert owners.since_ms("g", MessageQueue("t", "b", 0), "a") == 0
    assert owners.since_ms("g", MessageQueue("t", "b", 1), "a") == 2
    owners.record("g", MessageQueue("t", "b", 1), "a", 10**9)
    assert owners.since_ms("g", MessageQueue("t", "b", 1), "a") == 2
    assert owners.since_ms("g", MessageQueue("t", "b", 1), "b") == 0
