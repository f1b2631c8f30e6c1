"""An idle broker sleeps: it is woken by what arrives, and by what is due."""

import asyncio
from pathlib import Path

from bench.cluster.counted import CallCounter
from rockoon_proto.v1 import broker_pb2 as pb
from support.broker import running_broker
from support.broker_routes import BrokerRoutes
from support.waiting import DEADLINE_SECONDS

WINDOW_SECONDS = 0.3
WINDOWS = 2
# In a window, for what is looked at once a second or less. One tick of the store takes more.
CALLS_MAX = 25


async def broker_calls(counter: CallCounter) -> dict[str, int]:
    """How often the broker's functions are called in a window."""
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
            # First what was appended is put in order: recovery point, index, snapshots.
            while quiet < WINDOWS:
                calls = await broker_calls(counter)
                quiet = quiet + 1 if sum(calls.values()) <= CALLS_MAX else 0
        assert not waiting.done()
        # And all of it is awake at once.
        await broker.append("T", 0, b"two")
        assert (await waiting).next_offset == 2
