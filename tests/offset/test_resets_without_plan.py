"""Resets without a plan: they use the progress that is stored when they are applied."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from offset.cluster import GROUP, TOPIC, Cluster
from offset.test_operators import code, plan, started, undo

from rockoon_proto.v1 import offset_pb2 as pb
from rockoon_proto.v1.errors_pb2 import Error


def reset(cluster: Cluster, *, reset_id: str = "", **target: Any) -> Awaitable[pb.ResetPlan]:
    """Reset queue 0. The call starts without being awaited."""
    wanted = pb.PlanResetRequest(
        group=GROUP, topic=TOPIC, queues=[cluster.ref(0)], target=pb.ResetTarget(**target)
    )
    request = pb.ResetRequest(wanted=wanted, reset_id=reset_id, operator="ada")
    return cluster.stub.Reset(request)  # type: ignore[no-any-return]


async def offset_of(cluster: Cluster) -> int:
    return (await cluster.progress())[0].offset


async def begun(cluster: Cluster, **target: Any) -> tuple[asyncio.Event, Awaitable[pb.ResetPlan]]:
    """A reset whose broker has replied; the reply arrives when the event is set."""
    answer = cluster.broker.hold_next_status()
    cluster.broker.held = False
    call = reset(cluster, **target)
    await cluster.until(lambda: cluster.broker.held)
    return answer, call


async def test_it_takes_effect_at_once_and_a_commit_of_before_does_not_count(
    cluster: Cluster,
) -> None:
    epoch = await started(cluster)
    events = cluster.stub.WatchGroup(pb.WatchGroupRequest(group=GROUP)).__aiter__()
    await anext(events)
    done = await reset(cluster, earliest=True)
    (step,) = done.steps
    assert (step.from_offset, step.to_offset, step.messages) == (50, 20, -30)
    assert done.applied
    assert [queue.queue_id for queue in (await anext(events)).reset_queues] == [0]
    assert (await cluster.commit(60, epoch)).error.code == Error.FENCED
    assert await offset_of(cluster) == 20
    await undo(cluster, done.reset_id)
    assert await offset_of(cluster) == 50


@pytest.mark.parametrize(("target", "expected"), [({"shift": -10}, 45), ({"earliest": True}, 20)])
async def test_a_group_that_commits_meanwhile_is_reset_from_where_it_is_and_undone_to_there(
    cluster: Cluster, target: dict[str, Any], expected: int
) -> None:
    epoch = await started(cluster)
    answer, call = await begun(cluster, **target)
    await cluster.commit(55, epoch)
    answer.set()
    done = await call
    assert [(step.from_offset, step.to_offset) for step in done.steps] == [(55, expected)]
    assert await offset_of(cluster) == expected
    await cluster.restart_service()
    await undo(cluster, done.reset_id)
    assert await offset_of(cluster) == 55


async def test_a_reset_to_the_end_does_not_go_back_behind_what_was_read_meanwhile(
    cluster: Cluster,
) -> None:
    epoch = await started(cluster)
    answer, call = await begun(cluster, latest=True)
    cluster.broker.queue(TOPIC).append(5)
    await cluster.commit(103, epoch)
    answer.set()
    (step,) = (await call).steps
    assert (step.from_offset, step.to_offset, step.max_offset) == (103, 103, 103)


async def test_progress_beyond_a_log_that_lost_messages_goes_back_to_its_end(
    cluster: Cluster,
) -> None:
    await started(cluster)
    cluster.broker.queue(TOPIC).lose_from(40)
    (step,) = (await reset(cluster, latest=True)).steps
    assert (step.from_offset, step.to_offset) == (50, 40)


async def test_the_same_call_twice_resets_once(cluster: Cluster) -> None:
    await started(cluster)
    answer, first = await begun(cluster, reset_id="mine", offset=30)
    again = await reset(cluster, reset_id="mine", offset=30)
    epoch = (await cluster.start_of()).epoch
    await cluster.commit(31, epoch)
    answer.set()
    assert list((await first).steps) == list(again.steps)
    await cluster.restart_service()
    assert list((await reset(cluster, reset_id="mine", offset=30)).steps) == list(again.steps)
    assert await offset_of(cluster) == 31
    await undo(cluster, "mine")
    assert await offset_of(cluster) == 50


async def test_an_id_of_another_reset_or_of_a_plan_is_refused(cluster: Cluster) -> None:
    await started(cluster)
    planned = await plan(cluster, 0, earliest=True)
    await cluster.create_topic("other")
    await cluster.until_revision()
    await reset(cluster, reset_id="mine", earliest=True)
    wanted = pb.PlanResetRequest(group=GROUP, topic="other", target=pb.ResetTarget(earliest=True))
    for request in (
        pb.ResetRequest(wanted=wanted, reset_id="mine"),
        pb.ResetRequest(wanted=wanted, reset_id=planned.reset_id),
    ):
        with pytest.raises(Exception, match="is in use: choose another one"):
            await cluster.stub.Reset(request)
    with pytest.raises(Exception, match="reset_id is longer than 255 bytes"):
        await reset(cluster, reset_id="x" * 256, earliest=True)


async def test_a_topic_that_is_created_again_meanwhile_is_not_reset(cluster: Cluster) -> None:
    await started(cluster)
    answer, call = await begun(cluster, reset_id="mine", earliest=True)
    await cluster.delete_topic()
    await cluster.create_topic(queues=2)
    await cluster.until_revision()
    answer.set()
    with pytest.raises(Exception, match=r"created again since reset 'mine'.*repeat") as stale:
        await call
    assert code(stale) == "PLAN_STALE"
    done = await reset(cluster, reset_id="mine", latest=True)
    assert [step.to_offset for step in done.steps] == [0]


async def test_a_group_that_is_deleted_meanwhile_is_not_reset(cluster: Cluster) -> None:
    await started(cluster)
    answer, call = await begun(cluster, earliest=True)
    await cluster.nameserver.DeleteGroup(cluster.deletion_of_group(), None)
    await cluster.until_revision()
    answer.set()
    with pytest.raises(Exception, match="does not exist") as gone:
        await call
    assert code(gone) == "GROUP_NOT_FOUND"
