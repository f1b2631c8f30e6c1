"""A gRPC server on Rockoon's own HTTP/2, for servicers of `grpc.aio.server`.

    head of a call          →  the method's handler is looked up
    request, or stream head →  a task: guard, parse, servicer, answer

A call with one request has no task before all of the request has come.

It leaves out what no servicer here uses: compression, reflection of channels, interceptors.
"""

import asyncio
import contextlib
import inspect
import logging
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from rockoon_core.http2 import frames
from rockoon_core.http2.connection import Http2Connection
from rockoon_core.http2.frames import ErrorCode
from rockoon_core.http2.headers import Header, Metadata, block, metadata
from rockoon_core.http2.liveness import Liveness
from rockoon_core.http2.messages import MessageRefused, MessageStream, UnfilledMemory
from rockoon_core.valid_text import exception_text
from rockoon_runtime.connections import ConnectionBound
from rockoon_runtime.http2_call import ServerCall
from rockoon_runtime.listener import Listener
from rockoon_runtime.receipt_pings import ReceiptPings

log = logging.getLogger(__name__)

MESSAGE_BYTES_MAX = 64 << 20
# On one connection. A client that needs more opens a second connection.
STREAMS_MAX = 1_000
# Of the headers of its calls, decoded: 2 KiB for each.
HEADER_BYTES_MAX = 2 << 20
# From the headers of a call to the end of its request; calls with a stream of requests have all
# the time that their deadline leaves.
REQUEST_SECONDS_MAX = 30.0
LISTEN_BACKLOG = 4096
# How long callers may take to end their side of connections when a server has stopped.
STOP_SECONDS_MAX = 1.0
REQUEST_MISSING = "the request is missing"
_KNOWN_HEADS_MAX = 16
TIMEOUT_LETTERS_MAX = 9
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
# Until the connection's next look at how long it has been idle, at least.
_IDLE_LOOK_SECONDS_MIN = 1.0
_OF_A_CONNECTION = frozenset(
    ("connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade")
)
_PSEUDO = frozenset((":method", ":scheme", ":path", ":authority"))


class CallDetails(NamedTuple):
    """A call, as gRPC's HandlerCallDetails."""

    method: str
    invocation_metadata: Metadata


Guard = Callable[[str, Metadata, Any], Any]
"""Given a call's path, its metadata and its handler, returns the handler that answers instead."""


class Head(NamedTuple):
    """What a call's headers say."""

    method: str
    metadata: Metadata
    timeout_seconds: float | None


class BadHead(Exception):
    """Headers that begin no call."""


def call_head(headers: Sequence[Header]) -> Head | None:
    """Read a request's headers; None for one that is not gRPC's.

    Raises:
        BadHead: they break HTTP/2's rules (RFC 9113, sections 8.2 and 8.3).
    """
    pseudo: dict[str, str] = {}
    timeout, content_type, regular = "", "", False
    for name, value in headers:
        if name.startswith(":"):
            if regular or name not in _PSEUDO or name in pseudo:
                raise BadHead(f"{name} is out of place")
            pseudo[name] = value
            continue
        regular = True
        if name != name.lower() or name in _OF_A_CONNECTION or not is_text(value):
            raise BadHead(f"{name!r} is no header of HTTP/2")
        if name == "te" and value != "trailers":
            raise BadHead("te may be trailers only")
        if name == "grpc-timeout":
            if len(value) > TIMEOUT_LETTERS_MAX:
                raise BadHead("grpc-timeout is too long")
            timeout = value
        elif name == "content-type":
            content_type = value
    if not (pseudo.get(":method") and pseudo.get(":scheme") and pseudo.get(":path")):
        raise BadHead("a call has a method, a scheme and a path")
    if pseudo[":method"] != "POST" or not content_type.startswith("application/grpc"):
        return None
    try:
        seconds = int(timeout[:-1]) * _UNITS[timeout[-1]] if timeout else None
        return Head(pseudo[":path"], metadata(headers), seconds)
    except (ValueError, KeyError) as failure:
        raise BadHead(str(failure)) from failure


def host_and_port(listen: str) -> tuple[str, int]:
    """The parts of "host:port"; an IPv6 address stands in brackets. Raises OSError for no such."""
    host, _, port = listen.rpartition(":")
    if not port.isdecimal() or int(port) > 0xFFFF:
        raise OSError(f"{listen!r} names no port")
    return host.strip("[]"), int(port)


def addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
    """What a name to listen on means; nothing is every address. Raises OSError."""
    if not host:
        has_ipv6 = socket.has_dualstack_ipv6()
        return [(socket.AF_INET6, "::") if has_ipv6 else (socket.AF_INET, "0.0.0.0")]
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, str(address[0])) for family, *_, address in found))


def is_text(value: str) -> bool:
    """Whether a header came as UTF-8."""
    return value.isascii() or value.encode("utf-8", "replace").decode() == value


class ServerConnection(Http2Connection):
    """A caller's connection.

    Args:
        server: answers its calls.
        address: of its caller.
        idle_seconds_max: how long it may be open without a call.
        handshake_seconds_max: how long it may take to speak HTTP/2.
    """

    def __init__(
        self,
        server: "Http2Server",
        address: str,
        idle_seconds_max: float,
        handshake_seconds_max: float,
    ) -> None:
        super().__init__(server.message_bytes_max, is_server=True, liveness=server.liveness)
        self._server = server
        self.unfilled = server.unfilled
        self.address = address
        self._idle_seconds_max = idle_seconds_max
        self._handshake_seconds_max = handshake_seconds_max
        self._known_heads: dict[tuple[Header, ...], Head | None] = {}
        self._request_timer: asyncio.TimerHandle | None = None
        # Of calls in progress; headers that the reader remembers are shared.
        self.header_bytes = 0
        self.receipts = ReceiptPings(self._write)
        self._timer: asyncio.TimerHandle | None = None
        self._last_call = 0.0
        self._peer = ""
        self._auth_context: Mapping[str, list[bytes]] | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._server.connected(self)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._handshake_seconds_max, self._no_handshake)

    def connection_lost(self, failure: BaseException | None) -> None:
        super().connection_lost(failure)
        for timer in (self._timer, self._request_timer):
            if timer is not None:
                timer.cancel()
        self.receipts.lost()
        self._server.disconnected(self)

    def ping_acknowledged(self, payload: bytes) -> None:
        self.receipts.acknowledged(payload)

    def reset_late(self, stream_id: int) -> None:
        self.receipts.reset(stream_id)

    def own_settings(self) -> Mapping[int, int]:
        return {frames.MAX_CONCURRENT_STREAMS: STREAMS_MAX}

    def settings_came(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._last_call = asyncio.get_running_loop().time()
        self._look_idle()

    def _no_handshake(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def _look_idle(self) -> None:
        loop = asyncio.get_running_loop()
        if self.streams:
            self._last_call = loop.time()
        left = self._last_call + self._idle_seconds_max - loop.time()
        if left <= 0:
            self.leave(at_once=False)
            return
        self._timer = loop.call_later(max(left, _IDLE_LOOK_SECONDS_MIN), self._look_idle)

    @property
    def peer(self) -> str:
        if not self._peer:
            name = self.transport.get_extra_info("peername") or ("", 0)
            host, port = name[0], name[1]
            self._peer = f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
        return self._peer

    @property
    def auth_context(self) -> Mapping[str, list[bytes]]:
        if self._auth_context is None:
            self._auth_context = certificate_context(self.transport.get_extra_info("ssl_object"))
        return self._auth_context

    def stream_opened(self, stream_id: int, headers: tuple[Header, ...], *, ends: bool) -> None:
        self._last_call = asyncio.get_running_loop().time()
        try:
            head = self._known_heads[headers]
        except KeyError:
            try:
                head = call_head(headers)
            except BadHead as failure:
                reason = str(failure)
                raise frames.StreamBroken(stream_id, ErrorCode.PROTOCOL_ERROR, reason) from failure
            if self._reader.is_known:
                if len(self._known_heads) >= _KNOWN_HEADS_MAX:
                    self._known_heads.clear()
                self._known_heads[headers] = head
        header_bytes = self._reader.decoded_bytes
        is_full = (
            len(self.streams) >= STREAMS_MAX or self.header_bytes + header_bytes > HEADER_BYTES_MAX
        )
        if is_full or self.is_leaving:
            raise frames.StreamBroken(stream_id, ErrorCode.REFUSED_STREAM, "no further streams")
        deadline = None
        if head is not None and head.timeout_seconds is not None:
            deadline = self._last_call + head.timeout_seconds
        method, sent = ("", ()) if head is None else head[:2]
        call = ServerCall(self, stream_id, self._message_bytes_max, method, sent, deadline)
        self.streams[stream_id] = call
        call.header_bytes = header_bytes
        self.header_bytes += header_bytes
        call.has_ended = ends
        if head is None:
            call.queue_headers(block([(":status", "415")]), last=True)
            return
        self._server.opened(call)

    # Requests.

    def await_request(self, call: ServerCall) -> None:
        """Begin a call when its request has come, or end it when the request is late."""
        due = call.request_due = self._last_call + REQUEST_SECONDS_MAX
        if self._request_timer is None:
            loop = asyncio.get_running_loop()
            self._request_timer = loop.call_at(due, self._end_late_requests)

    def request_came(self, call: ServerCall) -> None:
        """A call's request, or the end of its stream, has come."""
        call.request_due = 0.0
        if call.has_unread or not call.has_ended:
            self._server.begin(call)
        else:
            call.end(grpc.StatusCode.INTERNAL, REQUEST_MISSING)

    def _awaited(self) -> list[ServerCall]:
        """Calls whose requests have not come."""
        calls = [each for each in self.streams.values() if isinstance(each, ServerCall)]
        return [each for each in calls if each.request_due]

    def begin_awaited(self) -> None:
        """Begin calls before their requests have come: the server stops, and waits for calls that
        have begun."""
        for call in self._awaited():
            self.request_came(call)

    def _end_late_requests(self) -> None:
        self._request_timer = None
        loop = asyncio.get_running_loop()
        late = f"the request was not complete after {REQUEST_SECONDS_MAX:g} s"
        for call in self._awaited():
            if call.request_due <= loop.time():
                call.end(grpc.StatusCode.DEADLINE_EXCEEDED, late)
        due = min((each.request_due for each in self._awaited()), default=None)
        if due is not None:
            self._request_timer = loop.call_at(due, self._end_late_requests)

    def more_headers(
        self, stream: MessageStream, headers: tuple[Header, ...], *, ends: bool
    ) -> None:
        if not ends or any(name.startswith(":") for name, _ in headers):
            raise frames.StreamBroken(stream.id, ErrorCode.PROTOCOL_ERROR, "these are no trailers")
        stream.peer_ended()
        self.drop_if_over(stream)

    def message_refused(self, stream: MessageStream, refusal: MessageRefused) -> None:
        assert isinstance(stream, ServerCall)
        stream.end(grpc.StatusCode[refusal.status], str(refusal))
        if stream.task is not None:
            stream.task.cancel()

    def send_answer(
        self, call: ServerCall, headers: bytes, prefix: bytes, message: bytes, trailers: bytes
    ) -> None:
        """All of a call's answer, in one write when there is room for it."""
        head = frames.frame(frames.HEADERS, frames.END_HEADERS, call.id, headers)
        length = len(prefix) + len(message)
        if length <= min(call.send_window, self._send_window, self.peer_frame_bytes, 16 << 10):
            call.send_window -= length
            self._send_window -= length
            data = frames.head(length, frames.DATA, 0, call.id)
            call.sent_last = True
            before = b"".join((head, data, prefix, message))
            self.send_headers(call, trailers, last=True, before=before)
        else:
            self.send_data(call, prefix, message, last=False, before=head)
            call.queue_headers(trailers, last=True)


class Http2Server:
    """Listens, and answers calls by servicers. The part of `grpc.aio.Server` that services use.

    Args:
        guard: chooses what answers each call; None leaves it to the handlers.
        calls_max: calls in progress; further ones are refused. None for any number.
        connections_max: open connections; further ones are closed at once.
        connections: how many of them one address may have; None for any number.
        handshake_seconds_max, idle_seconds_max: see `ServerConnection`.
        message_bytes_max: longer requests are refused.
        reuse_port: other processes may listen on the same port, and share its callers.
    """

    def __init__(
        self,
        guard: Guard | None = None,
        *,
        calls_max: int | None = None,
        connections_max: int = 1 << 20,
        connections: ConnectionBound | None = None,
        handshake_seconds_max: float = 15.0,
        idle_seconds_max: float = 600.0,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        reuse_port: bool = False,
    ) -> None:
        self.message_bytes_max = message_bytes_max
        self.liveness = Liveness()
        self.unfilled = UnfilledMemory()
        self._guard = guard
        self._calls_max = calls_max
        self._connections_max = connections_max
        self._bound = connections
        self._handshake_seconds_max = handshake_seconds_max
        self._idle_seconds_max = idle_seconds_max
        self._reuse_port = reuse_port
        self._generic: list[grpc.GenericRpcHandler] = []
        self._handlers: dict[str, Any] = {}
        # Those that shake hands among them.
        self._admitted: set[ServerConnection] = set()
        self.connections: set[ServerConnection] = set()
        self._calls: set[asyncio.Task[None]] = set()
        self._listeners: list[Listener[ServerConnection]] = []
        self._is_stopping = False
        self._ended = asyncio.Event()
        # Set while there is no connection.
        self._deserted = asyncio.Event()
        self._deserted.set()

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self._generic.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Handlers by the names of their methods; they stand before generic ones, and later ones
        before earlier ones."""
        self._handlers.update({f"/{service}/{name}": each for name, each in handlers.items()})

    async def listen(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        *,
        accepts_plain: bool = False,
    ) -> int:
        """Listen at an address.

        Args:
            tls, accepts_plain: see `Listener`.

        Returns:
            The port.

        Raises:
            OSError: the address cannot be had.
        """
        for family, address in addresses(host, port):
            # All addresses of a name have the same port.
            with_port = (address, port)
            listening = socket.create_server(
                with_port,
                family=family,
                backlog=LISTEN_BACKLOG,
                reuse_port=self._reuse_port,
                dualstack_ipv6=address == "::" and socket.has_dualstack_ipv6(),
            )
            port = listening.getsockname()[1]
            self._listeners.append(
                Listener(
                    listening,
                    self,
                    tls,
                    self._handshake_seconds_max,
                    accepts_plain=accepts_plain,
                )
            )
        return port

    async def stop(self, grace: float | None) -> None:
        """Take no further calls, and wait so long for those in progress; then end them."""
        self._is_stopping = True
        for listener in self._listeners:
            listener.close()
        for connection in list(self.connections):
            connection.begin_awaited()
            connection.leave()
        if self._calls and grace:
            await asyncio.wait(self._calls, timeout=grace)
        for task in list(self._calls):
            task.cancel()
        if self._calls:
            await asyncio.wait(self._calls)
        for connection in list(self.connections):
            connection.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS_MAX):
                for listener in self._listeners:
                    await listener.wait_closed()
                await self._deserted.wait()
        for connection in list(self.connections):
            connection.transport.abort()
        self._ended.set()

    async def wait_for_termination(self) -> None:
        await self._ended.wait()

    # From its listeners and connections.

    def admitted(self, address: str) -> ServerConnection | None:
        """A connection from an address; None when there is no room for one more."""
        if self._is_stopping or len(self._admitted) >= self._connections_max:
            return None
        if self._bound is not None and not self._bound.enter(address):
            return None
        idle_seconds_max, handshake_seconds_max = (
            self._idle_seconds_max,
            self._handshake_seconds_max,
        )
        connection = ServerConnection(self, address, idle_seconds_max, handshake_seconds_max)
        self._admitted.add(connection)
        return connection

    def connected(self, connection: ServerConnection) -> None:
        """One that was admitted has come about."""
        self.connections.add(connection)
        self._deserted.clear()

    def disconnected(self, connection: ServerConnection) -> None:
        """It has ended, or never came about; said twice where it failed in between."""
        if connection in self._admitted:
            self._admitted.remove(connection)
            if self._bound is not None:
                self._bound.leave(connection.address)
        self.connections.discard(connection)
        if not self.connections:
            self._deserted.set()

    def opened(self, call: ServerCall) -> None:
        """A call's headers have come."""
        handler = self._handler(call.method)
        if handler is None:
            call.end(grpc.StatusCode.UNIMPLEMENTED, f"there is no method {call.method}")
        elif handler.request_streaming:
            self.begin(call)
        elif call.has_ended:
            call.end(grpc.StatusCode.INTERNAL, REQUEST_MISSING)
        else:
            call.connection.await_request(call)

    def begin(self, call: ServerCall) -> None:
        """A call can be answered."""
        if self._calls_max is not None and len(self._calls) >= self._calls_max:
            call.end(grpc.StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!")
            return
        task = asyncio.get_running_loop().create_task(self._answer(call))
        call.task = task
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    def _handler(self, method: str) -> Any:
        handler = self._handlers.get(method)
        if handler is None:
            details: Any = CallDetails(method, ())
            for generic in self._generic:
                handler = generic.service(details)
                if handler is not None:
                    self._handlers[method] = handler
                    break
        return handler

    async def _answer(self, call: ServerCall) -> None:
        try:
            await self._answered(call)
        except aio.AbortError:
            call.end()
        except asyncio.CancelledError:
            call.end(grpc.StatusCode.CANCELLED, "the server ended the call")
        except DecodeError as failure:
            call.end(
                grpc.StatusCode.INTERNAL, f"a request cannot be read: {exception_text(failure)}"
            )
        except Exception as failure:
            log.exception("%s failed", call.method)
            call.end(grpc.StatusCode.UNKNOWN, f"Unexpected {exception_text(failure)}")
        finally:
            if not (call.is_closed or call.sent_last):
                # What it should have been told cannot be said.
                call.connection.reset(call, ErrorCode.INTERNAL_ERROR)

    async def _answered(self, call: ServerCall) -> None:
        handler: Any = self._handlers[call.method]
        if self._guard is not None:
            handler = self._guard(call.method, call.invocation_metadata(), handler)
        parse, serialize = handler.request_deserializer, handler.response_serializer
        if handler.request_streaming:
            request: Any = call.requests(parse)
        else:
            # It has come, unless the server stops.
            raw = call.taken()
            if raw is None:
                raw = await call.read()
            if raw is None:
                call.end(grpc.StatusCode.INTERNAL, REQUEST_MISSING)
                return
            try:
                request = raw if parse is None else parse(raw)
            except DecodeError as failure:
                reason = f"the request cannot be read: {exception_text(failure)}"
                call.end(grpc.StatusCode.INTERNAL, reason)
                return
        if not handler.response_streaming:
            behaviour = handler.stream_unary or handler.unary_unary
            reply = await behaviour(request, call)
            call.answer(reply if serialize is None else serialize(reply))
            if call.pending:
                # A call in progress until its caller has taken the answer.
                await call.wait_room()
            return
        if handler.request_streaming:
            call.begin()
            async with aclosing(handler.stream_stream(request, call)) as replies:
                async for reply in replies:
                    await call.send_message(reply if serialize is None else serialize(reply))
            call.end()
        else:
            answers = handler.unary_stream(request, call)
            if inspect.iscoroutine(answers):
                # It writes them itself.
                await answers
                call.end()
            else:
                await call.answer_stream(answers, serialize)


def certificate_context(connection: ssl.SSLObject | None) -> Mapping[str, list[bytes]]:
    """What gRPC's auth_context says of a caller's certificate; empty without one."""
    certificate = None if connection is None else connection.getpeercert()
    if not certificate or connection is None:
        return {}
    der = connection.getpeercert(binary_form=True)
    assert der is not None
    subject: Any = certificate.get("subject", ())
    alternatives: Any = certificate.get("subjectAltName", ())
    return {
        "x509_pem_cert": [ssl.DER_cert_to_PEM_cert(der).encode()],
        "x509_common_name": [
            value.encode() for part in subject for name, value in part if name == "commonName"
        ],
        "peer_dns": [value.encode() for kind, value in alternatives if kind == "DNS"],
    }
