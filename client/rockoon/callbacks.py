"""Callbacks: functions that a program gives to the SDK, async or plain."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any


def is_async(callback: Callable[..., Any]) -> bool:
    """Whether a call gives something to await, as far as can be told before."""
    return inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(
        type(callback).__call__
    )


async def call(callback: Callable[[Any], Any], argument: Any) -> Any:
    """Call an async function here and any other in a thread, and return what comes of it."""
    if is_async(callback):
        return await callback(argument)
    result = await asyncio.to_thread(callback, argument)
    # A lambda around an async function is not seen to be one before it is called.
    return await result if inspect.isawaitable(result) else result


def is_being_cancelled() -> bool:
    """Whether the running task is to end. Where it is not, a CancelledError that comes out of a
    callback is the callback's own: what it awaited was cancelled."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
