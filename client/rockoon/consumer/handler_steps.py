"""Handler calls that end without waiting: such a call is one step of its coroutine.

If a call waits, the worker that awaits it runs the remaining steps in its task.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from types import CoroutineType
from typing import Any, Final

# Maximum time between checks that a call may start. With a longer time, a call could start for a
# queue that another member got while this process was stopped.
_SURE_SECONDS = 0.001


class StartedCall:
    """Awaitable for the rest of a handler call whose first step has run. To be awaited once.

    Args:
        coroutine: the handler's coroutine after one step.
        waits_for: object that the coroutine yielded to the event loop in that step.
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
    may_start: Callable[[], bool],
    seconds_max: float,
) -> tuple[int, Awaitable[Any] | None]:
    """Call an async handler for one argument after the other while calls succeed without waiting.

    Args:
        handler: called in the running task.
        arguments: one for each call.
        may_start: true if a call may start; the caller has checked it for the first call.
        seconds_max: no call starts later than this.

    Returns:
        The number of calls that ended with None or True, and an awaitable of the next call, which
        waits, raised or returned another value. None if all calls succeeded or were not started.
    """
    clock = time.monotonic
    now = clock()
    until, sure_until = now + seconds_max, now + _SURE_SECONDS
    ended = 0
    for argument in arguments:
        now = clock()
        if now >= sure_until:
            if now >= until or not may_start():
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
        return ended, StartedCall(call, waits_for)
    return ended, None
