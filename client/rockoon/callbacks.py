"""Calls of user callbacks, which may be async or plain functions."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any


def is_async(callback: Callable[..., Any]) -> bool:
    """Whether a call returns an awaitable, as far as the callback's type shows."""
    return inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(
        type(callback).__call__
    )


async def call(callback: Callable[[Any], Any], argument: Any) -> Any:
    """Call an async callback in the event loop and any other in a thread; return the result."""
    if is_async(callback):
        return await callback(argument)
    result = await asyncio.to_thread(callback, argument)
    # A lambda that returns a coroutine is only recognized by its result.
    return await result if inspect.isawaitable(result) else result


def is_being_cancelled() -> bool:
    """Whether the running task is being cancelled. If it is not, a CancelledError from a callback
    comes from something that the callback awaited."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
