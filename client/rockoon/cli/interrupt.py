"""Ctrl-C as a clean end of a command that runs until it is stopped."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


async def wait_set(event: asyncio.Event) -> None:
    await event.wait()


class Interrupt:
    """Ends running coroutines cleanly on SIGINT or SIGTERM."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    @property
    def received(self) -> bool:
        return self._event.is_set()

    async def unless(self, *works: Coroutine[Any, Any, None]) -> None:
        """Run coroutines until one returns or a signal arrives; cancel the rest."""
        async with asyncio.TaskGroup() as tasks:
            running = {tasks.create_task(work) for work in (*works, wait_set(self._event))}
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in running:
                task.cancel()

    def __enter__(self) -> "Interrupt":
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._event.set)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
