"""A server that a test plays frame by frame."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from support import http2_frames as frames
from support.http2_frames import block
from support.raw_http2 import RawPeer, data

HEAD = b"\x88" + block([("content-type", "application/grpc")])


class ServerEnd(RawPeer):
    """The server's side of a connection."""

    async def next_call(self) -> int:
        """Return the stream of the next call, when its headers have arrived."""
        head = await self.until(lambda each: each.kind == frames.HEADERS)
        assert head is not None
        return head.stream_id

    async def begin(self, stream_id: int) -> None:
        """Send the headers that begin the reply to a call."""
        await self.send(frames.frame(frames.HEADERS, frames.END_HEADERS, stream_id, HEAD))

    async def answer(self, stream_id: int, message: bytes) -> None:
        """Send all frames of a successful reply."""
        ends = frames.END_HEADERS | frames.END_STREAM
        status = frames.frame(frames.HEADERS, ends, stream_id, block([("grpc-status", "0")]))
        await self.begin(stream_id)
        await self.send(data(stream_id, message) + status)

    async def has_ended(self) -> bool:
        """Return when the client has ended the connection."""
        return await self.until(lambda _: False) is None


@asynccontextmanager
async def raw_server(
    settings: bytes = frames.settings({}),
) -> AsyncIterator[tuple[str, "asyncio.Queue[ServerEnd]"]]:
    """Yield the address of a server, and its connections after the exchange of SETTINGS."""
    came = asyncio.Queue[ServerEnd]()
    writers: list[asyncio.StreamWriter] = []

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(settings)
        await reader.readexactly(len(frames.PREFACE))
        came.put_nowait(ServerEnd(reader, writer))

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", came
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
