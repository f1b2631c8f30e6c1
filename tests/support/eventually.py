"""Waiting for effects of other tasks and processes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from support.waiting import DEADLINE_SECONDS, pauses

Answer = TypeVar("Answer")


async def eventually(holds: Callable[[], Answer], seconds_max: float = DEADLINE_SECONDS) -> Answer:
    """Return the result of `holds()` once it is true; TimeoutError: it was not true in time."""
    between = pauses()
    async with asyncio.timeout(seconds_max):
        while not (held := holds()):
            await asyncio.sleep(next(between))
    return held


async def moves_until(look: Callable[[], Answer], holds: Callable[[Answer], object]) -> Answer:
    """Return the result of `look()` once `holds` accepts it. It may take as long as the machine
    needs: TimeoutError is raised only if the result stays the same for too long."""
    between, last = pauses(), look()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_SECONDS
    while not holds(now := look()):
        if now != last:
            last, deadline = now, loop.time() + DEADLINE_SECONDS
        if loop.time() > deadline:
            raise TimeoutError(f"it stays {now!r}")
        await asyncio.sleep(next(between))
    return now


async def answered(
    ask: Callable[[], Awaitable[Answer]], holds: Callable[[Answer], object]
) -> Answer:
    """Ask until the answer is as wanted, and return it; TimeoutError: it never was."""
    between = pauses()
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not holds(answer := await ask()):
            await asyncio.sleep(next(between))
    return answer
