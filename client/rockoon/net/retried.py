"""Retries of a call, as long as its failure can pass."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rockoon.errors import RockoonError
from rockoon_core.backoff import Backoff

Answer = TypeVar("Answer")


async def retried(
    attempt: Callable[[], Awaitable[Answer]],
    seconds: float,
    passing: type[RockoonError] | tuple[type[RockoonError], ...] = RockoonError,
) -> Answer:
    """Try again while the failure can pass and is one of `passing`.

    Args:
        attempt: what is tried.
        seconds: after this no try begins.
        passing: failures of other kinds are raised at once.

    Raises:
        RockoonError: that of the last try.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    backoff = Backoff()
    while True:
        try:
            return await attempt()
        except RockoonError as error:
            pause = backoff.next_seconds()
            may_pass = error.retriable and isinstance(error, passing)
            if not may_pass or loop.time() + pause > deadline:
                raise
        await asyncio.sleep(pause)
