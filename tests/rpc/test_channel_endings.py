"""How a channel's connections end: a server leaves or refuses, or the channel is closed."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc import aio

from rockoon_rpc import channel as channel_module
from rockoon_rpc.channel import Channel
from rockoon_rpc.client_connection import ClientConnection
from rockoon_rpc.liveness import Liveness
from rockoon_rpc.session import ErrorCode
from support import http2_frames as frames
from support.eventually import eventually
from support.kernels import BOTH, each_kernel
from support.raw_http2 import data
from support.raw_server import raw_server
from support.waiting import DEADLINE_SECONDS

each_implementation = pytest.fixture(params=BOTH, autouse=True)(each_kernel)

NEVER_SECONDS = 1e6
READY = grpc.ChannelConnectivity.READY
LEAVES = frames.goaway(1, ErrorCode.NO_ERROR)


@pytest.fixture(autouse=True)
def no_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch liveness off: raw servers answer no PING, which would end connections."""
    monkeypatch.setattr(channel_module, "LIVENESS", Liveness(NEVER_SECONDS, NEVER_SECONDS))


def unary(channel: Channel, request: bytes = b"x", **options: Any) -> Any:
    return channel.unary_unary("/test.Callee/Unary")(request, **options)


async def code_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(aio.AioRpcError) as failure:
        await call
    return failure.value.code()


async def test_a_call_that_a_leaving_server_has_taken_is_answered_there_and_made_once() -> None:
    async with raw_server() as (address, came), Channel(address) as channel:
        taken = unary(channel)
        leaving = await came.get()
        await leaving.next_call()
        await leaving.send(LEAVES)
        await eventually(lambda: channel.get_state() is not READY)
        later = unary(channel)
        other = await came.get()
        await other.answer(await other.next_call(), b"elsewhere")
        assert await later == b"elsewhere"
        await leaving.answer(1, b"there")
        assert await taken == b"there"
        assert await leaving.has_ended(), "with its last call"
        assert came.empty()


async def test_a_call_that_a_leaving_server_has_not_handled_is_made_again() -> None:
    async with raw_server() as (address, came), Channel(address) as channel:
        call = unary(channel)
        leaving = await came.get()
        await leaving.next_call()
        await leaving.send(frames.goaway(0, ErrorCode.NO_ERROR))
        other = await came.get()
        await other.answer(await other.next_call(), b"elsewhere")
        assert await call == b"elsewhere"
        assert await leaving.has_ended()


async def test_an_answer_that_ends_without_a_status_is_an_error() -> None:
    async with raw_server() as (address, came), Channel(address) as channel:
        call = unary(channel)
        server = await came.get()
        await server.begin(await server.next_call())
        await server.send(data(1, b"y", ends=True))
        assert await code_of(call) is grpc.StatusCode.INTERNAL


async def test_a_connection_without_calls_ends_when_its_server_leaves() -> None:
    async with raw_server() as (address, came), Channel(address) as channel:
        call = unary(channel)
        leaving = await came.get()
        await leaving.answer(await leaving.next_call(), b"y")
        assert await call == b"y"
        known = weakref.ref(channel.connection)
        await leaving.send(LEAVES)
        assert await leaving.has_ended()
        # The channel connects again, and keeps no connection that has ended.
        further = unary(channel)
        server = await came.get()
        await server.answer(await server.next_call(), b"z")
        assert await further == b"z"
        del call
        gc.collect()
        assert known() is None


@pytest.mark.parametrize("end", ["cut", "given up", "refused behind its headers"])
async def test_a_call_that_may_have_been_done_is_not_made_again(end: str) -> None:
    async with raw_server() as (address, came), Channel(address) as channel:
        call = unary(channel)
        server = await came.get()
        await server.next_call()
        if end == "cut":
            await server.send(LEAVES)
            server.writer.transport.abort()
        elif end == "given up":
            await server.send(frames.rst_stream(1, ErrorCode.INTERNAL_ERROR))
        else:
            await server.begin(1)
            await server.send(frames.rst_stream(1, ErrorCode.REFUSED_STREAM))
        wanted = grpc.StatusCode.INTERNAL if end == "given up" else grpc.StatusCode.UNAVAILABLE
        assert await code_of(call) is wanted
        if end == "cut":
            assert came.empty()
        else:
            further = unary(channel)
            assert await server.next_call() == 3
            await server.answer(3, b"y")
            assert await further == b"y"


async def test_a_call_that_is_refused_is_made_once_more_and_not_for_ever() -> None:
    async with raw_server() as (address, came), Channel(address) as channel:
        call = unary(channel)
        server = await came.get()
        for _ in range(2):
            await server.send(frames.rst_stream(await server.next_call(), ErrorCode.REFUSED_STREAM))
        assert await code_of(call) is grpc.StatusCode.UNAVAILABLE


async def test_a_stream_of_requests_that_is_refused_is_not_made_again() -> None:
    async with raw_server() as (address, came), Channel(address) as channel:
        call: Any = channel.stream_unary("/test.Callee/Unary")(iter([b"1", b"2"]))
        server = await came.get()
        await server.send(frames.rst_stream(await server.next_call(), ErrorCode.REFUSED_STREAM))
        assert await code_of(call) is grpc.StatusCode.UNAVAILABLE


async def test_who_yields_requests_is_ended_with_the_call() -> None:
    ended = asyncio.Event()

    async def requests() -> AsyncIterator[bytes]:
        try:
            yield b"1"
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with raw_server() as (address, came), Channel(address) as channel:
        call: Any = channel.stream_unary("/test.Callee/Unary")(requests())
        server = await came.get()
        await server.next_call()
        assert await server.until(lambda each: each.kind == frames.DATA)
        call.cancel()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await ended.wait()


async def test_who_reads_a_stream_that_is_refused_gets_the_answers_of_the_second_try() -> None:
    async with raw_server() as (address, came), Channel(address) as channel:
        call: Any = channel.unary_stream("/test.Callee/Many")(b"x")
        server = await came.get()
        first = await server.next_call()
        async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(call.read())
            await asyncio.sleep(0)
            await server.send(frames.rst_stream(first, ErrorCode.REFUSED_STREAM))
            await server.answer(await server.next_call(), b"y")
            assert await reading == b"y"
            assert await call.read() is aio.EOF


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_channel_that_is_closed_ends_its_calls_as_cancelled(leaves: bool) -> None:
    async with raw_server() as (address, came):
        channel = Channel(address)
        call = unary(channel)
        server = await came.get()
        await server.next_call()
        if leaves:
            await server.send(LEAVES)
            await eventually(lambda: channel.get_state() is not READY)
        await channel.close()
        assert call.done()
        assert await call.code() is grpc.StatusCode.CANCELLED
        assert await server.has_ended()


async def test_a_connection_that_is_full_ends_with_its_last_call_or_with_the_channel() -> None:
    one = frames.settings({frames.MAX_CONCURRENT_STREAMS: 1})
    async with raw_server(one) as (address, came):
        channel = Channel(address)
        calls, servers = [], []
        for _ in range(3):
            calls.append(unary(channel))
            servers.append(await came.get())
            assert await servers[-1].next_call() == 1
        assert came.empty()
        await servers[0].answer(1, b"y")
        assert await calls[0] == b"y"
        assert await servers[0].has_ended()
        await channel.close()
        for call, server in zip(calls[1:], servers[1:], strict=True):
            assert await call.code() is grpc.StatusCode.CANCELLED
            assert await server.has_ended()


async def test_a_channel_that_is_closed_while_it_connects_keeps_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel_module, "CONNECT_SECONDS_MAX", NEVER_SECONDS)
    # The server accepts the connection, and sends no SETTINGS.
    async with raw_server(b"") as (address, came), asyncio.timeout(DEADLINE_SECONDS):
        channel = Channel(address)
        call = unary(channel, wait_for_ready=True)
        server = await came.get()
        await channel.close()
        assert await call.code() is grpc.StatusCode.CANCELLED
        assert await server.has_ended()


async def test_who_gives_up_while_the_channel_connects_ends_nobody_elses_call() -> None:
    async with raw_server(b"") as (address, came), Channel(address) as channel:
        first, second = unary(channel), unary(channel)
        server = await came.get()
        first.cancel()
        await asyncio.sleep(0)
        await server.send(frames.settings({}))
        await server.answer(await server.next_call(), b"y")
        assert await second == b"y"
        assert came.empty()


async def test_a_server_that_does_not_read_does_not_keep_a_channel_from_closing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel_module, "CLOSE_SECONDS_MAX", 0.01)
    wide = frames.settings({frames.INITIAL_WINDOW_SIZE: frames.WINDOW_MAX})
    async with raw_server(wide + frames.window_update(0, 1 << 30)) as (address, came):
        channel = Channel(address)
        await channel.channel_ready()
        server = await came.get()
        transport: Any = server.writer.transport
        transport.pause_reading()
        call = unary(channel, bytes(64 << 20))
        async with asyncio.timeout(DEADLINE_SECONDS):
            await channel.close()
        assert await call.code() is grpc.StatusCode.CANCELLED


async def test_a_pause_between_tries_ends_with_the_channel_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel_module, "PAUSE_SECONDS_FIRST", NEVER_SECONDS)
    monkeypatch.setattr(channel_module, "PAUSE_SECONDS_MAX", NEVER_SECONDS)
    none = frames.settings({frames.MAX_CONCURRENT_STREAMS: 0})
    async with raw_server(none) as (address, came):
        channel = Channel(address)
        assert await code_of(unary(channel)) is grpc.StatusCode.UNAVAILABLE
        assert await came.get_nowait().has_ended()
        waits = unary(channel, wait_for_ready=True)
        for _ in range(100):
            await asyncio.sleep(0)
        assert channel.get_state() is grpc.ChannelConnectivity.CONNECTING
        await channel.close()
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert await waits.code() is grpc.StatusCode.CANCELLED
        assert came.empty()


async def test_a_server_that_asks_for_calm_is_not_called_before_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel_module, "PAUSE_SECONDS_MAX", NEVER_SECONDS)
    async with raw_server() as (address, came), Channel(address) as channel:
        first = unary(channel)
        server = await came.get()
        await server.next_call()
        await server.send(frames.goaway(1, ErrorCode.ENHANCE_YOUR_CALM))
        await server.answer(1, b"y")
        assert await first == b"y"
        assert await server.has_ended()
        assert await code_of(unary(channel)) is grpc.StatusCode.UNAVAILABLE
        assert came.empty()


async def test_calls_of_one_iteration_of_the_loop_leave_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with raw_server() as (address, came), Channel(address) as channel:
        await channel.channel_ready()
        server = await came.get()
        writes: list[bytes] = []
        real = ClientConnection.flush

        def flush(connection: ClientConnection) -> None:
            writes.append(b"")
            real(connection)

        monkeypatch.setattr(ClientConnection, "flush", flush)
        calls = [unary(channel) for _ in range(3)]
        for number in (1, 3, 5):
            assert await server.next_call() == number
        assert len(writes) == 1
        for call in calls:
            call.cancel()


async def test_a_call_behind_another_leaves_at_once_and_calls_behind_several_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with raw_server() as (address, came), Channel(address) as channel:
        await channel.channel_ready()
        server = await came.get()
        flushes = 0

        real = ClientConnection.flush

        def flush(connection: ClientConnection) -> None:
            nonlocal flushes
            flushes += 1
            real(connection)

        async def round_trip(count: int) -> int:
            """Returns how many writes there are before the caller waits."""
            nonlocal flushes
            flushes = 0
            calls = [unary(channel) for _ in range(count)]
            at_once = flushes
            for number in [await server.next_call() for _ in calls]:
                await server.answer(number, b"y")
            assert [await call for call in calls] == [b"y"] * count
            return at_once

        monkeypatch.setattr(ClientConnection, "flush", flush)
        assert [await round_trip(count) for count in (1, 1, 1, 3, 3, 1, 1)] == [0, 1, 1, 1, 0, 0, 1]


async def test_an_answer_that_cannot_be_parsed_fails_its_call_alone() -> None:
    def fails(_answer: bytes) -> bytes:
        raise ValueError("no message")

    async with raw_server() as (address, came), Channel(address) as channel:
        parsing: Any = channel.unary_unary("/test.Callee/Unary", None, fails)
        call, other = parsing(b"x"), unary(channel)
        server = await came.get()
        for number in (1, 3):
            await server.answer(await server.next_call(), b"y%d" % number)
        assert await code_of(call) is grpc.StatusCode.INTERNAL
        assert "no message" in await call.details()
        assert await other == b"y3"
