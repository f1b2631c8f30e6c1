"""An idle offset service sleeps until a lease is over."""

import asyncio

from offset.cluster import Cluster

from bench.cluster.counted import CallCounter

WINDOW_SECONDS = 1.1
# For events of the service's own start.
LOOKS_MAX = 1


async def test_nobody_looks_for_members_that_fall_silent_while_there_are_none(
    cluster: Cluster,
) -> None:
    counter = CallCounter()
    counter.start()
    await asyncio.sleep(WINDOW_SECONDS)
    counter.stop()
    calls = counter.calls("rockoon_offset")
    assert calls.get("groups.Groups.expire_due", 0) <= LOOKS_MAX, calls
