"""Retries of a call while its error is retriable."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rockoon.errors import RockoonError
from rockoon_core.clock import Backoff

Answer = TypeVar("Answer")


async def retried(
    attempt: Callable[[], Awaitable[Answer]],
    seconds: float,
    passing: type[RockoonError] | tuple[type[RockoonError], ...] = RockoonError,
) -> Answer:
    """Repeat an operation while its error is retriable.

    Args:
        attempt: the operation.
        seconds: no attempt starts after this time.
        passing: classes of errors to retry; an error of another class is raised immediately.

    Raises:
        RockoonError: the error of the last attempt.
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
