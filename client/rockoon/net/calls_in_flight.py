"""Calls that wait for a process in whose place, as the routes tell, another one stands by now.

A machine that vanishes answers nothing, and a long poll there would wait for its whole time, while
the log's next leader has what is waited for.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Reply = TypeVar("Reply")

# Where a call would go now; None when nobody is known, which says nothing about who was.
AddressNow = Callable[[], str | None]


class Moved(Exception):
    """Another process stands where a call went; whether it was carried out is not known."""


class CallsInFlight:
    """Calls that have no answer yet. Used by the event loop's thread alone."""

    def __init__(self) -> None:
        # The call, where it would go now, where it went, and for how long it is heard still.
        self._calls: dict[Any, tuple[AddressNow, str, float]] = {}
        self._moved: set[Any] = set()

    async def answer(
        self, call: Awaitable[Reply], address_now: AddressNow, farewell_seconds: float = 0.0
    ) -> Reply:
        """The answer to a call that was begun just now.

        Args:
            call: it.
            address_now: where it would go now.
            farewell_seconds: how long it is waited for when another process stands where it went. A
                leader that hands over has answered before; the routes may be heard first.

        Raises:
            Moved: another process stands where it went.
            RpcError: as the call.
        """
        if not hasattr(call, "cancel"):
            return await call
        with self.follow(call, address_now, farewell_seconds):
            try:
                return await call
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if call in self._moved and task is not None and not task.cancelling():
                    raise Moved from None
                raise

    @contextmanager
    def follow(
        self, call: Any, address_now: AddressNow, farewell_seconds: float = 0.0
    ) -> Iterator[None]:
        """Cancel a call that was begun just now, if another process stands there meanwhile;
        arguments as of `answer`."""
        address = address_now()
        if address is None:
            yield
            return
        self._calls[call] = address_now, address, farewell_seconds
        try:
            yield
        finally:
            del self._calls[call]
            self._moved.discard(call)

    def look(self) -> None:
        """The routes may have changed: end the calls to those that are not there any more."""
        for call, (address_now, address, farewell_seconds) in list(self._calls.items()):
            if call not in self._moved and address_now() not in (None, address):
                self._moved.add(call)
                if farewell_seconds:
                    asyncio.get_running_loop().call_later(farewell_seconds, self._end, call)
                else:
                    call.cancel()

    def _end(self, call: Any) -> None:
        if call in self._moved:
            call.cancel()
