"""Accepts TCP connections, counts them from `accept` on, and logs each failed TLS handshake.

asyncio's own servers report a connection over TLS only after its handshake, and do not report a
handshake that fails. So silent connections could use all file descriptors of the process unnoticed,
and the server's log would not show that and why it refused a client's certificate.

One port can accept connections with TLS and without. The first byte of a connection decides: a TLS
record begins with 0x16, HTTP/2 with "P". The listener peeks at it (MSG_PEEK), so the byte stays in
the socket's buffer, and then passes the socket to asyncio, with TLS or without.

TLS handshakes start in turns (`Turns.handshakes`), a few in each iteration of the event loop; the
clients' addresses are served in rotation.
"""

import asyncio
import logging
import socket
import ssl
from collections import deque
from functools import partial
from typing import Generic, Protocol, TypeVar

from rockoon_rpc.turns import Turns

log = logging.getLogger(__name__)

# At most one line in this time: a peer can fail as often as it wants.
SAY_SECONDS = 1.0
# While no further file can be opened.
PAUSE_SECONDS = 1.0
# Connections accepted in one iteration of the loop.
ACCEPTED_MAX = 25
# A connection that is refused is closed after this time: a client that connects again at once would
# cost an accept each time. If this number is waiting, a further one is closed immediately.
REFUSED_SECONDS = 0.1
REFUSED_MAX = 100
# The first byte of a TLS record with a handshake message (RFC 8446, section 5.1).
TLS_FIRST_BYTE = b"\x16"
# Reasons of OpenSSL for bytes that are no TLS record.
NO_TLS_RECORD = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST")

Connection = TypeVar("Connection", bound=asyncio.BaseProtocol)


class Admission(Protocol[Connection]):
    """Interface of the server: accepts or refuses connections."""

    def admitted(self, address: str) -> Connection | None:
        """Return a protocol for a new connection from an address; None to close it."""
        ...

    def disconnected(self, connection: Connection) -> None:
        """Handle the end of an accepted connection."""
        ...

    def handshake_failed(self, connection: Connection) -> None:
        """Handle the end of an accepted connection whose TLS handshake failed."""
        ...


class Handshake:
    """An accepted connection that waits for the start of its TLS handshake.

    Args:
        address: address of the client.

    Attributes:
        turn: done when the handshake may start.
    """

    __slots__ = ("address", "turn")

    def __init__(self, address: str) -> None:
        self.address = address
        self.turn = asyncio.get_running_loop().create_future()

    def next_turn(self) -> None:
        Turns.of_loop().handshakes.cost += 1
        if not self.turn.done():
            self.turn.set_result(None)


class Listener(Generic[Connection]):
    """Accepts connections on a socket until it is closed.

    Args:
        listening: the listening socket.
        admission: creates the protocol of each connection, or refuses it.
        tls: context of the TLS handshake; None: all connections are plain.
        handshake_seconds_max: limit for the first byte and the TLS handshake together, seconds.
            Without `tls` the protocol has its own limit.
        accepts_plain: with `tls`, accept connections without TLS too.
    """

    def __init__(
        self,
        listening: socket.socket,
        admission: Admission[Connection],
        tls: ssl.SSLContext | None,
        handshake_seconds_max: float,
        *,
        accepts_plain: bool = False,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._admission = admission
        self._tls = tls
        self._handshake_seconds_max = handshake_seconds_max
        self._accepts_plain = accepts_plain
        self._beginning: set[asyncio.Task[None]] = set()
        # Refused connections that are not closed yet, oldest first.
        self._refused_open: deque[socket.socket] = deque()
        self._refused = 0
        self._say_after = 0.0
        self._pause: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._begin()

    def close(self) -> None:
        """Accept no further connections; abort TLS handshakes in progress."""
        if self._pause is not None:
            self._pause.cancel()
        elif self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)
        self._listening.close()
        while self._refused_open:
            self._close_refused()
        for task in self._beginning:
            task.cancel()

    async def wait_closed(self) -> None:
        """After `close`: wait until the aborted handshakes have ended."""
        if self._beginning:
            await asyncio.wait(self._beginning)

    def _begin(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_MAX):
            try:
                accepted, address = self._listening.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as failure:
                log.warning(
                    "accept failed: %s; the listener tries again in %g s", failure, PAUSE_SECONDS
                )
                self._loop.remove_reader(self._listening)
                self._pause = self._loop.call_later(PAUSE_SECONDS, self._begin)
                return
            connection = self._admission.admitted(address[0])
            if connection is None:
                self._refuse(accepted)
                continue
            accepted.setblocking(False)
            task = self._loop.create_task(self._connect(accepted, connection, address[0]))
            self._beginning.add(task)
            task.add_done_callback(partial(self._begun, accepted, connection))

    def _refuse(self, accepted: socket.socket) -> None:
        if len(self._refused_open) < REFUSED_MAX:
            self._refused_open.append(accepted)
            self._loop.call_later(REFUSED_SECONDS, self._close_refused)
        else:
            accepted.close()

    def _close_refused(self) -> None:
        # `close` has closed the rest.
        if self._refused_open:
            self._refused_open.popleft().close()

    def _begun(
        self, accepted: socket.socket, connection: Connection, task: "asyncio.Task[None]"
    ) -> None:
        self._beginning.discard(task)
        if task.cancelled():
            # A task that is cancelled before its first step runs no code of `_connect`.
            accepted.close()
            self._admission.disconnected(connection)

    async def _connect(self, accepted: socket.socket, connection: Connection, address: str) -> None:
        deadline = self._loop.time() + self._handshake_seconds_max
        try:
            tls = self._tls
            if tls is not None:
                first = await self._first_byte(accepted, deadline)
                if not first:
                    # A load balancer that probes the port does this; it is no failure.
                    accepted.close()
                    self._admission.disconnected(connection)
                    return
                if first == TLS_FIRST_BYTE:
                    handshake = Handshake(address)
                    Turns.of_loop().handshakes.join(handshake)
                    await handshake.turn
                elif self._accepts_plain:
                    tls = None
            # asyncio refuses a limit of zero seconds, and any limit without TLS.
            left = None if tls is None else max(deadline - self._loop.time(), 0.001)
            await self._loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=tls, ssl_handshake_timeout=left
            )
        except Exception as failure:
            accepted.close()
            self._admission.handshake_failed(connection)
            if not isinstance(failure, OSError):
                raise
            self._log_refused(address, failure)

    async def _first_byte(self, accepted: socket.socket, deadline: float) -> bytes:
        """Wait for a connection's first byte, which stays in the socket's buffer.

        Returns:
            The byte; empty if the peer has closed or reset the connection.

        Raises:
            TimeoutError: no byte arrived until `deadline`, a time of the event loop's clock.
        """
        while True:
            try:
                return accepted.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                pass
            except ConnectionError:
                return b""
            readable = asyncio.Event()
            # The reader is removed before the socket gets a transport or is closed: until then it
            # is the only other user of the descriptor.
            self._loop.add_reader(accepted, readable.set)
            try:
                async with asyncio.timeout_at(deadline):
                    await readable.wait()
            except TimeoutError:
                limit = f"{self._handshake_seconds_max:g} s"
                raise TimeoutError(f"it sent nothing within {limit}") from None
            finally:
                self._loop.remove_reader(accepted)

    def _log_refused(self, address: str, failure: OSError) -> None:
        self._refused += 1
        now = self._loop.time()
        if now >= self._say_after:
            count, self._refused = self._refused, 0
            more = f", and {count - 1} more since the last line" if count > 1 else ""
            reason = str(failure) or "the client closed the connection"
            began_plain = getattr(failure, "reason", None) in NO_TLS_RECORD
            if began_plain and not self._accepts_plain:
                reason = f"it began without TLS, and this port requires TLS ({failure})"
            log.info("TLS: the handshake of %s failed%s: %s", address, more, reason)
            self._say_after = now + SAY_SECONDS
