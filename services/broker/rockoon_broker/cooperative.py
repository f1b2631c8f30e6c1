"""Long work on the event loop, done in short turns."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

from rockoon_broker.clock import Clock

# Maximum delay of appends and pulls by one call about thousands of queues.
TURN_SECONDS = 0.005

Item = TypeVar("Item")


async def in_turns(
    items: Iterable[Item], clock: Clock, turn_seconds: float = TURN_SECONDS
) -> AsyncIterator[Item]:
    """Yield items one by one; other tasks of the event loop run after each turn.

    Args:
        items: processed by the caller without an await.
        turn_seconds: minimum duration of a turn; its last item may exceed it.
    """
    began = clock.monotonic_seconds()
    for item in items:
        yield item
        if clock.monotonic_seconds() - began >= turn_seconds:
            await asyncio.sleep(0)
            began = clock.monotonic_seconds()
