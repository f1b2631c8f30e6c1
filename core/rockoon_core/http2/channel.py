"""A channel to one address on Rockoon's own HTTP/2, in the place of `grpc.aio.Channel`.

It connects when there is a call, and again after failures. A call that comes while a connection is
being made waits for it; while none can be had, until the next try, calls fail at once.

If a connection has as many calls as its server allows, a further one is opened: thousands of long
polls to one server share a few connections. A connection that is not the newest one ends when its
last call has ended.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import grpc
from grpc import aio

from rockoon_core.backoff import Backoff
from rockoon_core.http2 import frames
from rockoon_core.http2.client_call import ClientCall, ClientStream, failure
from rockoon_core.http2.connection import Http2Connection
from rockoon_core.http2.dialing import connected_socket, hand_to_loop
from rockoon_core.http2.frames import ConnectionBroken, ErrorCode
from rockoon_core.http2.headers import Header, block
from rockoon_core.http2.liveness import Liveness
from rockoon_core.http2.messages import PREFIX, MessageRefused, MessageStream

MESSAGE_BYTES_MAX = 64 << 20
CONNECT_SECONDS_MAX = 5.0
# How long a server may take to end its side of a connection over TLS.
CLOSE_SECONDS_MAX = 1.0
# Upper bounds of the first pause between tries, and of later ones.
PAUSE_SECONDS_FIRST, PAUSE_SECONDS_MAX = 0.1, 1.0
LIVENESS = Liveness(ping_seconds=10.0, answer_seconds=5.0)
TIMEOUT_DIGITS_MAX = 99_999_999


ALPN = "h2"


class ChannelTls(NamedTuple):
    """How hands are shaken.

    Attributes:
        context: trusts whom it should; offers ALPN.
        server_name: the name that the server's certificate must bear; empty for the address's host.
    """

    context: ssl.SSLContext
    server_name: str


def timeout_text(seconds: float) -> str:
    """A grpc-timeout: at most eight digits and a unit."""
    microseconds = max(round(seconds * 1e6), 1)
    if microseconds <= TIMEOUT_DIGITS_MAX:
        return f"{microseconds}u"
    milliseconds = round(seconds * 1e3)
    if milliseconds <= TIMEOUT_DIGITS_MAX:
        return f"{milliseconds}m"
    return f"{min(round(seconds), TIMEOUT_DIGITS_MAX)}S"


class ClientConnection(Http2Connection):
    """A channel's connection."""

    def __init__(self, channel: "Http2Channel") -> None:
        super().__init__(channel.message_bytes_max, is_server=False, liveness=LIVENESS)
        self._channel = channel
        # Why it has ended before it was open, where the other side said so.
        self.reason = ""
        # Done when the server has said its settings, or the connection has ended.
        self.ended = asyncio.Event()
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settings_came(self) -> None:
        self._begin()

    def _begin(self) -> None:
        if not self.begun.done():
            self.begun.set_result(None)

    def broken(self, failure: ConnectionBroken) -> None:
        self._channel.lost(self)
        super().broken(failure)

    def connection_lost(self, failure: BaseException | None) -> None:
        self.is_lost = True
        self.reason = str(failure or "")
        self._begin()
        self._channel.lost(self)
        super().connection_lost(failure)
        self.ended.set()

    def ended_at_once(self, failure: ConnectionError) -> None:
        """The other side has ended it while hands were shaken."""
        self.is_lost = True
        self.reason = str(failure)
        self._begin()

    @property
    def is_open(self) -> bool:
        """Whether it takes further calls."""
        return not (
            self.is_lost
            or self.is_closing
            or self.is_leaving
            or self._last_own_stream >= frames.STREAM_ID_MAX - 2
            or len(self.streams) >= self.peer_streams_max
        )

    def open(self, call: ClientCall) -> ClientStream:
        """A stream for a call."""
        # Odd numbers from 1 on.
        self._last_own_stream += 1 if not self._last_own_stream else 2
        stream = ClientStream(self, self._last_own_stream, call)
        self.streams[stream.id] = stream
        return stream

    def send_request(self, stream: ClientStream, head: bytes, message: bytes) -> None:
        """All of a call that has one request."""
        before = frames.frame(frames.HEADERS, frames.END_HEADERS, stream.id, head)
        stream.sent_last = True
        prefix = PREFIX.pack(0, len(message))
        self.send_data(stream, prefix, message, last=True, before=before)

    def more_headers(
        self, stream: MessageStream, headers: tuple[Header, ...], *, ends: bool
    ) -> None:
        assert isinstance(stream, ClientStream)
        stream.headers_came(headers, ends=ends)
        if not ends and (stream.call is None or stream.call.done()):
            self.reset(stream, ErrorCode.CANCEL)
            return
        if ends:
            stream.peer_ended()
            # An answer that comes before the end of the requests ends them.
            if stream.sent_last and not stream.pending:
                self.drop_if_over(stream)
            else:
                self.reset(stream, ErrorCode.NO_ERROR)

    def drop_if_over(self, stream: MessageStream) -> None:
        assert isinstance(stream, ClientStream)
        if stream.has_ended and stream.call is not None and not stream.call.done():
            stream.call.end(grpc.StatusCode.INTERNAL, "the answer ends without a status")
            self.reset(stream, ErrorCode.CANCEL)
        else:
            super().drop_if_over(stream)

    def stream_over(self) -> None:
        if not (self.streams or self._is_leaving) and self._channel.is_former(self):
            self.leave()
        else:
            super().stream_over()

    def message_refused(self, stream: MessageStream, refusal: MessageRefused) -> None:
        assert isinstance(stream, ClientStream)
        if stream.call is not None:
            stream.call.end(grpc.StatusCode[refusal.status], str(refusal))
        self.reset(stream, ErrorCode.CANCEL)

    def peer_goes(self, last_stream_id: int, code: int) -> None:  # noqa: ARG002 - as its base
        self._channel.lost(self)
        for stream in [each for number, each in self.streams.items() if number > last_stream_id]:
            self.streams.pop(stream.id)
            self._blocked.pop(stream.id, None)
            stream.failed(ErrorCode.REFUSED_STREAM, "the server takes no further calls")
        # It ends with its last call.
        self._is_leaving = True
        self.stream_over()


class _Method:
    """One method of a stub: what makes calls of it.

    No closure: a stub has dozens, most of which nobody calls, and each closure would be twenty
    objects, most of them its annotations, that Python's garbage collector visits for each
    connection of a process.
    """

    __slots__ = ("_channel", "_head", "_name", "_parse", "_sends_stream", "_serialize")

    def __init__(
        self,
        channel: "Http2Channel",
        name: str,
        serialize: Callable[[Any], bytes] | None,
        parse: Callable[[bytes], Any] | None,
        *,
        sends_stream: bool,
    ) -> None:
        self._channel = channel
        self._name = name
        self._serialize = serialize
        self._parse = parse
        self._sends_stream = sends_stream
        # What the headers of its calls begin with, made with the first.
        self._head = b""

    def __call__(
        self,
        request: Any = None,
        *,
        timeout: float | None = None,
        metadata: Sequence[tuple[str, str | bytes]] | None = None,
        wait_for_ready: bool | None = None,
        **_options: object,
    ) -> ClientCall:
        head = self._head = self._head or self._channel.fixed_head(self._name)
        if timeout is not None:
            head += block([("grpc-timeout", timeout_text(timeout))])
        if metadata:
            head += block(metadata)
        return ClientCall(
            self._channel,
            head,
            request,
            self._serialize,
            self._parse,
            sends_stream=self._sends_stream,
            timeout=timeout,
            waits=bool(wait_for_ready),
        )


class Http2Channel(aio.Channel):
    """See the module.

    Args:
        address: "host:port".
        message_bytes_max: longer answers are refused.
        tls: asked for each connection; None for plain ones.
    """

    def __init__(
        self,
        address: str,
        *,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        tls: Callable[[], ChannelTls] | None = None,
    ) -> None:
        self.address = address
        self.message_bytes_max = message_bytes_max
        self._tls = tls
        self._connection: ClientConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        # Older ones with calls in progress, full or leaving when the newest was opened.
        self._former: set[ClientConnection] = set()
        self._backoff = Backoff(PAUSE_SECONDS_FIRST, PAUSE_SECONDS_MAX)
        self._next_try = float("-inf")
        self._failure = ""
        self._is_closed = False

    # Connections.

    def live(self) -> ClientConnection | None:
        """Return a connection with room for a call, or None. Raises UsageError when closed."""
        if self._is_closed:
            raise aio.UsageError("Channel is closed.")
        connection = self._connection
        if connection is None or connection.is_open:
            return connection
        return next((each for each in self._former if each.is_open), None)

    def is_former(self, connection: ClientConnection) -> bool:
        """Whether a newer connection of the channel has been opened."""
        return connection in self._former

    async def connected(self, *, waits: bool) -> ClientConnection:
        """A connection that takes calls.

        Raises:
            AioRpcError: UNAVAILABLE, it cannot be had now.
        """
        while (found := self.live()) is None:
            loop = asyncio.get_running_loop()
            if self._connecting is None:
                pause = self._next_try - loop.time()
                if pause > 0 and not waits:
                    raise failure(grpc.StatusCode.UNAVAILABLE, self._failure)
                self._connecting = loop.create_task(self._connect(max(pause, 0.0)))
                self._connecting.add_done_callback(self._tried)
            before = self._connecting
            await asyncio.shield(before)
            if self.live() is None and not waits and self._failure:
                raise failure(grpc.StatusCode.UNAVAILABLE, self._failure)
        return found

    def _tried(self, task: asyncio.Task[None]) -> None:
        if self._connecting is task:
            self._connecting = None

    async def _connect(self, pause: float) -> None:
        if pause:
            await asyncio.sleep(pause)
        connection = ClientConnection(self)
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                await self._open(connection)
                await connection.begun
        except (OSError, TimeoutError, ValueError) as error:
            reason = str(error) or f"no answer within {CONNECT_SECONDS_MAX:g} s"
            self._note_failure(f"failed to connect to {self.address}: {reason}")
            connection.close()
            return
        except asyncio.CancelledError:
            connection.close()
            raise
        if connection.is_lost or connection.is_closing:
            # As gRPC says it of a server that ends connections before they have begun.
            reason = f"failed to connect to all addresses: {self.address}: Socket closed"
            self._note_failure(f"{reason} {connection.reason}".rstrip())
            return
        if not connection.is_open:
            # With a pause: who leaves at once, or has no room, would be called again at once.
            self._note_failure(f"failed to connect to {self.address}: it takes no calls")
            connection.close()
            return
        self._failure = ""
        self._backoff.reset()
        former = self._connection
        if former is not None and not former.is_lost:
            # It has as many calls as it may.
            self._former.add(former)
            former.stream_over()
        self._connection = connection

    async def _open(self, connection: ClientConnection) -> None:
        """Connect and complete the TLS handshake.

        Raises:
            OSError: no connection, or the handshake failed.
            ValueError: the address is not "host:port".
        """
        host, _, port = self.address.rpartition(":")
        host = host.strip("[]")
        tls = None if self._tls is None else self._tls()
        connected = await connected_socket(host, int(port))
        try:
            transport = await hand_to_loop(
                connected,
                connection,
                ssl=None if tls is None else tls.context,
                server_hostname=None if tls is None else tls.server_name or host,
            )
        except ConnectionError as failure:
            connection.ended_at_once(failure)
            return
        if (
            tls is not None
            and transport.get_extra_info("ssl_object").selected_alpn_protocol() != ALPN
        ):
            raise OSError(f"the server does not agree on {ALPN} (ALPN), as gRPC needs it")

    def _note_failure(self, reason: str) -> None:
        self._failure = reason
        self._next_try = asyncio.get_running_loop().time() + self._backoff.next_seconds()

    def lost(self, connection: ClientConnection) -> None:
        """A connection has ended, or takes no further calls."""
        if connection.is_lost:
            self._former.discard(connection)
        elif connection.streams:
            self._former.add(connection)
        if self._connection is connection:
            self._connection = None

    # gRPC's channel.

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:  # noqa: ARG002 - gRPC's signature
        """End all calls and the connection."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        closing = [
            each
            for each in (self._connection, *self._former)
            if each is not None and not each.is_lost
        ]
        self._connection = None
        for connection in closing:
            for stream in list(connection.streams.values()):
                if isinstance(stream, ClientStream) and stream.call is not None:
                    stream.call.cancel()
            connection.close()
        # A loop that ends before connections over TLS have ended complains of them.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                for connection in closing:
                    await connection.ended.wait()
        for connection in closing:
            if not connection.is_lost:
                connection.transport.abort()
                await connection.ended.wait()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:  # noqa: ARG002
        if self._is_closed:
            return grpc.ChannelConnectivity.SHUTDOWN
        if self._connection is not None and self._connection.is_open:
            return grpc.ChannelConnectivity.READY
        if self._connecting is not None:
            return grpc.ChannelConnectivity.CONNECTING
        failed = grpc.ChannelConnectivity.TRANSIENT_FAILURE
        return failed if self._failure else grpc.ChannelConnectivity.IDLE

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        raise NotImplementedError

    async def channel_ready(self) -> None:
        await self.connected(waits=True)

    def fixed_head(self, method: str) -> bytes:
        """What the headers of a method's calls begin with: POST by http, or by https."""
        return (b"\x83\x86" if self._tls is None else b"\x83\x87") + block(
            [
                (":path", method),
                (":authority", self.address),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
            ]
        )

    def unary_unary(
        self,
        method: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        _registered_method: bool | None = False,
    ) -> Any:
        return _Method(self, method, request_serializer, response_deserializer, sends_stream=False)

    unary_stream = unary_unary

    def stream_stream(
        self,
        method: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        _registered_method: bool | None = False,
    ) -> Any:
        return _Method(self, method, request_serializer, response_deserializer, sends_stream=True)

    stream_unary = stream_stream
