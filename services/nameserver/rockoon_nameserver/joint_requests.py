"""Joint requests: requests made within a short time, sent as one; see `rounds`."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Request = TypeVar("Request")
Reply = TypeVar("Reply")


class JointRequests(Generic[Request, Reply]):
    """Collects requests and sends them as one. Not thread-safe.

    Args:
        ask: sends several requests, returns replies in their order; its exception is raised to each
            caller.
        tasks: owns the calls, because the caller of the first request may be cancelled.
        gather_seconds: how long the first request waits for more; 0: one loop iteration.
        count_max: maximum of requests in one call.
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
        """Return the reply to one request. Raises the exception of `ask`."""
        loop = asyncio.get_running_loop()
        replied: asyncio.Future[Reply] = loop.create_future()
        if not self._gathered:
            loop.call_later(self._gather_seconds, self._send)
        self._gathered.append((request, replied))
        return await replied

    def _send(self) -> None:
        # Without the requests of cancelled callers; none may be left.
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
        except Exception as failure:  # noqa: BLE001 - raised to the callers
            for _, replied in some:
                if not replied.done():
                    replied.set_exception(failure)
        finally:
            # If this task is cancelled, nothing else ends the waits.
            for _, replied in some:
                replied.cancel()
