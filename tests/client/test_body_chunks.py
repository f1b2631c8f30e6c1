"""Bodies of `send_many`, some at a time, with each kernel."""

from collections.abc import AsyncIterable, Iterator

import pytest

from rockoon.producer.body_feed import Bodies, Chunk, body_chunks, fits_one_batch
from rockoon.producer.settings import ProducerSettings
from support.kernels import BOTH, each_kernel

kernels = pytest.fixture(each_kernel, params=BOTH, autouse=True)


class Text(bytes):
    pass


async def chunks(bodies: Bodies) -> list[Chunk]:
    return [each async for each in body_chunks(bodies)]


def counts(found: list[Chunk]) -> list[tuple[int, int | None]]:
    return [(len(each.bodies), each.plain_bytes) for each in found]


async def test_a_chunk_ends_with_its_messages_its_bytes_or_what_is_no_bytes() -> None:
    many = [b"x"] * 600
    assert counts(await chunks(iter(many))) == [(256, 256), (256, 256), (88, 88)]
    large = [bytes(40_000)] * 3
    assert counts(await chunks(iter(large))) == [(2, 80_000), (1, 40_000)]
    assert counts(await chunks(large)) == [(3, 120_000)]
    others = [b"one", bytearray(b"two"), b"three", Text(b"four"), b""]
    found = await chunks(iter(others))
    assert counts(found) == [(2, None), (2, None), (1, 0)]
    assert [body for each in found for body in each.bodies] == others


async def test_an_iterable_is_asked_for_no_more_than_there_is_room_for() -> None:
    asked = 0

    def bodies() -> Iterator[bytes]:
        nonlocal asked
        while True:
            asked += 1
            yield bytes(1 << 20)

    taken = 0
    async for chunk in body_chunks(bodies()):
        taken += len(chunk.bodies)
        assert taken == asked
        if taken == 3:
            break


async def test_what_an_iterable_raises_is_raised() -> None:
    def bodies() -> Iterator[bytes]:
        yield b"first"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await chunks(bodies())


async def test_what_comes_one_by_one_waits_for_nothing_else() -> None:
    async def bodies() -> AsyncIterable[bytes]:
        yield b"one"
        yield b"two"

    assert counts(await chunks(bodies())) == [(1, 3), (1, 3)]


def test_only_bytes_that_one_batch_has_room_for_go_together() -> None:
    settings = ProducerSettings(batch_bytes_max=1024, batch_messages_max=3)
    assert fits_one_batch(Chunk([b"x"] * 3, 1024 - 3 * 160), settings)
    assert not fits_one_batch(Chunk([b"x"] * 3, 1025 - 3 * 160), settings)
    assert not fits_one_batch(Chunk([b"x"] * 4, 4), settings)
    assert not fits_one_batch(Chunk([bytearray(b"x")], None), settings)
