"""Bodies from any source, some at a time, and the keys that go with them."""

import sys
from collections.abc import AsyncIterable, Iterable, Iterator
from typing import Any, NamedTuple

from rockoon.errors import InvalidArgument
from rockoon.producer.accumulator import MESSAGE_OVERHEAD_BYTES
from rockoon.producer.body_feed import BodyFeed, Keys
from rockoon.producer.outgoing import BODY_BYTES_MAX, Body
from rockoon.producer.settings import ProducerSettings
from rockoon_format import kernel

# What is asked of the source at a time.
_CHUNK_MESSAGES = 256
_CHUNK_BYTES = 64 << 10

_NO_KEYS: tuple[str, ...] = ()

Bodies = Iterable[Body] | AsyncIterable[Body] | BodyFeed


class Chunk(NamedTuple):
    """Some bodies, at least one."""

    bodies: list[Any]
    plain_bytes: int | None
    """How many bytes they have together, if all are `bytes`."""


async def body_chunks(bodies: Bodies) -> AsyncIterable[Chunk]:
    if isinstance(bodies, BodyFeed):
        async for read in bodies.chunks(_CHUNK_MESSAGES, _CHUNK_BYTES):
            yield _taken(iter(read), sys.maxsize)
    elif isinstance(bodies, AsyncIterable):
        # One by one: what has come must not wait for what has not.
        async for body in bodies:
            yield _taken(iter((body,)), sys.maxsize)
    else:
        # What is there already takes no more memory when it is asked for.
        bytes_max = sys.maxsize if isinstance(bodies, list | tuple) else _CHUNK_BYTES
        source = iter(bodies)
        while (chunk := _taken(source, bytes_max)).bodies:
            yield chunk


def _taken(source: Iterator[Body], bytes_max: int) -> Chunk:
    """The next bodies; it ends with one that is not `bytes`, which is for `send` to look at."""
    if kernel.native is not None:
        return Chunk(*kernel.native.take_bodies(source, _CHUNK_MESSAGES, bytes_max))
    bodies: list[Body] = []
    total = 0
    for body in source:
        bodies.append(body)
        if type(body) is not bytes:
            return Chunk(bodies, None)
        total += len(body)
        if total >= bytes_max or len(bodies) == _CHUNK_MESSAGES:
            break
    return Chunk(bodies, total)


def fits_one_batch(chunk: Chunk, settings: ProducerSettings) -> bool:
    """Whether all bodies are `bytes` and fit into one batch."""
    if chunk.plain_bytes is None or len(chunk.bodies) > settings.batch_messages_max:
        return False
    size = chunk.plain_bytes + len(chunk.bodies) * MESSAGE_OVERHEAD_BYTES
    return size <= min(settings.batch_bytes_max, BODY_BYTES_MAX)


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
