"""Relay of TCP connections that counts the keepalive pings of clients."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

PREFACE_BYTES, HEAD_BYTES = 24, 9
PING, ACK = 6, 1


class PingRelay:
    """Passes bytes on, both ways.

    Args:
        port: of the server.
        silent_seconds: clients also send PING to measure the bandwidth while data flows; a PING
            counts if the client has sent no other frame for so long.

    Attributes:
        pings: PING frames that count, without those that acknowledge one.
    """

    def __init__(self, port: int, silent_seconds: float) -> None:
        self._port = port
        self._silent_seconds = silent_seconds
        self.pings = 0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._requests(reader, to_writer))
                tasks.create_task(self._answers(to_reader, writer))
        finally:
            to_writer.close()
            writer.close()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            writer.write(await reader.readexactly(PREFACE_BYTES))
            last = time.monotonic()
            while True:
                head = await reader.readexactly(HEAD_BYTES)
                if head[3] != PING:
                    last = time.monotonic()
                elif not head[4] & ACK and time.monotonic() - last >= self._silent_seconds:
                    self.pings += 1
                writer.write(head + await reader.readexactly(int.from_bytes(head[:3])))
                await writer.drain()
        with suppress(OSError):
            writer.write_eof()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def relayed(address: str, silent_seconds: float) -> AsyncIterator[tuple[PingRelay, str]]:
    """A relay in front of a server, and the relay's address."""
    relay = PingRelay(int(address.rpartition(":")[2]), silent_seconds)
    server = await asyncio.start_server(relay.connected, "127.0.0.1", 0)
    async with server:
        yield relay, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
