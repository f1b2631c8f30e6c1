"""Requests that come within a moment of one another, made as one: see `rounds`."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Request = TypeVar("Request")
Reply = TypeVar("Reply")


class JointRequests(Generic[Request, Reply]):
    """Used by the event loop's thread alone.

    Args:
        ask: answers several, in their order; what it raises is raised by each of them.
        tasks: what is under way belongs to it, not to whoever came first and may be cancelled.
        gather_seconds: how long the first one waits for others; 0 for those of the same turn.
        count_max: how many are asked as one.
    """

    def __init__(
        self,
        ask: Callable[[Sequence[Request]], Awaitable[Sequence[Reply]]],
        tasks: asyncio.TaskGroup,
        gather_seconds: float,
        count_max: int,
    ) -> None:
        self._ask = ask
        self._tasks = tasks
        self._gather_seconds = gather_seconds
        self._count_max = count_max
        self._gathered: list[tuple[Request, asyncio.Future[Reply]]] = []

    async def ask(self, request: Request) -> Reply:
        """The reply to one of them. Raises whatever `ask` does."""
        loop = asyncio.get_running_loop()
        replied: asyncio.Future[Reply] = loop.create_future()
        if not self._gathered:
            loop.call_later(self._gather_seconds, self._send)
        self._gathered.append((request, replied))
        return await replied

    def _send(self) -> None:
        # Whose caller has gone is not asked for; at the end that may be all of them.
        gathered = [each for each in self._gathered if not each[1].done()]
        self._gathered = []
        for first in range(0, len(gathered), self._count_max):
            some = gathered[first : first + self._count_max]
            self._tasks.create_task(self._answer(some), name="joint request")

    async def _answer(self, some: Sequence[tuple[Request, asyncio.Future[Reply]]]) -> None:
        try:
            replies = await self._ask([request for request, _ in some])
            for (_, replied), reply in zip(some, replies, strict=True):
                if not replied.done():
                    replied.set_result(reply)
        except Exception as failure:  # noqa: BLE001 - raised by who waits
            for _, replied in some:
                if not replied.done():
                    replied.set_exception(failure)
        finally:
            # This one is cancelled: nobody else would end the waits.
            for _, replied in some:
                replied.cancel()
