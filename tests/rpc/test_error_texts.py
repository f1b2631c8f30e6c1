"""Error texts of a server never contain memory addresses, which help an attacker."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError
from grpc import StatusCode, aio

from rpc.peers import layer
from support.raw_http2 import call, data, head, raw_peer
from support.waiting import DEADLINE_SECONDS

ADDRESS = re.compile(r"0x[0-9a-fA-F]{5,}")
LONGEST = 10_000


class Failing:
    """Handlers that fail with texts of objects: before answers, behind them, in serializers."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()

    async def raises(self, _request: Any, _context: Any) -> bytes:
        raise ValueError(f"no use for {object()}", self, self.raises)

    async def raises_object(self, _request: Any, _context: Any) -> bytes:
        raise KeyError(asyncio.get_running_loop().create_future().add_done_callback)

    async def answers_object(self, _request: Any, _context: Any) -> Any:
        return self

    async def raises_first(self, _request: Any, _context: Any) -> AsyncIterator[bytes]:
        raise LookupError(iter(()))
        yield b""

    async def raises_later(self, requests: Any, _context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request
            raise LookupError(requests)

    async def joins(self, requests: Any, _context: Any) -> bytes:
        raise LookupError([_ async for _ in requests], requests)

    async def echoes(self, request: bytes, _context: Any) -> bytes:
        return request

    async def waits(self, _request: bytes, _context: Any) -> bytes:
        self.has_begun.set()
        await asyncio.Event().wait()
        return b""

    def parse(self, raw: bytes) -> bytes:
        raise DecodeError(f"{self} does not read {raw!r}")

    def parse_badly(self, raw: bytes) -> bytes:
        raise TypeError(self, raw)

    def handler(self) -> grpc.GenericRpcHandler:
        unary = grpc.unary_unary_rpc_method_handler
        methods: dict[str, Any] = {
            "Raises": unary(self.raises),
            "RaisesObject": unary(self.raises_object),
            "AnswersObject": unary(self.answers_object),
            "DoesNotParse": unary(self.echoes, self.parse),
            "ParsesBadly": unary(self.echoes, self.parse_badly),
            "DoesNotSerialize": unary(self.echoes, None, self.parse_badly),
            "Unary": unary(self.echoes),
            "Waits": unary(self.waits),
            "RaisesFirst": grpc.unary_stream_rpc_method_handler(self.raises_first),
            "RaisesLater": grpc.stream_stream_rpc_method_handler(self.raises_later),
            "ParsesRequestsBadly": grpc.stream_unary_rpc_method_handler(
                self.joins, self.parse_badly
            ),
            "Joins": grpc.stream_unary_rpc_method_handler(self.joins),
        }
        return grpc.method_handlers_generic_handler("test.Echo", methods)


@asynccontextmanager
async def failing(**bounds: Any) -> AsyncIterator[tuple[Any, int, Failing]]:
    """A server, its port, and its handlers."""
    service = Failing()
    server = layer.server(LONGEST, **bounds)
    server.add_generic_rpc_handlers((service.handler(),))
    port = await server.listen("127.0.0.1", 0)
    try:
        yield server, port, service
    finally:
        await server.stop(None)


STATUSES = {
    "Raises": StatusCode.UNKNOWN,
    "RaisesObject": StatusCode.UNKNOWN,
    "AnswersObject": StatusCode.UNKNOWN,
    "DoesNotParse": StatusCode.INTERNAL,
    "ParsesBadly": StatusCode.UNKNOWN,
    "DoesNotSerialize": StatusCode.UNKNOWN,
    "Nothing": StatusCode.UNIMPLEMENTED,
    "Unary": StatusCode.RESOURCE_EXHAUSTED,
    "RaisesFirst": StatusCode.UNKNOWN,
    "RaisesLater": StatusCode.UNKNOWN,
    "Joins": StatusCode.UNKNOWN,
    "ParsesRequestsBadly": StatusCode.UNKNOWN,
}
STREAMS = ("RaisesLater", "Joins", "ParsesRequestsBadly")


def checked(failure: aio.AioRpcError, status: StatusCode) -> None:
    text = str(failure.details())
    assert failure.code() is status, text
    assert text
    assert not ADDRESS.search(text), text


@pytest.mark.parametrize("method", STATUSES)
async def test_an_error_of_a_handler_names_no_address(method: str) -> None:
    async with failing() as (_, port, _), aio.insecure_channel(f"127.0.0.1:{port}") as opened:
        request = bytes(LONGEST + 1 if method == "Unary" else 10)
        path = f"/test.Echo/{method}"
        channel: Any = opened
        if method in STREAMS:
            calls = channel.stream_stream(path)(iter([request]), timeout=DEADLINE_SECONDS)
        else:
            calls = channel.unary_stream(path)(request, timeout=DEADLINE_SECONDS)
        with pytest.raises(aio.AioRpcError) as failure:
            [answer async for answer in calls]
        checked(failure.value, STATUSES[method])


async def test_an_error_of_the_server_itself_names_no_address() -> None:
    async with (
        failing(calls_max=1) as (server, port, service),
        aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        waits: Any = channel.unary_unary("/test.Echo/Waits")
        first = waits(b"")
        await service.has_begun.wait()
        with pytest.raises(aio.AioRpcError) as failure:
            await waits(b"", timeout=DEADLINE_SECONDS)
        checked(failure.value, StatusCode.RESOURCE_EXHAUSTED)
        await server.stop(0)
        with pytest.raises(aio.AioRpcError) as failure:
            await first
        assert not ADDRESS.search(str(failure.value.details()))


@pytest.mark.parametrize(
    "raw",
    [
        head(1, ends=True),
        head(1) + data(1, b"x") + data(1, b"y", ends=True),
        call(1).replace(b"application/grpc", b"application/text"),
        head(1).replace(b"trailers", b"deflates"),
        bytes(9),
        b"\0\0\4\x08\0\0\0\0\0\0\0\0\0",
        b"\xff" * 100,
    ],
    ids=["no request", "two requests", "not gRPC", "te", "DATA on 0", "no window", "noise"],
)
async def test_an_answer_to_a_broken_call_names_no_address(raw: bytes) -> None:
    async with failing() as (_, port, _), raw_peer(port) as peer:
        await peer.send(raw)
        peer.writer.write_eof()
        assert await peer.until(lambda _: False) is None
    received = b"".join(each.payload for each in peer.seen)
    assert len(peer.seen) > 2
    assert not ADDRESS.search(received.decode("latin-1")), received
