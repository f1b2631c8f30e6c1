"""Bodies from any source, some at a time."""

from collections.abc import AsyncIterable, Iterable

from rockoon.producer.body_feed import BodyFeed
from rockoon.producer.outgoing import Body

# What is asked of the source at a time.
_CHUNK_MESSAGES = 256
_CHUNK_BYTES = 64 << 10

Bodies = Iterable[Body] | AsyncIterable[Body] | BodyFeed


async def body_chunks(bodies: Bodies) -> AsyncIterable[list[Body]]:
    if isinstance(bodies, BodyFeed):
        async for chunk in bodies.chunks(_CHUNK_MESSAGES, _CHUNK_BYTES):
            yield chunk
    elif isinstance(bodies, AsyncIterable):
        # One by one: what has come must not wait for what has not.
        async for body in bodies:
            yield [body]
    elif isinstance(bodies, list | tuple):
        for start in range(0, len(bodies), _CHUNK_MESSAGES):
            yield list(bodies[start : start + _CHUNK_MESSAGES])
    else:
        chunk = []
        room = _CHUNK_BYTES
        for body in bodies:
            chunk.append(body)
            # Whatever is not bytes is for `send` to look at, and ends the chunk.
            room -= len(body) if type(body) is bytes else _CHUNK_BYTES
            if room <= 0 or len(chunk) == _CHUNK_MESSAGES:
                yield chunk
                chunk, room = [], _CHUNK_BYTES
        if chunk:
            yield chunk
