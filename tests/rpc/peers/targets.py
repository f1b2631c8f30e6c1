"""Servers that clients of the cases call: Rockoon's, grpcio's and grpc-go's."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from rockoon.local.authority import Authority, Issued
from rpc.peers import layer
from rpc.peers.service import Peers

SHORT_BYTES_MAX = 1 << 20
STREAMS_MAX = 1_000
LEAVE_SECONDS_MAX = 30.0
END_SECONDS_MAX = 10.0


@dataclass(frozen=True)
class Target:
    """Addresses of one kind of server, "host:port".

    Attributes:
        name: heads its table.
        plain: without TLS; messages up to 64 MiB, 1,000 streams per connection.
        short: messages up to 1 MiB.
        tls: with a certificate of `ca`.
        leaving: its server leaves during the call Leave; a successor listens at the same port.
    """

    name: str
    plain: str
    short: str
    tls: str
    leaving: str
    ca: Path


class Servers:
    """Servers of one kind with the service, within this process.

    Args:
        start: starts a server: (service, port, longest message, certificate); returns the server,
            which has `stop(grace)`, and its port.
    """

    def __init__(self, start: Callable[..., Any]) -> None:
        self._start = start
        self._running: list[Any] = []
        self._leaving: set[asyncio.Task[None]] = set()

    async def open(self, bytes_max: int, issued: Issued | None = None) -> str:
        server, port = await self._start(Peers(), 0, bytes_max, issued)
        self._running.append(server)
        return f"localhost:{port}" if issued else f"127.0.0.1:{port}"

    async def open_leaving(self, port: int = 0) -> tuple[Peers, int]:
        """A server that leaves during each call of Leave, behind a successor."""

        async def leave() -> None:
            successor, _ = await self.open_leaving(found)
            self._running.remove(server)
            task = asyncio.get_running_loop().create_task(server.stop(LEAVE_SECONDS_MAX))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
            async with asyncio.timeout(LEAVE_SECONDS_MAX):
                await successor.has_answered.wait()

        service = Peers(leave)
        server, found = await self._start(service, port, 64 << 20, None)
        self._running.append(server)
        return service, found

    async def close(self) -> None:
        for server in self._running:
            await server.stop(None)
        for task in list(self._leaving):
            await task


async def start_rockoon(service: Peers, port: int, bytes_max: int, issued: Issued | None) -> Any:
    server = layer.server(bytes_max)
    server.add_generic_rpc_handlers((service.handler(),))
    tls = None if issued is None else layer.server_tls(issued.certificate, issued.key)
    return server, await server.listen("127.0.0.1", port, tls)


async def start_grpcio(service: Peers, port: int, bytes_max: int, issued: Issued | None) -> Any:
    options = (
        ("grpc.max_receive_message_length", bytes_max),
        ("grpc.max_concurrent_streams", STREAMS_MAX),
        ("grpc.http2.min_ping_interval_without_data_ms", 50),
    )
    server = aio.server(options=options)
    server.add_generic_rpc_handlers((service.handler(),))
    address = f"127.0.0.1:{port}"
    if issued is None:
        found = server.add_insecure_port(address)
    else:
        pair = (issued.key.read_bytes(), issued.certificate.read_bytes())
        found = server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    await server.start()
    return server, found


@asynccontextmanager
async def within(
    name: str, start: Callable[..., Any], authority: Authority
) -> AsyncIterator[Target]:
    """Servers of this process."""
    servers = Servers(start)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(servers.close)
        plain, short = await servers.open(64 << 20), await servers.open(SHORT_BYTES_MAX)
        tls = await servers.open(64 << 20, authority.issue("peers"))
        _, leaving = await servers.open_leaving()
        yield Target(name, plain, short, tls, f"127.0.0.1:{leaving}", authority.ca)


@asynccontextmanager
async def of_go(command: Sequence[object], authority: Authority) -> AsyncIterator[Target]:
    """grpc-go's servers, in a process that prints their addresses."""
    issued = authority.issue("peers")
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        *("serve", str(issued.certificate), str(issued.key)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(END_SECONDS_MAX):
            line = (await process.stdout.readline()).decode()
        plain, short, tls, leaving = line.split()
        yield Target("grpc-go", plain, short, tls, leaving, authority.ca)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
