"""An idle broker sleeps until messages arrive or timers are due."""

import asyncio
from pathlib import Path

from bench.cluster.counted import CallCounter
from rockoon_proto.v1 import broker_pb2 as pb
from support.broker import running_broker
from support.broker_routes import BrokerRoutes
from support.waiting import DEADLINE_SECONDS

WINDOW_SECONDS = 0.3
WINDOWS = 2
# Calls in a window, for work that runs once a second or less. One tick of the store needs more.
CALLS_MAX = 25


async def broker_calls(counter: CallCounter) -> dict[str, int]:
    """Return the number of calls of the broker's functions in a window."""
    counter.start()
    await asyncio.sleep(WINDOW_SECONDS)
    counter.stop()
    calls = counter.calls("rockoon_broker")
    counter.clear()
    return calls


async def test_a_broker_whose_readers_wait_hardly_does_anything(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with (
        running_broker(tmp_path, [nameserver.address]) as broker,
        asyncio.TaskGroup() as tasks,
    ):
        await broker.append("T", 0, b"one")
        request = pb.PullRequest(topic="T", queue_id=0, offset=1, wait_ms=60_000)
        waiting = tasks.create_task(broker.call("Pull", request), name="pull")
        counter, quiet = CallCounter(), 0
        async with asyncio.timeout(DEADLINE_SECONDS):
            # First the work after the appends: recovery point, index, snapshots.
            while quiet < WINDOWS:
                calls = await broker_calls(counter)
                quiet = quiet + 1 if sum(calls.values()) <= CALLS_MAX else 0
        assert not waiting.done()
        # All readers wake immediately.
        await broker.append("T", 0, b"two")
        assert (await waiting).next_offset == 2
