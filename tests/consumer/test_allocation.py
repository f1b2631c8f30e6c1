"""Who reads which queue: RocketMQ's tables, and that no queue is left out or read twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rockoon.allocation import AVERAGE, STRATEGIES, AllocationStrategy, allocate
from rockoon.message import MessageQueue

TABLE = [
    # queues, members, AVG, AVG_BY_CIRCLE: queue ids of c1 / c2 / ...
    (8, 3, "012/345/67", "036/147/25"),
    (5, 2, "012/34", "024/13"),
    (3, 4, "0/1/2/", "0/1/2/"),
    (7, 7, "0/1/2/3/4/5/6", "0/1/2/3/4/5/6"),
]


def topic_queues(count: int, topic: str = "TopicTest") -> list[MessageQueue]:
    return [MessageQueue(topic, "broker-a", number) for number in range(count)]


def shares(strategy: AllocationStrategy, queues: int, members: int) -> str:
    topics_of = {f"c{number + 1}": {"TopicTest"} for number in range(members)}
    found = [allocate(strategy, member, topics_of, topic_queues(queues)) for member in topics_of]
    return "/".join("".join(str(n) for n in sorted(q.queue_id for q in mine)) for mine in found)


@pytest.mark.parametrize(("queues", "members", "average", "by_circle"), TABLE)
def test_shares_are_those_of_rocketmq(
    queues: int, members: int, average: str, by_circle: str
) -> None:
    assert shares(STRATEGIES["AVG"], queues, members) == average
    assert shares(STRATEGIES["AVG_BY_CIRCLE"], queues, members) == by_circle


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
