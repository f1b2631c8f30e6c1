"""Start positions of readers of a running service: a scenario for each known complaint."""

import asyncio
from typing import Any

import pytest
from offset.cluster import GROUP, TOPIC, Cluster

from rockoon_proto.v1 import nameserver_pb2 as ns
from rockoon_proto.v1 import offset_pb2 as pb
from rockoon_proto.v1.errors_pb2 import Error
from support.fake_broker import FakeBroker
from support.waiting import DEADLINE_SECONDS

FIRST = ns.StartPolicy(consume_from=ns.CONSUME_FROM_FIRST)


def told(start: pb.Start) -> tuple[str, int, int]:
    assert not start.HasField("error"), start.error.message
    assert start.explanation
    return pb.StartReason.Name(start.reason), start.offset, start.gap


async def test_a_new_group_on_an_old_topic_starts_behind_the_newest_message(
    cluster: Cluster,
) -> None:
    cluster.broker.queue(TOPIC).append(100)
    start = await cluster.start_of()
    assert told(start) == ("LAST", 100, 0)
    assert "100" in start.explanation


async def test_a_young_warm_queue_is_not_replayed_to_a_group_that_wants_the_last(
    cluster: Cluster,
) -> None:
    # The oldest complaint: the first message is in memory, so RocketMQ replies 0.
    cluster.broker.queue(TOPIC).append(3)
    assert told(await cluster.start_of()) == ("LAST", 3, 0)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (FIRST, ("FIRST", 20, 0)),
        (ns.StartPolicy(consume_from=ns.CONSUME_FROM_TAIL, tail_messages=7), ("TAIL", 93, 0)),
        (
            ns.StartPolicy(consume_from=ns.CONSUME_FROM_TIMESTAMP, timestamp_ms=4000),
            ("TIMESTAMP", 60, 0),
        ),
        # The broker's clock shows 10000.
        (
            ns.StartPolicy(consume_from=ns.CONSUME_FROM_DURATION, duration_ms=6500),
            ("DURATION", 60, 0),
        ),
    ],
)
@pytest.mark.parametrize("whose", ["reader", "group"])
async def test_an_old_queue_is_read_by_the_policy_of_the_group_or_else_of_the_reader(
    cluster: Cluster, policy: Any, expected: tuple[str, int, int], whose: str
) -> None:
    queue = cluster.broker.queue(TOPIC)
    queue.append(60, time_ms=1000)
    queue.append(40, time_ms=4000)
    queue.expire_below(20)
    if whose == "group":
        await cluster.set_group(start_policy=policy)
        assert told(await cluster.start_of(policy=ns.StartPolicy())) == expected
    else:
        assert told(await cluster.start_of(policy=policy)) == expected


@pytest.mark.parametrize("rule", [ns.EXACT, ns.CLASSIC])
async def test_only_the_classic_rule_asks_brokers_for_more_than_the_ends(
    cluster: Cluster, rule: Any
) -> None:
    """One request of an offset service has 10,000 queues."""
    await cluster.set_group(new_queue_rule=rule)
    cluster.broker.queue(TOPIC).append(10)
    await cluster.resolve(0, 1, policy=FIRST)
    assert cluster.broker.status_calls == 1
    assert cluster.broker.full_status_calls == (rule == ns.CLASSIC)


async def test_the_group_s_policy_wins_over_the_reader_s(cluster: Cluster) -> None:
    cluster.broker.queue(TOPIC).append(10)
    await cluster.set_group(start_policy=ns.StartPolicy(consume_from=ns.CONSUME_FROM_LAST))
    assert told(await cluster.start_of(policy=FIRST)) == ("LAST", 10, 0)


async def test_last_on_an_empty_queue_then_a_restart_skips_nothing_sent_meanwhile(
    cluster: Cluster,
) -> None:
    assert told(await cluster.start_of()) == ("LAST", 0, 0)
    await cluster.stop_service()
    cluster.broker.queue(TOPIC).append(5)
    await cluster.start_service()
    assert told(await cluster.start_of()) == ("COMMITTED", 0, 0)


async def test_a_queue_added_while_the_group_was_stopped_is_read_from_its_first_message(
    cluster: Cluster,
) -> None:
    await cluster.start_of()
    await cluster.stop_service()
    await cluster.add_queues(1)
    queue = cluster.broker.queue(TOPIC, 2)
    queue.append(1000)
    queue.in_memory = False
    await cluster.start_service()
    start = await cluster.start_of(2)
    assert told(start) == ("NEW_QUEUE", 0, 0)
    assert "after the group subscribed" in start.explanation


async def test_a_queue_on_a_new_broker_is_new_too(cluster: Cluster) -> None:
    await cluster.start_of()
    async with FakeBroker("broker-b") as other:
        await cluster.register_broker(other)
        request = ns.UpdateTopicRequest(name=TOPIC, add=[ns.Placement(broker="broker-b", queues=1)])
        await cluster.nameserver.UpdateTopic(request, None)
        other.queue(TOPIC).append(50)
        assert told(await cluster.start_of(broker="broker-b")) == ("NEW_QUEUE", 0, 0)


async def test_subscribing_once_is_remembered_for_queues_that_come_much_later(
    cluster: Cluster,
) -> None:
    await cluster.start_of()
    await cluster.start_of()
    for _ in range(20):
        await cluster.create_topic(f"other-{cluster.nameserver.revision}")
    await cluster.add_queues(1)
    cluster.broker.queue(TOPIC, 2).append(9)
    assert told(await cluster.start_of(2)) == ("NEW_QUEUE", 0, 0)
    assert cluster.nameserver.subscribe_calls == 1


@pytest.mark.parametrize("how", ["cluster", "group"])
async def test_the_classic_rule_goes_by_memory_as_rocketmq_4_does(
    cluster: Cluster, how: str
) -> None:
    if how == "cluster":
        cluster.more_settings["new_queue_rule"] = "classic"
        await cluster.restart_service()
    else:
        await cluster.set_group(new_queue_rule=ns.CLASSIC)
    await cluster.create_topic("cold", queues=2)
    cluster.broker.queue(TOPIC, 0).append(3)
    cluster.broker.queue("cold", 0).append(3)
    cluster.broker.queue("cold", 0).in_memory = False
    assert told(await cluster.start_of(0)) == ("NEW_QUEUE", 0, 0)
    assert told(await cluster.start_of(1)) == ("NEW_QUEUE", 0, 0)
    assert told(await cluster.start_of(0, topic="cold")) == ("LAST", 3, 0)


async def test_a_group_s_rule_wins_over_the_cluster_s(cluster: Cluster) -> None:
    cluster.more_settings["new_queue_rule"] = "classic"
    await cluster.restart_service()
    await cluster.set_group(new_queue_rule=ns.EXACT)
    cluster.broker.queue(TOPIC).append(3)
    assert told(await cluster.start_of()) == ("LAST", 3, 0)


async def test_a_retry_topic_is_read_from_its_beginning(cluster: Cluster) -> None:
    await cluster.create_topic("%RETRY%billing")
    cluster.broker.queue("%RETRY%billing").append(4)
    assert told(await cluster.start_of(topic="%RETRY%billing")) == ("RETRY_TOPIC", 0, 0)


async def test_retention_passed_the_group_while_it_was_away(cluster: Cluster) -> None:
    queue = cluster.broker.queue(TOPIC)
    queue.append(10)
    await cluster.start_of(policy=FIRST)
    queue.append(90)
    queue.expire_below(60)
    start = await cluster.start_of()
    assert told(start) == ("BELOW_MIN", 60, 60)
    assert "60 messages were deleted unread" in start.explanation
    (progress,) = await cluster.progress()
    assert (progress.gap_total, progress.start_reason) == (60, pb.BELOW_MIN)
    assert told(await cluster.start_of()) == ("COMMITTED", 60, 0)


async def test_the_log_lost_its_tail(cluster: Cluster) -> None:
    queue = cluster.broker.queue(TOPIC)
    queue.append(100)
    await cluster.start_of()
    queue.lose_from(80)
    assert told(await cluster.start_of()) == ("ABOVE_MAX", 80, 20)
    assert told(await cluster.start_of()) == ("COMMITTED", 80, 0)


async def test_a_group_that_would_rather_fail_than_skip(cluster: Cluster) -> None:
    await cluster.set_group(below_min=ns.OUT_OF_RANGE_FAIL)
    queue = cluster.broker.queue(TOPIC)
    queue.append(10)
    await cluster.start_of(policy=FIRST)
    queue.expire_below(5)
    start = await cluster.start_of()
    assert start.error.code == Error.INVALID_OFFSET
    assert not start.error.retriable
    assert [entry.offset for entry in await cluster.progress()] == [0]


@pytest.mark.parametrize("seen", ["seen", "missed"])
async def test_a_re_created_topic_is_read_from_its_first_message_whether_or_not_its_end_was_seen(
    cluster: Cluster, seen: str
) -> None:
    cluster.broker.queue(TOPIC).append(100)
    epoch = (await cluster.start_of()).epoch
    if seen == "missed":
        await cluster.stop_service()
    await cluster.delete_topic()
    await cluster.create_topic(queues=2)
    cluster.broker.queue(TOPIC).append(7)
    if seen == "missed":
        await cluster.start_service()
    start = await cluster.start_of()
    assert told(start) == ("OTHER_INCARNATION", 0, 0)
    assert start.epoch > epoch
    assert told(await cluster.start_of()) == ("COMMITTED", 0, 0)


async def test_a_deleted_topic_s_progress_is_gone_for_good(cluster: Cluster) -> None:
    await cluster.start_of()
    await cluster.delete_topic()
    await cluster.until_revision()
    assert await cluster.progress() == []
    await cluster.restart_service()
    assert await cluster.progress() == []


async def test_a_deletion_missed_while_the_service_was_down_is_made_good(
    cluster: Cluster,
) -> None:
    await cluster.start_of()
    await cluster.stop_service()
    await cluster.delete_topic()
    await cluster.start_service()
    assert await cluster.progress() == []


@pytest.mark.parametrize("seen", ["seen", "missed"])
async def test_a_re_created_group_is_a_new_group(cluster: Cluster, seen: str) -> None:
    queue = cluster.broker.queue(TOPIC)
    queue.append(100)
    await cluster.start_of(policy=FIRST)
    if seen == "missed":
        await cluster.stop_service()
    await cluster.nameserver.DeleteGroup(ns.DeleteGroupRequest(name=GROUP), None)
    if seen == "missed":
        await cluster.set_group()
        await cluster.start_service()
    else:
        await cluster.until(lambda: _is_empty(cluster))
        await cluster.set_group()
    assert await cluster.progress() == []
    assert told(await cluster.start_of()) == ("LAST", 100, 0)


async def _is_empty(cluster: Cluster) -> bool:
    return not await cluster.progress()


@pytest.mark.parametrize("seen", ["seen", "missed"])
async def test_an_etcd_that_lost_everything_costs_nobody_its_place(
    cluster: Cluster, seen: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.broker.queue(TOPIC).append(10)
    await cluster.start_of()
    await cluster.until_revision()
    if seen == "missed":
        await cluster.stop_service()
    await cluster.nameserver.lose_everything()
    if seen == "missed":
        await cluster.start_service()
    await cluster.until(lambda: "All progress is kept" in caplog.text)
    assert [entry.offset for entry in await cluster.progress()] == [10]


async def test_resolving_creates_no_group(cluster: Cluster) -> None:
    start = await cluster.start_of(group="typo")
    assert start.error.code == Error.GROUP_NOT_FOUND
    assert "typo" not in cluster.nameserver.groups
    assert not await cluster.progress("typo")


async def test_a_late_reader_does_not_revive_a_deleted_group(cluster: Cluster) -> None:
    await cluster.start_of()
    await cluster.nameserver.DeleteGroup(ns.DeleteGroupRequest(name=GROUP), None)
    await cluster.until_revision()
    assert (await cluster.start_of()).error.code == Error.GROUP_NOT_FOUND
    assert GROUP not in cluster.nameserver.groups
    assert not await cluster.progress()


async def test_every_queue_gets_its_own_answer(cluster: Cluster) -> None:
    request = ns.UpdateTopicRequest(name=TOPIC, add=[ns.Placement(broker="broker-z", queues=1)])
    await cluster.nameserver.UpdateTopic(request, None)
    reply = await cluster.stub.Resolve(
        pb.ResolveRequest(
            group=GROUP,
            queues=[
                cluster.ref(0),
                cluster.ref(77),
                cluster.ref(0, topic="no-such-topic"),
                cluster.ref(0, broker="broker-z"),
                cluster.ref(0),
            ],
            route_revision=cluster.nameserver.revision,
        )
    )
    codes = [start.error.code for start in reply.starts]
    assert codes == [
        Error.UNSPECIFIED,
        Error.QUEUE_NOT_FOUND,
        Error.TOPIC_NOT_FOUND,
        Error.BROKER_UNAVAILABLE,
        Error.UNSPECIFIED,
    ]
    assert reply.starts[3].error.retriable
    assert reply.starts[0].epoch == reply.starts[4].epoch
    assert [start.queue.queue_id for start in reply.starts] == [0, 77, 0, 0, 0]


async def test_while_its_broker_is_away_a_queue_is_not_guessed_about(cluster: Cluster) -> None:
    await cluster.start_of(1)
    await cluster.broker.stop()
    for queue_id in (0, 1):
        start = await cluster.start_of(queue_id)
        assert start.error.code == Error.BROKER_UNAVAILABLE
        assert start.error.retriable
    assert len(await cluster.progress()) == 1
    await cluster.broker.start()
    await cluster.until(lambda: _starts(cluster))


async def _starts(cluster: Cluster) -> bool:
    return not (await cluster.start_of(0)).HasField("error")


async def test_a_broker_that_hangs_costs_only_its_queues_and_a_bounded_time(
    cluster: Cluster,
) -> None:
    async with FakeBroker("broker-b") as other:
        await cluster.register_broker(other)
        request = ns.UpdateTopicRequest(name=TOPIC, add=[ns.Placement(broker="broker-b", queues=1)])
        await cluster.nameserver.UpdateTopic(request, None)
        other.queue(TOPIC)
        other.answering.clear()
        cluster.more_settings["broker_timeout_seconds"] = 1.0
        await cluster.restart_service()
        async with asyncio.timeout(DEADLINE_SECONDS):
            hanging, here = await cluster.stub_resolve_both()
        assert hanging.error.retriable
        assert not here.HasField("error")
        other.answering.set()


async def test_a_reader_that_has_seen_newer_routes_is_waited_for(cluster: Cluster) -> None:
    await cluster.until_revision()
    cluster.nameserver.telling.clear()
    await cluster.create_topic("brand-new")
    async with asyncio.TaskGroup() as tasks:
        resolving = tasks.create_task(cluster.start_of(topic="brand-new"))
        await cluster.create_topic("another")
        cluster.nameserver.telling.set()
    assert told(resolving.result())[0] == "LAST"


async def test_routes_that_do_not_come_are_no_proof_that_a_topic_does_not_exist(
    cluster: Cluster,
) -> None:
    await cluster.until_revision()
    cluster.more_settings["route_wait_seconds"] = 0.1
    await cluster.restart_service()
    cluster.nameserver.telling.clear()
    await cluster.create_topic("brand-new")
    start = await cluster.start_of(topic="brand-new")
    assert start.error.code == Error.ROUTE_NOT_REACHED
    assert start.error.retriable
    cluster.nameserver.telling.set()


async def test_a_paused_group_is_told_so(cluster: Cluster) -> None:
    await cluster.set_group(consume_disabled=True)
    assert (await cluster.start_of()).error.code == Error.CONSUME_DISABLED
    assert await cluster.progress() == []
    await cluster.set_group(consume_disabled=False)
    assert not (await cluster.start_of()).HasField("error")


async def test_nameservers_away_known_groups_go_on_and_new_ones_are_told_to_wait(
    cluster: Cluster,
) -> None:
    cluster.broker.queue(TOPIC).append(10)
    await cluster.start_of()
    await cluster.until_revision()
    await cluster.nameserver.stop()
    assert told(await cluster.start_of()) == ("COMMITTED", 10, 0)
    start = await cluster.start_of(group="stranger")
    assert start.error.code == Error.NAMESERVER_UNAVAILABLE
    assert start.error.retriable
    await cluster.nameserver.start()


async def test_two_readers_at_once_get_one_decision(cluster: Cluster) -> None:
    cluster.broker.queue(TOPIC).append(10)
    cluster.broker.answering.clear()
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(cluster.start_of(member="m1"))
        second = tasks.create_task(cluster.start_of(member="m2"))
        await cluster.until(lambda: cluster.broker.status_calls == 2)
        cluster.broker.queue(TOPIC).append(5)
        cluster.broker.answering.set()
    starts = [first.result(), second.result()]
    assert {start.offset for start in starts} == {15}
    assert sorted(pb.StartReason.Name(start.reason) for start in starts) == ["COMMITTED", "LAST"]
    assert starts[0].epoch != starts[1].epoch


async def test_progress_that_moved_while_the_broker_answered_is_not_taken_for_a_lost_tail(
    cluster: Cluster,
) -> None:
    queue = cluster.broker.queue(TOPIC)
    queue.append(10)
    epoch = (await cluster.start_of()).epoch
    # The broker's reply has 10, and is held until 20 is stored.
    release = cluster.broker.hold_next_status()
    async with asyncio.TaskGroup() as tasks:
        resolving = tasks.create_task(cluster.start_of(member="m2"))
        await cluster.until(lambda: cluster.broker.held)
        queue.append(10)
        result = await cluster.commit(20, epoch)
        assert not result.HasField("error")
        release.set()
    assert told(resolving.result()) == ("COMMITTED", 20, 0)


async def test_a_topic_created_again_while_its_broker_answers_is_decided_on_as_it_is_now(
    cluster: Cluster,
) -> None:
    cluster.broker.queue(TOPIC).append(10)
    release = cluster.broker.hold_next_status()
    async with asyncio.TaskGroup() as tasks:
        resolving = tasks.create_task(cluster.start_of())
        await cluster.until(lambda: cluster.broker.held)
        await cluster.delete_topic()
        await cluster.create_topic(queues=2)
        cluster.broker.queue(TOPIC).append(3)
        await cluster.until_revision()
        release.set()
    assert not resolving.result().HasField("error")
    (progress,) = await cluster.progress()
    assert progress.incarnation == cluster.nameserver.topics[TOPIC].blocks[0].create_revision
    assert resolving.result().offset <= 3


async def test_a_group_created_again_while_a_broker_answers_starts_by_its_own_policy(
    cluster: Cluster,
) -> None:
    cluster.broker.queue(TOPIC).append(10)
    release = cluster.broker.hold_next_status()
    async with asyncio.TaskGroup() as tasks:
        resolving = tasks.create_task(cluster.start_of())
        await cluster.until(lambda: cluster.broker.held)
        await cluster.nameserver.DeleteGroup(ns.DeleteGroupRequest(name=GROUP), None)
        await cluster.set_group(start_policy=FIRST)
        await cluster.until_revision()
        release.set()
    assert told(resolving.result()) == ("FIRST", 0, 0)
    # State of the deleted one is removed at the next snapshot of the routes.
    await cluster.restart_service()
    assert told(await cluster.start_of()) == ("COMMITTED", 0, 0)


async def test_a_group_deleted_while_a_broker_answers_leaves_nothing_behind(
    cluster: Cluster,
) -> None:
    release = cluster.broker.hold_next_status()
    async with asyncio.TaskGroup() as tasks:
        resolving = tasks.create_task(cluster.start_of())
        await cluster.until(lambda: cluster.broker.held)
        await cluster.nameserver.DeleteGroup(ns.DeleteGroupRequest(name=GROUP), None)
        await cluster.until_revision()
        release.set()
    assert resolving.result().error.code == Error.GROUP_NOT_FOUND
    assert await cluster.progress() == []


async def test_query_answers_like_rocketmq_and_changes_nothing(cluster: Cluster) -> None:
    async def query(queue_id: int) -> tuple[bool, int, str]:
        reply = await cluster.stub.Query(pb.QueryRequest(group=GROUP, queue=cluster.ref(queue_id)))
        assert reply.explanation
        return reply.found, reply.offset, ns.NewQueueRule.Name(reply.rule)

    cluster.broker.queue(TOPIC).append(10)
    await cluster.until_revision()
    assert await query(0) == (False, 0, "EXACT")
    await cluster.start_of(0)
    assert await query(0) == (True, 10, "EXACT")
    assert await query(1) == (False, 0, "EXACT")
    await cluster.add_queues(1)
    cluster.broker.queue(TOPIC, 2).append(4)
    await cluster.until_revision()
    assert await query(2) == (True, 0, "EXACT")
    await cluster.set_group(new_queue_rule=ns.CLASSIC)
    await cluster.until_revision()
    assert await query(1) == (True, 0, "CLASSIC")
    assert len(await cluster.progress()) == 1
