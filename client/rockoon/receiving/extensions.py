"""Automatic extension: a message stays invisible while its receiver still holds the object.

If a handler runs for longer than `visible_after`, its message must not be delivered a second time.
When half of that time has passed, messages that are neither settled nor garbage-collected are
extended by `visible_after`. If a program drops a message (an exception, a lost reference), the
extensions end, and the group gets the message again.
"""

import asyncio
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Sequence,
)
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from weakref import ref

from rockoon.errors import Closed, RockoonError
from rockoon.receiving.received import ReceivedMessage
from rockoon_core.repeated_lines import limited

log = limited(logging.getLogger(__name__))

# Shares of `visible_after`. Three retries of a failed extension fit into the other half.
_RETRY_SHARE = 1 / 8
_EXTEND_SHARE = 1 / 2

Extend = Callable[[Sequence[ReceivedMessage], float], Awaitable[Sequence[ReceivedMessage]]]
"""Extends messages by seconds; returns those that the group delivers to another receiver by now."""
StartTask = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]


class _ExtendedMessage(NamedTuple):
    """A received message that is not settled yet."""

    message: "ref[ReceivedMessage]"
    visible_after: float
    due: float
    """Loop time of the next extension."""
    until: float
    """Loop time after which it is not extended."""


class Extensions:
    """The messages of one consumer, and the timer that extends them.

    Args:
        group: for log lines.
        extend: makes the call; see `Extend`.
        start_task: starts a task with a name; the connection owns it.
        seconds_max: how long after its receipt a message is extended at most, seconds.
    """

    def __init__(
        self, group: str, extend: Extend, start_task: StartTask, seconds_max: float
    ) -> None:
        self._group = group
        self._extend = extend
        self._start_task = start_task
        self._seconds_max = seconds_max
        # By `id` of the message object; an entry whose reference is dead is deleted.
        self._held: dict[int, _ExtendedMessage] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._running: asyncio.Task[None] | None = None
        self._is_closed = False

    def add(self, messages: Iterable[ReceivedMessage], visible_after: float) -> None:
        """Extend these messages until they are settled, dropped, or `seconds_max` have passed."""
        if self._seconds_max <= 0 or self._is_closed:
            return
        now = asyncio.get_running_loop().time()
        due = now + visible_after * _EXTEND_SHARE
        until = now + self._seconds_max
        for message in messages:
            self._held[id(message)] = _ExtendedMessage(ref(message), visible_after, due, until)
        if self._held:
            self._schedule(due)

    @asynccontextmanager
    async def settling(self, messages: Collection[ReceivedMessage]) -> AsyncIterator[None]:
        """Stop extending messages, which the block settles.

        The block begins once no extension of them is under way: their receipts are valid then. If
        the block fails, the program still holds the messages, so they are extended again.
        """
        held = {
            key: found
            for key in map(id, messages)
            if (found := self._held.pop(key, None)) is not None
        }
        if self._running is not None:
            await asyncio.wait([self._running])
        try:
            yield
        except RockoonError:
            if held and not self._is_closed:
                self._held |= held
                self._schedule(min(each.due for each in held.values()))
            raise

    async def close(self) -> None:
        """Stop extending all messages."""
        self._is_closed = True
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._running is not None:
            await asyncio.wait([self._running])

    def _schedule(self, due: float) -> None:
        """Schedule `_run` for a loop time, unless it is scheduled for an earlier one."""
        if self._running is not None or (self._timer is not None and self._timer_due <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = asyncio.get_running_loop().call_at(due, self._start)

    def _start(self) -> None:
        self._timer = None
        work = self._run()
        try:
            self._running = self._start_task(work, f"rockoon {self._group} extension")
        except Closed:  # without a connection, no message can be extended
            work.close()
            self._held.clear()
            return
        self._running.add_done_callback(self._on_done)

    def _on_done(self, _task: asyncio.Task[None]) -> None:
        self._running = None
        if self._held:
            self._schedule(min(each.due for each in self._held.values()))

    async def _run(self) -> None:
        """Extend all messages that are due."""
        now = asyncio.get_running_loop().time()
        by_seconds: dict[float, list[ReceivedMessage]] = {}
        for key, held in list(self._held.items()):
            message = held.message()
            if message is None or held.until <= now:
                del self._held[key]
            elif held.due <= now:
                by_seconds.setdefault(held.visible_after, []).append(message)
        for visible_after, messages in by_seconds.items():
            await self._extend_some(messages, visible_after)

    async def _extend_some(self, messages: list[ReceivedMessage], visible_after: float) -> None:
        pause = visible_after * _EXTEND_SHARE
        try:
            lost = await self._extend(messages, visible_after)
        except RockoonError as error:
            pause = visible_after * _RETRY_SHARE
            log.warning(
                "group %s: %d messages were not extended, next try in %.1f s: %s",
                self._group,
                len(messages),
                pause,
                error,
            )
            lost = ()
        for message in lost:
            self._held.pop(id(message), None)
            log.warning(
                "group %s: message %d of %s was delivered to another receiver while it was handled",
                self._group,
                message.queue_offset,
                message.queue,
            )
        due = asyncio.get_running_loop().time() + pause
        for message in messages:
            if (held := self._held.get(id(message))) is not None:
                self._held[id(message)] = held._replace(due=due)
