"""A subscribed topic is deleted, or deleted and created again, while consumers run."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rockoon.cluster import Cluster
from rockoon.consumer.pull import PullLimits
from rockoon.consumer.push_consumer import PushConsumer
from rockoon.errors import InvalidArgument, QueueNotFound, TopicNotFound
from rockoon.message import Message
from support.consumer_settings import grouped
from support.eventually import DEADLINE_SECONDS, eventually
from support.fake_cluster import FakeCluster

KINDS: dict[str, dict[str, Any]] = {
    "concurrent": {},
    "batch": {"batch_max": 10},
    "orderly": {"orderly": True},
}
BOTH = {"orders": "*", "payments": "*"}


class Seen:
    def __init__(self) -> None:
        self.bodies: list[tuple[str, bytes]] = []

    async def __call__(self, argument: Message | Sequence[Message]) -> None:
        messages = [argument] if isinstance(argument, Message) else argument
        self.bodies += [(message.topic, message.body) for message in messages]


def consumer_of(cluster: Cluster, seen: Seen, **settings: Any) -> PushConsumer:
    chosen = {"consume_from": "first", "commit_seconds": 0.02, **settings}
    return cluster.push_consumer("billing", BOTH, seen, **grouped(chosen))


def create(fake: FakeCluster, *topics: str) -> None:
    for topic in topics:
        fake.create_topic(topic)
        fake.append(topic, [f"first of {topic}".encode()])


@pytest.mark.parametrize("kind", KINDS)
async def test_the_other_topic_is_read_on_and_the_deleted_one_when_it_exists_again(
    fake: FakeCluster, cluster: Cluster, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    create(fake, "orders", "payments")
    seen = Seen()
    async with consumer_of(cluster, seen, **KINDS[kind]) as consumer:
        await eventually(lambda: len(seen.bodies) == 2)
        fake.delete_topic("orders")
        await eventually(lambda: {queue.topic for queue in consumer.assignment} == {"payments"})
        # A broker may refuse the deleted queue before the routes change.
        await eventually(lambda: "topic orders was deleted" in caplog.text)
        fake.append("payments", [b"second"])
        await eventually(lambda: ("payments", b"second") in seen.bodies)
        create(fake, "orders")
        await eventually(lambda: seen.bodies.count(("orders", b"first of orders")) == 2)
        fake.append("payments", [b"third"])
        await eventually(lambda: ("payments", b"third") in seen.bodies)
        assert ("billing", "orders") in fake.nameserver.subscriptions
    said = [r.message for r in caplog.records if r.name == "rockoon.subscription"]
    assert said == [
        "topic orders was deleted: the consumer of group billing reads payments, and reads orders "
        "again if it is created",
        "topic orders was created again: the consumer of group billing reads it",
    ]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_topic_that_is_deleted_and_created_at_once_is_read_as_a_new_one(
    fake: FakeCluster, cluster: Cluster, kind: str
) -> None:
    create(fake, "orders", "payments")
    seen = Seen()
    async with consumer_of(cluster, seen, **KINDS[kind]):
        await eventually(lambda: len(seen.bodies) == 2)
        fake.delete_topic("orders")
        create(fake, "orders")
        fake.append("payments", [b"second"])
        await eventually(lambda: seen.bodies.count(("orders", b"first of orders")) == 2)
        await eventually(lambda: ("payments", b"second") in seen.bodies)
        assert ("billing", "orders") in fake.nameserver.subscriptions


@pytest.mark.parametrize("kind", KINDS)
async def test_a_consumer_without_topics_waits_for_one(
    fake: FakeCluster, cluster: Cluster, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    create(fake, "orders", "payments")
    seen = Seen()
    async with consumer_of(cluster, seen, **KINDS[kind]) as consumer:
        await eventually(lambda: len(seen.bodies) == 2)
        fake.delete_topic("orders")
        fake.delete_topic("payments")
        await eventually(lambda: caplog.text.count("was deleted") == 2)
        assert not consumer.assignment
        create(fake, "payments")
        await eventually(lambda: len(seen.bodies) == 3)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_consumer_may_end_with_a_topic(
    fake: FakeCluster, cluster: Cluster, kind: str
) -> None:
    create(fake, "orders", "payments")
    async with consumer_of(cluster, Seen(), missing_topics="end", **KINDS[kind]) as consumer:
        await eventually(lambda: len(consumer.assignment) == 2)
        fake.delete_topic("orders")
        with pytest.raises(TopicNotFound, match="orders"):
            await asyncio.wait_for(consumer.wait(), DEADLINE_SECONDS)


async def test_at_the_start_each_topic_must_exist(fake: FakeCluster, cluster: Cluster) -> None:
    create(fake, "orders")
    with pytest.raises(TopicNotFound, match="payments"):
        await consumer_of(cluster, Seen()).start()


async def test_another_rule_is_refused(cluster: Cluster) -> None:
    with pytest.raises(InvalidArgument, match="not wait or end"):
        consumer_of(cluster, Seen(), missing_topics="stay")
    with pytest.raises(InvalidArgument, match="not wait or end"):
        cluster.pull_consumer(missing_topics="stay")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="not wait or end"):
        cluster.simple_consumer("billing", BOTH, missing_topics="stay")  # type: ignore[arg-type]


@pytest.mark.parametrize("group", [None, "billing"])
async def test_a_pull_consumer_waits_for_its_topic(
    fake: FakeCluster, cluster: Cluster, group: str | None
) -> None:
    create(fake, "orders")
    async with cluster.pull_consumer(group, consume_from="first") as consumer:
        await consumer.assign_all("orders")
        assert await consumer.poll(timeout=DEADLINE_SECONDS)
        waiting = cluster.tasks.create_task(consumer.poll(timeout=DEADLINE_SECONDS))
        fake.delete_topic("orders")
        await eventually(lambda: not consumer.assignment)
        create(fake, "orders")
        [message] = await waiting
        assert (message.body, message.queue_offset) == (b"first of orders", 0)


async def test_a_queue_that_a_program_chose_itself_is_not_waited_for(
    fake: FakeCluster, cluster: Cluster
) -> None:
    create(fake, "orders")
    async with cluster.pull_consumer(limits=PullLimits(wait_ms=100)) as consumer:
        await consumer.assign((await cluster.route("orders")).queues)
        assert await consumer.poll(timeout=DEADLINE_SECONDS)
        fake.delete_topic("orders")
        with pytest.raises((TopicNotFound, QueueNotFound), match="orders"):
            await consumer.poll(timeout=DEADLINE_SECONDS)
