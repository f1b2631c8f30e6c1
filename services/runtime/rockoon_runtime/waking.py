"""Waking of tasks that have nothing to do, so that none looks again and again."""

import asyncio


class Bell:
    """Wakes all that wait for it. Used by the event loop's thread alone.

    Ringing it while nobody waits costs a look at a list. It remembers nothing: who waits looks
    first, and begins to wait without a pause in between.
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
        """Wait until it rings.

        Args:
            seconds: how long at most; None means without limit.
        """
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


class Turns:
    """When a task that works in turns has its next one. Used by the event loop's thread alone.

    News that comes during a turn, and may be too late for it, leads to another one.

    Args:
        apart_seconds: from the beginning of a turn to the next one's at least, so that what comes
            close together is one turn's work.
    """

    def __init__(self, apart_seconds: float) -> None:
        self._apart_seconds = apart_seconds
        self._news = asyncio.Event()
        self._began_seconds = 0.0

    def ring(self) -> None:
        """There is news."""
        self._news.set()

    def begin(self) -> None:
        """A turn begins: whatever there is, it sees."""
        self._news.clear()
        self._began_seconds = asyncio.get_running_loop().time()

    async def wait_next(self, seconds: float | None) -> None:
        """Wait until there is news, or something is due.

        Args:
            seconds: until something is due; None when nothing is.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            pass
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(max(self._began_seconds + self._apart_seconds - now, 0.0))
