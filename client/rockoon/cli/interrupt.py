"""Ctrl-C as the orderly end of a command that goes on and on."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


async def wait_set(event: asyncio.Event) -> None:
    await event.wait()


class Interrupt:
    """Turns Ctrl-C into the orderly end of what is awaited."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    @property
    def came(self) -> bool:
        return self._event.is_set()

    async def unless(self, *works: Coroutine[Any, Any, None]) -> None:
        """Do these things until one of them is done, or Ctrl-C comes."""
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
