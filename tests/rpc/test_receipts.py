"""A server asks by PING frames whether its caller has received answers."""

import asyncio
from functools import partial
from typing import Any

import grpc
import pytest

from rockoon_rpc.server import Server
from rockoon_rpc.server_connection import WAITING_MAX, Receipts
from rockoon_rpc.session import ErrorCode
from support import http2_frames as frames
from support.eventually import eventually
from support.raw_http2 import call, raw_peer


class Peer:
    """A peer whose acknowledgements the test sends."""

    def __init__(self) -> None:
        self.pings = 0
        self.outcomes: list[tuple[int, bool]] = []
        self.receipts = Receipts(self.came)

    def came(self) -> None:
        self.pings += 1

    def ask(self, *stream_ids: int) -> None:
        for stream_id in stream_ids:
            self.receipts.ask(stream_id, partial(self._ended, stream_id))

    def _ended(self, stream_id: int, is_received: bool) -> None:
        self.outcomes.append((stream_id, is_received))


def test_one_ping_confirms_all_answers_that_were_written_before_it() -> None:
    peer = Peer()
    peer.ask(1, 3, 5)
    assert (peer.pings, peer.outcomes) == (1, [])
    peer.receipts.acknowledged()
    # Answers 3 and 5 were written after the first PING.
    assert (peer.pings, peer.outcomes) == (2, [(1, True)])
    peer.receipts.acknowledged()
    assert (peer.pings, peer.outcomes) == (2, [(1, True), (3, True), (5, True)])
    peer.ask(7)
    assert peer.pings == 3


def test_a_connection_that_ends_confirms_nothing() -> None:
    peer = Peer()
    peer.ask(1, 3)
    peer.receipts.lost()
    peer.receipts.lost()
    peer.receipts.acknowledged()
    assert peer.outcomes == [(1, False), (3, False)]


@pytest.mark.parametrize("stream_id", [1, 3])
def test_an_answer_whose_call_is_reset_is_not_confirmed(stream_id: int) -> None:
    peer = Peer()
    peer.ask(1, 3)
    peer.receipts.reset(stream_id)
    assert peer.outcomes == [(stream_id, False)]
    peer.receipts.reset(9)
    for _ in range(2):
        peer.receipts.acknowledged()
    assert sorted(peer.outcomes) == [(1, stream_id != 1), (3, stream_id != 3)]


def test_a_ping_that_was_sent_before_an_answer_does_not_confirm_it() -> None:
    peer = Peer()
    peer.receipts.probe()
    peer.receipts.probe()
    peer.ask(1)
    assert peer.pings == 1
    peer.receipts.acknowledged()
    assert (peer.pings, peer.outcomes) == (2, [])
    peer.receipts.acknowledged()
    assert (peer.pings, peer.outcomes) == (2, [(1, True)])


def test_a_peer_that_acknowledges_nothing_takes_no_more_than_a_bounded_memory() -> None:
    peer = Peer()
    peer.ask(*range(1, 2 * WAITING_MAX + 9, 2))
    assert peer.outcomes == [(2 * WAITING_MAX + each, False) for each in (3, 5, 7)]


CANCEL = frames.frame(frames.RST_STREAM, 0, 1, frames.NUMBER.pack(ErrorCode.CANCEL))


@pytest.mark.parametrize(
    ("before", "is_received"), [(b"", True), (CANCEL, False)], ids=["reads", "cancels"]
)
async def test_a_server_knows_whether_its_caller_has_received_an_answer(
    before: bytes, is_received: bool
) -> None:
    outcomes: list[bool] = []

    async def unary(request: bytes, context: Any) -> bytes:
        # Runs after the answer is written.
        asyncio.get_running_loop().call_soon(context.on_received, outcomes.append)
        return request

    server = Server()
    handler = grpc.unary_unary_rpc_method_handler(unary)
    server.add_registered_method_handlers("test.Echo", {"Unary": handler})
    port = await server.listen("127.0.0.1", 0, None)
    try:
        async with raw_peer(port) as peer:
            await peer.send(call(1))
            ping = await peer.until(lambda each: each.kind == frames.PING)
            assert ping is not None
            # The answer came before the PING.
            assert any(each.kind == frames.DATA for each in peer.seen)
            assert outcomes == []
            await peer.send(before + frames.frame(frames.PING, frames.ACK, 0, ping.payload))
            await eventually(lambda: outcomes)
            await peer.send(call(3))
            await peer.until(lambda each: each.kind == frames.PING)
        # The peer ends the connection and has acknowledged nothing.
        await eventually(lambda: len(outcomes) == 2)
    finally:
        await server.stop(None)
    assert outcomes == [is_received, False]
