"""A peer that sends arbitrary bytes and decodes frames. It returns flow-control window only when a
test requests it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import NamedTuple

from hpack import Decoder

from rockoon_rpc.session import ErrorCode
from support import http2_frames as frames
from support.http2_frames import block, framed
from support.waiting import DEADLINE_SECONDS

CALL = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/test.Echo/Unary"),
    (":authority", "here"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)


class Frame(NamedTuple):
    """A received frame."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes
    headers: Mapping[str, str] = MappingProxyType({})
    """Decoded headers of HEADERS."""

    @property
    def error(self) -> ErrorCode | None:
        """Error code of a RST_STREAM or GOAWAY."""
        if self.kind == frames.RST_STREAM:
            return ErrorCode(frames.NUMBER.unpack(self.payload)[0])
        if self.kind == frames.GOAWAY:
            return ErrorCode(frames.TWO_NUMBERS.unpack_from(self.payload)[1])
        return None


def head(stream_id: int, path: str = "/test.Echo/Unary", *, ends: bool = False) -> bytes:
    """Return the headers of a call, without any table."""
    headers = [(name, path if name == ":path" else value) for name, value in CALL]
    flags = frames.END_HEADERS | (frames.END_STREAM if ends else 0)
    return frames.frame(frames.HEADERS, flags, stream_id, block(headers))


def data(stream_id: int, message: bytes, *, ends: bool = False) -> bytes:
    """Return a message in one frame."""
    flags = frames.END_STREAM if ends else 0
    return frames.frame(frames.DATA, flags, stream_id, framed(message))


def call(
    stream_id: int, message: bytes = b"\x0a\x05hello", path: str = "/test.Echo/Unary"
) -> bytes:
    """Return all frames of a call with one request."""
    return head(stream_id, path) + data(stream_id, message, ends=True)


class RawPeer:
    """The client's side of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._decoder = Decoder()
        self.writer = writer
        self.seen: list[Frame] = []

    async def send(self, raw: bytes) -> None:
        self.writer.write(raw)
        await self.writer.drain()

    async def frame(self) -> Frame | None:
        """Return the next frame; None at the end."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            try:
                raw = await self._reader.readexactly(frames.HEAD_BYTES)
                word, flags, stream_id = frames.HEAD.unpack(raw)
                payload = await self._reader.readexactly(word >> 8)
            except (asyncio.IncompleteReadError, ConnectionError):
                return None
        headers: Mapping[str, str] = {}
        if word & 0xFF == frames.HEADERS:
            headers = {str(name): str(value) for name, value in self._decoder.decode(payload)}
        found = Frame(word & 0xFF, flags, stream_id, payload, headers)
        self.seen.append(found)
        return found

    async def until(self, wanted: Callable[[Frame], bool]) -> Frame | None:
        """Return the next frame for which a condition is true; None if the connection ends
        before."""
        while (found := await self.frame()) is not None:
            if wanted(found):
                return found
        return None

    async def is_answered(self, stream_id: int) -> bool:
        """Return whether a stream ends as a call with a reply does."""
        ended = await self.until(
            lambda each: (
                each.stream_id == stream_id
                and (each.kind == frames.RST_STREAM or bool(each.flags & frames.END_STREAM))
            )
        )
        return ended is not None and ended.kind == frames.HEADERS


@asynccontextmanager
async def raw_peer(
    port: int, settings: bytes = frames.settings({}), *, limit: int = 1 << 20
) -> AsyncIterator[RawPeer]:
    """Open a connection and exchange preface and SETTINGS."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=limit)
    try:
        # A server's windows are valid from the acknowledgement of its settings.
        writer.write(frames.PREFACE + settings + frames.frame(frames.SETTINGS, frames.ACK, 0))
        yield RawPeer(reader, writer)
    finally:
        writer.transport.abort()
