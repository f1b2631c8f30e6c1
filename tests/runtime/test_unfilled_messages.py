"""What a caller says of a message's length, and does not send, takes little memory."""

import random
import tracemalloc
from typing import Any

import grpc
import pytest

from rockoon_core.http2.messages import FIRST_BYTES_MIN, UNFILLED_BYTES_MAX, UnfilledMemory
from rockoon_runtime.http2_server import Http2Server
from support import http2_frames as frames
from support.eventually import eventually
from support.http2_frames import ErrorCode
from support.raw_http2 import call, data, head, raw_peer

MIB = 1 << 20
PIECE_BYTES = 16_384


async def unary(request: bytes, _context: Any) -> bytes:
    return request


def announced(stream_id: int) -> bytes:
    """A call whose message is to have 60 MiB, and has a byte."""
    begun = b"\0" + frames.NUMBER.pack(60 * MIB) + b"x"
    return head(stream_id) + frames.frame(frames.DATA, 0, stream_id, begun)


async def test_very_many_messages_that_do_not_come_take_little_memory_and_it_is_had_back() -> None:
    server = Http2Server()
    handlers = {"Unary": grpc.unary_unary_rpc_method_handler(unary)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    port = await server.listen("127.0.0.1", 0)
    streams = range(1, 200, 2)
    async with raw_peer(port) as peer, raw_peer(port) as other:
        tracemalloc.start()
        try:
            for each in (peer, other):
                await each.send(b"".join(map(announced, streams)) + call(201))
                assert await each.is_answered(201)
            assert tracemalloc.get_traced_memory()[1] < 2 * UNFILLED_BYTES_MAX
        finally:
            tracemalloc.stop()
        left = server.unfilled.left
        assert left < 2 * MIB
        # Who means it is served all the same.
        long = random.Random(2).randbytes(3 * MIB)
        sent = data(203, long)[frames.HEAD_BYTES :]
        wide = frames.window_update(0, 8 * MIB) + frames.window_update(203, 8 * MIB)
        peer.writer.write(head(203) + wide)
        for at in range(0, len(sent), PIECE_BYTES):
            piece = sent[at : at + PIECE_BYTES]
            flags = frames.END_STREAM if at + PIECE_BYTES >= len(sent) else 0
            peer.writer.write(frames.frame(frames.DATA, flags, 203, piece))
        assert await peer.is_answered(203)
        echoed = [each.payload for each in peer.seen if each[0::2] == (frames.DATA, 203)]
        assert b"".join(echoed)[5:] == long
        # Streams that end give back what they had, and so do connections.
        await peer.send(b"".join([frames.rst_stream(each, ErrorCode.CANCEL) for each in streams]))
        await eventually(lambda: server.unfilled.left > left)
        other.writer.close()
        await eventually(lambda: server.unfilled.left == UNFILLED_BYTES_MAX)
    await server.stop(None)


@pytest.mark.parametrize(
    ("wanted", "come", "first", "took"),
    [
        # What is there is no promise; one buffer spares moving it, while there is room.
        (FIRST_BYTES_MIN, 1, FIRST_BYTES_MIN, 0),
        (MIB, 1, MIB, MIB),
        (3 * MIB, 1, FIRST_BYTES_MIN, 0),
        (3 * MIB, 100_000, 100_000, 0),
        (100_000, 100_000, 100_000, 0),
    ],
)
def test_how_much_is_taken_at_first(wanted: int, come: int, first: int, took: int) -> None:
    unfilled = UnfilledMemory(2 * MIB)
    assert unfilled.first_bytes(wanted, come) == (first, took)
    assert unfilled.left == 2 * MIB - took
