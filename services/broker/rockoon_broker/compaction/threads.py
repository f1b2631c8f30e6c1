"""Threads for work on generations' files: neither on the event loop nor in the way of
other work in threads."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

THREADS_MAX = 4

Result = TypeVar("Result")


class Threads:
    """A few threads. Their work goes on when who waits for it is cancelled."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="generations")

    async def run(self, work: Callable[..., Result], *arguments: object) -> Result:
        """Have a call made by a thread; returns, or raises, what it does."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    def close(self) -> None:
        """Wait for the calls that are being made; the others are not made any more."""
        self._pool.shutdown(cancel_futures=True)
