"""A port of a fake service."""

from typing import Any

from grpc import aio

from rockoon_runtime.wire import GrpcServer
from support.drains import AT_ONCE


class Listener:
    """A servicer on a port; the port stays the same when it comes back."""

    def __init__(self, add: Any, servicer: Any) -> None:
        self._add, self._servicer = add, servicer
        self._server: GrpcServer | None = None
        self.address = "127.0.0.1:0"

    async def start(self) -> None:
        def register(server: aio.Server) -> None:
            self._add(self._servicer, server)

        self._server = GrpcServer("fake", "rockoon", self.address, register, [], drain=AT_ONCE)
        await self._server.__aenter__()
        self.address = self._server.address

    async def stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await server.__aexit__(None, None, None)
