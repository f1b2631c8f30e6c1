"""Calls of a channel, to gRPC's server and to Rockoon's."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue
from grpc import aio

from rockoon_core.channels import Dialer
from rockoon_rpc.channel import Channel
from rockoon_rpc.client_call import ClientCall
from rockoon_rpc.limits import Limits
from rockoon_rpc.server import Server
from rockoon_rpc.server_call import ServerCall
from support import http2_frames as frames
from support.eventually import eventually
from support.kernels import BOTH, each_kernel
from support.waiting import DEADLINE_SECONDS

each_implementation = pytest.fixture(params=BOTH, autouse=True)(each_kernel)

# Of two KiB: more than a transport holds.
MANY = 1_500
BODIES = [b"", b"x", bytes(16_379), bytes(70_000), bytes(9 << 20)]


class Callee:
    """What is called."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self.cancelled = 0

    async def unary(self, request: BytesValue, _context: Any) -> BytesValue:
        return request

    async def streams(self, requests: Any, _context: Any) -> AsyncIterator[BytesValue]:
        async for request in requests:
            yield request

    async def refuses(self, _request: BytesValue, context: Any) -> None:
        await context.abort(grpc.StatusCode.NOT_FOUND, "5 % Öl", (("x-bin", b"\0\xff"),))

    async def waits(self, request: BytesValue, _context: Any) -> BytesValue:
        self.has_begun.set()
        try:
            await asyncio.sleep(DEADLINE_SECONDS)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return request

    async def many(self, request: BytesValue, _context: Any) -> AsyncIterator[BytesValue]:
        for _ in range(MANY):
            yield request

    def handler(self) -> Any:
        kinds: dict[str, tuple[Any, Any]] = {
            "Unary": (grpc.unary_unary_rpc_method_handler, self.unary),
            "Streams": (grpc.stream_stream_rpc_method_handler, self.streams),
            "Many": (grpc.unary_stream_rpc_method_handler, self.many),
            "Refuses": (grpc.unary_unary_rpc_method_handler, self.refuses),
            "Waits": (grpc.unary_unary_rpc_method_handler, self.waits),
        }
        handlers = {
            name: make(behaviour, BytesValue.FromString, BytesValue.SerializeToString)
            for name, (make, behaviour) in kinds.items()
        }
        return grpc.method_handlers_generic_handler("test.Callee", handlers)


@asynccontextmanager
async def served(kind: str, callee: Callee, port: int = 0) -> AsyncIterator[int]:
    """A server of gRPC's, or of ours."""
    if kind == "ours":
        ours = Server()
        ours.add_generic_rpc_handlers((callee.handler(),))
        found = await ours.listen("127.0.0.1", port)
        try:
            yield found
        finally:
            await ours.stop(None)
        return
    theirs = aio.server(options=(("grpc.max_receive_message_length", -1),))
    theirs.add_generic_rpc_handlers((callee.handler(),))
    found = theirs.add_insecure_port(f"127.0.0.1:{port}")
    await theirs.start()
    try:
        yield found
    finally:
        await theirs.stop(None)


def method(channel: Channel, kind: str, name: str) -> Any:
    opened: Any = getattr(channel, kind)
    return opened(f"/test.Callee/{name}", BytesValue.SerializeToString, BytesValue.FromString)


SERVERS = pytest.mark.parametrize("kind", ["ours", "grpc's"])


@SERVERS
async def test_calls_are_answered_one_by_one_at_once_and_in_streams(kind: str) -> None:
    async with served(kind, Callee()) as port, Channel(f"127.0.0.1:{port}") as channel:
        unary = method(channel, "unary_unary", "Unary")
        for body in BODIES:
            assert (await unary(BytesValue(value=body), timeout=DEADLINE_SECONDS)).value == body
        bodies = BODIES + BODIES[:-1] * 9 + BODIES
        calls = [unary(BytesValue(value=body)) for body in bodies]
        assert [(await each).value for each in calls] == bodies
        requests = [BytesValue(value=body) for body in BODIES]
        streams = method(channel, "stream_stream", "Streams")(iter(requests))
        assert [each.value async for each in streams] == BODIES
        written = method(channel, "stream_stream", "Streams")()
        for body in BODIES:
            await written.write(BytesValue(value=body))
            assert (await written.read()).value == body
        await written.done_writing()
        assert await written.read() is aio.EOF
        assert await written.code() is grpc.StatusCode.OK


@SERVERS
async def test_a_taker_gets_what_it_wants_and_the_reader_the_rest_in_its_order(kind: str) -> None:
    async with served(kind, Callee()) as port, Channel(f"127.0.0.1:{port}") as channel:
        call = method(channel, "stream_stream", "Streams")()
        offered: list[bytes] = []

        def take(message: BytesValue) -> bool:
            offered.append(message.value)
            return message.value.startswith(b"taken")

        call.on_message = take
        assert not call.write_now(BytesValue(value=b"lost")), "there is no connection yet"
        await call.wait_for_connection()
        sent = [b"taken 1", b"taken 2", b"read 3", b"taken 4", b"read 5"]
        async with asyncio.timeout(DEADLINE_SECONDS):
            for value in sent[:3]:
                assert call.write_now(BytesValue(value=value))
            assert (await call.read()).value == b"read 3"
            for value in sent[3:]:
                assert call.write_now(BytesValue(value=value))
            # Messages that arrive while the caller does not read are not offered.
            read = [(await call.read()).value]
            while read[-1] != b"read 5":
                read.append((await call.read()).value)
            await call.done_writing()
            assert await call.read() is aio.EOF
        assert offered[:3] == sent[:3]
        taken = [each for each in offered if each.startswith(b"taken")]
        assert sorted([*taken, b"read 3", *read]) == sorted(sent)
        assert not call.write_now(BytesValue(value=b"late"))


@SERVERS
async def test_a_stream_that_is_longer_than_transports_hold_arrives(kind: str) -> None:
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        served(kind, Callee()) as port,
        Channel(f"127.0.0.1:{port}") as channel,
    ):
        request = BytesValue(value=bytes(2_000))
        call = method(channel, "unary_stream", "Many")(request)
        assert [each async for each in call] == [request] * MANY
        echoed = method(channel, "stream_stream", "Streams")(request for _ in range(MANY))
        assert [each async for each in echoed] == [request] * MANY


@SERVERS
async def test_failures_are_told_as_grpc_tells_them(kind: str) -> None:
    callee = Callee()
    async with served(kind, callee) as port, Channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(aio.AioRpcError) as refusal:
            await method(channel, "unary_unary", "Refuses")(BytesValue())
        assert refusal.value.code() is grpc.StatusCode.NOT_FOUND
        assert refusal.value.details() == "5 % Öl"
        assert dict(refusal.value.trailing_metadata()) == {"x-bin": b"\0\xff"}
        with pytest.raises(aio.AioRpcError) as unknown:
            await method(channel, "unary_unary", "Nothing")(BytesValue())
        assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED
        waits = method(channel, "unary_unary", "Waits")
        with pytest.raises(aio.AioRpcError) as late:
            await waits(BytesValue(), timeout=0.05)
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        callee.has_begun.clear()
        given_up = waits(BytesValue())
        async with asyncio.timeout(DEADLINE_SECONDS):
            await callee.has_begun.wait()
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert await given_up.code() is grpc.StatusCode.CANCELLED
        await eventually(lambda: callee.cancelled >= 1)


@SERVERS
async def test_a_server_that_is_away_is_told_of_at_once_and_found_when_it_is_back(
    kind: str,
) -> None:
    async with served(kind, Callee()) as port:
        pass
    async with Channel(f"127.0.0.1:{port}") as channel:
        unary = method(channel, "unary_unary", "Unary")
        with pytest.raises(aio.AioRpcError) as away:
            await unary(BytesValue())
        assert away.value.code() is grpc.StatusCode.UNAVAILABLE
        patient = unary(BytesValue(value=b"later"), wait_for_ready=True)
        async with served(kind, Callee(), port):
            assert (await patient).value == b"later"
            waits = method(channel, "unary_unary", "Waits")(BytesValue())
            await waits.wait_for_connection()
        # The server went while a call was in progress.
        with pytest.raises(aio.AioRpcError) as cut:
            await waits
        assert cut.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        async with served(kind, Callee(), port):
            again = await unary(BytesValue(value=b"again"), wait_for_ready=True)
            assert again.value == b"again"
    with pytest.raises(aio.UsageError):
        unary(BytesValue())


@pytest.mark.parametrize(("longest", "is_taken"), [(1 << 20, False), (1 << 30, True)])
async def test_an_answer_may_be_as_long_as_its_dialer_says(longest: int, is_taken: bool) -> None:
    async with (
        served("ours", Callee()) as port,
        Dialer(answer_bytes_max=longest).channel(f"127.0.0.1:{port}") as channel,
    ):
        assert isinstance(channel, Channel)
        assert (channel.limits.message_bytes_max > Limits().message_bytes_max) == is_taken
        echoed = method(channel, "unary_unary", "Unary")(BytesValue(value=BODIES[-1]))
        if is_taken:
            assert (await echoed).value == BODIES[-1]
            return
        with pytest.raises(aio.AioRpcError) as refusal:
            await echoed
        assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_server_that_speaks_something_else_is_unavailable() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, Channel(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") as channel:
        with pytest.raises(aio.AioRpcError) as failure:
            await method(channel, "unary_unary", "Unary")(BytesValue())
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_server_that_takes_no_calls_is_called_again_after_pauses() -> None:
    asked = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        writer.write(frames.settings({frames.MAX_CONCURRENT_STREAMS: 0 if asked < 4 else 1}))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, Channel(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") as channel:
        with pytest.raises(aio.AioRpcError) as failure:
            await method(channel, "unary_unary", "Unary")(BytesValue())
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "accepts no calls" in str(failure.value.details())
        # Without another try before its time.
        with pytest.raises(aio.AioRpcError):
            await method(channel, "unary_unary", "Unary")(BytesValue())
        assert asked == 1
        await channel.channel_ready()
        assert asked == 4


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def left() -> int:
    """Calls and streams that have not been freed, of both sides."""
    kinds = (ClientCall, ServerCall)
    return sum(isinstance(each, kinds) for each in gc.get_objects())


@pytest.mark.usefixtures("no_collector")
async def test_calls_that_are_answered_refused_given_up_or_streams_are_freed_at_their_end() -> None:
    before = left()
    callee = Callee()
    async with served("ours", callee) as port, Channel(f"127.0.0.1:{port}") as channel:
        request = BytesValue(value=b"x")
        for _ in range(3):
            await method(channel, "unary_unary", "Unary")(request, timeout=60.0)
            with pytest.raises(grpc.RpcError):
                await method(channel, "unary_unary", "Refuses")(request)
            with pytest.raises(grpc.RpcError):
                await method(channel, "unary_unary", "Unknown")(request)
            waiting = method(channel, "unary_unary", "Waits")(request)
            await callee.has_begun.wait()
            callee.has_begun.clear()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            del waiting
            taken: list[BytesValue] = []
            stream = method(channel, "stream_stream", "Streams")()
            stream.on_message = lambda message, taken=taken: bool(taken.append(message))
            await stream.write(request)
            assert await stream.read() == request
            await stream.done_writing()
            assert [each async for each in stream] == []
            del stream
        # The server's tasks end in a turn of their own.
        await eventually(lambda: left() <= before)
