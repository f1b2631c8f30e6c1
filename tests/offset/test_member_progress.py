"""Members of a broadcasting group, with progress of their own in the service."""

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from grpc import aio
from offset.cluster import GROUP, TOPIC, Cluster

from rockoon_core.errors import ERROR_METADATA_KEY
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import Decision, StartReason
from rockoon_offset.groups import DAY_MS, DAY_NS, Absences
from rockoon_offset.journal.store import JournalStore
from rockoon_offset.members.membership import BROADCASTING, Membership
from rockoon_offset.progress.ledger import Ledger
from rockoon_offset.progress.readers import reader_of
from rockoon_offset.progress.reconciliation import Reconciliation
from rockoon_offset.progress.records import (
    GroupMember,
    MemberForgotten,
    Record,
    ResetStep,
    decode,
    encode,
)
from rockoon_proto.v1 import nameserver_pb2 as ns
from rockoon_proto.v1 import offset_pb2 as pb
from rockoon_proto.v1.errors_pb2 import Error

LAST = ns.StartPolicy(consume_from=ns.CONSUME_FROM_LAST)


async def starts(cluster: Cluster, member: str, *queue_ids: int, group: str = GROUP) -> list[Any]:
    """Return (offset, reason) of each queue, or the code of the refusal."""
    reply = await cluster.stub.Resolve(
        pb.ResolveRequest(
            group=group,
            member_id=member,
            mode=pb.BROADCASTING,
            queues=[cluster.ref(number) for number in queue_ids],
            policy=LAST,
            route_revision=cluster.nameserver.revision,
        )
    )
    return [
        Error.Code.Name(start.error.code)
        if start.HasField("error")
        else (start.offset, pb.StartReason.Name(start.reason))
        for start in reply.starts
    ]


async def commit(cluster: Cluster, member: str, offset: int, queue_id: int = 0) -> None:
    found = await cluster.stub.ListProgress(pb.ListProgressRequest(group=GROUP))
    ref = cluster.ref(queue_id)
    (epoch,) = [p.epoch for p in found.progress if (p.member, p.queue) == (member, ref)]
    entry = pb.CommitEntry(queue=ref, offset=offset, epoch=epoch)
    reply = await cluster.stub.Commit(
        pb.CommitRequest(group=GROUP, member_id=member, entries=[entry], mode=pb.BROADCASTING)
    )
    assert not reply.results[0].HasField("error"), reply


async def places(cluster: Cluster) -> dict[tuple[str, int], int]:
    return {(p.member, p.queue.queue_id): p.offset for p in await cluster.progress()}


@pytest.fixture
async def readers(cluster: Cluster) -> Cluster:
    """Two queues of 100 messages; pod-0 has read 40 more of queue 0 than pod-1."""
    await cluster.set_group(broadcast_progress=ns.BROADCAST_SERVER)
    for queue_id in (0, 1):
        cluster.broker.queue(TOPIC, queue_id)
    for member in ("pod-0", "pod-1"):
        assert await starts(cluster, member, 0, 1) == [(0, "LAST"), (0, "LAST")]
    for queue_id in (0, 1):
        cluster.broker.queue(TOPIC, queue_id).append(100)
    await commit(cluster, "pod-0", 60)
    await commit(cluster, "pod-1", 20)
    return cluster


async def refusal(call: Any) -> str:
    with pytest.raises(aio.AioRpcError) as failure:
        await call
    found: Any = failure.value
    (raw,) = [v for k, v in found.trailing_metadata() if k == ERROR_METADATA_KEY]
    return Error.Code.Name(Error.FromString(raw).code)


async def test_each_goes_on_where_it_was_also_after_a_restart(readers: Cluster) -> None:
    await readers.restart_service()
    assert await starts(readers, "pod-0", 0) == [(60, "COMMITTED")]
    assert await starts(readers, "pod-1", 0) == [(20, "COMMITTED")]
    assert await places(readers) == {
        ("pod-0", 0): 60,
        ("pod-0", 1): 0,
        ("pod-1", 0): 20,
        ("pod-1", 1): 0,
    }


async def test_a_newcomer_starts_by_policy_and_nobody_skips_what_was_born_since(
    readers: Cluster,
) -> None:
    await readers.add_queues(1)
    readers.broker.queue(TOPIC, 2).append(7)
    assert await starts(readers, "pod-2", 0, 1, 2) == [(100, "LAST"), (100, "LAST"), (7, "LAST")]
    # pod-1 may have been away for long: it was known when the queue was created.
    assert await starts(readers, "pod-1", 2) == [(0, "NEW_QUEUE")]
    await readers.restart_service()
    assert await starts(readers, "pod-0", 2) == [(0, "NEW_QUEUE")]
    (told,) = [p for p in await readers.progress() if (p.member, p.queue.queue_id) == ("pod-0", 2)]
    assert "after member pod-0 subscribed" in told.start_explanation


async def test_a_queue_that_a_newcomer_has_not_heard_of_is_not_older_than_it(
    readers: Cluster,
) -> None:
    await readers.add_queues(1)
    readers.broker.queue(TOPIC, 2)
    # The service knows queue 2; the member's routes are older than it.
    assert await starts(readers, "pod-2", 0, 1) == [(100, "LAST"), (100, "LAST")]
    readers.broker.queue(TOPIC, 2).append(7)
    assert await starts(readers, "pod-2", 2) == [(0, "NEW_QUEUE")]


async def test_who_may_have_progress_of_its_own(readers: Cluster) -> None:
    assert await refusal(starts(readers, "host@77@ab", 0)) == "INVALID_ARGUMENT"
    assert await refusal(starts(readers, "", 0)) == "INVALID_ARGUMENT"
    await readers.set_group(broadcast_progress=ns.BROADCAST_LOCAL)
    await readers.until_revision()
    assert await starts(readers, "pod-0", 0) == ["INVALID_ARGUMENT"]


async def test_the_group_s_shared_progress_is_another_one(readers: Cluster) -> None:
    shared = await readers.start_of(member="m1", policy=LAST)
    assert shared.offset == 100
    assert (await places(readers))["", 0] == 100
    assert await starts(readers, "pod-0", 0) == [(60, "COMMITTED")]


async def query(cluster: Cluster, member: str) -> tuple[bool, int]:
    reply = await cluster.stub.Query(
        pb.QueryRequest(group=GROUP, queue=cluster.ref(), member=member)
    )
    return reply.found, reply.offset


async def test_a_query_names_the_member(readers: Cluster) -> None:
    await readers.until_revision()
    assert await query(readers, "pod-0") == (True, 60)
    assert (await query(readers, "pod-9"))[0] is False
    assert (await query(readers, ""))[0] is False


async def plan(cluster: Cluster, member: str, **target: Any) -> pb.ResetPlan:
    request = pb.PlanResetRequest(
        group=GROUP, topic=TOPIC, member=member, target=pb.ResetTarget(**target)
    )
    return await cluster.stub.PlanReset(request)  # type: ignore[no-any-return]


async def test_a_reset_moves_one_or_all_and_only_those_are_told(readers: Cluster) -> None:
    await readers.until_revision()
    watches = {
        member: readers.stub.WatchGroup(pb.WatchGroupRequest(group=GROUP, member_id=member))
        for member in ("pod-0", "pod-1")
    }
    for watch in watches.values():
        await watch.read()
    before = await places(readers)
    one = await plan(readers, "pod-1", earliest=True)
    assert {step.member for step in one.steps} == {"pod-1"}
    await readers.stub.ApplyReset(pb.ApplyResetRequest(reset_id=one.reset_id, operator="ada"))
    assert await places(readers) == {**before, ("pod-1", 0): 0}
    assert len((await watches["pod-1"].read()).reset_queues) == 2
    everybody = await plan(readers, "", latest=True)
    assert [step.member for step in everybody.steps] == ["pod-0", "pod-0", "pod-1", "pod-1"]
    await readers.stub.ApplyReset(pb.ApplyResetRequest(reset_id=everybody.reset_id, operator="ada"))
    assert set((await places(readers)).values()) == {100}
    # Its first event since the beginning: the reset of the other member does not concern it.
    assert len((await watches["pod-0"].read()).reset_queues) == 2
    await readers.restart_service()
    for done in (everybody, one):
        await readers.stub.UndoReset(pb.UndoResetRequest(reset_id=done.reset_id, operator="ada"))
    assert await places(readers) == before
    assert await refusal(plan(readers, "pod-9", latest=True)) == "MEMBER_NOT_FOUND"


async def test_lag_counts_everybody_and_says_who_is_away(readers: Cluster) -> None:
    await readers.until_revision()
    await readers.stub.Heartbeat(
        pb.HeartbeatRequest(
            group=GROUP,
            member_id="pod-0",
            instance="i1",
            mode=pb.BROADCASTING,
            subscriptions=[pb.TopicSubscription(topic=TOPIC, expression="*")],
        )
    )
    reply = await readers.stub.Lag(pb.LagRequest(group=GROUP))
    assert [(row.queue.queue_id, row.member, row.lag, row.absent) for row in reply.queues] == [
        (0, "pod-0", 40, False),
        (0, "pod-1", 80, True),
        (1, "pod-0", 100, False),
        (1, "pod-1", 100, True),
    ]
    assert reply.total_lag == 320
    assert all(row.HasField("loss_ms") for row in reply.queues)


@pytest.mark.parametrize("form", [pb.JSON_LINES, pb.ROCKETMQ])
async def test_progress_is_exported_and_taken_back(
    readers: Cluster, form: "pb.ExportFormat"
) -> None:
    broker = readers.broker.name if form == pb.ROCKETMQ else ""
    exported = await readers.stub.Export(pb.ExportRequest(format=form, group=GROUP, broker=broker))
    before = await places(readers)
    if form == pb.JSON_LINES:
        lines = [json.loads(line) for line in exported.content.splitlines()]
        assert {(line["group"], line["member"]) for line in lines} == {
            (GROUP, "pod-0"),
            (GROUP, "pod-1"),
        }
    await readers.nameserver.DeleteGroup(ns.DeleteGroupRequest(name=GROUP), None)
    await readers.until(lambda: no_progress(readers))
    await readers.set_group(broadcast_progress=ns.BROADCAST_SERVER)
    taken = await readers.stub.Import(
        pb.ImportRequest(format=form, content=exported.content, broker=broker, operator="ada")
    )
    assert list(taken.skipped) == []
    assert await places(readers) == before
    # Imported members are known: queues that are created now are new to them.
    await readers.add_queues(1)
    readers.broker.queue(TOPIC, 2).append(7)
    assert await starts(readers, "pod-1", 0, 2) == [(20, "COMMITTED"), (0, "NEW_QUEUE")]


async def no_progress(cluster: Cluster) -> bool:
    return not await cluster.progress()


async def test_a_deleted_group_leaves_nothing_to_its_successor(readers: Cluster) -> None:
    await readers.nameserver.DeleteGroup(ns.DeleteGroupRequest(name=GROUP), None)
    await readers.until(lambda: no_progress(readers))
    await readers.set_group(broadcast_progress=ns.BROADCAST_SERVER)
    assert await starts(readers, "pod-0", 0) == [(100, "LAST")]


async def test_a_topic_that_was_created_again_is_read_from_its_beginning(readers: Cluster) -> None:
    await readers.delete_topic()
    await readers.create_topic(queues=2)
    readers.broker.queue(TOPIC, 0).append(5)
    assert await starts(readers, "pod-0", 0) == [(0, "OTHER_INCARNATION")]


class Days:
    """A service's memory of members, and its two clocks."""

    def __init__(self, path: Path, days_max: float = 30) -> None:
        self.now_ns, self.now_ms = 0, 1_700_000_000_000
        self.store = JournalStore(path, lambda _: None)
        self.membership = Membership(10 * 10**9, starts=1)
        self.absences = Absences(
            self.store, self.membership, days_max, lambda: self.now_ns, lambda: self.now_ms
        )
        queue = MessageQueue(TOPIC, "broker-a", 0)
        decision = Decision(7, StartReason.LAST, "")
        for member in ("pod-0", "pod-1"):
            known = self.store.ledger.known.reads(GROUP, 1, member, TOPIC, 1, self.now_ms)
            self.store.write(self.store.ledger.members_changed(*known))
            reader = reader_of(GROUP, member)
            self.store.write(
                self.store.ledger.start(reader, 1, queue, 1, decision, member, self.now_ms)
            )

    def pass_days(self, days: float, *, alive: str = "") -> None:
        """Pass hour by hour; `alive` sends its heartbeats."""
        for _ in range(round(days * 24)):
            self.now_ns += DAY_NS // 24
            self.now_ms += DAY_MS // 24
            if alive:
                member = GroupMember(alive, "i1", BROADCASTING, ((TOPIC, "*"),), "", 0)
                self.membership.heartbeat(GROUP, member, self.now_ns, self.now_ms)
            self.absences.expire_due()

    @property
    def known(self) -> list[str]:
        ledger = self.store.ledger
        members = sorted(ledger.known.of(GROUP))
        assert [p.group for p in ledger.each_progress()] == [reader_of(GROUP, m) for m in members]
        return members


async def test_who_is_away_for_a_month_is_forgotten_loudly_and_who_is_there_never(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    days = Days(tmp_path)
    days.pass_days(30, alive="pod-0")
    assert days.known == ["pod-0", "pod-1"]
    with caplog.at_level(logging.WARNING):
        days.pass_days(1, alive="pod-0")
    assert days.known == ["pod-0"]
    assert "REMOVED MEMBER pod-1 OF GROUP billing with its progress on 1 queues" in caplog.text
    days.pass_days(31)
    assert days.known == []
    days.store.close()


async def test_a_service_that_was_away_for_long_waits_a_day_for_its_members(tmp_path: Path) -> None:
    days = Days(tmp_path)
    days.now_ms += 365 * DAY_MS
    days.pass_days(0.9)
    assert days.known == ["pod-0", "pod-1"]
    days.pass_days(0.2, alive="pod-1")
    assert days.known == ["pod-1"]
    days.store.close()


async def test_who_is_away_for_a_moment_while_the_clock_is_set_forward_is_not_forgotten(
    tmp_path: Path,
) -> None:
    days = Days(tmp_path)
    days.pass_days(5, alive="pod-0")
    days.now_ms += 365 * DAY_MS
    days.pass_days(0.5)
    assert days.known == ["pod-0"], "pod-1 has been away for five days, pod-0 since just now"
    days.pass_days(1)
    assert days.known == []
    days.store.close()


async def test_one_wrong_reading_of_the_clock_forgets_nobody(tmp_path: Path) -> None:
    days = Days(tmp_path)
    days.pass_days(5)
    for _ in range(3):
        days.now_ms += 365 * DAY_MS
        days.pass_days(1 / 24)
        days.now_ms -= 365 * DAY_MS
        days.pass_days(1 / 24)
    assert days.known == ["pod-0", "pod-1"]
    days.store.close()


async def test_no_member_is_forgotten_where_none_shall_be(tmp_path: Path) -> None:
    days = Days(tmp_path, days_max=0)
    days.pass_days(400)
    assert days.known == ["pod-0", "pod-1"]
    days.store.close()


def test_what_is_known_of_members_survives_journal_and_snapshot() -> None:
    live, replayed = Ledger(), Ledger()

    def do(records: Iterable[Record]) -> None:
        for record in records:
            replayed.apply(decode(encode(record)))

    queue = MessageQueue(TOPIC, "broker-a", 0)
    for member in ("pod-0", "pod-1", "pod-2"):
        do(live.members_changed(*live.known.reads(GROUP, 3, member, TOPIC, 5, 1000)))
        decision = Decision(7, StartReason.NEW_QUEUE, "")
        do(live.start(reader_of(GROUP, member), 3, queue, 4, decision, member, 1000))
    do(live.members_changed(MemberForgotten(GROUP, "pod-1")))
    epoch = list(live.each_progress())[1].epoch
    step = ResetStep(queue, 7, 9, 0, 10, False, 4, epoch, "pod-2")
    do(live.apply_reset("r", GROUP, 3, TOPIC, [step], "ada", 2000))
    copied = Ledger()
    for record in live.snapshot():
        copied.apply(decode(encode(record)))
    for other in (replayed, copied):
        assert list(other.each_progress()) == list(live.each_progress())
        assert list(other.known) == list(live.known)
        assert other.resets.find("r") == live.resets.find("r")
    assert [(p.group, p.offset) for p in list(live.each_progress())] == [
        ("billing@pod-0", 7),
        ("billing@pod-2", 9),
    ]
    # A reset that moved a removed member is undone for the other members.
    step = ResetStep(queue, 7, 0, 0, 10, False, 4, next(live.each_progress()).epoch, "pod-0")
    both = [
        step,
        step._replace(from_offset=9, epoch=list(live.each_progress())[1].epoch, member="pod-2"),
    ]
    do(live.apply_reset("r2", GROUP, 3, TOPIC, both, "ada", 2000))
    do(live.members_changed(MemberForgotten(GROUP, "pod-0")))
    do(live.undo_reset("r2", 3, "ada", 3000))
    assert [(p.group, p.offset) for p in list(live.each_progress())] == [("billing@pod-2", 9)]
    assert list(replayed.each_progress()) == list(live.each_progress())
    do(Reconciliation(live).delete_group(GROUP, 100))
    assert list(live.known) == list(replayed.known) == list(live.each_progress()) == []


def test_another_etcd_keeps_members_their_place_and_calls_nothing_new() -> None:
    ledger = Ledger()
    queue = MessageQueue(TOPIC, "broker-a", 0)
    ledger.members_changed(*ledger.known.reads(GROUP, 30, "pod-0", TOPIC, 50, 1000))
    decision = Decision(7, StartReason.LAST, "")
    ledger.start(reader_of(GROUP, "pod-0"), 30, queue, 40, decision, "pod-0", 1000)
    assert Reconciliation(ledger).missing_in({TOPIC}, set()) == [f"group {GROUP}"]
    Reconciliation(ledger).accept_etcd(77, 9, {queue: 5}, {GROUP: 6})
    (known,) = ledger.known
    assert (known.group_incarnation, known.since) == (6, ((TOPIC, 9),))
    (progress,) = list(ledger.each_progress())
    assert (progress.offset, progress.incarnation, progress.group_incarnation) == (7, 5, 6)
