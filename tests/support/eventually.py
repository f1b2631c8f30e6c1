"""Waiting for what other tasks bring about."""

import asyncio
from collections.abc import Callable

WAIT_SECONDS_MAX = 15.0


async def eventually(holds: Callable[[], bool], seconds_max: float = WAIT_SECONDS_MAX) -> None:
    """Return once `holds()`; TimeoutError when it does not become true in time."""
    pause = 0.002
    async with asyncio.timeout(seconds_max):
        while not holds():
            await asyncio.sleep(pause)
