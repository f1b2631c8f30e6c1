"""A connection has one turn in each iteration of the loop, and few frames without effect."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import uvloop

from rockoon.local.authority import Authority
from rockoon_rpc.limits import Limits
from rockoon_rpc.server import Server
from rockoon_rpc.server_connection import WASTE_PAUSE_SECONDS, ServerConnection
from rockoon_rpc.session import ErrorCode
from rockoon_runtime.tls import ServerTls
from support import http2_frames as frames
from support.eventually import eventually
from support.raw_http2 import RawPeer, call, data, head, raw_peer
from support.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.usefixtures("each_implementation")

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
BEGIN = frames.PREFACE + frames.settings({})
PING = frames.frame(frames.PING, 0, 0, b"turnturn")
PRIORITY = frames.frame(frames.PRIORITY, 0, 1, bytes(5))
SETTINGS_ANSWER = frames.frame(frames.SETTINGS, frames.ACK, 0)


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
    callee: Callee, tls: ssl.SSLContext | None = None, **bounds: Any
) -> AsyncIterator[tuple[Server, int]]:
    server = Server(**bounds)
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
        assert callee.requests.index(b"one") <= 4 * Limits().turn_calls

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
            await eventually(lambda: [each.is_ready for each in server.connections] == [True] * 2)
            writers[0].write(b"".join(call(2 * number + 1, b"many") for number in range(400)))
            writers[1].write(call(1, b"one"))
            await eventually(lambda: len(callee.requests) == 401)
            for writer in writers:
                writer.transport.abort()
        assert callee.requests.index(b"one") <= 4 * Limits().turn_calls

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())


@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize("has_read", [True, False], ids=["FIN", "RST"])
def test_input_of_a_peer_that_is_gone_is_not_handled(
    has_read: bool, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Megabytes wait in the socket of a process that was killed: seconds of work for no caller."""
    calls = 4_000

    async def scenario() -> None:
        callee = Callee()
        loop = asyncio.get_running_loop()
        async with served(callee) as (server, port):
            with sent_at_once(port, BEGIN) as peer:
                await eventually(lambda: [each.is_ready for each in server.connections] == [True])
                got = b""
                while has_read and SETTINGS_ANSWER not in got:
                    got += await loop.run_in_executor(None, peer.recv, 1 << 16)
                # Calls without answers: the server sends nothing that the peer could reset.
                for stream in range(1, 2 * calls, 2):
                    cancel = frames.rst_stream(stream, ErrorCode.CANCEL)
                    peer.sendall(call(stream, path="/test.Echo/Parks") + cancel)
            await eventually(lambda: not server.connections)
        assert 0 < callee.parked <= 4 * Limits().turn_calls

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())


@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize("flood", ["PING", "PRIORITY", "DATA"])
def test_an_iteration_of_the_loop_handles_one_turn_of_a_connection(
    flood: str,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frame = {"PING": PING, "PRIORITY": PRIORITY, "DATA": frames.frame(frames.DATA, 0, 1, b"\0")}
    in_iterations = [0]
    take_turn = ServerConnection._take_turn
    turns: list[float] = []

    def counted(self: ServerConnection, received: Any) -> bool:
        turns.append(asyncio.get_running_loop().time())
        in_iterations[-1] += 1
        return take_turn(self, received)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        is_over = False

        def iteration() -> None:
            in_iterations.append(0)
            if not is_over:
                loop.call_soon(iteration)

        async with served(Callee()) as (_, port):
            sent = BEGIN + head(1, "/test.Echo/Streams") + 9_000 * frame[flood] + call(3)
            with sent_at_once(port, sent) as peer:
                iteration()
                got = b""
                while b"hello" not in got:
                    got += await loop.run_in_executor(None, peer.recv, 1 << 16)
                is_over = True

    monkeypatch.setattr(ServerConnection, "_take_turn", counted)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())
    assert len(turns) >= 2
    # A callback may run before or behind the reading of one iteration.
    assert max(in_iterations) <= 2
    if flood != "DATA":
        # A connection that mostly wastes has a pause behind each turn; the loop's clock is coarse.
        assert turns[-1] - turns[0] >= (len(turns) - 2) * WASTE_PAUSE_SECONDS * 0.8


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


async def test_a_call_begins_when_its_request_is_complete() -> None:
    callee = Callee()
    async with served(callee) as (server, port), raw_peer(port) as peer:
        request = data(7, bytes(30_000), ends=True)
        halves = request[:15_000], request[15_000:]
        await peer.send(call(5))
        assert await peer.is_answered(5)
        before = len(asyncio.all_tasks())
        await peer.send(head(7, "/test.Echo/Parks") + head(9, "/test.Echo/Parks") + halves[0])
        await eventually(lambda: any(each.has_calls for each in server.connections))
        await peer.send(halves[1][:-1])
        assert callee.parked == 0
        assert len(asyncio.all_tasks()) == before
        await peer.send(halves[1][-1:])
        await eventually(lambda: callee.parked == 1)
        callee.may_answer.set()
        await peer.send(frames.window_update(7, 1 << 20))
        assert await peer.is_answered(7)


async def test_a_request_that_is_late_ends_its_call() -> None:
    callee = Callee()
    async with (
        served(callee, limits=Limits(request_seconds_max=0.05)) as (server, port),
        raw_peer(port) as peer,
    ):
        await peer.send(head(1) + head(3) + frames.frame(frames.DATA, 0, 3, b"\0\0"))
        ended: set[int] = set()
        while ended != {1, 3}:
            end = await peer.until(lambda each: "grpc-status" in each.headers)
            assert end is not None
            assert end.headers["grpc-status"] == "4"
            ended.add(end.stream_id)
        await eventually(lambda: not any(each.has_calls for each in server.connections))
        await peer.send(call(5))
        assert await peer.is_answered(5)


async def test_a_server_that_stops_waits_for_a_request_that_is_on_its_way() -> None:
    callee = Callee()
    async with served(callee) as (server, port), raw_peer(port) as peer:
        request = data(1, b"x" * 100, ends=True)
        await peer.send(head(1) + request[:50])
        await eventually(lambda: any(each.has_calls for each in server.connections))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.stop(DEADLINE_SECONDS))
            assert await calm_end(peer) is ErrorCode.NO_ERROR
            await peer.send(request[50:])
            assert await peer.is_answered(1)


FEW = Limits(
    idle_frames_burst=1_000, idle_frames_per_second=1, resets_burst=500, resets_per_second=1
)
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
async def test_frames_without_effect_end_the_connection(what: str) -> None:
    async with served(Callee(), limits=FEW) as (_, port), raw_peer(port) as peer:
        await peer.send(head(1, "/test.Echo/Streams") + call(3))
        assert await peer.is_answered(3)
        await peer.send(50 * FLOODS[what] + call(5))
        assert await peer.is_answered(5)
        await peer.send(2_000 * FLOODS[what])
        assert await calm_end(peer) is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(
    "broken",
    [frames.window_update(1, 0), frames.frame(frames.PRIORITY, 0, 1, b""), data(1, b"")],
    ids=["no window", "no priority", "behind the end"],
)
async def test_streams_that_a_server_is_made_to_reset_end_the_connection(broken: bytes) -> None:
    callee = Callee()
    async with served(callee, limits=FEW) as (_, port), raw_peer(port) as peer:
        made = [
            call(stream_id, path="/test.Echo/Parks")
            + broken[:5]
            + frames.NUMBER.pack(stream_id)
            + broken[frames.HEAD_BYTES :]
            for stream_id in range(1, 2_001, 2)
        ]
        await peer.send(b"".join(made))
        # A library may end the connection after the first frame.
        assert await calm_end(peer) not in (None, ErrorCode.NO_ERROR)


async def test_a_client_that_calls_may_ping_and_open_windows_with_each_call() -> None:
    limits = Limits(idle_frames_burst=50, idle_frames_per_second=1)
    async with served(Callee(), limits=limits) as (_, port), raw_peer(port) as peer:
        for stream_id in range(1, 2_001, 2):
            await peer.send(call(stream_id) + PING + frames.window_update(0, 12))
            assert await peer.is_answered(stream_id)
