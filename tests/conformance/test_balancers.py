"""Balancers of runs with several gateways spread connections and cut them."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from conformance.several import balancers
from conformance.several.balancers import Balancer
from rockoon.local.directory import choose_port
from support.seeds import seeds


@asynccontextmanager
async def named_server(name: str) -> AsyncIterator[int]:
    """A server that answers each connection with its name, and echoes lines."""

    class Echo(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.WriteTransport)
            self._transport = transport
            transport.write(f"{name}\n".encode())

        def data_received(self, data: bytes) -> None:
            self._transport.write(data)

    loop = asyncio.get_running_loop()
    async with await loop.create_server(Echo, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def test_connections_are_spread_and_a_gateway_that_is_away_is_passed_over() -> None:
    async with AsyncExitStack() as opened:
        first, second = [await opened.enter_async_context(named_server(name)) for name in "ab"]
        port = choose_port()
        opened.push_async_callback(await Balancer([first, choose_port(), second]).serve(port))
        found = []
        for _ in range(4):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            found.append((await reader.readline()).decode().strip())
            writer.write(b"echo\n")
            assert await reader.readline() == b"echo\n"
            writer.close()
            await writer.wait_closed()
        assert found == ["a", "b", "a", "b"]


@pytest.mark.parametrize("seed", seeds(1))
async def test_each_connection_is_cut_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balancers, "CUT_SECONDS", (0.01, 0.05))
    async with AsyncExitStack() as opened:
        backend = await opened.enter_async_context(named_server("a"))
        port = choose_port()
        balancer = Balancer([backend], random.Random(seed))
        opened.push_async_callback(await balancer.serve(port))
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.readline() == b"a\n"
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
            writer.transport.abort()
        assert balancer.cuts == 3
