"""Body feed: one thread reads bodies from an iterable, the event loop of another thread sends them.

An iterable that blocks delays only its own caller. There are no locks: the reading thread appends
to each deque and the loop removes from it, and each counter and flag has one writer. Bodies from
any iterable are read in chunks, with the keys of their messages.
"""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from threading import Event
from typing import Any, NamedTuple

from rockoon.errors import InvalidArgument
from rockoon.producer.accumulator import MESSAGE_OVERHEAD_BYTES
from rockoon.producer.outgoing import BODY_BYTES_MAX, Body
from rockoon.producer.settings import ProducerSettings
from rockoon_format import kernel

Keys = str | Sequence[str] | None

# Bodies that are read before the producer needs them; objects that are no bodies count 0 bytes.
_AHEAD_MESSAGES_MAX = 4096
_AHEAD_BYTES_MAX = 1 << 20
# Time for further bodies to arrive after the loop has waited for one: a fast iterable would
# otherwise wake the loop for each body.
_LINGER_SECONDS = 0.001


class BodyFeed:
    """Reads bodies in one thread and hands them to the loop in chunks.

    Args:
        loop: the loop that sends the bodies.
        bodies: only `read` iterates over it.
        keys: the keys of each message, read with its body.
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
        # The loop sets it before its last check of the deque, the thread checks it after an append:
        # so a body is never left without a wake-up.
        self._is_waiting = False

    # In the reading thread

    def read(self) -> None:
        """Read all bodies, as fast as the loop removes them; return early after `stop`."""
        for body in self._bodies:
            if self._is_stopped:
                return
            if self._keys is not None:
                # Before the body, which the loop may remove immediately.
                self._read_keys.extend(_first(self._keys))
            self._bytes_read += _size(body)
            self._read.append(body)
            if self._is_waiting:
                self._wake()
            if self._is_full():
                self._room.clear()
                # Checked again: room that the loop made before `clear` sets no event any more.
                if self._is_full() and not self._is_stopped:
                    self._room.wait()
        if self._keys is not None:
            # One more than bodies, if there is one: the producer then refuses it.
            self._read_keys.extend(_first(self._keys))
        self._has_ended = True
        self._wake()

    def _wake(self) -> None:
        self._is_waiting = False
        with suppress(RuntimeError):  # The loop has ended; the caller's result has the error.
            self._loop.call_soon_threadsafe(self._arrived.set)

    def _is_full(self) -> bool:
        ahead_bytes = self._bytes_read - self._bytes_taken
        return len(self._read) >= _AHEAD_MESSAGES_MAX or ahead_bytes >= _AHEAD_BYTES_MAX

    # In the loop's thread

    def stop(self) -> None:
        """End the reading at the next body."""
        self._is_stopped = True
        self._room.set()

    @property
    def keys(self) -> Iterator[Keys] | None:
        """The keys of the bodies read, and one more if there are more keys than bodies."""
        return None if self._keys is None else _popped(self._read_keys)

    async def chunks(self, messages_max: int, bytes_max: int) -> AsyncIterator[list[Body]]:
        """Yield the bodies in chunks of at most `messages_max`; the last may exceed `bytes_max`."""
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
        """Wait until there is another body; False after the last one."""
        # Read before the deque is checked: the thread may append and end after the check.
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
    """Return the next entry, if there is one."""
    for each in keys:
        return (each,)
    return ()


def _popped(keys: deque[Keys]) -> Iterator[Keys]:
    while keys:
        yield keys.popleft()


# Maximum of messages and bytes of a chunk.
_CHUNK_MESSAGES = 256
_CHUNK_BYTES = 64 << 10


_NO_KEYS: tuple[str, ...] = ()


Bodies = Iterable[Body] | AsyncIterable[Body] | BodyFeed


class Chunk(NamedTuple):
    """One or more bodies."""

    bodies: list[Any]
    plain_bytes: int | None
    """Sum of their sizes; None if one of them is not `bytes`."""


async def body_chunks(bodies: Bodies) -> AsyncIterable[Chunk]:
    if isinstance(bodies, BodyFeed):
        async for read in bodies.chunks(_CHUNK_MESSAGES, _CHUNK_BYTES):
            yield _next_chunk(iter(read), sys.maxsize)
    elif isinstance(bodies, AsyncIterable):
        # One body per chunk: it must not wait for bodies that do not exist yet.
        async for body in bodies:
            yield _next_chunk(iter((body,)), sys.maxsize)
    else:
        # The bodies of a list are in memory already: their bytes need no bound.
        bytes_max = sys.maxsize if isinstance(bodies, list | tuple) else _CHUNK_BYTES
        source = iter(bodies)
        while (chunk := _next_chunk(source, bytes_max)).bodies:
            yield chunk


def _next_chunk(source: Iterator[Body], bytes_max: int) -> Chunk:
    """Return the next bodies; a body that is not `bytes` ends the chunk, and `send` checks it."""
    return Chunk(*kernel.native.take_bodies(source, _CHUNK_MESSAGES, bytes_max))


def fits_one_batch(chunk: Chunk, settings: ProducerSettings) -> bool:
    """Whether all bodies are `bytes` and fit into one batch."""
    if chunk.plain_bytes is None or len(chunk.bodies) > settings.batch_messages_max:
        return False
    size = chunk.plain_bytes + len(chunk.bodies) * MESSAGE_OVERHEAD_BYTES
    return size <= min(settings.batch_bytes_max, BODY_BYTES_MAX)


def next_keys(left: Iterator[Keys]) -> Keys:
    """Return the keys of the next body; raises InvalidArgument if there are none left."""
    keys = next(left, _NO_KEYS)
    if keys is _NO_KEYS:
        raise InvalidArgument(reason="there are fewer keys than bodies")
    return keys


def check_no_more(left: Iterator[Keys]) -> None:
    """Raise InvalidArgument if keys are left after the last body."""
    if next(left, _NO_KEYS) is not _NO_KEYS:
        raise InvalidArgument(reason="there are more keys than bodies")
