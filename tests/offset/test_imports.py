"""Imports of progress: from RocketMQ, with invalid entries, and with many thousand entries."""

import asyncio
import json
from typing import Any

import pytest
from offset.cluster import GROUP, TOPIC, Cluster

from rockoon_core.errors import ERROR_METADATA_KEY
from rockoon_offset.progress.importer import REPORTED_MAX
from rockoon_proto.v1 import nameserver_pb2 as ns
from rockoon_proto.v1 import offset_pb2 as pb
from rockoon_proto.v1.errors_pb2 import Error

BROKER = "broker-a"
MANY = 5_000


def code(failure: pytest.ExceptionInfo[Exception]) -> str:
    metadata: Any = failure.value
    (raw,) = [v for k, v in metadata.trailing_metadata() if k == ERROR_METADATA_KEY]
    return Error.Code.Name(Error.FromString(raw).code)


async def import_file(cluster: Cluster, content: str | bytes, **more: Any) -> pb.ImportReply:
    """Import a consumerOffset.json of broker-a; or, with `format`, another file."""
    data = content.encode() if isinstance(content, str) else content
    given: dict[str, Any] = {"format": pb.ROCKETMQ, "broker": BROKER, "operator": "ada"}
    request = pb.ImportRequest(content=data, **{**given, **more})
    return await cluster.stub.Import(request)  # type: ignore[no-any-return]


def steps(reply: pb.ImportReply) -> list[tuple[str, int, int]]:
    return [(each.queue.topic, each.queue.queue_id, each.to_offset) for each in reply.imported]


async def offsets(cluster: Cluster, group: str) -> dict[tuple[str, int], int]:
    return {
        (each.queue.topic, each.queue.queue_id): each.offset
        for each in await cluster.progress(group)
    }


def retries_of_rocketmq(cluster: Cluster, *queue_ids: int) -> None:
    """The store of the broker has ten messages that were sent to group `moved` again."""
    cluster.broker.queue(TOPIC).append(10)
    for queue_id in queue_ids:
        cluster.broker.queue("%RETRY%moved", queue_id).append(10)


async def test_a_group_from_rocketmq_goes_on_in_its_retry_topic(cluster: Cluster) -> None:
    retries_of_rocketmq(cluster, 0)
    content = json.dumps({"offsetTable": {f"{TOPIC}@moved": {0: 7}, "%RETRY%moved@moved": {0: 9}}})
    await cluster.until_revision()
    planned = await import_file(cluster, content, dry_run=True)
    assert steps(planned) == [(TOPIC, 0, 7), ("%RETRY%moved", 0, 9)]
    assert [each.creates_queue for each in planned.imported] == [False, True]
    assert "%RETRY%moved" not in cluster.nameserver.topics
    assert "moved" not in cluster.nameserver.groups

    done = await import_file(cluster, content)
    assert list(done.skipped) == []
    assert steps(done) == steps(planned)
    retries = done.imported[1]
    assert (retries.min_offset, retries.max_offset, retries.creates_queue) == (0, 10, True)
    start = await cluster.start_of(group="moved", topic="%RETRY%moved")
    assert (start.offset, start.reason) == (9, pb.COMMITTED)


async def test_a_group_with_several_retry_queues_gets_them_all(cluster: Cluster) -> None:
    retries_of_rocketmq(cluster, 0, 1, 2)
    done = await import_file(cluster, '{"offsetTable":{"%RETRY%moved@moved":{0:1,2:3}}}')
    assert steps(done) == [("%RETRY%moved", 0, 1), ("%RETRY%moved", 2, 3)]
    topic = cluster.nameserver.topics["%RETRY%moved"]
    assert [(block.broker, block.queues) for block in topic.blocks] == [(BROKER, 3)]


async def test_progress_on_dead_letters_is_kept_if_their_group_comes_too(cluster: Cluster) -> None:
    cluster.broker.queue(TOPIC).append(10)
    cluster.broker.queue("%DLQ%moved").append(4)
    replayed = '"%DLQ%moved@replay":{0:3}'
    alone = await import_file(cluster, f'{{"offsetTable":{{{replayed}}}}}')
    assert "group 'moved' does not exist" in alone.skipped[0]
    assert "%DLQ%moved" not in cluster.nameserver.topics
    content = f'{{"offsetTable":{{{replayed},"{TOPIC}@moved":{{0:7}}}}}}'
    done = await import_file(cluster, content)
    assert sorted(steps(done)) == [("%DLQ%moved", 0, 3), (TOPIC, 0, 7)]


async def test_a_misspelt_broker_gets_no_retry_topic(cluster: Cluster) -> None:
    content = '{"offsetTable":{"%RETRY%moved@moved":{0:9}}}'
    for dry_run in (True, False):
        done = await import_file(cluster, content, broker="broker-x", dry_run=dry_run)
        assert (done.imported_count, done.skipped_count) == (0, 1)
        assert "broker-x" in done.skipped[0]
    assert "%RETRY%moved" not in cluster.nameserver.topics


async def test_a_retry_topic_that_exists_is_left_as_it_is(cluster: Cluster) -> None:
    request = ns.ProvideGroupTopicRequest(group=GROUP, topic=ns.GROUP_RETRY, broker=BROKER)
    await cluster.nameserver.ProvideGroupTopic(request, None)
    cluster.broker.queue(f"%RETRY%{GROUP}").append(10)
    await cluster.until_revision()
    revision = cluster.nameserver.topics[f"%RETRY%{GROUP}"].modified_revision
    done = await import_file(cluster, f'{{"offsetTable":{{"%RETRY%{GROUP}@{GROUP}":{{0:9}}}}}}')
    assert [(each.to_offset, each.creates_queue) for each in done.imported] == [(9, False)]
    assert cluster.nameserver.topics[f"%RETRY%{GROUP}"].modified_revision == revision


ODD_ENTRIES = {
    '"no group":{0:1}': "key 'no group': it is not topic@group",
    '"orders@a":null': "orders@a: it has no object of offsets by queue",
    '"orders@a":[1]': "orders@a: it has no object",
    '"orders@a":{0:1.5}': "orders@a, queue 0: offset: 1.5 is not a 64-bit number",
    '"orders@a":{0:null}': "orders@a, queue 0: offset: None is not",
    '"orders@a":{0:9223372036854775808}': "9223372036854775808 is not a 64-bit number",
    '"orders@a":{0:9223372036854775807}': "9223372036854775807 is not an offset",
    '"orders@a":{0:-1}': "-1 is not an offset",
    '"orders@a":{2147483648:1}': "2147483648 is not a queue id",
    '"orders@a":{-1:1}': "-1 is not a queue id",
    '"%RETRY%a@a":{5000:1}': "topic '%RETRY%a' does not exist",
    '"orders@a b":{0:1}': "the group 'a b' has a character",
    '"or ders@a":{0:1}': "the topic 'or ders' has a character",
    '"orders@a@b c":{0:1}': "'b c' is not 1 to 128 letters",
}


@pytest.mark.parametrize("odd", ODD_ENTRIES)
async def test_an_odd_entry_costs_no_other_and_is_named(cluster: Cluster, odd: str) -> None:
    cluster.broker.queue(TOPIC).append(10)
    content = f'{{"offsetTable":{{"{TOPIC}@first":{{0:5}},{odd},"{TOPIC}@last":{{0:6}}}}}}'
    reply = await import_file(cluster, content)
    assert steps(reply) == [(TOPIC, 0, 5), (TOPIC, 0, 6)]
    assert (reply.imported_count, reply.skipped_count) == (2, 1)
    assert ODD_ENTRIES[odd] in reply.skipped[0]
    assert await offsets(cluster, "last") == {(TOPIC, 0): 6}


def line(**more: Any) -> str:
    fields = {"group": "a", "topic": TOPIC, "broker": BROKER, "queue_id": 0, "offset": 5}
    return json.dumps({**fields, **more})


ODD_LINES = {
    "[]": "line 2: it is not a JSON object",
    "{": "line 2: it is not JSON",
    "[" * 100_000: "line 2: it is not JSON",
    line(offset=1.5): "line 2: offset is 1.5",
    line(offset=2**63): f"{2**63} is not an offset",
    line(queue_id=2**31): f"{2**31} is not a queue id",
    line(queue_id="9" * 30): "is not a queue id",
    line(group="\ud83d"): r"the group '\ud83d' has a character",
    line(topic="\ud83d"): r"the topic '\ud83d' has a character",
    line(broker="\ud83d"): r"a on orders@\ud83d:0",
    line(broker="b" * 300): "the broker's name is empty or longer",
    line(member="\ud83d"): r"'\ud83d' is not 1 to 128 letters",
    line(member=7): "line 2: member is 7, not a name",
}


@pytest.mark.parametrize("odd", ODD_LINES)
async def test_an_odd_line_costs_no_other_and_is_named(cluster: Cluster, odd: str) -> None:
    cluster.broker.queue(TOPIC).append(10)
    content = "\n".join([line(group="first"), odd, line(group="last", offset=6)])
    reply = await import_file(cluster, content, format=pb.JSON_LINES)
    assert steps(reply) == [(TOPIC, 0, 5), (TOPIC, 0, 6)]
    assert reply.skipped_count == 1
    assert ODD_LINES[odd] in reply.skipped[0]


async def test_a_file_of_another_kind_is_refused(cluster: Cluster) -> None:
    with pytest.raises(Exception, match="line 1 is no progress: it is not JSON"):
        await import_file(cluster, "topic;queue\norders;0\n", format=pb.JSON_LINES)
    with pytest.raises(Exception, match="not a consumerOffset"):
        await import_file(cluster, '{"offsetTable":7}')


async def test_an_import_without_nameservers_fails_and_does_not_wait_for_each_group(
    cluster: Cluster,
) -> None:
    cluster.broker.queue(TOPIC).append(10)
    await cluster.until_revision()
    await cluster.nameserver.stop()
    entries = [f'"%RETRY%g{number}@g{number}":{{0:1}}' for number in range(100)]
    entries += [f'"{TOPIC}@g{number}":{{0:1}}' for number in range(100)]
    for some in (entries[:100], entries[100:]):
        with pytest.raises(Exception, match="nameserver") as failure:
            await import_file(cluster, f'{{"offsetTable":{{{",".join(some)}}}}}')
        assert code(failure) == "NAMESERVER_UNAVAILABLE"
    await cluster.nameserver.start()


async def test_others_are_answered_while_many_entries_are_imported(cluster: Cluster) -> None:
    cluster.broker.queue(TOPIC).append(10)
    entries = ",".join(f'"{TOPIC}@g{number}":{{0:5,7:1}}' for number in range(MANY))
    await cluster.until_revision()
    for number in range(MANY):
        # The subscriptions exist: a call to the nameserver would have to be awaited.
        key = (f"g{number}", TOPIC)
        cluster.nameserver.subscriptions[key] = ns.Subscription(
            group=key[0], topic=TOPIC, revision=2
        )
        cluster.nameserver.groups[key[0]] = ns.Group(
            config=ns.GroupConfig(name=key[0]), incarnation=2, modified_revision=2
        )
    await cluster.restart_service()
    answered = 0
    async with asyncio.TaskGroup() as tasks:
        importing = tasks.create_task(import_file(cluster, f'{{"offsetTable":{{{entries}}}}}'))
        while not importing.done():
            await cluster.stub.ListMembers(pb.ListMembersRequest(group=GROUP))
            answered += 1
    reply = importing.result()
    assert (reply.imported_count, reply.skipped_count) == (MANY, MANY)
    assert (len(reply.imported), len(reply.skipped)) == (REPORTED_MAX, REPORTED_MAX)
    # A loop that is free every ten milliseconds sends many replies; a blocked one about three.
    assert answered > 20
