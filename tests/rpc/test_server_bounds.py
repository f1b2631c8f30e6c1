"""Bounds of the server, and how it ends connections with calls in progress."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
import pytest

from rockoon_rpc.limits import Limits
from rockoon_rpc.server import Server
from rockoon_rpc.session import ErrorCode
from support import http2_frames as frames
from support.eventually import eventually
from support.http2_frames import block
from support.raw_http2 import CALL, Frame, RawPeer, call, data, head, raw_peer
from support.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.usefixtures("each_implementation")

LONG = bytes(200_000)
WIDE = frames.window_update(0, 1 << 24) + frames.window_update(1, 1 << 24)


class Callee:
    """What is called, with bytes."""

    def __init__(self) -> None:
        self.begun = 0
        self.cancelled = 0
        self.may_answer = asyncio.Event()

    async def unary(self, request: bytes, context: Any) -> bytes:
        if request == b"leave":
            asyncio.get_running_loop().call_soon(context.connection.leave)
        return request

    def has_begun(self, count: int) -> bool:
        return self.begun == count

    async def long(self, _request: bytes, _context: Any) -> bytes:
        self.begun += 1
        return 5 * LONG

    async def waits(self, request: bytes, _context: Any) -> bytes:
        self.begun += 1
        await self.may_answer.wait()
        return request

    async def endless(self, request: bytes, _context: Any) -> AsyncIterator[bytes]:
        while True:
            self.begun += 1
            yield request

    async def reads(self, requests: Any, _context: Any) -> bytes:
        self.begun += 1
        try:
            return b"".join([each async for each in requests])
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


@asynccontextmanager
async def served(callee: Callee, **bounds: Any) -> AsyncIterator[tuple[Server, int]]:
    server = Server(**bounds)
    unary = grpc.unary_unary_rpc_method_handler
    handlers: dict[str, Any] = {
        "Unary": unary(callee.unary),
        "Long": unary(callee.long),
        "Waits": unary(callee.waits),
        "Endless": grpc.unary_stream_rpc_method_handler(callee.endless),
        "Reads": grpc.stream_unary_rpc_method_handler(callee.reads),
    }
    server.add_registered_method_handlers("test.Echo", handlers)
    port = await server.listen("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.stop(None)


def waits(stream_id: int) -> bytes:
    return call(stream_id, path="/test.Echo/Waits")


def within(timeout: str, stream_id: int, path: str) -> bytes:
    """Headers of a call that its caller waits so long for."""
    headers = [(name, path if name == ":path" else value) for name, value in CALL]
    sent = block([*headers, ("grpc-timeout", timeout)])
    return frames.frame(frames.HEADERS, frames.END_HEADERS, stream_id, sent)


async def end_of(peer: RawPeer, stream_id: int) -> Frame:
    """The frame that ends a stream."""
    found = await peer.until(
        lambda each: (
            each.stream_id == stream_id
            and (each.kind == frames.RST_STREAM or bool(each.flags & frames.END_STREAM))
        )
    )
    assert found is not None
    return found


async def test_a_connection_has_so_many_streams_and_takes_more_when_some_have_ended() -> None:
    callee = Callee()
    async with served(callee, limits=Limits(streams_max=2)) as (_, port), raw_peer(port) as peer:
        await peer.send(waits(1) + waits(3) + call(5))
        assert (await end_of(peer, 5)).error is ErrorCode.REFUSED_STREAM
        callee.may_answer.set()
        assert await peer.is_answered(3)
        await peer.send(call(7))
        assert await peer.is_answered(7)


async def test_a_server_has_so_many_calls_in_progress() -> None:
    callee = Callee()
    async with served(callee, calls_max=2) as (_, port), raw_peer(port) as peer:
        await peer.send(waits(1) + waits(3) + call(5))
        refused = await end_of(peer, 5)
        assert refused.headers["grpc-message"] == "Concurrent RPC limit exceeded!"
        callee.may_answer.set()
        assert await peer.is_answered(3)
        await peer.send(call(7))
        assert await peer.is_answered(7)


async def test_a_server_has_so_many_connections() -> None:
    async with served(Callee(), connections_max=1) as (server, port):
        async with raw_peer(port) as peer:
            await peer.send(call(1))
            assert await peer.is_answered(1)
            async with raw_peer(port) as further:
                assert await further.until(lambda _: False) is None
            await peer.send(call(3))
            assert await peer.is_answered(3)
        await eventually(lambda: not server.connections)
        async with raw_peer(port) as again:
            await again.send(call(1))
            assert await again.is_answered(1)


async def test_a_server_that_leaves_refuses_new_calls_and_answers_those_it_has() -> None:
    callee = Callee()
    async with served(callee) as (server, port), raw_peer(port) as peer:
        await peer.send(waits(1))
        await eventually(lambda: callee.begun == 1)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.stop(DEADLINE_SECONDS))
            leaves = await peer.until(lambda each: each.kind == frames.GOAWAY)
            assert leaves is not None
            assert frames.TWO_NUMBERS.unpack(leaves.payload) == (1, ErrorCode.NO_ERROR)
            # The call was on its way before GOAWAY: the client may send it to another server.
            await peer.send(waits(3))
            assert (await end_of(peer, 3)).error is ErrorCode.REFUSED_STREAM
            callee.may_answer.set()
            assert await peer.is_answered(1)
        assert callee.begun == 1


async def test_a_server_that_leaves_answers_calls_that_wait_for_their_turn() -> None:
    callee = Callee()
    limits = Limits(turn_calls=2)
    async with served(callee, limits=limits) as (server, port), raw_peer(port) as peer:
        await peer.send(head(1) + head(3))
        await eventually(lambda: [each.session.open_streams for each in server.connections] == [2])
        # The server leaves before the turn of the last two calls.
        completed = data(1, b"leave", ends=True) + data(3, b"", ends=True)
        await peer.send(completed + call(5) + call(7))
        is_answered = await peer.is_answered(5) and await peer.is_answered(7)
        (leaves,) = (each for each in peer.seen if each.kind == frames.GOAWAY)
        last, _ = frames.TWO_NUMBERS.unpack(leaves.payload)
        assert is_answered or last == 3, "its caller does not send a call again that GOAWAY covers"


async def test_a_server_that_stops_waits_for_who_takes_a_long_answer() -> None:
    async with served(Callee()) as (server, port), raw_peer(port) as peer:
        await peer.send(head(1))
        rest = b"\0" + frames.NUMBER.pack(len(LONG)) + LONG
        while rest:
            piece, rest = rest[:16_384], rest[16_384:]
            flags = 0 if rest else frames.END_STREAM
            await peer.send(frames.frame(frames.DATA, flags, 1, piece))
        assert await peer.until(lambda each: each.kind == frames.DATA)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.stop(DEADLINE_SECONDS))
            assert await peer.until(lambda each: each.kind == frames.GOAWAY)
            await peer.send(WIDE)
            assert await peer.is_answered(1)
        sent = [each.payload for each in peer.seen if each.kind == frames.DATA]
        assert b"".join(sent)[5:] == LONG


async def test_a_server_that_stops_waits_until_the_transport_has_room_for_an_answer() -> None:
    callee = Callee()
    wide = frames.settings({frames.INITIAL_WINDOW_SIZE: 1 << 24})
    wide += frames.window_update(0, 1 << 30)
    async with served(callee) as (server, port), raw_peer(port) as peer:
        await peer.send(wide + call(1))
        assert await peer.is_answered(1)
        (connection,) = server.connections
        number = 3
        while not connection.is_choked:
            await peer.send(call(number, path="/test.Echo/Long"))
            number += 2
            await eventually(partial(callee.has_begun, number // 2 - 1))
            await asyncio.sleep(0)
        await peer.send(call(number))
        await eventually(lambda: connection.session.unsent_bytes > 0)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.stop(DEADLINE_SECONDS))
            await eventually(lambda: server.is_stopping)
            assert await peer.is_answered(number)


async def test_a_connection_with_a_call_is_not_idle_however_long_that_takes() -> None:
    callee, looks = Callee(), asyncio.Event()
    async with served(callee, idle_seconds_max=0.01) as (_, port), raw_peer(port) as peer:
        # With its first bytes: it is never without a call.
        await peer.send(waits(1))
        asyncio.get_running_loop().call_later(0.1, looks.set)
        await looks.wait()
        await peer.send(frames.frame(frames.PING, 0, 0, b"are you?"))
        assert await peer.until(lambda each: each.kind == frames.PING)
        assert not [each for each in peer.seen if each.kind == frames.GOAWAY]
        callee.may_answer.set()
        assert await peer.is_answered(1)
        assert await peer.until(lambda each: each.kind == frames.GOAWAY)


async def test_a_message_that_is_refused_ends_who_reads_it() -> None:
    callee = Callee()
    async with served(callee) as (_, port), raw_peer(port) as peer:
        await peer.send(head(1, "/test.Echo/Reads"))
        await eventually(lambda: callee.begun == 1)
        await peer.send(frames.frame(frames.DATA, 0, 1, b"\0\x7f\xff\xff\xff"))
        assert "grpc-status" in (await end_of(peer, 1)).headers
        await eventually(lambda: callee.cancelled == 1)


async def test_short_answers_together_are_no_more_than_the_connections_window() -> None:
    wide = frames.settings({frames.INITIAL_WINDOW_SIZE: 1 << 20})
    async with served(Callee()) as (_, port), raw_peer(port, wide) as peer:
        for stream_id in (1, 3, 5, 7, 9):
            await peer.send(call(stream_id, bytes(16_000)))

        def received() -> int:
            return sum(len(each.payload) for each in peer.seen if each.kind == frames.DATA)

        while received() < frames.WINDOW_DEFAULT:
            assert await peer.until(lambda each: each.kind == frames.DATA)
        await peer.send(frames.frame(frames.PING, 0, 0, b"no more?"))
        assert await peer.until(lambda each: each.payload == b"no more?")
        assert received() == frames.WINDOW_DEFAULT
        await peer.send(WIDE)
        assert await peer.is_answered(9)
        assert received() == 5 * 16_005


async def test_a_stream_of_answers_goes_on_as_far_as_its_caller_takes_them() -> None:
    callee = Callee()
    async with served(callee) as (_, port), raw_peer(port) as peer:
        await peer.send(call(1, bytes(16_000), "/test.Echo/Endless"))
        received = 0
        while received < frames.WINDOW_DEFAULT:
            taken = await peer.until(lambda each: each.kind == frames.DATA)
            assert taken is not None
            received += len(taken.payload)
        begun = callee.begun
        # One message more was produced than the window has room for.
        assert begun == frames.WINDOW_DEFAULT // 16_005 + 1
        await peer.send(WIDE)
        await eventually(lambda: callee.begun > begun)
        await peer.send(frames.rst_stream(1, ErrorCode.CANCEL))


@pytest.mark.parametrize("what", ["not answered", "not taken"])
async def test_a_call_whose_time_is_over_ends(what: str) -> None:
    async with served(Callee()) as (server, port), raw_peer(port) as peer:
        if what == "not answered":
            await peer.send(within("50m", 1, "/test.Echo/Waits") + data(1, b"x", ends=True))
            assert (await end_of(peer, 1)).headers["grpc-status"] == "4"
        else:
            narrow = frames.settings({frames.INITIAL_WINDOW_SIZE: 0})
            await peer.send(narrow + within("50m", 1, "/test.Echo/Unary"))
            await peer.send(data(1, b"x", ends=True))
            assert (await end_of(peer, 1)).error is ErrorCode.CANCEL
        assert all(not each.streams for each in server.connections)
