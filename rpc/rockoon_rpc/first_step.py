"""Calls that answer at once cost no task: their coroutine runs where the request was received.

A coroutine that waits for something gets a task then, which waits for the same and continues it.
Code of the first step sees a current task all the same, so `asyncio.timeout`, `TaskGroup` and
cancellation work in it: a `FirstStep` stands in for the task that may follow.
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
    """The current task of a first step. What is asked of it later, its task does."""

    __slots__ = ("__weakref__", "_cancels", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self._cancels = 0

    def cancel(self, msg: object = None) -> bool:
        """Cancel what is awaited next, or the task."""
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
        """A task goes on with the call."""
        self.task = task
        for _ in range(self._cancels):
            task.cancel()


class Ending(Protocol):
    """Is told of a coroutine's end, in the first step or in the task."""

    def returned(self, result: Any) -> None: ...

    def raised(self, failure: BaseException) -> None: ...


def run(loop: asyncio.AbstractEventLoop, steps: Steps, ending: Ending) -> asyncio.Task[None] | None:
    """Run a coroutine until it waits for something; a task runs the rest.

    Args:
        loop: the running one.
        steps: a new coroutine.
        ending: gets its result or its exception.

    Returns:
        The task; None if the coroutine is over.
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
    # To the point at which its task begins: a task that is cancelled before its first step does
    # not enter a new coroutine, and `steps` would learn nothing of it.
    rest.send(None)
    task: asyncio.Task[None] = loop.create_task(rest, context=context)
    step.begin(task)
    return task


async def _rest(steps: Steps, awaited: Any, ending: Ending) -> None:
    try:
        result = await _continued(steps, awaited)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as failure:  # noqa: BLE001 - passed on
        ending.raised(failure)
    else:
        ending.returned(result)


@types.coroutine
def _continued(steps: Steps, awaited: Any) -> Any:
    """Continue a coroutine that waits for `awaited`, as a task that had begun it would."""
    try:
        try:
            yield
        except asyncio.CancelledError as cancelled:
            # As a task does: cancelled is what it waits for, if that can be.
            if not (awaited is not None and awaited.cancel(*cancelled.args)):
                awaited = steps.throw(cancelled)
        while True:
            try:
                yield awaited
            except BaseException as thrown:  # noqa: BLE001 - passed on, as `await` does
                awaited = steps.throw(thrown)
            else:
                break
        # Without this function's own loop, which every wake-up would pay for.
        return (yield from steps)
    except StopIteration as end:
        return end.value
