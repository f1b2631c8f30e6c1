"""Work queue of a consumer: pending work, and workers that wait for work."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, Generic, NoReturn, TypeVar

Work = TypeVar("Work")


def _raise(error: BaseException) -> NoReturn:
    raise error


class _IdleWorker(asyncio.Future[None]):
    """Future of a waiting worker; done when the worker has work."""

    __slots__ = ("_context", "_step")

    def add_done_callback(
        self, fn: Callable[[Any], object], /, *, context: Context | None = None
    ) -> None:
        # Called once, by the task that awaits this future: `fn` runs the next step of the task.
        self._step, self._context = fn, context

    def cancel(self, msg: Any | None = None) -> bool:
        if not self.done():
            super().add_done_callback(self._step, context=self._context)
        return super().cancel(msg)

    def wake(self) -> None:
        """Run the task in the next iteration of the loop."""
        super().add_done_callback(self._step, context=self._context)
        self.set_result(None)

    def run(self) -> None:
        """Run the task up to its next wait. No task may be running."""
        self.set_result(None)
        assert self._context is not None
        try:
            self._context.run(self._step, self)
        except BaseException as error:  # noqa: BLE001 - only KeyboardInterrupt and SystemExit leave a task
            # These errors must end the loop: raised outside of the transport's callback.
            self.get_loop().call_soon(_raise, error)


class WorkQueue(Generic[Work]):
    """Unbounded FIFO queue, for the thread of the event loop.

    If no task is running, `put` runs a waiting worker: a message is handled in the callback that
    received it, not in a later iteration of the loop.

    Args:
        clock: monotonic seconds.

    Attributes:
        ran_at: time of `clock` at which `put` last ran a worker; the loop ran immediately before.
    """

    __slots__ = ("_clock", "_idle", "_run_from", "_work", "ran_at")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.ran_at = 0.0
        self._work: deque[Work] = deque()
        self._idle: list[_IdleWorker] = []
        # Until this time the loop runs the workers.
        self._run_from = 0.0

    def put(self, work: Work) -> None:
        """Add work, and run or wake a worker."""
        self._work.append(work)
        self._run_worker()

    def _run_worker(self) -> None:
        while self._idle:
            idle = self._idle.pop()
            if idle.done():
                # Its worker was cancelled.
                continue
            began = self._clock()
            if began < self._run_from or asyncio.current_task(idle.get_loop()) is not None:
                idle.wake()
                return
            self.ran_at = began
            idle.run()
            ended = self._clock()
            # Other callbacks of the loop get the same time as handlers that run in `put`.
            self._run_from = ended + (ended - began)
            return

    async def get(self) -> Work:
        """Wait for work, and remove it. Cancelling it is safe."""
        while not self._work:
            idle = _IdleWorker(loop=asyncio.get_running_loop())
            self._idle.append(idle)
            try:
                await idle
            except asyncio.CancelledError:
                if idle in self._idle:
                    self._idle.remove(idle)
                elif self._work:
                    self._run_worker()
                raise
        return self._work.popleft()
