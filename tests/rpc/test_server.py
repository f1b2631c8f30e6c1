"""The server: it answers gRPC's client, and refuses a peer that breaks the protocol.

`test_rfc9113` has the errors of RFC 9113.
"""

import asyncio
import random
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue
from grpc import aio

from rockoon_rpc.addresses import Addresses
from rockoon_rpc.limits import Limits
from rockoon_rpc.server import Server
from rockoon_rpc.session import ErrorCode
from support import http2_frames as frames
from support.eventually import eventually
from support.http2_frames import block, framed
from support.raw_http2 import Frame, RawPeer, call, data, head, raw_peer
from support.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.usefixtures("each_implementation")

MIB = 1 << 20
OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1))


class Echo:
    """What is called."""

    def __init__(self) -> None:
        self.cancelled = 0
        self.read = self.written = 0
        self.may_read = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.has_begun = asyncio.Event()

    async def unary(self, request: BytesValue, _context: Any) -> BytesValue:
        return request

    async def streams(self, requests: Any, _context: Any) -> AsyncIterator[BytesValue]:
        async for request in requests:
            yield request

    async def many(self, request: BytesValue, _context: Any) -> AsyncIterator[BytesValue]:
        for _ in range(2000):
            yield request

    async def pauses(self, request: BytesValue, _context: Any) -> AsyncIterator[BytesValue]:
        yield request
        yield request
        await self.may_answer.wait()
        yield request

    async def refuses(self, _request: BytesValue, context: Any) -> None:
        await context.abort(
            grpc.StatusCode.NOT_FOUND, "kein Wasser: 5 % Öl", (("x-bin", b"\0\xff"),)
        )

    async def writes(self, request: BytesValue, context: Any) -> None:
        answer = framed(request.SerializeToString())
        try:
            for left in range(2, -1, -1):
                await context.write_framed(2 * answer, last=not left)
                self.written += 2
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def fails(self, _request: BytesValue, context: Any) -> None:
        await context.write_framed("no bytes")

    async def waits(self, request: BytesValue, context: Any) -> BytesValue:
        self.has_begun.set()
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        assert context.peer().startswith("ipv4:127.0.0.1:")
        return request

    async def reads_late(self, requests: Any, _context: Any) -> BytesValue:
        await self.may_read.wait()
        async for request in requests:
            self.read += len(request.value)
        return BytesValue()


@asynccontextmanager
async def served(echo: Echo, **bounds: Any) -> AsyncIterator[tuple[Server, int]]:
    server = Server(**bounds)
    kinds = {
        "Unary": (grpc.unary_unary_rpc_method_handler, echo.unary),
        "Streams": (grpc.stream_stream_rpc_method_handler, echo.streams),
        "Many": (grpc.unary_stream_rpc_method_handler, echo.many),
        "Pauses": (grpc.unary_stream_rpc_method_handler, echo.pauses),
        "Writes": (grpc.unary_stream_rpc_method_handler, echo.writes),
        "Fails": (grpc.unary_stream_rpc_method_handler, echo.fails),
        "Refuses": (grpc.unary_unary_rpc_method_handler, echo.refuses),
        "Waits": (grpc.unary_unary_rpc_method_handler, echo.waits),
        "ReadsLate": (grpc.stream_unary_rpc_method_handler, echo.reads_late),
    }
    handlers: dict[str, Any] = {
        name: make(behaviour, BytesValue.FromString, BytesValue.SerializeToString)  # type: ignore[operator]
        for name, (make, behaviour) in kinds.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    port = await server.listen("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.stop(None)


def method(channel: aio.Channel, kind: str, name: str) -> Any:
    opened: Any = getattr(channel, kind)
    return opened(f"/test.Echo/{name}", BytesValue.SerializeToString, BytesValue.FromString)


async def test_grpcs_client_is_answered_in_all_four_ways() -> None:
    async with (
        served(Echo()) as (_, port),
        aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel,
    ):
        unary = method(channel, "unary_unary", "Unary")
        bodies = [b"", b"x", bytes(16_379), bytes(70_000), random.Random(1).randbytes(9 * MIB)]
        calls = [unary(BytesValue(value=body)) for body in bodies * 4]
        assert [(await each).value for each in calls] == bodies * 4
        many = method(channel, "unary_stream", "Many")(BytesValue(value=bytes(2000)))
        assert sum([len(each.value) async for each in many]) == 2000 * 2000
        streams = method(channel, "stream_stream", "Streams")(
            iter([BytesValue(value=body) for body in bodies])
        )
        assert [each.value async for each in streams] == bodies


@pytest.mark.parametrize("size", [10, 100_000, 3 * MIB])
async def test_a_method_may_write_its_answers_itself(size: int) -> None:
    echo = Echo()
    async with served(echo) as (_, port), aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        writes = method(channel, "unary_stream", "Writes")
        got = [each async for each in writes(BytesValue(value=bytes(size)))]
        assert [len(each.value) for each in got] == 6 * [size]
        assert echo.written == 6


async def test_what_a_method_writes_itself_brings_no_empty_frames() -> None:
    request = BytesValue(value=bytes(100_000)).SerializeToString()
    wide = frames.settings({frames.INITIAL_WINDOW_SIZE: 4 * MIB})
    async with served(Echo()) as (_, port), raw_peer(port, wide) as peer:
        window = frames.window_update(0, 4 * MIB)
        raw = framed(request)
        pieces = [raw[at : at + 16_000] for at in range(0, len(raw), 16_000)]
        sent = b"".join(frames.frame(frames.DATA, 0, 1, piece) for piece in pieces)
        end = frames.frame(frames.DATA, frames.END_STREAM, 1, b"")
        await peer.send(window + head(1, "/test.Echo/Writes") + sent + end)
        assert await peer.is_answered(1)
        brought = [len(each.payload) for each in peer.seen if each.kind == frames.DATA]
        assert sum(brought) == 6 * len(raw)
        assert 0 not in brought


async def test_a_method_that_fails_to_write_holds_up_nobody() -> None:
    async with served(Echo()) as (_, port), aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        fails = method(channel, "unary_stream", "Fails")
        with pytest.raises(aio.AioRpcError) as failure:
            await fails(BytesValue(), timeout=DEADLINE_SECONDS).read()
        assert failure.value.code() is grpc.StatusCode.UNKNOWN


async def test_who_goes_while_answers_are_written_ends_the_method() -> None:
    echo = Echo()
    # If the client's windows grew, they would hold all answers before the client cancels.
    options = [("grpc.http2.bdp_probe", 0)]
    async with (
        served(echo) as (_, port),
        aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel,
    ):
        call = method(channel, "unary_stream", "Writes")(BytesValue(value=bytes(3 * MIB)))
        await call.read()
        call.cancel()
        await eventually(lambda: echo.cancelled == 1)
        assert echo.written < 6


async def test_an_abort_brings_its_status_its_text_and_its_metadata() -> None:
    async with served(Echo()) as (_, port), aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(aio.AioRpcError) as refusal:
            await method(channel, "unary_unary", "Refuses")(BytesValue())
        assert refusal.value.code() is grpc.StatusCode.NOT_FOUND
        assert refusal.value.details() == "kein Wasser: 5 % Öl"
        assert dict(refusal.value.trailing_metadata()) == {"x-bin": b"\0\xff"}
        with pytest.raises(aio.AioRpcError) as unknown:
            await method(channel, "unary_unary", "Nothing")(BytesValue())
        assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_call_that_is_given_up_or_late_ends_its_servicer() -> None:
    echo = Echo()
    async with served(echo) as (_, port), aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        waits = method(channel, "unary_unary", "Waits")
        given_up = waits(BytesValue())
        async with asyncio.timeout(DEADLINE_SECONDS):
            await echo.has_begun.wait()
        given_up.cancel()
        await eventually(lambda: echo.cancelled == 1)
        with pytest.raises(aio.AioRpcError) as late:
            await waits(BytesValue(), timeout=0.05)
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await eventually(lambda: echo.cancelled == 2)


async def test_a_server_that_stops_answers_what_it_has_taken() -> None:
    echo = Echo()
    async with served(echo) as (server, port), aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        taken = method(channel, "unary_unary", "Waits")(BytesValue(value=b"taken"))
        async with asyncio.timeout(DEADLINE_SECONDS):
            await echo.has_begun.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.stop(DEADLINE_SECONDS))
            with pytest.raises(aio.AioRpcError) as refusal:
                await method(channel, "unary_unary", "Unary")(BytesValue())
            assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
            echo.may_answer.set()
            assert (await taken).value == b"taken"


@pytest.mark.parametrize("seed", range(4))
async def test_bytes_may_be_cut_anywhere(seed: int) -> None:
    chance = random.Random(seed)
    long = BytesValue(value=chance.randbytes(200_000)).SerializeToString()
    acknowledged = frames.frame(frames.SETTINGS, frames.ACK, 0)
    pieces = [
        frames.PREFACE,
        frames.settings({}),
        acknowledged,
        call(1),
        head(3, "/test.Echo/Streams"),
    ]
    message = data(3, long)[frames.HEAD_BYTES :]
    while message:
        count = chance.randint(1, 40_000)
        pieces.append(frames.frame(frames.DATA, 0, 3, message[:count]))
        message = message[count:]
    pieces += [frames.frame(frames.DATA, frames.END_STREAM, 3), call(5)]
    raw = b"".join(pieces)
    wide = frames.window_update(0, 1 << 24)
    async with served(Echo()) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.transport.set_write_buffer_limits(0)
        at = 0
        while at < len(raw):
            count = chance.choice((1, 3, 9, 1000, 60_000))
            writer.write(raw[at : at + count])
            await writer.drain()
            at += count
        writer.write(wide + frames.window_update(3, 1 << 24))
        peer = RawPeer(reader, writer)
        ended = 0
        while ended < 3:
            found = await peer.until(lambda each: "grpc-status" in each.headers)
            assert found is not None
            assert found.headers["grpc-status"] == "0"
            ended += 1
        echoed = [each.payload for each in peer.seen if each[0:3:2] == (frames.DATA, 3)]
        assert b"".join(echoed)[5:] == long
        writer.transport.abort()


# With which errors these end is tested with the sessions.
BROKEN: dict[str, bytes] = {
    "a frame too long": frames.head(1 << 21, frames.DATA, 0, 1),
    "very long settings": frames.head(1 << 17, frames.SETTINGS, 0, 0),
    "DATA on an idle stream": data(1, b""),
    "an even stream": head(2),
    "headers again behind the end": call(1) + head(1),
    "headers without end": frames.frame(frames.HEADERS, 0, 1, b"")
    + frames.frame(frames.CONTINUATION, 0, 1, bytes(10_000)) * 10,
    "empty headers without end": frames.frame(frames.HEADERS, 0, 1, b"")
    + frames.frame(frames.CONTINUATION, 0, 1) * 100,
    "no header block": frames.frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff" * 5),
    "a window too wide": frames.window_update(0, frames.WINDOW_MAX),
    "a push": frames.frame(frames.PUSH_PROMISE, 4, 1, bytes(4)),
    "no path": frames.frame(
        frames.HEADERS, 4, 1, block([(":method", "POST"), (":scheme", "http")])
    ),
    "an end within a message": head(1)
    + frames.frame(frames.DATA, frames.END_STREAM, 1, b"\0\0\0\0\x09abc"),
    "a stream's window of nothing": head(1) + frames.window_update(1, 0),
}


@pytest.mark.parametrize("what", BROKEN)
async def test_a_peer_that_breaks_the_protocol_is_refused_and_others_are_answered(
    what: str,
) -> None:
    no_pause = Addresses(calm_seconds=0)
    async with served(Echo(), addresses=no_pause) as (_, port), raw_peer(port) as peer:
        await peer.send(BROKEN[what])
        refused = await peer.until(
            lambda each: (
                bool(each.error)
                or each.headers.get("grpc-status", "0") != "0"
                or each.headers.get(":status", "200") != "200"
            )
        )
        assert refused is not None
        async with raw_peer(port) as other:
            await other.send(call(1))
            assert await other.is_answered(1)


@pytest.mark.parametrize(
    ("prefix", "status"), [(b"\x01\0\0\0\x01x", "12"), (b"\0\x7f\xff\xff\xff", "8")]
)
async def test_a_message_that_is_compressed_or_huge_ends_its_call(
    prefix: bytes, status: str
) -> None:
    async with served(Echo()) as (_, port), raw_peer(port) as peer:
        await peer.send(head(1) + frames.frame(frames.DATA, 0, 1, prefix))
        trailers = await peer.until(
            lambda each: each.stream_id == 1 and bool(each.flags & frames.END_STREAM)
        )
        assert trailers is not None
        assert trailers.headers["grpc-status"] == status
        await peer.send(call(3))
        assert await peer.is_answered(3)


async def test_the_length_of_messages_is_no_reason_to_use_memory_for_them() -> None:
    echo = Echo()
    announced = b"\0" + frames.NUMBER.pack(60 << 20) + b"x"
    streams = range(1, 200, 2)
    async with served(echo) as (_, port), raw_peer(port) as peer:
        begun = [head(each) + frames.frame(frames.DATA, 0, each, announced) for each in streams]
        tracemalloc.start()
        try:
            await peer.send(b"".join(begun) + call(201))
            assert await peer.is_answered(201)
            assert tracemalloc.get_traced_memory()[1] < 8 * MIB
        finally:
            tracemalloc.stop()


async def test_what_nobody_reads_holds_its_sender_and_no_other() -> None:
    echo = Echo()
    limits = Limits(unread_bytes_max=MIB)
    async with served(echo, limits=limits) as (_, port), raw_peer(port) as peer:
        # A message of a megabyte at a time; a stream's window is four.
        await peer.send(head(1, "/test.Echo/ReadsLate"))
        message = BytesValue(value=bytes(MIB - 10)).SerializeToString()
        for _ in range(4):
            raw = data(1, message)[frames.HEAD_BYTES :]
            while raw:
                await peer.send(frames.frame(frames.DATA, 0, 1, raw[:16_384]))
                raw = raw[16_384:]
        await peer.send(call(3))
        assert await peer.is_answered(3)
        given = [each for each in peer.seen if each.kind == frames.WINDOW_UPDATE]
        assert sum(
            frames.NUMBER.unpack(each.payload)[0] for each in given if each.stream_id == 1
        ) < (4 * MIB)
        echo.may_read.set()
        assert await peer.until(
            lambda each: each.kind == frames.WINDOW_UPDATE and each.stream_id == 1
        )
        await peer.send(frames.frame(frames.DATA, frames.END_STREAM, 1))
        assert await peer.is_answered(1)
        assert echo.read == 4 * (MIB - 10)


async def test_windows_are_given_back_in_large_pieces_and_not_with_each_message() -> None:
    async with served(Echo()) as (_, port), raw_peer(port) as peer:
        await peer.send(head(1, "/test.Echo/Streams"))
        message = BytesValue(value=bytes(10_000)).SerializeToString()
        # More bytes than the window has without WINDOW_UPDATE frames.
        wide = frames.window_update(0, 1 << 24) + frames.window_update(1, 1 << 24)
        await peer.send(wide)
        for _ in range(500):
            await peer.send(data(1, message))
            assert await peer.until(lambda each: each.kind == frames.DATA)
        updates = [each for each in peer.seen if each.kind == frames.WINDOW_UPDATE]
        of_stream = [each for each in updates if each.stream_id == 1]
        assert 3 <= len(of_stream) <= 5
        await peer.send(frames.frame(frames.DATA, frames.END_STREAM, 1))
        assert await peer.is_answered(1)


async def test_a_peer_without_a_window_is_sent_nothing_until_it_opens_one() -> None:
    narrow = frames.settings({frames.INITIAL_WINDOW_SIZE: 0})
    async with served(Echo()) as (_, port), raw_peer(port, narrow) as peer:
        raw = framed(BytesValue(value=bytes(100_000)).SerializeToString())
        pieces = [raw[at : at + 16_000] for at in range(0, len(raw), 16_000)]
        request = b"".join(frames.frame(frames.DATA, 0, 1, piece) for piece in pieces)
        await peer.send(head(1) + request + frames.frame(frames.DATA, frames.END_STREAM, 1))
        await peer.send(frames.frame(frames.PING, 0, 0, b"are you?"))
        assert await peer.until(lambda each: each.kind == frames.PING) is not None
        assert not [each for each in peer.seen if each.kind == frames.DATA]
        await peer.send(frames.window_update(1, 10))
        ten = await peer.until(lambda each: each.kind == frames.DATA)
        assert ten is not None
        assert 5 <= len(ten.payload) <= 10
        # What it has sent comes out of the stream's window and of the connection's.
        await peer.send(frames.window_update(1, 1 << 20) + frames.window_update(0, 1 << 20))
        assert await peer.is_answered(1)
        sent = [each for each in peer.seen if each.kind == frames.DATA]
        assert sum(len(each.payload) for each in sent) > 100_000
        assert max(len(each.payload) for each in sent) <= frames.FRAME_BYTES_MIN


async def test_a_peer_that_asks_and_does_not_read_is_not_read_either() -> None:
    async with served(Echo()) as (server, port), raw_peer(port, limit=1) as peer:
        peer.writer.transport.set_write_buffer_limits(high=1)
        pings = frames.frame(frames.PING, 0, 0, bytes(8)) * 10_000

        async def flood() -> None:
            while True:
                await peer.send(pings)

        async with asyncio.TaskGroup() as tasks:
            flooding = tasks.create_task(flood())
            await eventually(lambda: server.connections)
            connection = next(iter(server.connections))
            # It stops reading, so its answers are bounded, and the flood waits.
            await eventually(lambda: not connection.transport.is_reading())
            assert connection.transport.get_write_buffer_size() < 24 * MIB
            flooding.cancel()


async def test_opening_streams_and_giving_them_up_again_and_again_ends_the_connection() -> None:
    # As many as no machine is too slow for.
    limits = Limits(resets_burst=1_000, resets_per_second=1)
    echo = Echo()
    async with served(echo, limits=limits) as (_, port), raw_peer(port) as peer:
        burst = [
            head(2 * number + 1, "/test.Echo/Waits")
            + frames.rst_stream(2 * number + 1, ErrorCode.CANCEL)
            for number in range(4_000)
        ]
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(peer.send(b"".join(burst)))
            told = await peer.until(lambda each: each.kind == frames.GOAWAY)
            assert told is not None
            assert told.error is ErrorCode.ENHANCE_YOUR_CALM
            sending.cancel()


async def test_what_a_stream_has_said_is_sent_before_it_waits() -> None:
    echo = Echo()
    async with served(echo) as (server, port), aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        pauses = method(channel, "unary_stream", "Pauses")(BytesValue(value=b"x"))
        async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
            assert [(await pauses.read()).value for _ in range(2)] == [b"x", b"x"]
            # The connection leaves: the end of its last call, which goes out with the rest of its
            # messages, ends it.
            tasks.create_task(server.stop(DEADLINE_SECONDS))
            await eventually(lambda: all(each.is_leaving for each in server.connections))
            echo.may_answer.set()
            assert (await pauses.read()).value == b"x"
            assert await pauses.read() is aio.EOF
            assert await pauses.code() is grpc.StatusCode.OK


async def test_a_stream_that_is_given_up_while_it_waits_ends() -> None:
    echo = Echo()
    async with served(echo) as (server, port), aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        pauses = method(channel, "unary_stream", "Pauses")(BytesValue(value=b"x"))
        async with asyncio.timeout(DEADLINE_SECONDS):
            await pauses.read()
        pauses.cancel()
        await eventually(lambda: all(not each.streams for each in server.connections))
        # Answers of the ended call do not block answers of other calls.
        assert (await method(channel, "unary_unary", "Unary")(BytesValue(value=b"y"))).value == b"y"


async def test_a_connection_that_is_idle_for_long_is_left() -> None:
    async with served(Echo(), idle_seconds_max=0.05) as (_, port), raw_peer(port) as peer:
        await peer.send(call(1))
        assert await peer.is_answered(1)
        told = await peer.until(lambda each: each.kind == frames.GOAWAY)
        assert told is not None
        assert told.error is ErrorCode.NO_ERROR
        assert await peer.until(lambda _: False) is None


async def test_what_is_no_grpc_is_told_so() -> None:
    plain = ((":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "here"))
    async with served(Echo()) as (_, port), raw_peer(port) as peer:
        await peer.send(frames.frame(frames.HEADERS, 5, 1, block(plain)))
        answer = await peer.until(lambda each: each.kind == frames.HEADERS)
        assert isinstance(answer, Frame)
        assert answer.headers[":status"] == "415"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        async with asyncio.timeout(DEADLINE_SECONDS):
            # Whatever is said in HTTP/2's words, and then the end.
            await reader.read()
        writer.transport.abort()
