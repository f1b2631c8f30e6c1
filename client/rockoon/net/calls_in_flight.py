"""Pending calls to a process that, according to the routes, has been replaced by another one.

A machine that has vanished does not answer. Without this, a long poll there would wait for its
whole timeout, although the log's next leader has the messages.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Reply = TypeVar("Reply")

# Current address of the service; None if the routes have none, which does not mean that it moved.
AddressNow = Callable[[], str | None]


class Moved(Exception):
    """Raised if another process has replaced the peer of a call; the call may have been
    executed."""


class CallsInFlight:
    """The calls of a connection that have no reply yet. Used only by the event loop's thread."""

    def __init__(self) -> None:
        # Call → function for the current address, address of the call, and its farewell time.
        self._calls: dict[Any, tuple[AddressNow, str, float]] = {}
        self._moved: set[Any] = set()

    async def answer(
        self, call: Awaitable[Reply], address_now: AddressNow, farewell_seconds: float = 0.0
    ) -> Reply:
        """Return the reply to a call that was just started.

        Args:
            call: the call.
            address_now: returns the current address of the called service.
            farewell_seconds: how long to wait for the reply after the service has moved. A leader
                that hands over has answered by then, but the new routes may arrive first.

        Raises:
            Moved: another process has replaced the peer.
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
        """Cancel a call that was just started as soon as its service moves; arguments as in
        `answer`."""
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

    def cancel_moved(self) -> None:
        """Cancel the calls to services that have moved; called after a change of the routes."""
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
