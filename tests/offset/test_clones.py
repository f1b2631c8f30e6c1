"""Resets to the committed offsets of another group."""

from collections.abc import Awaitable
from typing import Any

import pytest
from offset.cluster import GROUP, TOPIC, Cluster
from offset.test_operators import apply, started, undo

from rockoon_proto.v1 import nameserver_pb2 as ns
from rockoon_proto.v1 import offset_pb2 as pb

NEW = "billing-2"


async def two_groups(cluster: Cluster) -> int:
    """Queue 0 holds 20 to 99. GROUP has committed 50; returns its epoch. NEW has no progress."""
    epoch = await started(cluster)
    await cluster.nameserver.CreateGroup(
        ns.CreateGroupRequest(config=ns.GroupConfig(name=NEW)), None
    )
    await cluster.until_revision()
    return epoch


def wanted(source: str = GROUP, group: str = NEW) -> pb.PlanResetRequest:
    return pb.PlanResetRequest(group=group, topic=TOPIC, target=pb.ResetTarget(group=source))


def cloned(cluster: Cluster, **more: Any) -> Awaitable[pb.ResetPlan]:
    """Clone without a plan. The call starts without being awaited."""
    request = pb.ResetRequest(wanted=wanted(**more), operator="ada")
    return cluster.stub.Reset(request)  # type: ignore[no-any-return]


async def test_a_clone_starts_where_the_other_group_has_committed_and_says_so(
    cluster: Cluster,
) -> None:
    epoch = await two_groups(cluster)
    plan = await cluster.stub.PlanReset(wanted())
    (step,) = plan.steps
    assert (step.HasField("from_offset"), step.to_offset, step.clamped) == (False, 50, False)
    assert await cluster.progress(NEW) == []
    # The plan is applied as it was shown.
    await cluster.commit(55, epoch)
    await apply(cluster, plan.reset_id)
    await cluster.restart_service()
    (progress,) = await cluster.progress(NEW)
    assert (progress.offset, progress.start_reason) == (50, pb.RESET)
    said = f"reset {plan.reset_id} by ada: to 50, cloned from group {GROUP}"
    assert progress.start_explanation == f"{said}, which had committed 50"
    start = await cluster.start_of(group=NEW)
    assert (start.offset, start.reason) == (50, pb.COMMITTED)
    assert [each.offset for each in await cluster.progress()] == [55]
    await undo(cluster, plan.reset_id)
    assert await cluster.progress(NEW) == []


@pytest.mark.parametrize(
    ("kept", "offset", "holds"), [((20, 40), 40, "20..40"), ((70, 100), 70, "70..100")]
)
async def test_a_clone_never_leaves_the_queue(
    cluster: Cluster, kept: tuple[int, int], offset: int, holds: str
) -> None:
    await two_groups(cluster)
    queue = cluster.broker.queue(TOPIC)
    queue.expire_below(kept[0])
    queue.lose_from(kept[1])
    (step,) = (await cloned(cluster)).steps
    assert (step.to_offset, step.clamped) == (offset, True)
    (progress,) = await cluster.progress(NEW)
    assert progress.offset == offset
    assert progress.start_explanation.endswith(
        f"cloned from group {GROUP}, which had committed 50; the queue holds {holds}"
    )


async def test_a_commit_during_the_call_is_cloned_although_the_broker_answered_before(
    cluster: Cluster,
) -> None:
    epoch = await two_groups(cluster)
    answer = cluster.broker.hold_next_status()
    cluster.broker.held = False
    call = cloned(cluster)
    await cluster.until(lambda: cluster.broker.held)
    cluster.broker.queue(TOPIC).append(5)
    await cluster.commit(103, epoch)
    answer.set()
    (step,) = (await call).steps
    assert (step.to_offset, step.max_offset, step.clamped) == (103, 103, False)


@pytest.mark.parametrize("change", ["release", "metadata"])
async def test_a_change_without_a_new_offset_during_the_call_is_no_proof_of_a_later_end(
    cluster: Cluster, change: str
) -> None:
    epoch = await two_groups(cluster)
    cluster.broker.queue(TOPIC).lose_from(40)
    answer = cluster.broker.hold_next_status()
    cluster.broker.held = False
    call = cloned(cluster)
    await cluster.until(lambda: cluster.broker.held)
    entry = pb.CommitEntry(queue=cluster.ref(0), offset=50, epoch=epoch, metadata="note")
    commit = pb.CommitRequest(group=GROUP, member_id="m1", entries=[entry])
    if change == "release":
        commit.entries[0].ClearField("metadata")
        commit.release.append(cluster.ref(0))
    (result,) = (await cluster.stub.Commit(commit)).results
    assert not result.HasField("error")
    answer.set()
    (step,) = (await call).steps
    assert (step.to_offset, step.max_offset, step.clamped) == (40, 40, True)


async def test_queues_without_progress_of_the_other_group_do_not_change(cluster: Cluster) -> None:
    await two_groups(cluster)
    await cluster.add_queues(1)
    await cluster.until_revision()
    cluster.broker.queue(TOPIC, 1).append(9)
    await cluster.start_of(1, group=NEW, policy=ns.StartPolicy(consume_from=ns.CONSUME_FROM_LAST))
    before = {each.queue.queue_id: each.offset for each in await cluster.progress(NEW)}
    assert [step.queue.queue_id for step in (await cloned(cluster)).steps] == [0]
    after = {each.queue.queue_id: each.offset for each in await cluster.progress(NEW)}
    assert after == {0: 50, 1: before[1]}


async def test_progress_of_a_deleted_topic_of_the_same_name_is_not_cloned(
    cluster: Cluster,
) -> None:
    await two_groups(cluster)
    await cluster.delete_topic()
    await cluster.create_topic()
    await cluster.until_revision()
    with pytest.raises(Exception, match=f"group '{GROUP}' has no progress on '{TOPIC}' to clone"):
        await cloned(cluster)


async def test_a_clone_of_itself_and_of_a_missing_group_is_refused(cluster: Cluster) -> None:
    await two_groups(cluster)
    with pytest.raises(Exception, match=f"group '{GROUP}' cannot be cloned to itself"):
        await cloned(cluster, group=GROUP)
    for missing in ({"source": "nowhere"}, {"group": "nowhere"}):
        with pytest.raises(Exception, match="'nowhere' does not exist"):
            await cloned(cluster, **missing)
    with pytest.raises(Exception, match="the group is empty"):
        await cloned(cluster, source="")
    assert await cluster.progress(NEW) == []
