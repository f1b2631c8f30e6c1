"""Body feed: bodies that one thread reads and an event loop of another one sends.

What the caller's iterable waits for holds up only the caller. Nothing here is locked: each deque is
written by the reading thread and emptied by the loop, and each counter and flag says who writes it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from threading import Event

from rockoon.producer.outgoing import Body

Keys = str | Sequence[str] | None

# Read ahead of the producer; a body counts for what it has, any other object for nothing.
_AHEAD_MESSAGES_MAX = 4096
_AHEAD_BYTES_MAX = 1 << 20
# So long a chunk may grow when the loop has waited for its first body: else a fast iterable would
# wake the loop for each.
_LINGER_SECONDS = 0.001


class BodyFeed:
    """Reads bodies in one thread and hands them to the loop in chunks.

    Args:
        loop: where they are sent.
        bodies: read by `read` only.
        keys: the keys of each message, read with it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        bodies: Iterable[Body],
        keys: Iterable[Keys] | None,
    ) -> None:
        self._loop = loop
        self._bodies = bodies
        self._keys = None if keys is None else iter(keys)
        self._read: deque[Body] = deque()
        self._read_keys: deque[Keys] = deque()
        self._arrived = asyncio.Event()
        self._room = Event()
        # Written by the reading thread.
        self._bytes_read = 0
        self._has_ended = False
        # Written by the loop.
        self._bytes_taken = 0
        self._is_stopped = False
        # The loop sets it before it looks for the last time, the thread clears it after it has put
        # something there: one of them sees what the other did.
        self._is_waiting = False

    # In the thread that reads

    def read(self) -> None:
        """Read all, holding back as the loop takes it; returns early after `stop`."""
        for body in self._bodies:
            if self._is_stopped:
                return
            if self._keys is not None:
                # Before its body, which the loop may take at once.
                self._read_keys.extend(_first(self._keys))
            self._bytes_read += _size(body)
            self._read.append(body)
            if self._is_waiting:
                self._wake()
            if self._is_full():
                self._room.clear()
                # Again, for room made before that was cleared is told by nobody.
                if self._is_full() and not self._is_stopped:
                    self._room.wait()
        if self._keys is not None:
            # One too many is for the producer to refuse.
            self._read_keys.extend(_first(self._keys))
        self._has_ended = True
        self._wake()

    def _wake(self) -> None:
        self._is_waiting = False
        with suppress(RuntimeError):  # The loop has ended; whoever asks for the result is told.
            self._loop.call_soon_threadsafe(self._arrived.set)

    def _is_full(self) -> bool:
        ahead_bytes = self._bytes_read - self._bytes_taken
        return len(self._read) >= _AHEAD_MESSAGES_MAX or ahead_bytes >= _AHEAD_BYTES_MAX

    # In the loop's thread

    def stop(self) -> None:
        """Nothing more is taken: the reading ends with the next body."""
        self._is_stopped = True
        self._room.set()

    @property
    def keys(self) -> Iterator[Keys] | None:
        """The keys of the bodies taken, and one more if there were too many."""
        return None if self._keys is None else _popped(self._read_keys)

    async def chunks(self, messages_max: int, bytes_max: int) -> AsyncIterator[list[Body]]:
        """What has been read, some at a time: `bytes_max` and a body at most."""
        while True:
            chunk: list[Body] = []
            room = bytes_max
            while self._read and room > 0 and len(chunk) < messages_max:
                body = self._read.popleft()
                chunk.append(body)
                room -= _size(body)
            self._bytes_taken += bytes_max - room
            self._room.set()
            if chunk:
                yield chunk
            elif not await self._wait_read():
                return

    async def _wait_read(self) -> bool:
        """Wait until there is more; False when all was taken."""
        # Before the deque is looked at: what ended after that look may have filled it.
        has_ended = self._has_ended
        self._arrived.clear()
        self._is_waiting = True
        if not self._read and not has_ended:
            await self._arrived.wait()
            if not self._has_ended:
                await asyncio.sleep(_LINGER_SECONDS)
        self._is_waiting = False
        return bool(self._read) or not has_ended


def _size(body: object) -> int:
    return len(body) if isinstance(body, bytes | bytearray) else 0


def _first(keys: Iterator[Keys]) -> Iterable[Keys]:
    """The next one, or none."""
    for each in keys:
        return (each,)
    return ()


def _popped(keys: deque[Keys]) -> Iterator[Keys]:
    while keys:
        yield keys.popleft()
