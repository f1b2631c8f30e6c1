"""A counter of changes that many tasks can wait on without missing one."""

import asyncio


class Changes:
    """A counter of changes. A waiting task passes the last count that it has seen, and is woken
    once the count differs.

    Attributes:
        count: number of changes so far; only `notify` increments it.
    """

    __slots__ = ("_next", "count")

    def __init__(self) -> None:
        self.count = 0
        # Created by the first waiting task: most changes happen while no task waits.
        self._next: asyncio.Event | None = None

    def notify(self) -> None:
        """Record a change and wake all waiters."""
        self.count += 1
        if self._next is not None:
            self._next.set()
            self._next = None

    async def wait(self, seen: int) -> int:
        """Wait until the count differs from `seen`, and return it. Cancelling it is safe."""
        while self.count == seen:
            if self._next is None:
                self._next = asyncio.Event()
            await self._next.wait()
        return self.count
