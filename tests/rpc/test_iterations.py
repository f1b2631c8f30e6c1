"""Many connections with little input each: no iteration of the loop handles all input."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
import uvloop

from rockoon_rpc.channel import Channel
from rockoon_rpc.limits import Limits
from rockoon_rpc.server import Server
from rockoon_rpc.turns import CANCELLED_CALLS_MAX, ITERATION_COST_MAX, Line
from support import http2_frames as frames
from support.eventually import eventually
from support.raw_http2 import call
from support.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.usefixtures("each_implementation")

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
BEGIN = frames.PREFACE + frames.settings({})
# With a turn of each in one iteration, or one reply of each, an iteration would exceed its bound.
CONNECTIONS = 30
CHANNELS = 200
# Less than a turn.
CALLS = Limits().turn_calls - 4
# An iteration exceeds the bound by one turn at most.
CALLS_MAX = ITERATION_COST_MAX + Limits().turn_calls
# Iterations: one reads, one serves each address of a line, and one counts.
WAIT_MAX = 6
HONEST, HOSTILE, SERVICE = "127.0.0.1", "127.0.0.2", "127.0.0.3"
FAKE = "127.0.0.4"


class Counted:
    """A server that notes in which iteration of its loop it has handled each request."""

    def __init__(self) -> None:
        self.requests: list[tuple[bytes, int]] = []
        self.iterations = 0
        self._is_over = False

    async def unary(self, request: bytes, context: Any) -> bytes:
        if request == b"internal":
            context.connection.mark_internal(is_trusted=False)
        self.requests.append((request, self.iterations))
        return request

    def count_iterations(self) -> None:
        self.iterations += 1
        if not self._is_over:
            asyncio.get_running_loop().call_soon(self.count_iterations)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[tuple[Server, int]]:
        server = Server()
        handlers: dict[str, Any] = {"Unary": grpc.unary_unary_rpc_method_handler(self.unary)}
        server.add_registered_method_handlers("test.Echo", handlers)
        port = await server.listen(HONEST, 0)
        try:
            yield server, port
        finally:
            self._is_over = True
            await server.stop(None)

    async def handled(self, count: int) -> None:
        """Count the iterations until a number of requests is handled."""
        self.count_iterations()
        await eventually(lambda: len(self.requests) >= count)

    def in_iterations(self, request: bytes) -> list[int]:
        """How many equal requests each iteration has handled."""
        found = [at for each, at in self.requests if each == request]
        return [found.count(at) for at in sorted(set(found))]

    def iteration_of(self, request: bytes) -> int:
        return next(at for each, at in self.requests if each == request)


async def connected(
    stack: ExitStack, server: Server, port: int, address: str, count: int
) -> list[socket.socket]:
    """Connections of an address, which have begun HTTP/2."""
    before = len(server.connections)
    peers = []
    for _ in range(count):
        peer = socket.create_connection(
            (HONEST, port), DEADLINE_SECONDS, source_address=(address, 0)
        )
        peers.append(stack.enter_context(peer))
        peer.sendall(BEGIN)
    await eventually(
        lambda: (
            len(server.connections) == before + count
            and all(each.is_ready for each in server.connections)
        )
    )
    return peers


@pytest.mark.parametrize("new_loop", LOOPS)
def test_many_connections_with_little_input_share_iterations(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def scenario() -> Counted:
        counted = Counted()
        async with counted.served() as (server, port):
            with ExitStack() as stack:
                hostile = await connected(stack, server, port, HOSTILE, CONNECTIONS)
                (fake,) = await connected(stack, server, port, FAKE, 1)
                (service,) = await connected(stack, server, port, SERVICE, 1)
                (honest,) = await connected(stack, server, port, HONEST, 1)
                for each in (fake, service):
                    each.sendall(call(1, b"internal"))
                await eventually(lambda: len(counted.requests) == 2)
                counted.requests.clear()
                # All is with the kernel before the server runs again.
                for number in range(CONNECTIONS):
                    calls = (call(2 * each + 1, b"hostile") for each in range(CALLS))
                    hostile[number].sendall(b"".join(calls))
                fake.sendall(b"".join(call(2 * each + 3, b"fake") for each in range(1_000)))
                service.sendall(call(3, b"lease"))
                honest.sendall(call(1, b"honest"))
                await counted.handled(CONNECTIONS * CALLS + 1_000 + 2)
        return counted

    with asyncio.Runner(loop_factory=new_loop) as runner:
        counted = runner.run(scenario())
    assert max(counted.in_iterations(b"hostile")) <= CALLS_MAX
    assert max(counted.in_iterations(b"fake")) <= CALLS_MAX
    # A service of the cluster waits for no client, and a client for one turn of another address.
    assert counted.iteration_of(b"lease") <= WAIT_MAX
    assert counted.iteration_of(b"honest") <= WAIT_MAX


class Holding(Counted):
    """A server that holds its replies until `released` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.released = asyncio.Event()

    async def unary(self, request: bytes, context: Any) -> bytes:
        reply = await super().unary(request, context)
        await self.released.wait()
        return reply


@pytest.mark.parametrize("new_loop", LOOPS)
def test_replies_that_arrive_together_share_iterations(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def scenario() -> tuple[list[int], list[int]]:
        holding = Holding()
        resumed: list[tuple[int, int]] = []
        async with holding.served() as (_, port), AsyncExitStack() as stack:
            channels = [Channel(f"{HONEST}:{port}") for _ in range(CHANNELS)]
            for channel in channels:
                stack.push_async_callback(channel.close)

            async def ask(number: int) -> None:
                await channels[number].unary_unary("/test.Echo/Unary")(b"%d" % number)
                resumed.append((number, holding.iterations))

            async with asyncio.TaskGroup() as tasks:
                for number in range(CHANNELS):
                    tasks.create_task(ask(number))
                await eventually(lambda: len(holding.requests) == CHANNELS)
                holding.count_iterations()
                holding.released.set()
        numbers = [number for number, _ in resumed]
        iterations = [iteration for _, iteration in resumed]
        return numbers, [iterations.count(each) for each in sorted(set(iterations))]

    with asyncio.Runner(loop_factory=new_loop) as runner:
        numbers, in_iterations = runner.run(scenario())
    assert sorted(numbers) == list(range(CHANNELS))
    # A reply is one event of one turn.
    assert max(in_iterations) <= ITERATION_COST_MAX


@pytest.mark.parametrize("new_loop", LOOPS)
def test_lone_calls_need_no_callback_of_the_lines(
    new_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = [0]
    serve = Line.serve

    def noted(line: Line) -> None:
        served[0] += 1
        serve(line)

    monkeypatch.setattr(Line, "serve", noted)

    async def scenario() -> None:
        counted = Counted()
        loop = asyncio.get_running_loop()
        async with counted.served() as (server, port):
            with ExitStack() as stack:
                (peer,) = await connected(stack, server, port, HONEST, 1)
                for number in range(20):
                    peer.sendall(call(2 * number + 1, b"x"))
                    await loop.run_in_executor(None, peer.recv, 1 << 16)
                    await eventually(lambda: len(counted.requests) == number + 1)  # noqa: B023

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())
    assert served[0] == 0


@pytest.mark.parametrize("new_loop", LOOPS)
def test_input_that_waited_is_handled_once_and_in_order(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def scenario() -> Counted:
        counted = Counted()
        async with counted.served() as (server, port):
            with ExitStack() as stack:
                peers = await connected(stack, server, port, HONEST, 20)
                for part in range(3):
                    for number, peer in enumerate(peers):
                        first = 2 * part * CALLS + 1
                        peer.sendall(
                            b"".join(
                                call(stream, b"%d %d" % (number, stream))
                                for stream in range(first, first + 2 * CALLS, 2)
                            )
                        )
                    # The server reads in any number of iterations.
                    await asyncio.sleep(0)
                await counted.handled(20 * 3 * CALLS)
        return counted

    with asyncio.Runner(loop_factory=new_loop) as runner:
        counted = runner.run(scenario())
    found = [each.split() for each, _ in counted.requests]
    for number in range(20):
        streams = [int(stream) for of, stream in found if int(of) == number]
        assert streams == list(range(1, 2 * 3 * CALLS, 2))


class Waiting(Counted):
    """A server whose calls wait; records in which iteration each of them is cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = 0

    async def unary(self, request: bytes, context: Any) -> bytes:  # noqa: ARG002 - a servicer
        self.begun += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.requests.append((request, self.iterations))
            raise
        raise AssertionError


@pytest.mark.parametrize("new_loop", LOOPS)
def test_calls_of_connections_that_end_together_are_cancelled_in_several_iterations(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    count = CONNECTIONS * CALLS

    async def scenario() -> Waiting:
        waiting = Waiting()
        async with waiting.served() as (server, port):
            with ExitStack() as stack:
                hostile = await connected(stack, server, port, HOSTILE, CONNECTIONS)
                (honest,) = await connected(stack, server, port, HONEST, 1)
                for peer in hostile:
                    peer.sendall(b"".join(call(2 * each + 1, b"hostile") for each in range(CALLS)))
                honest.sendall(call(1, b"honest"))
                await eventually(lambda: waiting.begun == count + 1)
                # The kernel has all resets before the server runs again.
                for peer in (*hostile, honest):
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    peer.close()
                await waiting.handled(count + 1)
        return waiting

    with asyncio.Runner(loop_factory=new_loop) as runner:
        waiting = runner.run(scenario())
    assert max(waiting.in_iterations(b"hostile")) <= CANCELLED_CALLS_MAX
    # One iteration reads the reset, one serves the other address, and one runs the call.
    assert waiting.iteration_of(b"honest") <= WAIT_MAX
