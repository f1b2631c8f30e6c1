"""Runs the first step of a call without a task: a handler that never waits needs no task.

The handler's coroutine starts in the callback that received the request. If the coroutine awaits
something that is not done, a new task awaits it and continues the coroutine. During the first step
`FirstStep` acts as the current task, so `asyncio.timeout`, `TaskGroup` and cancellation work.
"""

import asyncio
import types
from asyncio import tasks
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any, Protocol

Steps = Coroutine[Any, Any, Any]

# As asyncio's own tasks do; any object may be the current task.
_enter_task: Callable[[asyncio.AbstractEventLoop, Any], None] = tasks._enter_task
_leave_task: Callable[[asyncio.AbstractEventLoop, Any], None] = tasks._leave_task


class FirstStep:
    """Substitute for the current task during the first step; later, it delegates to the task."""

    __slots__ = ("__weakref__", "_cancels", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self._cancels = 0

    def cancel(self, msg: object = None) -> bool:
        """Cancel the real task if there is one, else the first wait of the coroutine."""
        if self.task is not None:
            return self.task.cancel(msg)
        self._cancels += 1
        return True

    def cancelling(self) -> int:
        return self._cancels if self.task is None else self.task.cancelling()

    def uncancel(self) -> int:
        if self.task is not None:
            return self.task.uncancel()
        self._cancels = max(self._cancels - 1, 0)
        return self._cancels

    def done(self) -> bool:
        return self.task is not None and self.task.done()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def begin(self, task: asyncio.Task[None]) -> None:
        """Delegate to `task`, which continues the coroutine, from now on."""
        self.task = task
        for _ in range(self._cancels):
            task.cancel()


class Ending(Protocol):
    """Callbacks for the result or the exception of a coroutine, from the first step or from the
    task."""

    def returned(self, result: Any) -> None: ...

    def raised(self, failure: BaseException) -> None: ...


def run(loop: asyncio.AbstractEventLoop, steps: Steps, ending: Ending) -> asyncio.Task[None] | None:
    """Run a coroutine until it waits for something; a task runs the rest.

    Args:
        loop: the running event loop.
        steps: a coroutine that was not started.
        ending: receives the result or the exception of the coroutine.

    Returns:
        The task; None if the coroutine has already ended.
    """
    context = copy_context()
    step = FirstStep()
    _enter_task(loop, step)
    try:
        awaited = context.run(steps.send, None)
    except StopIteration as end:
        _leave_task(loop, step)
        ending.returned(end.value)
        return None
    except (KeyboardInterrupt, SystemExit):
        _leave_task(loop, step)
        raise
    except BaseException as failure:  # noqa: BLE001 - passed on
        _leave_task(loop, step)
        ending.raised(failure)
        return None
    _leave_task(loop, step)
    rest = _rest(steps, awaited, ending)
    # A task that is cancelled before its first step does not enter a new coroutine, and would not
    # pass the cancellation to `steps`. So the coroutine is entered here.
    rest.send(None)
    task: asyncio.Task[None] = loop.create_task(rest, context=context)
    step.begin(task)
    return task


async def _rest(steps: Steps, awaited: Any, ending: Ending) -> None:
    try:
        result = await _continued(steps, awaited)
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        # GeneratorExit: the loop has ended before the call.
        raise
    except BaseException as failure:  # noqa: BLE001 - passed on
        ending.raised(failure)
    else:
        ending.returned(result)


@types.coroutine
def _continued(steps: Steps, awaited: Any) -> Any:
    """Continue a coroutine that waits for `awaited`, as if a task had started it."""
    try:
        try:
            yield
        except asyncio.CancelledError as cancelled:
            # As a task does: cancel the awaited future, if there is one.
            if not (awaited is not None and awaited.cancel(*cancelled.args)):
                awaited = steps.throw(cancelled)
        while True:
            try:
                yield awaited
            except BaseException as thrown:  # noqa: BLE001 - passed on, as `await` does
                awaited = steps.throw(thrown)
            else:
                break
        # Faster than the loop above: each later wake-up resumes `steps` directly.
        return (yield from steps)
    except StopIteration as end:
        return end.value
