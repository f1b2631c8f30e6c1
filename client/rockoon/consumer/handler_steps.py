"""Handler calls that end without waiting: each is one step of its coroutine, and no more.

A call that waits for something goes on where it stopped, in the task of the worker that awaits it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from types import CoroutineType
from typing import Any, Final

# How long calls may follow each other before it is asked again whether one may begin. Longer, and
# a call could begin for a queue that another member was given while this process slept.
_SURE_SECONDS = 0.001


class Begun:
    """A handler call that was begun, to be awaited once: it gives what the call returns or raises.

    Args:
        coroutine: what the handler returned, with one step done.
        waits_for: what it gave to the event loop in that step.
    """

    __slots__ = ("_coroutine", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> None:
        self._coroutine: Final = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, Any]:
        waits_for = self._waits_for
        try:
            while True:
                try:
                    sent = yield waits_for
                except GeneratorExit:
                    self._coroutine.close()
                    raise
                except BaseException as error:  # noqa: BLE001 - cancellation, above all, is the handler's
                    waits_for = self._coroutine.throw(error)
                else:
                    waits_for = self._coroutine.send(sent)
        except StopIteration as end:
            return end.value


async def _outcome(value: object, error: BaseException | None) -> object:
    if error is not None:
        raise error
    return value


def step_through(
    handler: Callable[[Any], Any],
    arguments: Iterable[Any],
    may_begin: Callable[[], bool],
    seconds_max: float,
) -> tuple[int, Awaitable[Any] | None]:
    """Call an async handler for one argument after the other while calls end at once, in success.

    Args:
        handler: called in the running task.
        arguments: one for each call.
        may_begin: whether a call may begin; taken to be so when this is called.
        seconds_max: no call begins later than this.

    Returns:
        How many calls ended with None or True; and the call after them, which waits for something,
        raised or returned something else, to be awaited. None if there is none.
    """
    clock = time.monotonic
    now = clock()
    until, sure_until = now + seconds_max, now + _SURE_SECONDS
    ended = 0
    for argument in arguments:
        now = clock()
        if now >= sure_until:
            if now >= until or not may_begin():
                break
            sure_until = now + _SURE_SECONDS
        try:
            call = handler(argument)
            if type(call) is not CoroutineType:
                return ended, call
            waits_for = call.send(None)
        except StopIteration as end:
            value = end.value
            if value is None or value is True:
                ended += 1
                continue
            return ended, _outcome(value, None)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the user's code
            return ended, _outcome(None, error)
        return ended, Begun(call, waits_for)
    return ended, None
