"""Operations of operators: resets, lag, export and import."""

import asyncio
import json
from typing import Any

import pytest
from offset.cluster import GROUP, TOPIC, Cluster

from rockoon_core.errors import ERROR_METADATA_KEY
from rockoon_offset.progress import reset_plans
from rockoon_proto.v1 import nameserver_pb2 as ns
from rockoon_proto.v1 import offset_pb2 as pb
from rockoon_proto.v1.errors_pb2 import Error

FIRST = ns.StartPolicy(consume_from=ns.CONSUME_FROM_FIRST)


def code(failure: pytest.ExceptionInfo[Exception]) -> str:
    metadata: Any = failure.value
    (raw,) = [v for k, v in metadata.trailing_metadata() if k == ERROR_METADATA_KEY]
    return Error.Code.Name(Error.FromString(raw).code)


async def started(cluster: Cluster) -> int:
    """Queue 0 has 20 to 99, the first half stored at 1000 and the rest at 4000; progress 50."""
    queue = cluster.broker.queue(TOPIC)
    queue.append(60, time_ms=1000)
    queue.append(40, time_ms=4000)
    epoch = (await cluster.start_of(policy=FIRST)).epoch
    await cluster.commit(50, epoch)
    queue.expire_below(20)
    await cluster.until_revision()
    return epoch


async def plan(cluster: Cluster, *queue_ids: int, **target: Any) -> pb.ResetPlan:
    request = pb.PlanResetRequest(
        group=GROUP,
        topic=TOPIC,
        queues=[cluster.ref(queue_id) for queue_id in queue_ids],
        target=pb.ResetTarget(**target),
    )
    return await cluster.stub.PlanReset(request)  # type: ignore[no-any-return]


async def apply(cluster: Cluster, reset_id: str) -> pb.ResetPlan:
    request = pb.ApplyResetRequest(reset_id=reset_id, operator="ada")
    return await cluster.stub.ApplyReset(request)  # type: ignore[no-any-return]


async def undo(cluster: Cluster, reset_id: str) -> pb.ResetPlan:
    request = pb.UndoResetRequest(reset_id=reset_id, operator="ada")
    return await cluster.stub.UndoReset(request)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ({"earliest": True}, (20, -30, False)),
        ({"latest": True}, (100, 50, False)),
        ({"offset": 70}, (70, 20, False)),
        ({"offset": 7}, (20, -30, True)),
        ({"offset": 1000}, (100, 50, True)),
        ({"shift": -10}, (40, -10, False)),
        ({"shift": -100}, (20, -30, True)),
        ({"timestamp_ms": 4000}, (60, 10, False)),
        ({"timestamp_ms": 99_000}, (100, 50, False)),
        # The broker's clock shows 10000.
        ({"duration_ms": 7000}, (60, 10, False)),
    ],
)
async def test_a_plan_says_what_a_reset_would_do_and_does_nothing(
    cluster: Cluster, target: dict[str, Any], expected: tuple[int, int, bool]
) -> None:
    await started(cluster)
    planned = await plan(cluster, 0, **target)
    (step,) = planned.steps
    assert (step.to_offset, step.messages, step.clamped) == expected
    assert (step.from_offset, step.min_offset, step.max_offset) == (50, 20, 100)
    assert not planned.applied
    assert (await cluster.progress())[0].offset == 50


async def test_a_reset_takes_effect_at_once_and_commits_in_flight_cannot_undo_it(
    cluster: Cluster,
) -> None:
    epoch = await started(cluster)
    planned = await plan(cluster, earliest=True)
    # Both queues: the second without progress.
    assert [step.HasField("from_offset") for step in planned.steps] == [True, False]
    assert (await apply(cluster, planned.reset_id)).applied
    fenced = await cluster.commit(60, epoch)
    assert fenced.error.code == Error.FENCED
    start = await cluster.start_of()
    assert (start.offset, start.reason) == (20, pb.COMMITTED)
    assert start.epoch > epoch
    progress = await cluster.progress()
    assert [entry.offset for entry in progress] == [20, 0]
    assert progress[0].start_reason == pb.RESET
    assert "ada" in progress[0].start_explanation


async def test_an_applied_reset_can_be_undone_even_after_a_restart(cluster: Cluster) -> None:
    await started(cluster)
    reset_id = (await plan(cluster, latest=True)).reset_id
    await apply(cluster, reset_id)
    await cluster.restart_service()
    undone = await undo(cluster, reset_id)
    assert undone.applied
    assert undone.undone
    progress = await cluster.progress()
    assert [(entry.queue.queue_id, entry.offset) for entry in progress] == [(0, 50)]
    assert (await undo(cluster, reset_id)).undone
    assert [entry.offset for entry in await cluster.progress()] == [50]


async def test_applying_twice_is_applying_once(cluster: Cluster) -> None:
    await started(cluster)
    reset_id = (await plan(cluster, 0, offset=30)).reset_id
    await apply(cluster, reset_id)
    epoch = (await cluster.start_of()).epoch
    assert (await apply(cluster, reset_id)).applied
    assert not (await cluster.commit(31, epoch)).HasField("error")


async def test_a_plan_is_refused_when_progress_has_moved_since(cluster: Cluster) -> None:
    epoch = await started(cluster)
    planned = await plan(cluster, 0, earliest=True)
    await cluster.commit(51, epoch)
    with pytest.raises(Exception, match="plan it again") as stale:
        await apply(cluster, planned.reset_id)
    assert code(stale) == "PLAN_STALE"
    assert (await cluster.progress())[0].offset == 51


async def test_a_plan_for_a_topic_that_was_created_again_is_refused(cluster: Cluster) -> None:
    await started(cluster)
    planned = await plan(cluster, 0, earliest=True)
    await cluster.delete_topic()
    await cluster.create_topic(queues=2)
    await cluster.until_revision()
    with pytest.raises(Exception, match="plan the reset again"):
        await apply(cluster, planned.reset_id)


async def test_watchers_are_told_which_queues_to_resolve_again(cluster: Cluster) -> None:
    await started(cluster)
    events = cluster.stub.WatchGroup(pb.WatchGroupRequest(group=GROUP)).__aiter__()
    await anext(events)
    await apply(cluster, (await plan(cluster, 0, earliest=True)).reset_id)
    event = await anext(events)
    assert [queue.queue_id for queue in event.reset_queues] == [0]


async def test_resets_that_make_no_sense_are_refused(cluster: Cluster) -> None:
    await started(cluster)
    for target in ({}, {"offset": -1}, {"offsets": pb.QueueOffsets()}, {"earliest": False}):
        with pytest.raises(Exception, match="not valid"):
            await plan(cluster, 0, **target)
    with pytest.raises(Exception, match="no progress"):
        await plan(cluster, 1, shift=1)
    with pytest.raises(Exception, match="has no queue 9"):
        await plan(cluster, 9, earliest=True)
    with pytest.raises(Exception, match="does not exist"):
        await apply(cluster, "never-heard-of")
    await cluster.broker.stop()
    with pytest.raises(Exception, match="does not answer"):
        await plan(cluster, 0, earliest=True)
    await cluster.broker.start()


async def test_a_plan_is_forgotten_after_its_time(cluster: Cluster) -> None:
    cluster.more_settings["plan_seconds"] = 1e-9
    await cluster.restart_service()
    await started(cluster)
    planned = await plan(cluster, 0, earliest=True)

    with pytest.raises(Exception, match="a limited time \\(setting plan_seconds") as gone:
        await apply(cluster, planned.reset_id)
    assert code(gone) == "RESET_NOT_FOUND"


async def test_plans_have_bounds_and_the_newest_can_be_applied(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reset_plans, "PLANS_MAX", 2)
    await started(cluster)
    first, second, third = [await plan(cluster, 0, offset=offset) for offset in (30, 31, 32)]
    with pytest.raises(Exception, match="only the newest 1,000 with at most 500,000"):
        await apply(cluster, first.reset_id)
    assert (await apply(cluster, second.reset_id)).applied
    monkeypatch.setattr(reset_plans, "PLANNED_OFFSETS_MAX", 3)
    both = [await plan(cluster, offset=offset) for offset in (40, 41)]
    with pytest.raises(Exception, match="plans are kept for"):
        await apply(cluster, third.reset_id)
    with pytest.raises(Exception, match="plans are kept for"):
        await apply(cluster, both[0].reset_id)
    assert (await apply(cluster, both[1].reset_id)).applied


async def test_an_offset_per_queue(cluster: Cluster) -> None:
    await started(cluster)
    offsets = pb.QueueOffsets(offsets=[pb.QueueOffset(queue=cluster.ref(0), offset=33)])
    planned = await plan(cluster, offsets=offsets)
    assert [(step.queue.queue_id, step.to_offset) for step in planned.steps] == [(0, 33)]


async def export(cluster: Cluster, format_: Any, **more: Any) -> bytes:
    reply = await cluster.stub.Export(pb.ExportRequest(format=format_, **more))
    return reply.content  # type: ignore[no-any-return]


LINE = b'{"group":"g","topic":"orders","broker":"broker-a","queue_id":0,"offset":%b}'


async def import_(cluster: Cluster, format_: Any, content: bytes, **more: Any) -> pb.ImportReply:
    request = pb.ImportRequest(format=format_, content=content, operator="ada", **more)
    return await cluster.stub.Import(request)  # type: ignore[no-any-return]


async def test_a_rocketmq_file_is_taken_over_as_rocketmq_wrote_it(cluster: Cluster) -> None:
    cluster.broker.queue(TOPIC, 0).append(10)
    cluster.broker.queue(TOPIC, 1).append(10)
    await cluster.until_revision()
    written = (
        '{\n\t"dataVersion":{\n\t\t"counter":7,\n\t\t"stateVersion":0,\n'
        '\t\t"timestamp":1700000000000\n\t},\n\t"groupTopicMap":{\n'
        f'\t\t"{GROUP}":["{TOPIC}"]\n\t}},\n\t"offsetTable":{{\n'
        f'\t\t"{TOPIC}@{GROUP}":{{0:5,1:60,7:1\n\t\t}},\n\t\t"gone@{GROUP}":{{0:1\n\t\t}}\n\t}}\n}}'
    ).encode()
    planned = await import_(cluster, pb.ROCKETMQ, written, broker="broker-a", dry_run=True)
    assert await cluster.progress() == []
    assert [(step.to_offset, step.clamped) for step in planned.imported] == [(5, False), (10, True)]
    assert len(planned.skipped) == 2
    done = await import_(cluster, pb.ROCKETMQ, written, broker="broker-a")
    assert done.imported == planned.imported
    progress = await cluster.progress()
    assert [entry.offset for entry in progress] == [5, 10]
    assert {entry.start_reason for entry in progress} == {pb.IMPORTED}
    # The group exists now, and so does its progress.
    await cluster.restart_service()
    assert (await cluster.start_of()).offset == 5
    assert b'"0":5' in await export(cluster, pb.ROCKETMQ, broker="broker-a")


async def test_nothing_is_imported_into_a_queue_created_again_while_its_broker_answers(
    cluster: Cluster,
) -> None:
    cluster.broker.queue(TOPIC).append(10)
    release = cluster.broker.hold_next_status()
    async with asyncio.TaskGroup() as tasks:
        importing = tasks.create_task(import_(cluster, pb.JSON_LINES, LINE % b"8"))
        await cluster.until(lambda: cluster.broker.held)
        await cluster.delete_topic()
        await cluster.create_topic()
        await cluster.until_revision()
        release.set()
    assert "created again during the import" in importing.result().skipped[0]
    assert await cluster.progress("g") == []


async def test_import_leaves_stored_progress_alone_unless_told_to_replace_it(
    cluster: Cluster,
) -> None:
    epoch = await started(cluster)
    lines = await export(cluster, pb.JSON_LINES)
    fields = json.loads(lines)
    assert (fields["offset"], fields["start_reason"], fields["queue_id"]) == (50, "FIRST", 0)
    fields["offset"] = 30
    content = json.dumps(fields).encode()
    skipped = await import_(cluster, pb.JSON_LINES, content)
    assert "stored already" in skipped.skipped[0]
    assert (await cluster.progress())[0].offset == 50
    replaced = await import_(cluster, pb.JSON_LINES, content, overwrite=True)
    assert [step.messages for step in replaced.imported] == [-20]
    assert (await cluster.commit(60, epoch)).error.code == Error.FENCED
    assert (await cluster.progress())[0].offset == 30


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{}", "line 2 is no progress: it has no group, topic, broker, queue_id, offset"),
        (b'{"group":"g","broker":"b","queue_id":0,"offset":1}', "it has no topic"),
        (b"[1]", "it is not a JSON object"),
        (b"group,topic", "it is not JSON: "),
        (b"\xff", "it is not JSON: "),
        (LINE % b'"many"', "offset is 'many', not a whole number"),
        (LINE % b"1.5", "offset is 1.5, not a whole number"),
        (LINE % b"true", "offset is True, not a whole number"),
        (LINE.replace(b'"orders"', b"7") % b"1", "topic is 7, not a name"),
    ],
)
async def test_a_line_that_is_no_progress_is_refused_with_what_is_missing(
    cluster: Cluster, line: bytes, said: str
) -> None:
    with pytest.raises(Exception, match="line 2 is no progress") as refusal:
        await import_(cluster, pb.JSON_LINES, b"\n" + line + b"\n")
    assert said in str(refusal.value)


async def test_content_that_is_none_is_refused_with_the_place(cluster: Cluster) -> None:
    with pytest.raises(Exception, match="not a consumerOffset"):
        await import_(cluster, pb.ROCKETMQ, b"{{{", broker="broker-a")
    with pytest.raises(Exception, match="name a broker"):
        await import_(cluster, pb.ROCKETMQ, b"{}")
    with pytest.raises(Exception, match="needs a format"):
        await export(cluster, pb.EXPORT_FORMAT_UNSPECIFIED)


async def test_rocketmq_s_file_lies_beside_the_journal_and_follows(cluster: Cluster) -> None:
    cluster.more_settings["export_seconds"] = 0.02
    await cluster.restart_service()
    epoch = await started(cluster)
    path = cluster.store_path / "config" / "broker-a" / "consumerOffset.json"
    await cluster.until(lambda: path.exists() and '"0":50' in path.read_text())
    await cluster.commit(51, epoch)
    await cluster.until(lambda: '"0":51' in path.read_text())
    assert '"0":5' in path.with_name("consumerOffset.json.bak").read_text()
    assert f"{TOPIC}@{GROUP}" in json.loads(path.read_text())["offsetTable"]
    await cluster.commit(52, epoch)
    await cluster.stop_service()
    assert '"0":52' in path.read_text()


async def test_a_reply_that_would_be_too_long_is_refused_with_what_to_ask_instead(
    cluster: Cluster,
) -> None:
    cluster.more_settings["progress_entries_max"] = 2
    await cluster.restart_service()
    await cluster.nameserver.CreateGroup(
        ns.CreateGroupRequest(config=ns.GroupConfig(name="second")), None
    )
    for group in (GROUP, "second"):
        await cluster.resolve(0, 1, group=group)
    with pytest.raises(Exception, match=r"more than 2 offsets.*name a group or a topic"):
        await cluster.progress("")
    with pytest.raises(Exception, match=r"more than 2 offsets.*name a group or a broker"):
        await export(cluster, pb.JSON_LINES)
    assert len(await cluster.progress("second")) == 2
    assert len((await export(cluster, pb.JSON_LINES, group=GROUP)).splitlines()) == 2
    assert not await export(cluster, pb.JSON_LINES, broker="broker-b")
    assert await export(cluster, pb.ROCKETMQ, group=GROUP, broker="broker-a")
