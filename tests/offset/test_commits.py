"""Commits to a running service: only forward, only by the owner, never lost."""

import asyncio

import pytest
from offset.cluster import GROUP, TOPIC, Cluster

from rockoon_offset.journal.journal_files import generations
from rockoon_proto.v1 import nameserver_pb2 as ns
from rockoon_proto.v1 import offset_pb2 as pb
from rockoon_proto.v1.errors_pb2 import Error


def code(result: pb.CommitResult) -> str:
    return Error.Code.Name(result.error.code) if result.HasField("error") else "OK"


async def started(cluster: Cluster, messages: int = 100) -> int:
    """Progress at 0 of a queue with messages; returns the epoch."""
    cluster.broker.queue(TOPIC).append(messages)
    policy = ns.StartPolicy(consume_from=ns.CONSUME_FROM_FIRST)
    return (await cluster.start_of(policy=policy)).epoch


async def test_a_commit_is_there_after_a_restart(cluster: Cluster) -> None:
    epoch = await started(cluster)
    assert (await cluster.commit(42, epoch)).offset == 42
    await cluster.restart_service()
    (progress,) = await cluster.progress()
    assert (progress.offset, progress.epoch, progress.committer) == (42, epoch, "m1")
    assert progress.owner == "m1"
    assert progress.incarnation > 0
    assert progress.start_reason == pb.FIRST


async def test_commits_only_go_forward_unless_forced(cluster: Cluster) -> None:
    epoch = await started(cluster)
    await cluster.commit(42, epoch)
    behind = await cluster.commit(41, epoch)
    assert (code(behind), behind.offset) == ("COMMIT_BEHIND", 42)
    assert code(await cluster.commit(42, epoch)) == "OK"
    assert code(await cluster.commit(41, epoch, force=True)) == "OK"
    assert (await cluster.progress())[0].offset == 41


async def test_who_lost_the_queue_is_refused_not_merged(cluster: Cluster) -> None:
    old = await started(cluster)
    new = (await cluster.start_of(member="m2")).epoch
    assert new > old
    for force in (False, True):
        fenced = await cluster.commit(50, old, force=force)
        assert (code(fenced), fenced.offset) == ("FENCED", 0)
    assert code(await cluster.commit(10, new, member="m2")) == "OK"


async def test_resolving_again_keeps_the_owner_s_epoch(cluster: Cluster) -> None:
    epoch = await started(cluster)
    assert (await cluster.start_of()).epoch == epoch
    assert (await cluster.start_of(member="")).epoch == epoch
    assert (await cluster.progress())[0].owner == "m1"


@pytest.mark.parametrize("offset", [-1, (1 << 62) + 1])
async def test_a_number_that_is_no_offset_is_refused(cluster: Cluster, offset: int) -> None:
    epoch = await started(cluster)
    assert code(await cluster.commit(offset, epoch)) == "INVALID_OFFSET"
    assert code(await cluster.commit(offset, epoch, force=True)) == "INVALID_OFFSET"


async def test_a_commit_beyond_the_end_is_refused_and_the_end_is_asked_for_anew(
    cluster: Cluster,
) -> None:
    epoch = await started(cluster, messages=10)
    assert code(await cluster.commit(11, epoch)) == "OFFSET_BEYOND_END"
    cluster.broker.queue(TOPIC).append(1)
    assert code(await cluster.commit(11, epoch)) == "OK"


async def test_within_the_known_end_commits_do_not_trouble_the_broker(cluster: Cluster) -> None:
    epoch = await started(cluster, messages=100)
    await cluster.commit(1, epoch)
    before = cluster.broker.status_calls
    for offset in range(2, 100):
        await cluster.commit(offset, epoch)
    assert cluster.broker.status_calls == before


async def test_commits_that_need_the_broker_at_once_share_calls(cluster: Cluster) -> None:
    epoch = await started(cluster, messages=10)
    cluster.broker.answering.clear()
    before = cluster.broker.status_calls
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(cluster.commit(10, epoch)) for _ in range(50)]
        await cluster.until(lambda: cluster.broker.status_calls > before)
        cluster.broker.answering.set()
    assert {code(task.result()) for task in waiting} == {"OK"}
    assert cluster.broker.status_calls - before <= 2


async def test_while_the_broker_is_away_commits_are_taken(cluster: Cluster) -> None:
    epoch = await started(cluster, messages=10)
    await cluster.broker.stop()
    assert code(await cluster.commit(10, epoch)) == "OK"
    assert code(await cluster.commit(5000, epoch)) == "OK"
    await cluster.broker.start()


async def test_a_broker_that_hangs_holds_commits_up_once_not_every_time(cluster: Cluster) -> None:
    cluster.more_settings["broker_timeout_seconds"] = 1.0
    await cluster.restart_service()
    epoch = await started(cluster, messages=10)
    cluster.broker.answering.clear()
    # Half of what it takes when each of them waits for the broker.
    async with asyncio.timeout(10):
        for offset in range(11, 31):
            assert code(await cluster.commit(offset, epoch)) == "OK"
    cluster.broker.answering.set()


async def test_a_commit_without_a_start_says_what_to_do(cluster: Cluster) -> None:
    await started(cluster)
    result = await cluster.commit(1, 1, queue_id=1)
    assert code(result) == "FENCED"
    assert "resolve it first" in result.error.message
    assert code(await cluster.commit(1, 1, queue_id=9)) == "QUEUE_NOT_FOUND"
    assert code(await cluster.commit(1, 1, topic="no-such-topic")) == "TOPIC_NOT_FOUND"
    entry = pb.CommitEntry(queue=cluster.ref(), offset=1, epoch=1)
    reply = await cluster.stub.Commit(pb.CommitRequest(group="no-such-group", entries=[entry]))
    assert code(reply.results[0]) == "GROUP_NOT_FOUND"


async def test_a_reader_of_a_deleted_topic_cannot_commit_to_its_successor(
    cluster: Cluster,
) -> None:
    epoch = await started(cluster)
    await cluster.delete_topic()
    await cluster.create_topic(queues=2)
    await cluster.until_revision()
    assert code(await cluster.commit(50, epoch)) == "FENCED"
    start = await cluster.start_of()
    assert start.reason == pb.OTHER_INCARNATION
    assert code(await cluster.commit(0, epoch)) == "FENCED"
    assert code(await cluster.commit(0, start.epoch)) == "OK"


async def test_each_entry_of_a_batch_stands_for_itself(cluster: Cluster) -> None:
    epoch = await started(cluster)
    other = await cluster.start_of(1)
    entries = [
        pb.CommitEntry(queue=cluster.ref(0), offset=5, epoch=epoch, metadata="page 5"),
        pb.CommitEntry(queue=cluster.ref(1), offset=0, epoch=other.epoch + 99),
        pb.CommitEntry(queue=cluster.ref(0), offset=4, epoch=epoch),
        pb.CommitEntry(queue=cluster.ref(0), offset=9, epoch=epoch),
    ]
    reply = await cluster.stub.Commit(
        pb.CommitRequest(group=GROUP, member_id="m1", entries=entries)
    )
    assert [code(result) for result in reply.results] == ["OK", "FENCED", "COMMIT_BEHIND", "OK"]
    assert [result.offset for result in reply.results] == [5, 0, 5, 9]


async def test_a_call_with_too_many_queues_is_refused_whole(cluster: Cluster) -> None:
    epoch = await started(cluster)
    entry = pb.CommitEntry(queue=cluster.ref(0), offset=5, epoch=epoch)
    with pytest.raises(Exception, match="more than 4096"):
        await cluster.stub.Commit(pb.CommitRequest(group=GROUP, entries=[entry] * 4097))
    with pytest.raises(Exception, match="more than 4096"):
        await cluster.stub.Resolve(pb.ResolveRequest(group=GROUP, queues=[cluster.ref(0)] * 4097))
    assert (await cluster.progress())[0].offset == 0


async def test_a_journal_of_many_generations_comes_back_whole(cluster: Cluster) -> None:
    cluster.more_settings["journal_bytes_max"] = 4096
    await cluster.restart_service()
    epoch = await started(cluster, messages=1000)
    for offset in range(1, 400):
        await cluster.commit(offset, epoch)
    journal = cluster.store_path / "journal"
    await cluster.until(lambda: generations(journal)[0] > 2)
    # Beside the reserve.
    assert sum(path.stat().st_size for path in journal.glob("0*")) < 64 * 1024
    await cluster.restart_service()
    assert (await cluster.progress())[0].offset == 399
