"""Bodies from any source, some at a time, and the keys that go with them."""

from collections.abc import AsyncIterable, Iterable, Iterator

from rockoon.errors import InvalidArgument
from rockoon.producer.accumulator import MESSAGE_OVERHEAD_BYTES
from rockoon.producer.body_feed import BodyFeed, Keys
from rockoon.producer.outgoing import BODY_BYTES_MAX, Body
from rockoon.producer.settings import ProducerSettings

# What is asked of the source at a time.
_CHUNK_MESSAGES = 256
_CHUNK_BYTES = 64 << 10

_NO_KEYS: tuple[str, ...] = ()

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


def fit_one_batch(bodies: list[Body], settings: ProducerSettings) -> bool:
    """Whether all are bytes and fit into one batch."""
    size = sum(map(len, bodies)) + len(bodies) * MESSAGE_OVERHEAD_BYTES
    return (
        set(map(type, bodies)) == {bytes}
        and len(bodies) <= settings.batch_messages_max
        and size <= min(settings.batch_bytes_max, BODY_BYTES_MAX)
    )


def next_keys(left: Iterator[Keys]) -> Keys:
    """The keys of the next body; raises InvalidArgument where there are none left."""
    keys = next(left, _NO_KEYS)
    if keys is _NO_KEYS:
        raise InvalidArgument(reason="there are fewer keys than bodies")
    return keys


def check_no_more(left: Iterator[Keys]) -> None:
    """All bodies are sent; raises InvalidArgument if there are keys left."""
    if next(left, _NO_KEYS) is not _NO_KEYS:
        raise InvalidArgument(reason="there are more keys than bodies")
