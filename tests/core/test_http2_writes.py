"""What is written together: in its order, without anything kept too long."""

import random

import pytest

from rockoon_core.http2 import frames
from rockoon_core.http2.messages import JOINED_BYTES_MAX, PREFIX, MessageStream
from rockoon_core.http2.sending import HELD_BYTES_MAX, Http2Sending


class RecordedWrites:
    """A transport that notes each write."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(bytes(data))

    def writelines(self, pieces: list[bytes]) -> None:
        self.writes.append(b"".join(pieces))


def sending() -> tuple[Http2Sending, RecordedWrites]:
    found, transport = Http2Sending(), RecordedWrites()
    found.transport = transport
    return found, transport


def test_what_is_held_is_one_write() -> None:
    side, transport = sending()
    side.hold_writes()
    side.hold_writes()
    side._write(b"head")
    side._write(b"message")
    assert transport.writes == []
    side.release_writes()
    assert transport.writes == [b"headmessage"]
    side.release_writes()
    side._write(b"alone")
    assert transport.writes == [b"headmessage", b"alone"]


def test_long_pieces_go_behind_what_is_held() -> None:
    side, transport = sending()
    side.hold_writes()
    side._write(b"head")
    side._write_all([b"long", memoryview(b"pieces")])
    assert transport.writes == [b"head", b"longpieces"]


def test_what_is_held_has_a_bound() -> None:
    side, transport = sending()
    side.hold_writes()
    for _ in range(3):
        side._write(bytes(HELD_BYTES_MAX // 2))
    assert [len(each) for each in transport.writes] == [HELD_BYTES_MAX // 2 * 3]


def test_nothing_is_written_behind_the_end() -> None:
    side, transport = sending()
    side.hold_writes()
    side._write(b"head")
    side.is_lost = True
    side.release_writes()
    assert transport.writes == []


@pytest.mark.parametrize("seed", range(20))
def test_a_message_in_pieces_is_sent_whole_and_in_order(seed: int) -> None:
    chance = random.Random(seed)
    side, transport = sending()
    side.peer_frame_bytes = chance.choice([frames.FRAME_BYTES_MIN, 1 << 20])
    stream = MessageStream(side, 1, 1 << 30)
    expected = b""
    for _ in range(3):
        lengths = (0, 1, 500, JOINED_BYTES_MAX, JOINED_BYTES_MAX + 1, 300_000)
        pieces = [chance.randbytes(chance.choice(lengths)) for _ in range(chance.randint(1, 6))]
        message = b"".join(pieces)
        expected += PREFIX.pack(0, len(message)) + message
        stream.queue_message(pieces)
    while stream.pending:
        stream.send_window += chance.choice([0, 1, 100_000])
        side._send_window += 70_000
        side._pump()
    sent, written = b"", b"".join(transport.writes)
    while written:
        word, flags, stream_id = frames.HEAD.unpack_from(written)
        length, kind = word >> 8, word & 0xFF
        assert (kind, flags, stream_id) == (frames.DATA, 0, 1)
        assert 0 < length <= side.peer_frame_bytes
        sent += written[frames.HEAD_BYTES : frames.HEAD_BYTES + length]
        written = written[frames.HEAD_BYTES + length :]
    assert sent == expected
