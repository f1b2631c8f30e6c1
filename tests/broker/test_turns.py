"""A call about thousands of queues does not block other calls until it ends."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from rockoon_broker.clock import SystemClock
from rockoon_broker.cooperative import in_turns
from rockoon_proto.v1 import broker_pb2 as pb
from support.broker import running_broker
from support.broker_routes import BrokerRoutes
from support.waiting import hold_up

QUEUES_MAX = 4096
TRIES = 5


async def share_of_longest_stall(work: Coroutine[Any, Any, Any]) -> float:
    """Return the longest time between two ticks of another task, as a share of the time of the
    work."""
    longest = 0.0
    loop = asyncio.get_running_loop()

    async def heartbeat() -> None:
        nonlocal longest
        last = loop.time()
        while True:
            await asyncio.sleep(0)
            now = loop.time()
            longest, last = max(longest, now - last), now

    async with asyncio.TaskGroup() as tasks:
        beating = tasks.create_task(heartbeat(), name="heartbeat")
        await asyncio.sleep(0)
        began = loop.time()
        await work
        took = loop.time() - began
        await asyncio.sleep(0)
        beating.cancel()
    return longest / took


async def stalls_little(work: Callable[[], Coroutine[Any, Any, Any]]) -> bool:
    """Return whether the work stalls no other task for a large share of its time. A busy machine
    stalls every task, but not each time."""
    for _ in range(TRIES):
        if await share_of_longest_stall(work()) < 0.3:
            return True
    return False


async def test_what_takes_long_in_all_is_done_in_turns() -> None:
    handed_out = []

    async def work(turn_seconds: float) -> None:
        async for item in in_turns(range(200), SystemClock(), turn_seconds):
            hold_up(0.001)
            handed_out.append(item)

    assert await share_of_longest_stall(work(3600)) > 0.9
    assert await stalls_little(lambda: work(0.005))
    assert handed_out == list(range(200)) * (len(handed_out) // 200)


@pytest.mark.parametrize("method", ["QueueStatus", "SearchOffset"])
async def test_a_call_about_very_many_queues_lets_others_in_between(
    tmp_path: Path, nameserver: BrokerRoutes, method: str
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, *[b"x"] * 64)
        queues = [pb.BrokerQueue(topic="T", queue_id=0)] * QUEUES_MAX
        request: Any = pb.QueueStatusRequest(queues=queues, with_residency=True)
        if method == "SearchOffset":
            request = pb.SearchOffsetRequest(queues=queues, timestamp_ms=1 << 40)
        assert await stalls_little(lambda: broker.call(method, request))
