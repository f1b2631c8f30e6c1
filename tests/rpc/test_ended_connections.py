"""An ended connection keeps no memory: its objects are in no reference cycle."""

import asyncio
import gc
import ssl
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
import uvloop

from rockoon.local.authority import Authority
from rockoon_rpc.server import Server
from rockoon_runtime.tls import ServerTls
from support import http2_frames as frames
from support.eventually import eventually
from support.raw_http2 import call, head

BEGIN = frames.PREFACE + frames.settings({})
PING = frames.frame(frames.PING, 0, 0, b"pingping")
ENDS = {
    "by the client": BEGIN + call(1),
    "with a waiting call": BEGIN + call(1, path="/test.Echo/Parks"),
    "with an incomplete request": BEGIN + head(1, "/test.Echo/Unary"),
    "by a protocol error": BEGIN + call(1) + frames.window_update(0, 0),
    "by a budget": BEGIN + 20_000 * PING,
}


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def unary(request: bytes, _context: Any) -> bytes:
    return request


async def parks(_request: bytes, _context: Any) -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


@asynccontextmanager
async def served(tls: ssl.SSLContext | None) -> AsyncIterator[tuple[Server, int]]:
    server = Server()
    handlers: dict[str, Any] = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Parks": grpc.unary_unary_rpc_method_handler(parks),
    }
    server.add_registered_method_handlers("test.Echo", handlers)
    try:
        yield server, await server.listen("127.0.0.1", 0, tls)
    finally:
        await server.stop(None)


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a client and of a server."""
    authority = Authority(tmp_path_factory.mktemp("authority"), "Rockoon test")
    issued = authority.issue("server")
    trust = ssl.create_default_context(cafile=authority.ca)
    trust.set_alpn_protocols(["h2"])
    return trust, ServerTls(issued.certificate, issued.key, None).context()


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.usefixtures("uncollected")
def test_an_ended_connection_is_freed_without_the_garbage_collector(
    end: str, is_encrypted: bool, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    trust, server_tls = contexts if is_encrypted else (None, None)

    async def scenario() -> None:
        async with served(server_tls) as (server, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
            writer.write(ENDS[end])
            # The server's SETTINGS.
            await reader.read(1)
            kept = [weakref.ref(each) for each in server.connections]
            writer.transport.abort()
            await eventually(lambda: not server.connections)
            await eventually(lambda: [each() for each in kept] == [None])

    # The loop of the services.
    uvloop.run(scenario())
