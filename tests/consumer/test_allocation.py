"""Allocation of queues to members: RocketMQ's tables; no queue is left out or read twice."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rockoon.allocation import (
    AVERAGE,
    CONSISTENT_HASH,
    STRATEGIES,
    AllocationStrategy,
    ConsistentHash,
    allocate,
    strategy_named,
)
from rockoon.allocation.strategy import queue_key, ring_hash
from rockoon.errors import InvalidArgument
from rockoon_core.message_queue import MessageQueue

TABLE = [
    # queues, members, AVG, AVG_BY_CIRCLE, CONSISTENT_HASH: queue ids of c1 / c2 / ...
    (8, 3, "012/345/67", "036/147/25", "0457/16/23"),
    (5, 2, "012/34", "024/13", "034/12"),
    (3, 4, "0/1/2/", "0/1/2/", "0//2/1"),
    (7, 7, "0/1/2/3/4/5/6", "0/1/2/3/4/5/6", "04/6/2/15//3/"),
]


def topic_queues(count: int, topic: str = "TopicTest") -> list[MessageQueue]:
    return [MessageQueue(topic, "broker-a", number) for number in range(count)]


def shares(strategy: AllocationStrategy, queues: int, members: int) -> str:
    topics_of = {f"c{number + 1}": {"TopicTest"} for number in range(members)}
    found = [allocate(strategy, member, topics_of, topic_queues(queues)) for member in topics_of]
    return "/".join("".join(str(n) for n in sorted(q.queue_id for q in mine)) for mine in found)


@pytest.mark.parametrize(("queues", "members", "average", "by_circle", "consistent_hash"), TABLE)
def test_shares_are_those_of_rocketmq(
    queues: int, members: int, average: str, by_circle: str, consistent_hash: str
) -> None:
    assert shares(STRATEGIES["AVG"], queues, members) == average
    assert shares(STRATEGIES["AVG_BY_CIRCLE"], queues, members) == by_circle
    assert shares(STRATEGIES["CONSISTENT_HASH"], queues, members) == consistent_hash


def test_members_and_queues_lie_on_the_ring_where_java_puts_them() -> None:
    assert ring_hash("c1-0") == 0xE7A7EB0B
    assert ring_hash(queue_key(topic_queues(1)[0])) == 0x767D59FC


def test_a_ring_without_places_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="virtual_nodes is 0"):
        ConsistentHash(virtual_nodes=0)


def test_a_member_that_leaves_a_ring_moves_no_queue_of_another() -> None:
    queues = topic_queues(64)
    members = [f"c{number}" for number in range(8)]
    before = {m: set(CONSISTENT_HASH.allocate(m, members, queues)) for m in members}
    for member in members[1:]:
        after = set(CONSISTENT_HASH.allocate(member, members[1:], queues))
        assert before[member] <= after <= before[member] | before["c0"]


def test_queues_are_sorted_by_broker_before_id_and_members_by_code_point() -> None:
    queues = [MessageQueue("t", broker, number) for number in (0, 1) for broker in ("b", "a")]
    topics_of = {"c9": {"t"}, "c10": {"t"}, "C9": {"t"}}
    assert allocate(AVERAGE, "C9", topics_of, queues) == {
        MessageQueue("t", "a", 0),
        MessageQueue("t", "a", 1),
    }
    assert allocate(AVERAGE, "c10", topics_of, queues) == {MessageQueue("t", "b", 0)}
    assert allocate(AVERAGE, "c9", topics_of, queues) == {MessageQueue("t", "b", 1)}


def test_only_members_that_subscribe_to_a_topic_share_it() -> None:
    queues = topic_queues(4, "a") + topic_queues(4, "b")
    topics_of = {"c1": {"a"}, "c2": {"a", "b"}, "c3": {"b"}}
    assert allocate(AVERAGE, "c1", topics_of, queues) == set(topic_queues(4, "a")[:2])
    assert allocate(AVERAGE, "c2", topics_of, queues) == {
        *topic_queues(4, "a")[2:],
        *topic_queues(4, "b")[:2],
    }


def test_a_member_the_group_does_not_know_reads_nothing() -> None:
    assert allocate(AVERAGE, "c2", {"c1": {"TopicTest"}}, topic_queues(4)) == set()


@given(
    strategy=st.sampled_from(sorted(STRATEGIES)),
    brokers=st.lists(st.integers(0, 9), max_size=4),
    members=st.sets(st.text("abc019", min_size=1), min_size=1, max_size=6),
    shuffle=st.randoms(use_true_random=False),
)
def test_every_queue_has_exactly_one_reader_whatever_order_things_come_in(
    strategy: str, brokers: list[int], members: set[str], shuffle
) -> None:
    queues = [
        MessageQueue("t", f"broker-{number}", queue)
        for number, count in enumerate(brokers)
        for queue in range(count)
    ]
    read: list[MessageQueue] = []
    for member in members:
        shuffle.shuffle(queues)
        topics_of = {other: {"t"} for other in shuffle.sample(sorted(members), len(members))}
        read += allocate(STRATEGIES[strategy], member, topics_of, queues)
    assert sorted(read) == sorted(queues)


def test_a_plain_function_is_a_strategy() -> None:
    def audit_first(
        member: str, members: Sequence[str], queues: Sequence[MessageQueue]
    ) -> Sequence[MessageQueue]:
        first, *others = members
        if member == first:
            return queues if not others else queues[:1]
        return AVERAGE.allocate(member, others, queues[1:])

    assert shares(audit_first, 7, 3) == "0/123/456"
    assert shares(audit_first, 7, 1) == "0123456"


def test_an_object_of_ones_own_is_a_strategy_and_need_not_know_of_owners() -> None:
    class Reversed:
        name = "REVERSED"

        def allocate(
            self, member: str, members: Sequence[str], queues: Sequence[MessageQueue]
        ) -> Sequence[MessageQueue]:
            return AVERAGE.allocate(member, members, queues[::-1])

    assert shares(Reversed(), 5, 2) == "234/01"
    owners = dict.fromkeys(topic_queues(5), "c1")
    topics_of = {"c1": {"TopicTest"}, "c2": {"TopicTest"}}
    assert allocate(Reversed(), "c2", topics_of, topic_queues(5), owners) == {*topic_queues(5)[:2]}


def test_a_strategy_that_invents_queues_is_refused_by_its_name() -> None:
    def overreach(
        member: str, members: Sequence[str], queues: Sequence[MessageQueue]
    ) -> Sequence[MessageQueue]:
        return [*queues, MessageQueue("TopicTest", "broker-a", 8)]

    with pytest.raises(InvalidArgument, match=r"overreach returned TopicTest@broker-a:8, not"):
        shares(overreach, 8, 2)


def test_strategies_are_found_by_rocketmqs_names() -> None:
    for name in ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "STICKY"):
        assert strategy_named(name).name == name


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    known = "AVG, AVG_BY_CIRCLE, CONFIG, CONSISTENT_HASH, MACHINE_ROOM, MACHINE_ROOM_NEARBY, STICKY"
    with pytest.raises(InvalidArgument, match=f"no allocation 'AVERAGE'; known are {known}"):
        strategy_named("AVERAGE")


@pytest.mark.parametrize("name", ["CONFIG", "MACHINE_ROOM", "MACHINE_ROOM_NEARBY-AVG"])
def test_a_name_that_needs_settings_says_which(name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{name} needs settings: use [A-Z]"):
        strategy_named(name)
