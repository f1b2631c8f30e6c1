"""A channel to one address; replaces `grpc.aio.Channel`.

The channel connects for the first call, and reconnects after failures. Calls wait while the channel
connects. After a failed attempt, calls fail immediately until the next attempt.

If a connection has as many calls as its server allows, the channel opens another one: thousands of
long polls to one server share a few connections. The channel sends new calls on the newest
connection; an older connection is closed after its last call.
"""

import asyncio
import random
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Self

import grpc
from grpc import aio

from rockoon_rpc.client_call import ChannelMethod, ClientCall, failure
from rockoon_rpc.client_connection import ClientConnection
from rockoon_rpc.dialing import dialed
from rockoon_rpc.implementation import implementation
from rockoon_rpc.limits import Limits
from rockoon_rpc.liveness import Liveness
from rockoon_rpc.session import Implementation

ALPN = "h2"


class ChannelTls(NamedTuple):
    """TLS settings for a connection of a channel.

    Attributes:
        context: TLS context with the trusted CA certificates; it offers the protocol `ALPN`.
        server_name: name that the server's certificate must contain; empty: the host of the
            address.
    """

    context: ssl.SSLContext
    server_name: str


CONNECT_SECONDS_MAX = 5.0
# Until a server has to have ended its side of a connection over TLS.
CLOSE_SECONDS_MAX = 1.0
# Upper bounds of the first pause between tries to connect, and of later ones.
PAUSE_SECONDS_FIRST, PAUSE_SECONDS_MAX = 0.1, 1.0
LIVENESS = Liveness(ping_seconds=10.0, answer_seconds=5.0)
# Batches are of megabytes: with shorter turns and frames a batch costs up to a third more CPU. A
# client has chosen its server, and may ask it for many batches at a time.
LIMITS = Limits(turn_bytes=256 << 10, frame_bytes_max=256 << 10, unfinished_bytes_max=1 << 30)
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


class Channel(aio.Channel):
    """A gRPC channel to one address, with the interface of `grpc.aio.Channel`; see the module.

    Args:
        address: "host:port".
        limits: limits of its connections; a longer reply fails its call.
        tls: returns the TLS settings for a new connection; None: connections without TLS.
        sessions: HTTP/2 implementation; None: the default one.
        ip_address: see `move`; empty: unknown.

    Attributes:
        address, limits: the arguments.
        sessions: the HTTP/2 implementation in use.
        liveness: time limits after which a silent connection is aborted.
        connection: the newest connection that accepts calls; None if there is none.
    """

    def __init__(
        self,
        address: str,
        *,
        limits: Limits = LIMITS,
        tls: Callable[[], ChannelTls] | None = None,
        sessions: Implementation | None = None,
        ip_address: str = "",
    ) -> None:
        self.address = address
        self.limits = limits
        self.sessions = sessions or implementation()
        self.liveness = LIVENESS
        self._tls = tls
        self._ip_address = ip_address
        self.connection: ClientConnection | None = None
        # All that have not ended.
        self._connections: set[ClientConnection] = set()
        self._connecting: asyncio.Task[None] | None = None
        # Ends the pause before an attempt to connect.
        self._hurried = asyncio.Event()
        # Tries that failed since the last connection, and the last failure; "" after a success.
        self._failures = 0
        self._failure = ""
        self._next_try = float("-inf")
        self._is_closed = False

    # Connections.

    def send(self, call: ClientCall) -> bool:
        """Send a call on a connection that has room for it; return False if no connection has room.

        Raises:
            UsageError: the channel is closed.
        """
        connection = self.connection
        return (connection is not None and connection.send(call)) or self.send_on_former(call)

    def send_on_former(self, call: ClientCall) -> bool:
        """Like `send`, on a connection other than the newest one."""
        if self._is_closed:
            raise aio.UsageError("Channel is closed.")
        newest = self.connection
        return any(
            each.send(call)
            for each in self._connections
            if each is not newest and each.begun.done()
        )

    def lost(self, connection: ClientConnection) -> None:
        """Handle a connection that has ended, or accepts no further calls."""
        if connection.is_lost:
            self._connections.discard(connection)
        if self.connection is connection:
            self.connection = None

    def calmed(self, text: str) -> None:
        """Handle a connection that the server closed for too many calls or frames
        (ENHANCE_YOUR_CALM)."""
        self._note_failure(f"{self.address} closed the connection: {text}", PAUSE_SECONDS_MAX)

    def move(self, ip_address: str) -> None:
        """Handle that a new process serves at the channel's address.

        The next attempt to connect starts without a pause. Connections to the IP address of the
        former process end: if its host has vanished, they would end only after `liveness`.

        Args:
            ip_address: where the new process listens; tried before the addresses of a name, which
                a DNS cache may have from before. Empty: unknown.
        """
        former, self._ip_address = self._ip_address, ip_address
        self._failures, self._next_try = 0, float("-inf")
        self._hurried.set()
        if former and ip_address and ip_address != former:
            for connection in list(self._connections):
                if connection.transport.get_extra_info("peername", ("",))[0] == former:
                    connection.transport.abort()

    async def connected(self, *, waits: bool) -> None:
        """Connect, or wait until the attempt in progress has ended.

        Args:
            waits: after a failed attempt, wait for the next one instead of raising.

        Raises:
            AioRpcError: UNAVAILABLE; the attempt failed, or the next attempt is due later. Raised
                only if `waits` is False.
            UsageError: the channel is closed.
        """
        if self._is_closed:
            raise aio.UsageError("Channel is closed.")
        if self._connecting is None:
            loop = asyncio.get_running_loop()
            pause = self._next_try - loop.time()
            if pause > 0 and not waits:
                raise failure(UNAVAILABLE, self._failure)
            self._hurried.clear()
            self._connecting = loop.create_task(self._connect(max(pause, 0.0)))
            self._connecting.add_done_callback(self._tried)
        await asyncio.shield(self._connecting)
        if self._failure and not waits:
            raise failure(UNAVAILABLE, self._failure)

    def _tried(self, task: asyncio.Task[None]) -> None:
        if self._connecting is task:
            self._connecting = None

    async def _connect(self, pause: float) -> None:
        if pause:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._hurried.wait()
        connection: ClientConnection | None = None
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                connection = await self._open()
                await connection.begun
        except (OSError, TimeoutError, ValueError) as error:
            reason = str(error) or f"no answer within {CONNECT_SECONDS_MAX:g} s"
            self._note_failure(f"failed to connect to {self.address}: {reason}")
            if connection is not None:
                connection.close()
            return
        if connection.is_lost or connection.is_closing:
            # gRPC's text for a server that ends connections before they have begun.
            reason = f"failed to connect to all addresses: {self.address}: Socket closed"
            self._note_failure(f"{reason} {connection.reason}".rstrip())
            return
        if not connection.is_open:
            # With a pause: the next call would try to connect again at once.
            self._note_failure(f"failed to connect to {self.address}: it accepts no calls")
            connection.close()
            return
        self._failure, self._failures = "", 0
        former, self.connection = self.connection, connection
        if former is not None:
            former.stream_over()

    async def _open(self) -> ClientConnection:
        """Connect and complete the TLS handshake.

        Raises:
            OSError: no address accepts a connection, or no handshake succeeds.
            ValueError: the address is not "host:port".
        """
        host, _, port = self.address.rpartition(":")
        host = host.strip("[]")
        context, name = (None, None) if self._tls is None else self._tls()
        transport, connection = await dialed(
            host,
            int(port),
            self._new_connection,
            context,
            None if context is None else name or host,
            lambda: filter(None, [self._ip_address]),
        )
        if not connection.is_lost:
            self._connections.add(connection)
        if self._tls is not None:
            agreed = transport.get_extra_info("ssl_object").selected_alpn_protocol()
            if agreed != ALPN:
                connection.close()
                raise OSError(f"the server does not agree on {ALPN} (ALPN), which gRPC needs")
        return connection

    def _new_connection(self) -> ClientConnection:
        return ClientConnection(self)

    def _note_failure(self, reason: str, seconds: float | None = None) -> None:
        """Make calls fail until the next attempt to connect.

        Args:
            reason: error text of these calls.
            seconds: time until the next attempt; default: grows with each failure.
        """
        bound = min(PAUSE_SECONDS_FIRST * 2**self._failures, PAUSE_SECONDS_MAX)
        # Random: clients that failed together do not try again together.
        pause = (seconds or bound) * (0.5 + random.random() / 2)
        self._failure = reason
        self._failures += 1
        self._next_try = asyncio.get_running_loop().time() + pause

    # gRPC's channel.

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:  # noqa: ARG002 - gRPC's signature
        """End all calls and connections."""
        self._is_closed = True
        self.connection = None
        if self._connecting is not None:
            self._connecting.cancel()
        closing = list(self._connections)
        for connection in closing:
            for call in list(connection.streams.values()):
                call.cancel()
            connection.close()
        if not closing:
            return
        # If a loop ends before its connections over TLS, it logs an error for each.
        ends = [each.ended for each in closing]
        await asyncio.wait(ends, timeout=CLOSE_SECONDS_MAX)
        for connection in closing:
            if not connection.is_lost:
                connection.transport.abort()
        await asyncio.wait(ends)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:  # noqa: ARG002
        if self._is_closed:
            return grpc.ChannelConnectivity.SHUTDOWN
        if self.connection is not None and self.connection.is_open:
            return grpc.ChannelConnectivity.READY
        if self._connecting is not None:
            return grpc.ChannelConnectivity.CONNECTING
        failed = grpc.ChannelConnectivity.TRANSIENT_FAILURE
        return failed if self._failure else grpc.ChannelConnectivity.IDLE

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        raise NotImplementedError

    async def channel_ready(self) -> None:
        while self.get_state() is not grpc.ChannelConnectivity.READY:
            await self.connected(waits=True)

    # Methods.

    def request_head(self, method: str) -> Any:
        """Return the encoded headers that all calls of a method have in common."""
        scheme = "http" if self._tls is None else "https"
        return self.sessions.request_head(scheme, self.address, method)

    def unary_unary(self, method: str, *options: Any, **named: Any) -> Any:
        return self._method(method, False, False, *options, **named)

    def unary_stream(self, method: str, *options: Any, **named: Any) -> Any:
        return self._method(method, False, True, *options, **named)

    def stream_unary(self, method: str, *options: Any, **named: Any) -> Any:
        return self._method(method, True, False, *options, **named)

    def stream_stream(self, method: str, *options: Any, **named: Any) -> Any:
        return self._method(method, True, True, *options, **named)

    def _method(
        self,
        method: str,
        sends_stream: bool,
        receives_stream: bool,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        _registered_method: bool | None = False,
    ) -> Callable[..., ClientCall]:
        """Return a function that starts calls. A bound method: Python calls an object with
        `__call__` in a second run of the interpreter."""
        return ChannelMethod(
            self,
            method,
            request_serializer,
            response_deserializer,
            sends_stream=sends_stream,
            receives_stream=receives_stream,
        ).start
