"""Costs of many queues, topics and groups."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import rockoon
from bench.loops import make_topic, nothing, one_broker, until
from bench.single import by_key, by_topic, measured
from bench.tables import Goal

FEW, MANY = 10, 1_000
GROUPS = 100
GROUP_QUEUES = 8

KEYED = "a message to one of 1,000 keyed queues beside one of 10, CPU"
SPREAD = "a message to one of 1,000 topics beside one of 10, CPU"
TOPICS = "1,000 topics make_topic"
ASSIGNED = "1,000 queues assigned to a member"
JOINED = "100 groups joined at once"

GOALS = (
    Goal(KEYED, 2, "times"),
    Goal(SPREAD, 2, "times"),
    Goal(TOPICS, 2, "s"),
    Goal(ASSIGNED, 1, "s"),
    Goal(JOINED, 5, "s"),
)


async def measure(folder: Path, seconds: float) -> AsyncIterator[tuple[str, float]]:
    """Measure on one cluster with one broker, flush = async; this process is the client."""
    async with one_broker(folder / "many") as (local, cluster):
        keyed = {count: await make_topic(cluster, f"keyed-{count}", count) for count in (FEW, MANY)}
        yield ASSIGNED, await _assigned(cluster, keyed[MANY])
        topics = [f"spread-{number}" for number in range(MANY)]
        yield TOPICS, await _topics_made(cluster, topics)
        yield JOINED, await _joined(cluster, await make_topic(cluster, "grouped", GROUP_QUEUES))
        for name, few, many in (
            (KEYED, by_key(keyed[FEW], FEW), by_key(keyed[MANY], MANY)),
            (SPREAD, by_topic(topics[:FEW]), by_topic(topics)),
        ):
            costs = []
            for sending in (few, many):
                work = await measured(local, cluster, sending, seconds)
                costs.append((work.client_seconds + work.broker_seconds) / work.messages)
            yield name, costs[1] / costs[0]


async def _topics_made(cluster: rockoon.Cluster, names: list[str]) -> float:
    """Create topics of one queue and send a message to each; return the seconds of the creation."""
    began = time.perf_counter()
    await cluster.admin.create_topics(names, queues_per_broker=1)
    seconds = time.perf_counter() - began
    async with cluster.producer() as producer:
        for name in names:
            producer.send(name, b"first")
        await producer.flush()
    return seconds


async def _assigned(cluster: rockoon.Cluster, topic: str) -> float:
    """Return the seconds until a new member has been assigned all queues with start positions."""
    consumer = cluster.push_consumer("assigned", {topic: "*"}, nothing, consume_from="first")
    began = time.perf_counter()
    async with consumer:
        await until(lambda: len(consumer.assignment) == MANY)
        return time.perf_counter() - began


async def _joined(cluster: rockoon.Cluster, topic: str) -> float:
    """Return the seconds until the only member of each new group has its queues."""
    consumers = [
        cluster.push_consumer(f"joined-{number}", {topic: "*"}, nothing, consume_from="first")
        for number in range(GROUPS)
    ]
    began = time.perf_counter()
    async with AsyncExitStack() as stack:
        async with asyncio.TaskGroup() as tasks:
            for consumer in consumers:
                tasks.create_task(stack.enter_async_context(consumer), name="join")
        await until(lambda: all(len(each.assignment) == GROUP_QUEUES for each in consumers))
        return time.perf_counter() - began
