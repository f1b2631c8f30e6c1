"""Wake-ups for idle tasks, so that no task polls."""

import asyncio

from rockoon_core.clock import wait_at_most


class Bell:
    """Wakes all waiting tasks. Used only by the event loop's thread.

    `ring` costs one check of a list if no task waits. The bell stores no state: a task first checks
    its condition, and then waits without an await in between.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def ring(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until the bell rings, at most `seconds`."""
        rung = asyncio.get_running_loop().create_future()
        self._waiting.append(rung)
        try:
            async with asyncio.timeout(seconds):
                await rung
        except TimeoutError:
            return
        finally:
            if rung in self._waiting:
                self._waiting.remove(rung)


class WorkRounds:
    """Schedules the rounds of a periodic task. Used only by the event loop's thread.

    A `ring` during a round causes another round, because the round may have missed the event.

    Args:
        apart_seconds: minimum time between the starts of two rounds, so that one round handles
            events that arrive close together.
    """

    def __init__(self, apart_seconds: float) -> None:
        self._apart_seconds = apart_seconds
        self._news = asyncio.Event()
        self._began_seconds = 0.0

    def ring(self) -> None:
        self._news.set()

    def begin(self) -> None:
        """Start a round: it handles all events until now."""
        self._news.clear()
        self._began_seconds = asyncio.get_running_loop().time()

    async def wait_next(self, seconds: float | None) -> None:
        """Wait until a round is requested, or due after `seconds`."""
        await wait_at_most(seconds, self._news.wait())
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(max(self._began_seconds + self._apart_seconds - now, 0.0))
