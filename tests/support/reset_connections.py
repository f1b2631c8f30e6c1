"""A process under uvloop whose peers reset connections; prints how many of its files were closed.

Run as `python -m support.reset_connections client|server|both COUNT`: Rockoon's channel calls a
server that resets, or clients that reset call Rockoon's server; with `both` the server accepts TLS
and plain connections at one port.
"""

import asyncio
import itertools
import os
import socket
import ssl
import struct
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self

import grpc
import uvloop

from rockoon_rpc.channel import Channel
from rockoon_rpc.server import Server

AT_ONCE = 20
# A socket that is closed with this option sends a reset.
LINGER = struct.pack("ii", 1, 0)


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
    connection.close()


class ResettingServer:
    """Accepts connections and resets each; a context manager.

    Attributes:
        port: port on which it listens.
        count: number of connections that it has reset.
    """

    def __init__(self, port: int = 0) -> None:
        self._listener = socket.create_server(("127.0.0.1", port), backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        self.count = 0
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Wakes the thread.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            reset(connection)
            self.count += 1


async def call_a_server_that_resets(port: int) -> None:
    channel = Channel(f"127.0.0.1:{port}")
    with suppress(grpc.aio.AioRpcError):
        await channel.connected(waits=False)
    await channel.close()


async def connect_and_reset(port: int, first: bytes = b"") -> None:
    connection = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", port))
    connection.sendall(first)
    reset(connection)


async def lost_files(count: int, connect: Callable[[], Awaitable[None]]) -> int:
    """Return how many files, opened after connections had ended, other code has closed."""
    lost = 0
    for _ in range(0, count, AT_ONCE):
        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(_awaited(connect))
        # They get the descriptors of the former connections.
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(2 * AT_ONCE)]
        await asyncio.sleep(0)
        for descriptor in files:
            try:
                os.close(descriptor)
            except OSError:
                lost += 1
    return lost


async def _awaited(connect: Callable[[], Awaitable[None]]) -> None:
    await connect()


async def main(side: str, count: int) -> None:
    if side == "client":
        with ResettingServer() as peer:
            print(await lost_files(count, lambda: call_a_server_that_resets(peer.port)))
        return
    server = Server()
    # No peer gets as far as to need a certificate.
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if side == "both" else None
    port = await server.listen("127.0.0.1", 0, tls, accepts_plain=tls is not None)
    firsts = itertools.cycle([b"", b"P", b"\x16"] if side == "both" else [b""])
    print(await lost_files(count, lambda: connect_and_reset(port, next(firsts))))
    await server.stop(None)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
