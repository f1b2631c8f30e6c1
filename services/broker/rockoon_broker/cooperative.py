"""Long work on the event loop, done in turns."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

from rockoon_broker.clock import Clock

# What appends and pulls wait at most for one call that asks about thousands of queues.
TURN_SECONDS = 0.005

Item = TypeVar("Item")


async def in_turns(
    items: Iterable[Item], clock: Clock, turn_seconds: float = TURN_SECONDS
) -> AsyncIterator[Item]:
    """Hand out items one by one; whoever else is ready runs whenever a turn is over.

    Args:
        items: what the caller works on, without waiting for anything.
        clock: tells how long a turn has taken.
        turn_seconds: length of a turn; only the item that it ends with makes it longer.
    """
    began = clock.monotonic_seconds()
    for item in items:
        yield item
        if clock.monotonic_seconds() - began >= turn_seconds:
            await asyncio.sleep(0)
            began = clock.monotonic_seconds()
