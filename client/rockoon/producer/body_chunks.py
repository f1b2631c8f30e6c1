"""Chunks of bodies from any iterable, and the keys of their messages."""

import sys
from collections.abc import AsyncIterable, Iterable, Iterator
from typing import Any, NamedTuple

from rockoon.errors import InvalidArgument
from rockoon.producer.accumulator import MESSAGE_OVERHEAD_BYTES
from rockoon.producer.body_feed import BodyFeed, Keys
from rockoon.producer.outgoing import BODY_BYTES_MAX, Body
from rockoon.producer.settings import ProducerSettings
from rockoon_format import kernel

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
