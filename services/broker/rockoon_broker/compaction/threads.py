"""Thread pool for files of generations, separate from the event loop and other pools."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

THREADS_MAX = 4

Result = TypeVar("Result")


class Threads:
    """A small thread pool. Running work is not cancelled with its caller."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="generations")

    async def run(self, work: Callable[..., Result], *arguments: object) -> Result:
        """Run a call on a thread; returns its result or raises its exception."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    def close(self) -> None:
        """Wait for running calls and discard queued ones."""
        self._pool.shutdown(cancel_futures=True)
