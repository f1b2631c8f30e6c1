"""A gRPC server for the servicers of `grpc.aio.server`.

    complete request, or headers of a stream  →  first step of the method's coroutine  →  reply

It does not support compression, channelz or interceptors.
"""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc

from rockoon_rpc import implementation
from rockoon_rpc.addresses import Addresses
from rockoon_rpc.limits import Limits
from rockoon_rpc.listener import Listener
from rockoon_rpc.liveness import Liveness
from rockoon_rpc.methods import CallDetails, Method
from rockoon_rpc.server_call import ServerCall
from rockoon_rpc.server_connection import ServerConnection
from rockoon_rpc.session import Implementation, Route, ServerSession

LISTEN_BACKLOG = 4096
# `on_many_ended` is called `ENDED_SECONDS` after this many calls of ended connections, unless more
# calls than these are in progress. An ended connection counts as `CALLS_OF_A_CONNECTION` calls.
ENDED_CALLS_MIN = 500
# A connection over TLS has half a megabyte of buffers: as much as some dozens of calls.
CALLS_OF_A_CONNECTION = 50
ENDED_SECONDS = 1.0
# Maximum share of the time that `on_many_ended` may need.
ENDED_SHARE = 0.02
# Time limit for callers to end their side of connections after a server has stopped.
STOP_SECONDS_MAX = 1.0

Guard = Callable[[str, Any], Any]
"""Given a method's path and its handler, returns the handler that answers instead; called once for
each method."""


def host_and_port(listen: str) -> tuple[str, int]:
    """Split "host:port"; an IPv6 host has brackets. Raises OSError if the text is malformed."""
    host, _, port = listen.rpartition(":")
    if not port.isdecimal() or int(port) > 0xFFFF:
        raise OSError(f"{listen!r} names no port")
    return host.strip("[]"), int(port)


def addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
    """Resolve a host name to the addresses to listen on; "" is every address. Raises OSError."""
    if not host:
        has_ipv6 = socket.has_dualstack_ipv6()
        return [(socket.AF_INET6, "::") if has_ipv6 else (socket.AF_INET, "0.0.0.0")]
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, str(address[0])) for family, *_, address in found))


class Server:
    """A gRPC server: accepts connections and passes calls to servicers. It has those methods of
    `grpc.aio.Server` that the services use.

    Args:
        guard: wraps or replaces the handler of each method; None: handlers are not changed.
        calls_max: limit of calls in progress; further calls are refused. None: no limit.
        calls_per_address_max: limit of calls in progress per client address; further calls are
            refused. Internal connections may have half as many more; trusted ones have no limit.
        connections_max: limit of open connections; further ones are closed immediately.
        addresses: usage per client address; several servers may share the object.
        handshake_seconds_max: limit from the accept of a connection to its HTTP/2 SETTINGS.
        idle_seconds_max: limit of the time that a connection is open without a call.
        limits: limits of each connection.
        kept: names of the headers that become metadata of calls; None: all.
        reuse_port: other processes may listen on the same port and share its connections.
        sessions: HTTP/2 implementation; None: the default one.
        on_many_ended: called when many connections or calls have ended, so that the owner can
            return their memory to the system.

    Attributes:
        connections: open connections, without those in a TLS handshake.
        is_stopping: `stop` has been called.
    """

    def __init__(
        self,
        guard: Guard | None = None,
        *,
        calls_max: int | None = None,
        calls_per_address_max: int | None = None,
        connections_max: int = 1 << 20,
        addresses: Addresses | None = None,
        handshake_seconds_max: float = 15.0,
        idle_seconds_max: float = 600.0,
        limits: Limits | None = None,
        kept: Sequence[str] | None = None,
        reuse_port: bool = False,
        sessions: Implementation | None = None,
        on_many_ended: Callable[[], None] | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.liveness = Liveness()
        self.handshake_seconds_max = handshake_seconds_max
        self.idle_seconds_max = idle_seconds_max
        self._guard = guard
        self._calls_max = calls_max
        self._calls_per_address_max = calls_per_address_max
        self._connections_max = connections_max
        self._addresses = addresses or Addresses(calm_seconds=self.limits.calm_seconds)
        self._kept = kept
        self._reuse_port = reuse_port
        self._sessions = sessions or implementation.implementation()
        self._on_many_ended = on_many_ended
        # Open calls of connections that ended since the last call of `_on_many_ended`.
        self._ended_calls = 0
        self._ended_timer: asyncio.TimerHandle | None = None
        self._ended_seconds = 0.0
        self._generic: list[grpc.GenericRpcHandler] = []
        self._handlers: dict[str, Any] = {}
        self._routes: dict[str, Route] = {}
        # Also those in a TLS handshake.
        self._admitted: set[ServerConnection] = set()
        self.connections: set[ServerConnection] = set()
        # Calls that wait for something.
        self._calls: set[ServerCall] = set()
        self._listeners: list[Listener[ServerConnection]] = []
        self.is_stopping = False
        # Set when a server that stops has no call in progress.
        self._quiet = asyncio.Event()
        self._ended = asyncio.Event()
        # Set while there is no connection.
        self._deserted = asyncio.Event()
        self._deserted.set()

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self._generic.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Register handlers by the names of their methods. They have precedence over generic
        handlers, and over handlers that were registered earlier."""
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
            OSError: the address is invalid or in use.
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
                    listening, self, tls, self.handshake_seconds_max, accepts_plain=accepts_plain
                )
            )
        return port

    async def stop(self, grace: float | None) -> None:
        """Accept no further calls, wait for calls in progress, then end the remaining calls.

        Args:
            grace: seconds until calls in progress are ended; None is zero.
        """
        self.is_stopping = True
        for listener in self._listeners:
            listener.close()
        for connection in list(self.connections):
            connection.leave()
        self.look_quiet()
        if grace:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self._quiet.wait()
        tasks = [call.task for call in self._calls if call.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for connection in list(self.connections):
            connection.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS_MAX):
                for listener in self._listeners:
                    await listener.wait_closed()
                await self._deserted.wait()
        for connection in list(self.connections):
            connection.transport.abort()
        if self._ended_timer is not None:
            self._ended_timer.cancel()
        self._ended.set()

    async def wait_for_termination(self) -> None:
        await self._ended.wait()

    def use_limits(self, limits: Limits, calls_per_address_max: int, connections_max: int) -> None:
        """Use other limits; see the arguments of the class. Open connections keep theirs."""
        self.limits = limits
        self._calls_per_address_max = calls_per_address_max
        self._connections_max = connections_max

    def look_quiet(self) -> None:
        """Wake `stop` if no call is in progress."""
        if not (self._calls or any(each.has_calls for each in self.connections)):
            self._quiet.set()

    # For its listeners and connections.

    def new_session(self) -> ServerSession:
        session: ServerSession = self._sessions.ServerSession(
            self._route_of, self.limits, self._kept
        )
        return session

    def _route_of(self, path: str) -> Route | None:
        route = self._routes.get(path)
        if route is None:
            handler = self._handler(path)
            if handler is None:
                return None
            if self._guard is not None:
                handler = self._guard(path, handler)
            method = Method(path, handler)
            route = self._routes[path] = (method, method.reads_stream)
        return route

    def _handler(self, path: str) -> Any:
        handler = self._handlers.get(path)
        details: Any = CallDetails(path)
        for generic in () if handler is not None else self._generic:
            handler = generic.service(details)
            if handler is not None:
                break
        return handler

    def admitted(self, address: str) -> ServerConnection | None:
        """Return the protocol of a new connection; None if the server refuses the connection."""
        if self.is_stopping or len(self._admitted) >= self._connections_max:
            return None
        share = self._addresses.enter(address)
        if share is None:
            return None
        connection = ServerConnection(self, share)
        self._admitted.add(connection)
        return connection

    def connected(self, connection: ServerConnection) -> None:
        """Handle the start of an accepted connection, after its TLS handshake."""
        self.connections.add(connection)
        self._deserted.clear()

    def disconnected(self, connection: ServerConnection) -> None:
        """Handle the end of a connection, also before its TLS handshake has ended; may be called
        twice per connection."""
        if connection in self._admitted:
            self._admitted.remove(connection)
            self._addresses.leave(connection.share)
        self.connections.discard(connection)
        if not self.connections:
            self._deserted.set()
        if self.is_stopping:
            self.look_quiet()

    def handshake_failed(self, connection: ServerConnection) -> None:
        """Handle the end of an accepted connection whose TLS handshake failed."""
        connection.count_failed_handshake()
        self.disconnected(connection)

    def connection_ended(self, calls: int) -> None:
        """Count an ended connection and its calls.

        Args:
            calls: number of its open calls, without those whose handler had waited for something.
        """
        self._count_ended(calls + CALLS_OF_A_CONNECTION)

    def _count_ended(self, calls: int) -> None:
        """Count calls of ended connections; call `on_many_ended` once there are many."""
        self._ended_calls += calls
        if (
            self._ended_calls >= ENDED_CALLS_MIN
            and self._on_many_ended is not None
            and self._ended_timer is None
            and not self.is_stopping
        ):
            self._await_ends()

    def _await_ends(self) -> None:
        seconds = max(ENDED_SECONDS, self._ended_seconds / ENDED_SHARE)
        self._ended_timer = asyncio.get_running_loop().call_later(seconds, self._many_ended)

    def _many_ended(self) -> None:
        self._ended_timer = None
        if self._ended_calls < len(self._calls):
            # Calls in progress make it cost more, and return less.
            self._await_ends()
            return
        self._ended_calls = 0
        assert self._on_many_ended is not None
        began = time.monotonic()
        self._on_many_ended()
        self._ended_seconds = time.monotonic() - began

    def calm(self, connection: ServerConnection, reason: str) -> None:
        """Handle a connection that exceeded a budget: its address may get a pause."""
        self._addresses.calm(connection.share.address, reason)

    def count_useless(self, connection: ServerConnection, cost: int) -> bool:
        """Count a useless connection; see `Addresses.count_useless`."""
        return not self.is_stopping and self._addresses.count_useless(
            connection.share.address, cost
        )

    def refusal(self, connection: ServerConnection) -> str:
        """Return why a new call of a connection may not start; "" if it may."""
        if self._calls_max is not None and len(self._calls) >= self._calls_max:
            return "Concurrent RPC limit exceeded!"
        share_max = self._calls_per_address_max
        if share_max is None or connection.share.calls < share_max or connection.is_trusted:
            return ""
        if connection.is_internal:
            share_max += share_max // 2
            if connection.share.calls < share_max:
                return ""
        return f"this address has {share_max} calls in progress, as many as it may have"

    def entered(self, call: ServerCall) -> None:
        """Register a call whose handler waits for something."""
        self._calls.add(call)
        call.connection.share.calls += 1

    def left(self, call: ServerCall) -> None:
        """Unregister a call that has ended."""
        self._calls.discard(call)
        connection = call.connection
        connection.share.calls -= 1
        if connection.is_lost or connection.is_closing:
            self._count_ended(1)
        if self.is_stopping:
            self.look_quiet()
