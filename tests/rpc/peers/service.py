"""Service that the cases call. It runs on Rockoon's server and on grpcio's; requests and answers
are bytes.

The Go program has the same service (`clients/go/server.go`).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

NAME = "peers.Peers"
# Its UTF-8 and its percent sign have to be escaped in grpc-message.
DETAILS = "kein Wasser: 5 % Öl, 水"
ENDED_SECONDS_MAX = 30.0
REASON, REASON_BIN = ("x-reason", "dry"), ("x-reason-bin", b"\x00\xff,\x80")


def event(events: dict[str, asyncio.Event], key: bytes) -> asyncio.Event:
    return events.setdefault(key.decode(), asyncio.Event())


async def happened(awaited: asyncio.Event) -> bytes:
    try:
        async with asyncio.timeout(ENDED_SECONDS_MAX):
            await awaited.wait()
    except TimeoutError:
        return b"no"
    return b"yes"


class Peers:
    """The service.

    Args:
        leave: starts a successor at the same address and leaves; returns when the successor has
            answered a call.
    """

    def __init__(self, leave: Callable[[], Awaitable[None]] | None = None) -> None:
        self._leave = leave
        self._gathered: dict[str, int] = {}
        self._gates: dict[str, asyncio.Event] = {}
        self._begun: dict[str, asyncio.Event] = {}
        self._ended: dict[str, asyncio.Event] = {}
        self.has_answered = asyncio.Event()
        # Calls of Poll in progress, and those that clients have cancelled.
        self.polls = self.cancelled_polls = 0

    async def echo(self, request: bytes, _context: Any) -> bytes:
        self.has_answered.set()
        return request

    async def join(self, requests: Any, _context: Any) -> bytes:
        """Count messages and bytes: "3 300"."""
        lengths = [len(request) async for request in requests]
        return f"{len(lengths)} {sum(lengths)}".encode()

    async def split(self, request: bytes, _context: Any) -> AsyncIterator[bytes]:
        """Answer "3 100" by three messages of 100 bytes."""
        count, length = map(int, request.split())
        for _ in range(count):
            yield bytes(length)

    async def chat(self, requests: Any, _context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    async def gather(self, request: bytes, context: Any) -> bytes:
        """Answer "key 1000" with the client's address when 1,000 calls with the key have begun."""
        key, count = request.decode().split()
        gate = self._gates.setdefault(key, asyncio.Event())
        self._gathered[key] = self._gathered.get(key, 0) + 1
        if self._gathered[key] >= int(count):
            gate.set()
        await gate.wait()
        return str(context.peer()).encode()

    async def metadata(self, _request: bytes, context: Any) -> bytes:
        """Return the client's metadata whose names begin with "x-": in front of the answer, and
        behind it."""
        sent = [(key, value) for key, value in context.invocation_metadata() if key[:2] == "x-"]
        await context.send_initial_metadata(sent)
        context.set_trailing_metadata(sent)
        return b""

    async def fail(self, _request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, DETAILS, (REASON, REASON_BIN))
        raise AssertionError

    async def fail_late(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield request
        await context.abort(grpc.StatusCode.NOT_FOUND, DETAILS, (REASON, REASON_BIN))

    async def wait(self, request: bytes, _context: Any) -> bytes:
        await self._until_ended(request)
        return b""

    async def wait_stream(self, requests: Any, _context: Any) -> AsyncIterator[bytes]:
        request = await anext(aiter(requests))
        try:
            # The cancellation can arrive before the generator goes on.
            yield request
            await self._until_ended(request)
        finally:
            event(self._ended, request).set()

    async def _until_ended(self, key: bytes) -> None:
        event(self._begun, key).set()
        try:
            await asyncio.Event().wait()
        finally:
            event(self._ended, key).set()

    async def begun(self, request: bytes, _context: Any) -> bytes:
        """Answer "yes" when the handler of a waiting call has begun, "no" after half a minute."""
        return await happened(event(self._begun, request))

    async def ended(self, request: bytes, _context: Any) -> bytes:
        """Answer "yes" when the handler of a waiting call has ended, "no" after half a minute."""
        return await happened(event(self._ended, request))

    async def remaining(self, _request: bytes, context: Any) -> bytes:
        """Milliseconds until the deadline."""
        return str(round(context.time_remaining() * 1e3)).encode()

    async def quiet(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        """Answer with the client's address, at once and after as many milliseconds as requested."""
        yield str(context.peer()).encode()
        await asyncio.sleep(int(request) / 1e3)
        yield str(context.peer()).encode()

    async def poll(self, request: bytes, _context: Any) -> AsyncIterator[bytes]:
        """Answer after as many milliseconds as requested: there is no message."""
        self.polls += 1
        try:
            await asyncio.sleep(int(request) / 1e3)
            yield b"nothing"
        except asyncio.CancelledError:
            self.cancelled_polls += 1
            raise
        finally:
            self.polls -= 1

    async def leave(self, request: bytes, _context: Any) -> AsyncIterator[bytes]:
        """Answer, leave, and answer again when the successor has answered a call."""
        assert self._leave is not None
        yield request
        await self._leave()
        yield request

    def handler(self) -> grpc.GenericRpcHandler:
        kinds: dict[str, tuple[Any, Any]] = {
            "Echo": (grpc.unary_unary_rpc_method_handler, self.echo),
            "Join": (grpc.stream_unary_rpc_method_handler, self.join),
            "Split": (grpc.unary_stream_rpc_method_handler, self.split),
            "Chat": (grpc.stream_stream_rpc_method_handler, self.chat),
            "Gather": (grpc.unary_unary_rpc_method_handler, self.gather),
            "Metadata": (grpc.unary_unary_rpc_method_handler, self.metadata),
            "Fail": (grpc.unary_unary_rpc_method_handler, self.fail),
            "FailLate": (grpc.unary_stream_rpc_method_handler, self.fail_late),
            "Wait": (grpc.unary_unary_rpc_method_handler, self.wait),
            "WaitStream": (grpc.stream_stream_rpc_method_handler, self.wait_stream),
            "Begun": (grpc.unary_unary_rpc_method_handler, self.begun),
            "Ended": (grpc.unary_unary_rpc_method_handler, self.ended),
            "Remaining": (grpc.unary_unary_rpc_method_handler, self.remaining),
            "Quiet": (grpc.unary_stream_rpc_method_handler, self.quiet),
            "Poll": (grpc.unary_stream_rpc_method_handler, self.poll),
            "Leave": (grpc.unary_stream_rpc_method_handler, self.leave),
        }
        handlers = {name: make(behaviour) for name, (make, behaviour) in kinds.items()}
        return grpc.method_handlers_generic_handler(NAME, handlers)
