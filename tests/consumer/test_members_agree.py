"""Members that share queues: STICKY moves few; a member that contradicts the others is reported."""

import logging
from typing import Any

import pytest

from rockoon.allocation import STICKY
from rockoon.cluster import Cluster
from rockoon.consumer.membership import contradictions
from rockoon.consumer.push_consumer import PushConsumer
from rockoon.message import Message
from rockoon_proto.v1.offset_pb2 import BROADCASTING, CLUSTERING, Member, TopicSubscription
from support.consumer_settings import grouped
from support.eventually import eventually
from support.fake_cluster import FakeCluster


async def ignore(_: Message) -> None:
    pass


def consumer_of(cluster: Cluster, member_id: str, tags: str = "*", **settings: Any) -> PushConsumer:
    chosen: dict[str, Any] = {"member_id": member_id, "consume_from": "first", **settings}
    return cluster.push_consumer("billing", {"orders": tags}, ignore, **grouped(chosen))


def settled(members: list[PushConsumer], queues: int) -> bool:
    held = [queue for member in members for queue in member.assignment]
    sizes = [len(member.assignment) for member in members]
    return len(held) == len(set(held)) == queues and max(sizes) - min(sizes) <= 1


async def test_as_few_queues_as_possible_move_when_members_come_and_go(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders", queues=12)
    # A member that waits for the next heartbeat to see the others waits in vain.
    fake.offset.heartbeat_seconds, fake.offset.lease_seconds = 3600, 3600
    async with consumer_of(cluster, "a", allocation=STICKY) as a:
        await eventually(lambda: settled([a], 12))
        async with consumer_of(cluster, "b", allocation=STICKY) as b:
            await eventually(lambda: settled([a, b], 12))
            assert a.statistics.queues_lost == 6
            # Without owners this one would get another share from each.
            async with consumer_of(cluster, "e", allocation=STICKY) as e:
                await eventually(lambda: settled([a, b, e], 12))
                # Four of twelve: those that the third member gets, and no other.
                assert (a.statistics.queues_lost, b.statistics.queues_lost) == (8, 2)
            await eventually(lambda: settled([a, b], 12))
            assert (a.statistics.queues_lost, b.statistics.queues_lost) == (8, 2)
            assert e.statistics.queues_lost == 0


async def test_a_member_more_than_there_are_queues_says_once_that_it_idles(
    fake: FakeCluster, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    fake.create_topic("orders", queues=1)
    settings: dict[str, Any] = {"rebalance_seconds": 0.05}
    async with (
        consumer_of(cluster, "a", **settings) as first,
        consumer_of(cluster, "b", **settings) as second,
        consumer_of(cluster, "c", **settings) as third,
    ):
        everybody = [first, second, third]
        await eventually(lambda: all(each.statistics.rebalances > 10 for each in everybody))
        idle = [each.member_id for each in everybody if not each.queues()]
    said = [each.getMessage() for each in caplog.records if "has no queues" in each.getMessage()]
    # During the joins, members saw others come and go.
    assert {text.split()[0] for text in said} >= set(idle)
    assert all("more members" in text for text in said)
    assert len(said) <= len(everybody)


async def test_members_with_different_strategies_are_heard_of_at_both(
    fake: FakeCluster, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    fake.create_topic("orders", queues=2)
    caplog.set_level(logging.ERROR, logger="rockoon.consumer.membership")
    async with consumer_of(cluster, "a"), consumer_of(cluster, "b", allocation=STICKY, tags="TagA"):
        await eventually(lambda: len(caplog.records) >= 4)
    said = sorted(each.getMessage() for each in caplog.records)
    assert said == [
        "group billing: members read different things of topic orders: *: a; TagA: b",
        "group billing: members read different things of topic orders: *: a; TagA: b",
        "group billing: members share queues by different rules: AVG: a; STICKY: b",
        "group billing: members share queues by different rules: AVG: a; STICKY: b",
    ]


def member(name: str, allocation: str = "AVG", mode: Any = CLUSTERING, **topics: str) -> Member:
    return Member(
        member_id=name,
        mode=mode,
        allocation=allocation,
        subscriptions=[TopicSubscription(topic=t, expression=e) for t, e in topics.items()],
    )


def test_members_that_agree_are_left_in_peace() -> None:
    assert contradictions([]) == []
    assert contradictions([member("a", orders="*"), member("b", orders="*")]) == []
    alone = member("c", "", BROADCASTING, payments="TagB")
    assert contradictions([member("a", orders="*"), alone]) == []
    retries = TopicSubscription(topic="%RETRY%billing", expression="*")
    one = member("a", orders="*")
    one.subscriptions.append(retries)
    assert contradictions([one, member("b", orders="*")]) == []


def test_a_topic_that_only_some_read_is_a_contradiction_and_long_lists_are_cut() -> None:
    members = [member(f"m{number}", orders="*") for number in range(5)]
    (text,) = contradictions([*members, member("z", orders="*", payments="*")])
    assert text == (
        "members read different things of topic payments: *: z; nothing: m0, m1, m2 and 2 more"
    )
