"""A server that sends its callers their names, with or without TLS."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from rockoon.local.authority import Issued
from rockoon_runtime.tls import ServerTls, peer_identity
from rockoon_runtime.wire import GrpcServer
from support.waiting import DEADLINE_SECONDS

WHO = "/test.Who/AmI"


@asynccontextmanager
async def serving(
    issued: Issued | None = None, callers_ca: Path | None = None, **more: Any
) -> AsyncIterator[str]:
    """Run a server that sends its callers their names; yield its address.

    Args:
        issued: its certificate; None: connections without TLS.
        callers_ca: callers must show certificates of this authority.
        more: further arguments of `GrpcServer`.
    """

    async def who(request: bytes, context: object) -> bytes:
        identity = peer_identity(context)
        return ", ".join(identity.names).encode() if identity is not None else b"nobody"

    def register(server: aio.Server) -> None:
        handlers: dict[str, Any] = {"AmI": grpc.unary_unary_rpc_method_handler(who)}
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("test.Who", handlers)]
        )

    tls = ServerTls(issued.certificate, issued.key, callers_ca) if issued is not None else None
    anywhere = "127.0.0.1:0"
    async with GrpcServer("test", "rockoon", anywhere, register, [], tls=tls, **more) as server:
        yield server.address


async def who_am_i(channel: aio.Channel) -> str:
    """Return the name under which the server knows the caller."""
    call: Any = channel.unary_unary(WHO)
    return bytes(await call(b"", timeout=DEADLINE_SECONDS, wait_for_ready=True)).decode()
