"""Cost of consumer groups: commits, starts, a rebalance, and latency from send to listener."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import rockoon
from bench.loops import BODY, call_closed, is_settled, nothing, until
from rockoon.consumer.push_consumer import PushConsumer
from rockoon.message import Message
from rockoon_core.message_queue import queue_to_wire
from rockoon_proto.v1.offset_pb2 import CommitEntry, CommitRequest, ResolveRequest

CALLS_IN_FLIGHT = 64


async def offset_rates(cluster: rockoon.Cluster, topic: str, seconds: float) -> dict[str, float]:
    """Measure starts and commits per second, each durable when answered; one queue per caller.

    Args:
        cluster: with a topic of `CALLS_IN_FLIGHT` queues that have messages.
        seconds: duration of each rate.
    """
    async with cluster.push_consumer("rates", {topic: "*"}, nothing, consume_from="first"):
        pass
    service = await cluster.wait_offset_service(10)
    queues = [queue_to_wire(queue) for queue in (await cluster.route(topic)).queues]
    # A reader that is not a member: no member owns the queues, and each start is a committed one.
    request = ResolveRequest(group="rates", queues=queues)
    starts = (await service.Resolve(request, metadata=cluster.metadata)).starts
    ends = [start.offset for start in starts]

    async def resolve(number: int) -> None:
        request = ResolveRequest(group="rates", queues=[queues[number]])
        reply = await service.Resolve(request, metadata=cluster.metadata)
        assert not reply.starts[0].HasField("error"), reply.starts[0].error

    async def commit_entries(numbers: range, shift: int) -> None:
        entries = [
            CommitEntry(
                queue=queues[number],
                offset=ends[number],
                epoch=starts[number].epoch,
                metadata=str(shift),
            )
            for number in numbers
        ]
        request = CommitRequest(group="rates", entries=entries)
        reply = await service.Commit(request, metadata=cluster.metadata)
        assert not any(result.HasField("error") for result in reply.results), reply

    turns = 0

    async def commit(number: int) -> None:
        nonlocal turns
        turns += 1
        await commit_entries(range(number, number + 1), turns)

    async def commit_all(_: int) -> None:
        nonlocal turns
        turns += 1
        await commit_entries(range(len(queues)), turns)

    async def rate(call: Callable[[int], Awaitable[None]]) -> float:
        return (await call_closed(call, CALLS_IN_FLIGHT, seconds)).per_second

    return {
        "Resolve, one queue a call": await rate(resolve),
        "commits, one queue a call": await rate(commit),
        f"commits, {len(queues)} queues a call": await rate(commit_all) * len(queues),
    }


async def rebalance_seconds(
    cluster: rockoon.Cluster, topic: str, members: int, leaving: int
) -> dict[str, float]:
    """Measure the seconds until every queue has exactly one owner, all members in this process.

    Args:
        topic: with more queues than members.
        members: number of members that join together.
        leaving: number of members that leave together later.
    """
    queues = len((await cluster.route(topic)).queues)
    consumers: list[PushConsumer] = [
        cluster.push_consumer("balanced", {topic: "*"}, nothing, member_id=f"m{number:03}")
        for number in range(members)
    ]
    found: dict[str, float] = {}
    began = time.perf_counter()

    async def settled(present: list[PushConsumer]) -> float:
        await until(lambda: is_settled(present, queues))
        return time.perf_counter() - began

    async with AsyncExitStack() as stack:
        async with asyncio.TaskGroup() as tasks:
            for consumer in consumers:
                tasks.create_task(stack.enter_async_context(consumer), name="join")
        found[f"{members} members join at once"] = await settled(consumers)
        began = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for consumer in consumers[:leaving]:
                tasks.create_task(consumer.close(), name="leave")
        found[f"{leaving} of them leave"] = await settled(consumers[leaving:])
        began = time.perf_counter()
        late = cluster.push_consumer("balanced", {topic: "*"}, nothing, member_id="m-late")
        await stack.enter_async_context(late)
        found["one joins"] = await settled([*consumers[leaving:], late])
    return found


async def listener_latencies(cluster: rockoon.Cluster, topic: str, count: int) -> list[float]:
    """Measure seconds from `send` to the listener's call, one message at a time; sorted."""
    seconds: list[float] = []
    sent_at = 0.0
    handled = asyncio.Event()

    async def listen(_: Message) -> None:
        seconds.append(time.perf_counter() - sent_at)
        handled.set()

    async with (
        cluster.push_consumer("latencies", {topic: "*"}, listen, consume_from="last") as consumer,
        cluster.producer() as producer,
    ):
        await until(lambda: bool(consumer.assignment))
        for _ in range(count):
            handled.clear()
            sent_at = time.perf_counter()
            receipt = producer.send(topic, BODY)
            await handled.wait()
            await receipt
    return sorted(seconds)
