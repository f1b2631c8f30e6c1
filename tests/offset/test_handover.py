"""A queue between two members: held, released, left, lost; never two owners that may commit.

First the table, without a service; then the running service, and the fake that the consumers' tests
use.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from grpc import aio
from offset.cluster import GROUP, TOPIC, Cluster

from rockoon_core.errors import Fenced
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import Decision, StartReason
from rockoon_offset.members.handover import SILENT_NS_MAX, WAITS_MAX, Handovers
from rockoon_offset.members.membership import Membership
from rockoon_offset.progress.ledger import Ledger, OffsetCommit
from rockoon_offset.progress.records import GroupMember, Progress, decode, encode
from rockoon_proto.v1 import offset_pb2 as pb
from rockoon_proto.v1.errors_pb2 import Error
from rockoon_proto.v1.nameserver_pb2 import SubscribeRequest
from rockoon_proto.v1.offset_pb2_grpc import OffsetServiceStub
from support.fake_cluster import FakeCluster
from support.waiting import DEADLINE_SECONDS

SECOND = 1_000_000_000
QUEUE = MessageQueue("orders", "broker-a", 0)
BOUND = 10 * SECOND


def owned(ledger: Ledger, owner: str) -> Progress:
    ledger.start("g", 5, QUEUE, 7, Decision(0, StartReason.COMMITTED, "as stored"), owner, 1000)
    return found(ledger)


def found(ledger: Ledger) -> Progress:
    progress = ledger.find("g", QUEUE)
    assert progress is not None
    return progress


def test_a_member_waits_for_the_bound_from_its_first_question_however_often_it_asks() -> None:
    handovers, held = Handovers(BOUND), owned(Ledger(), "a")
    for second in range(10):
        assert handovers.must_wait(held, "b", second * SECOND)
    assert not handovers.must_wait(held, "b", BOUND)
    assert not handovers.must_wait(held, "b", BOUND + SECOND)


def test_each_member_has_its_own_wait() -> None:
    handovers, held = Handovers(BOUND), owned(Ledger(), "a")
    assert handovers.must_wait(held, "b", 0)
    assert handovers.must_wait(held, "c", 9 * SECOND)
    assert not handovers.must_wait(held, "b", BOUND)
    assert handovers.must_wait(held, "c", BOUND)


def test_a_new_owner_gets_the_whole_time() -> None:
    handovers, ledger = Handovers(BOUND), Ledger()
    assert handovers.must_wait(owned(ledger, "a"), "c", 0)
    assert handovers.must_wait(owned(ledger, "b"), "c", BOUND)
    assert not handovers.must_wait(found(ledger), "c", 2 * BOUND)


def test_the_time_does_not_run_before_the_owner_has_found_a_restarted_service_again() -> None:
    handovers, held = Handovers(BOUND), owned(Ledger(), "a")
    for second in range(15):
        assert handovers.must_wait(held, "b", second * SECOND, is_heard=False)
    assert handovers.waiting("g", QUEUE) == ("b",)
    assert handovers.must_wait(held, "b", 24 * SECOND - 1)
    assert not handovers.must_wait(held, "b", 24 * SECOND)


def test_a_member_that_stopped_asking_starts_anew() -> None:
    handovers, held = Handovers(BOUND), owned(Ledger(), "a")
    assert handovers.must_wait(held, "b", 0)
    handovers.expire_silent(SILENT_NS_MAX)
    assert not handovers.must_wait(held, "b", SILENT_NS_MAX)
    later = 2 * SILENT_NS_MAX + 1
    assert handovers.must_wait(held, "b", later)
    handovers.expire_silent(later + SILENT_NS_MAX + 1)
    assert len(handovers) == 0


def test_a_member_that_comes_back_under_its_id_starts_anew() -> None:
    handovers, held = Handovers(BOUND), owned(Ledger(), "a")
    assert handovers.must_wait(held, "b", 0)
    handovers.members_changed("other", [])
    assert len(handovers) == 1
    handovers.members_changed("g", ["a"])
    assert handovers.must_wait(held, "b", BOUND)


def test_who_waited_is_told_once_when_the_queue_is_released() -> None:
    handovers, held = Handovers(BOUND), owned(Ledger(), "a")
    handovers.must_wait(held, "b", 0)
    handovers.must_wait(held, "c", 0)
    assert handovers.released("g", QUEUE) == {"b", "c"}
    assert handovers.released("g", QUEUE) == frozenset()
    assert len(handovers) == 0


def test_with_a_bound_of_nothing_nobody_waits() -> None:
    assert not Handovers(0).must_wait(owned(Ledger(), "a"), "b", 0)


def test_waits_are_bounded() -> None:
    handovers, held = Handovers(BOUND), owned(Ledger(), "a")
    for number in range(WAITS_MAX + 10):
        queue = MessageQueue("orders", "broker-a", number)
        assert handovers.must_wait(held._replace(queue=queue), "b", 0)
    assert len(handovers) == WAITS_MAX


def test_only_the_owner_releases_and_the_next_one_gets_a_new_epoch() -> None:
    ledger = Ledger()
    first = owned(ledger, "a")
    assert ledger.release("g", QUEUE, "b") == []
    assert ledger.release("g", QUEUE, "") == []
    assert ledger.release("other", QUEUE, "a") == []
    (record,) = ledger.release("g", QUEUE, "a")
    assert found(ledger) == first._replace(owner="")
    assert ledger.release("g", QUEUE, "a") == []
    again = Ledger()
    again.apply(decode(encode(record)))
    assert found(again).owner == ""
    for member in ("a", "b"):
        before = found(ledger).epoch
        assert owned(ledger, member).epoch > before
        ledger.release("g", QUEUE, member)


def test_after_a_release_the_former_owner_is_fenced_as_soon_as_there_is_another() -> None:
    ledger = Ledger()
    late = OffsetCommit("g", QUEUE, 1, owned(ledger, "a").epoch, "a", "", force=False)
    ledger.release("g", QUEUE, "a")
    owned(ledger, "b")
    with pytest.raises(Fenced):
        ledger.commit(late, 7, None, 0)


@pytest.mark.parametrize(
    ("mode", "topics", "now_ns", "reads"),
    [
        (pb.CLUSTERING, "t", 0, True),
        (pb.CLUSTERING, "t", 10 * SECOND - 1, True),
        (pb.CLUSTERING, "t", 10 * SECOND, False),
        (pb.CLUSTERING, "u", 0, False),
        (pb.BROADCASTING, "t", 0, False),
    ],
)
def test_who_counts_as_a_live_reader(mode: int, topics: str, now_ns: int, reads: bool) -> None:
    members = Membership(10 * SECOND, starts=1)
    subscriptions = tuple((topic, "*") for topic in topics)
    members.heartbeat("g", GroupMember("a", "i", mode, subscriptions, "peer", 0), 0, 0)
    assert (members.reader("g", "a", "t", now_ns) is not None) is reads
    assert members.reader("g", "b", "t", now_ns) is None


class Service:
    """An offset service of either kind, with group, topic and two queues."""

    def __init__(self, stub: Any, revision: int) -> None:
        self.stub = stub
        self.revision = revision

    async def join(self, member: str) -> None:
        await self.stub.Heartbeat(
            pb.HeartbeatRequest(
                group=GROUP,
                member_id=member,
                instance="i",
                mode=pb.CLUSTERING,
                subscriptions=[pb.TopicSubscription(topic=TOPIC, expression="*")],
            )
        )

    async def leave(self, member: str) -> None:
        await self.stub.Leave(pb.LeaveRequest(group=GROUP, member_id=member, instance="i"))

    async def resolve(self, member: str, queue_id: int = 0) -> pb.Start:
        request = pb.ResolveRequest(
            group=GROUP,
            member_id=member,
            queues=[ref(queue_id)],
            route_revision=self.revision,
        )
        return (await self.stub.Resolve(request)).starts[0]  # type: ignore[no-any-return]

    async def epoch(self, member: str, queue_id: int = 0) -> int:
        start = await self.resolve(member, queue_id)
        assert not start.HasField("error"), start.error.message
        return start.epoch

    async def is_held_from(self, member: str, queue_id: int = 0) -> bool:
        start = await self.resolve(member, queue_id)
        if start.error.code:
            assert start.error.code == Error.QUEUE_HELD
            assert start.error.retriable
        return bool(start.error.code)

    async def release(
        self, member: str, queue_id: int = 0, *, epoch: int | None = None
    ) -> pb.CommitReply:
        """Release, with a commit of offset 0 if `epoch` is set."""
        entries = [pb.CommitEntry(queue=ref(queue_id), offset=0, epoch=epoch or 0)]
        return await self.stub.Commit(  # type: ignore[no-any-return]
            pb.CommitRequest(
                group=GROUP,
                member_id=member,
                entries=entries if epoch is not None else [],
                release=[ref(queue_id)],
            )
        )

    async def commit_error(self, member: str, epoch: int) -> int:
        entry = pb.CommitEntry(queue=ref(), offset=0, epoch=epoch)
        request = pb.CommitRequest(group=GROUP, member_id=member, entries=[entry])
        return int((await self.stub.Commit(request)).results[0].error.code)


def ref(queue_id: int = 0) -> pb.QueueRef:
    return pb.QueueRef(topic=TOPIC, broker="broker-a", queue_id=queue_id)


@pytest.fixture(params=["fake", "real"])
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Service]:
    """With a hand-over limit that no scenario here reaches."""
    if request.param == "real":
        async with Cluster(tmp_path) as cluster:
            await cluster.create_topic(queues=2)
            await cluster.set_group()
            yield Service(cluster.stub, cluster.nameserver.revision)
        return
    async with FakeCluster() as fake, aio.insecure_channel(fake.offset.listener.address) as channel:
        fake.create_topic(TOPIC, queues=2)
        subscribe = SubscribeRequest(group=GROUP, topic=TOPIC, create_group=True)
        await fake.nameserver.Subscribe(subscribe, None)
        yield Service(OffsetServiceStub(channel), fake.nameserver.revision)


async def test_a_queue_of_a_live_member_is_held_until_it_is_released(service: Service) -> None:
    for member in ("a", "b"):
        await service.join(member)
    epoch = await service.epoch("a")
    assert await service.is_held_from("b")
    assert await service.epoch("a") == epoch
    reply = await service.release("a", epoch=epoch)
    assert not reply.results[0].error.code
    later = await service.epoch("b")
    assert later > epoch
    assert await service.commit_error("a", epoch) == Error.FENCED
    assert not await service.commit_error("b", later)
    assert await service.is_held_from("a")


async def test_other_queues_of_the_same_call_are_not_held_up(service: Service) -> None:
    for member in ("a", "b"):
        await service.join(member)
    await service.epoch("a")
    request = pb.ResolveRequest(
        group=GROUP, member_id="b", queues=[ref(0), ref(1)], route_revision=service.revision
    )
    held, free = (await service.stub.Resolve(request)).starts
    assert "a, which has been asked to release it" in held.error.message
    assert not free.HasField("error")


async def test_a_release_needs_no_commit_and_is_the_owner_s_alone(service: Service) -> None:
    for member in ("a", "b"):
        await service.join(member)
    await service.epoch("a")
    await service.release("b")
    await service.release("")
    assert await service.is_held_from("b")
    await service.release("a")
    assert not await service.is_held_from("b")


async def test_a_queue_of_a_member_that_left_is_free(service: Service) -> None:
    for member in ("a", "b"):
        await service.join(member)
    epoch = await service.epoch("a")
    assert await service.is_held_from("b")
    await service.leave("a")
    assert await service.epoch("b") > epoch


async def test_a_reader_outside_membership_is_not_made_to_wait(service: Service) -> None:
    await service.join("a")
    epoch = await service.epoch("a")
    assert await service.epoch("") == epoch
    assert not await service.commit_error("a", epoch)


async def test_members_that_wait_are_told_of_a_release_at_once_and_others_are_not(
    service: Service,
) -> None:
    watches: dict[str, Any] = {}
    for member in ("a", "b", "c", ""):
        if member:
            await service.join(member)
    for member in ("b", "c", ""):
        watches[member] = service.stub.WatchGroup(
            pb.WatchGroupRequest(group=GROUP, member_id=member)
        )
        await watches[member].read()
    epoch = await service.epoch("a")
    assert await service.is_held_from("b")
    await service.release("a", epoch=epoch)
    async with asyncio.timeout(DEADLINE_SECONDS):
        for member in ("b", ""):
            event = await watches[member].read()
            while not event.released_queues:
                event = await watches[member].read()
            assert list(event.released_queues) == [ref()]
        await service.leave("a")
        event = await watches["c"].read()
        while len(event.members) == 3:
            assert not event.released_queues
            event = await watches["c"].read()
    for watch in watches.values():
        watch.cancel()


async def real(cluster: Cluster, **settings: Any) -> Service:
    cluster.more_settings = settings
    await cluster.restart_service()
    return Service(cluster.stub, cluster.nameserver.revision)


async def test_a_member_that_does_not_let_go_is_overtaken_after_the_bound(
    cluster: Cluster,
) -> None:
    service = await real(cluster, handover_seconds_max=0.3)
    for member in ("a", "b"):
        await service.join(member)
    epoch = await service.epoch("a")
    asked_at = asyncio.get_running_loop().time()
    assert await service.is_held_from("b")

    async def is_free() -> bool:
        return not await service.is_held_from("b")

    await cluster.until(is_free)
    assert asyncio.get_running_loop().time() - asked_at >= 0.3
    # Paused the whole time, it wakes now.
    assert await service.commit_error("a", epoch) == Error.FENCED
    await service.release("a", epoch=epoch)
    (progress,) = await cluster.progress()
    assert progress.owner == "b"


async def test_an_owner_that_falls_silent_is_replaced_when_its_lease_ends(
    cluster: Cluster,
) -> None:
    service = await real(cluster, heartbeat_seconds=0.1, lease_seconds=1.5)
    for member in ("a", "b"):
        await service.join(member)
    await service.epoch("a")

    async def is_free() -> bool:
        await service.join("b")
        return not await service.is_held_from("b")

    assert await service.is_held_from("b")
    await cluster.until(is_free)


async def test_a_restart_of_the_service_forgets_no_owner_and_no_release(cluster: Cluster) -> None:
    service = Service(cluster.stub, cluster.nameserver.revision)
    for member in ("a", "b"):
        await service.join(member)
    await service.epoch("a", 0)
    await service.epoch("a", 1)
    assert await service.is_held_from("b", 0)
    await service.release("a", 1)
    service = await real(cluster)
    assert await service.is_held_from("b", 0)
    assert not await service.is_held_from("b", 1)


async def test_a_reset_leaves_a_held_queue_to_its_owner(cluster: Cluster) -> None:
    service = Service(cluster.stub, cluster.nameserver.revision)
    cluster.broker.queue(TOPIC).append(5)
    for member in ("a", "b"):
        await service.join(member)
    epoch = await service.epoch("a")
    target = pb.ResetTarget(earliest=True)
    plan = await cluster.stub.PlanReset(
        pb.PlanResetRequest(group=GROUP, topic=TOPIC, queues=[ref()], target=target)
    )
    await cluster.stub.ApplyReset(pb.ApplyResetRequest(reset_id=plan.reset_id))
    assert await service.is_held_from("b")
    assert await service.epoch("a") > epoch


async def test_the_wait_begins_also_while_the_queue_s_broker_is_away(cluster: Cluster) -> None:
    service = await real(cluster, handover_seconds_max=0.3)
    for member in ("a", "b"):
        await service.join(member)
    await service.epoch("a")
    await cluster.broker.stop()
    assert await service.is_held_from("b")

    async def is_unavailable() -> bool:
        return (await service.resolve("b")).error.code == Error.BROKER_UNAVAILABLE

    await cluster.until(is_unavailable)


async def test_undoing_a_reset_takes_no_queue_from_the_member_that_reads_it(
    cluster: Cluster,
) -> None:
    service = Service(cluster.stub, cluster.nameserver.revision)
    for member in ("a", "b"):
        await service.join(member)
    # Of a queue without progress.
    planned = await cluster.stub.PlanReset(
        pb.PlanResetRequest(group=GROUP, topic=TOPIC, target=pb.ResetTarget(earliest=True))
    )
    await cluster.stub.ApplyReset(pb.ApplyResetRequest(reset_id=planned.reset_id))
    epoch = await service.epoch("a")
    await cluster.stub.UndoReset(pb.UndoResetRequest(reset_id=planned.reset_id))
    assert not await cluster.progress()
    assert await service.commit_error("a", epoch) == Error.FENCED
    assert await service.is_held_from("b")
    await cluster.restart_service()
    service = Service(cluster.stub, cluster.nameserver.revision)
    assert await service.is_held_from("b"), "a has not been heard, and may read still"
    (lock,) = (await cluster.stub.ListLocks(pb.ListLocksRequest(group=GROUP))).locks
    assert (lock.owner, lock.waiting) == ("a", ["b"])
    assert await service.epoch("a") > epoch
    assert await service.is_held_from("b")
    await service.release("a")
    assert await service.epoch("b") > epoch
