"""A message of which parts come: copied in, received where they lie, and given away as bytes."""

import random

import pytest

from rockoon_core.http2.messages import PREFIX_BYTES, MessageStream, framed
from rockoon_core.http2.sending import Http2Sending
from support.seeds import seeds

LONGEST = 64 << 20


def received(stream: MessageStream, raw: memoryview, chance: random.Random) -> None:
    """As a connection does it: a transport keeps its view until its callback is over."""
    while raw:
        wanted = chance.choice((1, 7, 5_000, 40_000, 300_000))
        target = stream.direct_target(wanted)
        if target is None:
            stream.take(raw[:wanted])
            raw = raw[wanted:]
        else:
            count = min(len(target), len(raw))
            target[:count] = raw[:count]
            stream.filled(count)
            raw = raw[count:]


@pytest.mark.parametrize("seed", seeds(5))
def test_messages_of_any_length_come_as_they_were_sent(seed: int) -> None:
    chance = random.Random(seed)
    stream = MessageStream(Http2Sending(), 1, LONGEST)
    lengths = (0, 1, 2_047, 2_049, 9_000, 70_000, 1_400_000, 6_000_000)
    sent = [chance.randbytes(chance.choice(lengths)) for _ in range(12)]
    received(stream, memoryview(b"".join(map(framed, sent))), chance)
    assert [stream.taken() for _ in sent] == sent
    assert stream.taken() is None
    assert stream.connection.unfilled.left == Http2Sending().unfilled.left


def test_a_long_message_becomes_bytes_without_being_copied() -> None:
    stream = MessageStream(Http2Sending(), 1, LONGEST)
    message = random.Random(1).randbytes(1 << 20)
    raw = memoryview(framed(message))
    stream.take(raw[: PREFIX_BYTES + 10])
    target = stream.direct_target(len(raw))
    assert target is not None
    target[:] = raw[PREFIX_BYTES + 10 :]
    stream.filled(len(target))
    (unread,) = stream._unread
    assert not isinstance(unread, bytes)
    # The transport's callback is over.
    target.release()
    assert stream.taken() == message
    assert unread.to_bytes() is unread.to_bytes()


def test_a_stream_that_was_closed_takes_no_more_of_its_message() -> None:
    stream = MessageStream(Http2Sending(), 1, LONGEST)
    raw = framed(bytes(20_000))
    stream.take(memoryview(raw)[:100])
    target = stream.direct_target(len(raw))
    assert target is not None
    stream.closed()
    stream.filled(len(target))
    assert stream.direct_target(len(raw)) is None
    assert stream.taken() is None
