"""A connection has one turn in each iteration of the loop, and few frames without effect."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import uvloop

from rockoon.local.authority import Authority
from rockoon_core.http2 import connection
from rockoon_core.http2.channel import Http2Channel
from rockoon_core.http2.sending import TURN_COST
from rockoon_runtime import http2_server
from rockoon_runtime.http2_server import Http2Server, ServerConnection
from rockoon_runtime.tls import ServerTls
from support import http2_frames as frames
from support.eventually import eventually
from support.http2_frames import ErrorCode, block, literal
from support.raw_http2 import CALL, Frame, RawPeer, call, data, head, raw_peer
from support.waiting import DEADLINE_SECONDS

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
BEGIN = frames.PREFACE + frames.settings({})
PING = frames.frame(frames.PING, 0, 0, b"turnturn")
PRIORITY = frames.frame(frames.PRIORITY, 0, 1, bytes(5))


class Callee:
    """What is called, with bytes."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.parked = 0
        self.may_answer = asyncio.Event()

    async def unary(self, request: bytes, _context: Any) -> bytes:
        self.requests.append(request)
        return request

    async def parks(self, request: bytes, _context: Any) -> bytes:
        self.parked += 1
        await self.may_answer.wait()
        return request

    async def streams(self, requests: Any, _context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request


@asynccontextmanager
async def served(
    callee: Callee, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Http2Server, int]]:
    server = Http2Server()
    handlers: dict[str, Any] = {
        "Unary": grpc.unary_unary_rpc_method_handler(callee.unary),
        "Parks": grpc.unary_unary_rpc_method_handler(callee.parks),
        "Streams": grpc.stream_stream_rpc_method_handler(callee.streams),
    }
    server.add_registered_method_handlers("test.Echo", handlers)
    port = await server.listen("127.0.0.1", 0, tls)
    try:
        yield server, port
    finally:
        await server.stop(None)


@contextmanager
def sent_at_once(port: int, raw: bytes) -> Iterator[socket.socket]:
    """A connection whose bytes are all with the server's kernel before the server runs again."""
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.settimeout(DEADLINE_SECONDS)
        peer.sendall(raw)
        yield peer


async def calm_end(peer: RawPeer) -> ErrorCode | None:
    """The error with which a connection ends."""
    goes = await peer.until(lambda each: each.kind == frames.GOAWAY)
    return None if goes is None else goes.error


def ends_call(stream_id: int, frame: Frame) -> bool:
    return frame.stream_id == stream_id and frame.kind == frames.HEADERS


@pytest.mark.parametrize("new_loop", LOOPS)
def test_many_calls_of_one_connection_do_not_go_before_all_others(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def scenario() -> None:
        callee = Callee()
        async with served(callee) as (_, port):
            many = b"".join(call(2 * number + 1, b"many") for number in range(400))
            with sent_at_once(port, BEGIN + many), sent_at_once(port, BEGIN + call(1, b"one")):
                await eventually(lambda: len(callee.requests) == 401)
        per_turn = TURN_COST // connection.CALL_COST
        assert callee.requests.index(b"one") <= 4 * per_turn

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())


@pytest.mark.parametrize("new_loop", LOOPS)
def test_connections_over_tls_have_turns_too(
    new_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "authority", "Rockoon test")
    issued = authority.issue("server")

    async def scenario() -> None:
        callee = Callee()
        trust = ssl.create_default_context(cafile=authority.ca)
        trust.set_alpn_protocols(["h2"])
        server_tls = ServerTls(issued.certificate, issued.key, None).context()
        async with served(callee, server_tls) as (server, port):
            writers = []
            for _ in range(2):
                opened = asyncio.open_connection("127.0.0.1", port, ssl=trust)
                writers.append((await opened)[1])
                writers[-1].write(BEGIN)
            await eventually(
                lambda: [each.awaits_settings for each in server.connections] == [False] * 2
            )
            writers[0].write(b"".join(call(2 * number + 1, b"many") for number in range(400)))
            writers[1].write(call(1, b"one"))
            await eventually(lambda: len(callee.requests) == 401)
            for writer in writers:
                writer.transport.abort()
        per_turn = TURN_COST // connection.CALL_COST
        assert callee.requests.index(b"one") <= 4 * per_turn

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())


@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize("kind", ["ping", "priority", "begin_data"])
def test_an_iteration_of_the_loop_handles_few_frames_of_a_connection(
    kind: str,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_byte = frames.frame(frames.DATA, 0, 1, b"\0")
    flood = {"ping": PING, "priority": PRIORITY, "begin_data": one_byte}[kind]
    handled, in_iterations = 0, [0]
    handler = getattr(ServerConnection, f"_{kind}")

    def counted(self: ServerConnection, flags: int, stream_id: int, payload: Any) -> None:
        nonlocal handled
        handled += 1
        in_iterations[-1] += 1
        handler(self, flags, stream_id, payload)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        def iteration() -> None:
            in_iterations.append(0)
            if handled < 5_000:
                loop.call_soon(iteration)

        async with served(Callee()) as (_, port):
            with sent_at_once(port, BEGIN + head(1, "/test.Echo/Streams") + 5_000 * flood):
                iteration()
                await eventually(lambda: handled == 5_000)

    monkeypatch.setattr(ServerConnection, f"_{kind}", counted)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())
    # A callback may run before or behind the reading of one iteration.
    assert max(in_iterations) <= 2 * TURN_COST // connection.FRAME_COST


async def test_a_short_message_on_a_stream_costs_some_of_a_turn() -> None:
    callee = Callee()
    async with served(callee) as (_, port):
        many = b"".join(data(1, b"%d" % number) for number in range(2_000))
        streams = BEGIN + frames.window_update(0, 1 << 20) + head(1, "/test.Echo/Streams")
        with sent_at_once(port, streams + many) as peer:
            await eventually(lambda: callee.requests or True)
            got = b""
            loop = asyncio.get_running_loop()
            while b"1999" not in got:
                got += await loop.run_in_executor(None, peer.recv, 1 << 16)
        # Each once, in its order.
        assert got.index(b"\x041998") < got.index(b"\x041999")


async def test_only_the_last_value_of_a_setting_has_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = 0

    class Streams(dict[int, Any]):
        def values(self) -> Any:
            nonlocal passes
            passes += 1
            return super().values()

    callee = Callee()
    async with served(callee) as (server, port), raw_peer(port) as peer:
        await peer.send(call(1, b"x" * 100, "/test.Echo/Parks"))
        await eventually(lambda: callee.parked == 1)
        served_connection = next(iter(server.connections))
        served_connection.streams = Streams(served_connection.streams)
        entries = [frames.SETTING.pack(frames.INITIAL_WINDOW_SIZE, size) for size in range(2_700)]
        await peer.send(frames.frame(frames.SETTINGS, 0, 0, b"".join(entries)))
        await eventually(lambda: served_connection.peer_window == 2_699)
        assert passes == 1
        assert served_connection.streams[1].send_window == 2_699


async def test_a_call_begins_when_its_request_is_complete() -> None:
    callee = Callee()
    async with served(callee) as (server, port), raw_peer(port) as peer:
        request = data(7, bytes(30_000))
        halves = request[:15_000], request[15_000:]
        await peer.send(call(5))
        assert await peer.is_answered(5)
        before = len(asyncio.all_tasks())
        await peer.send(head(7, "/test.Echo/Parks") + head(9, "/test.Echo/Parks") + halves[0])
        await eventually(lambda: any(len(each.streams) == 2 for each in server.connections))
        await peer.send(halves[1][:-1])
        assert callee.parked == 0
        assert len(asyncio.all_tasks()) == before
        await peer.send(halves[1][-1:])
        await eventually(lambda: callee.parked == 1)
        callee.may_answer.set()
        await peer.send(frames.window_update(7, 1 << 20))
        assert await peer.is_answered(7)


async def test_headers_of_calls_in_progress_are_bounded() -> None:
    async with served(Callee()) as (server, port), raw_peer(port) as peer:
        long = literal("x", "y" * 8_000)
        headers = block([*CALL, ("x", "y" * 8_000)])
        calls = [
            frames.frame(frames.HEADERS, frames.END_HEADERS, stream_id, headers)
            for stream_id in range(1, 1_001, 2)
        ]
        await peer.send(b"".join(calls) + PING)
        refused = await peer.until(lambda each: each.kind == frames.RST_STREAM)
        assert refused is not None
        assert refused.error is ErrorCode.REFUSED_STREAM
        assert await peer.until(lambda each: each.kind == frames.PING)
        (served_connection,) = server.connections
        assert len(served_connection.streams) * len(long) <= http2_server.HEADER_BYTES_MAX
        # A call that ends makes room for another one.
        await peer.send(frames.rst_stream(1, ErrorCode.CANCEL))
        await peer.send(frames.frame(frames.HEADERS, frames.END_HEADERS, 1_001, headers))
        await peer.send(data(1_001, b"x", ends=True))
        assert await peer.is_answered(1_001)


async def test_a_request_that_is_late_ends_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_server, "REQUEST_SECONDS_MAX", 0.05)
    callee = Callee()
    async with served(callee) as (server, port), raw_peer(port) as peer:
        await peer.send(head(1) + head(3) + frames.frame(frames.DATA, 0, 3, b"\0\0"))
        for stream_id in (1, 3):
            end = await peer.until(partial(ends_call, stream_id))
            assert end is not None
            assert b"grpc-status\x014" in end.payload
        await eventually(lambda: not any(each.streams for each in server.connections))
        await peer.send(call(5))
        assert await peer.is_answered(5)


async def test_a_server_that_stops_waits_for_a_request_that_is_on_its_way() -> None:
    callee = Callee()
    async with served(callee) as (server, port), raw_peer(port) as peer:
        request = data(1, b"x" * 100, ends=True)
        await peer.send(head(1) + request[:50])
        await eventually(lambda: any(each.streams for each in server.connections))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.stop(DEADLINE_SECONDS))
            assert await calm_end(peer) is ErrorCode.NO_ERROR
            await peer.send(request[50:])
            assert await peer.is_answered(1)


async def test_a_client_opens_a_connection_for_each_thousand_parked_calls() -> None:
    callee = Callee()
    async with served(callee) as (server, port):
        channel = Http2Channel(f"127.0.0.1:{port}")
        parks = channel.unary_unary("/test.Echo/Parks")
        calls = [parks(b"%d" % number, timeout=DEADLINE_SECONDS) for number in range(2_500)]
        await eventually(lambda: callee.parked == 2_500)
        assert len(server.connections) == 3
        # A cancelled call leaves room in the oldest connection, which was full.
        calls[0].cancel()
        await eventually(lambda: sum(len(each.streams) for each in server.connections) == 2_499)
        calls[1:1] = [parks(b"again"), *(parks(b"%d" % number) for number in range(500))]
        await eventually(lambda: callee.parked == 3_001)
        assert len(server.connections) == 3
        callee.may_answer.set()
        for each in calls[1:]:
            await each
        await eventually(lambda: len(server.connections) == 1)
        await channel.close()


FLOODS: dict[str, bytes] = {
    "PING": PING,
    "SETTINGS": frames.settings({}),
    "PRIORITY": PRIORITY,
    "WINDOW_UPDATE": frames.window_update(0, 1),
    "empty DATA": frames.frame(frames.DATA, 0, 1),
    "padding alone": frames.frame(frames.DATA, frames.PADDED, 1, b"\x03\0\0\0"),
    "unknown frames": frames.frame(77, 0, 0, b"x"),
    "resets of a stream that has ended": frames.rst_stream(3, ErrorCode.CANCEL),
}


@pytest.mark.parametrize("what", FLOODS)
async def test_frames_without_effect_end_the_connection(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for budget in ("IDLE_FRAMES", "RESETS"):
        monkeypatch.setattr(connection, f"{budget}_BURST_MAX", 1_000)
        monkeypatch.setattr(connection, f"{budget}_PER_SECOND_MAX", 1)
    async with served(Callee()) as (_, port), raw_peer(port) as peer:
        await peer.send(head(1, "/test.Echo/Streams") + call(3))
        assert await peer.is_answered(3)
        await peer.send(500 * FLOODS[what] + call(5))
        assert await peer.is_answered(5)
        await peer.send(2_000 * FLOODS[what])
        assert await calm_end(peer) is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(
    "broken",
    [frames.window_update(1, 0), frames.frame(frames.PRIORITY, 0, 1, b""), data(1, b"")],
    ids=["no window", "no priority", "behind the end"],
)
async def test_streams_that_a_server_is_made_to_reset_end_the_connection(
    broken: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "RESETS_BURST_MAX", 500)
    monkeypatch.setattr(connection, "RESETS_PER_SECOND_MAX", 1)
    callee = Callee()
    async with served(callee) as (_, port), raw_peer(port) as peer:
        made = [
            call(stream_id, path="/test.Echo/Parks")
            + broken[:5]
            + frames.NUMBER.pack(stream_id)
            + broken[frames.HEAD_BYTES :]
            for stream_id in range(1, 2_001, 2)
        ]
        await peer.send(b"".join(made))
        assert await calm_end(peer) is ErrorCode.ENHANCE_YOUR_CALM


async def test_a_client_that_calls_may_ping_and_open_windows_with_each_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "IDLE_FRAMES_BURST_MAX", 50)
    monkeypatch.setattr(connection, "IDLE_FRAMES_PER_SECOND_MAX", 1)
    async with served(Callee()) as (_, port), raw_peer(port) as peer:
        for stream_id in range(1, 2_001, 2):
            await peer.send(call(stream_id) + PING + frames.window_update(0, 12))
            assert await peer.is_answered(stream_id)


async def test_a_client_that_cancels_all_its_long_polls_is_served_on() -> None:
    callee = Callee()
    async with served(callee) as (server, port):
        channel = Http2Channel(f"127.0.0.1:{port}")
        parks = channel.unary_unary("/test.Echo/Parks")
        for _ in range(3):
            callee.parked = 0
            polls = [parks(b"poll") for _ in range(900)]
            await eventually(lambda: callee.parked == 900)
            for each in polls:
                each.cancel()
            await eventually(lambda: not any(each.streams for each in server.connections))
        assert await channel.unary_unary("/test.Echo/Unary")(b"x") == b"x"
        assert len(server.connections) == 1
        await channel.close()
