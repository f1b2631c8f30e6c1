"""A listener: connections count from when they are accepted, and refused handshakes are logged.

asyncio's own servers tell of a connection over TLS when its handshake is over, and nobody of one
that fails. So many that say nothing would have all the files of a process, and a certificate that
is refused would be known to its owner alone, to whom TLS has no words for it.
"""

import asyncio
import logging
import socket
import ssl
from functools import partial
from typing import Generic, Protocol, TypeVar

log = logging.getLogger(__name__)

# At most one line in so many seconds: anybody may fail, as often as he likes.
SAY_SECONDS = 1.0
# While no further file can be opened.
PAUSE_SECONDS = 1.0
# Accepted before the loop has its turn.
ACCEPTED_MAX = 100

Connection = TypeVar("Connection", bound=asyncio.BaseProtocol)


class Admission(Protocol[Connection]):
    """Who decides about connections."""

    def admitted(self, address: str) -> Connection | None:
        """A protocol for a connection from an address; None to close it."""
        ...

    def disconnected(self, connection: Connection) -> None:
        """One that was admitted has ended, or never came about."""
        ...


class Listener(Generic[Connection]):
    """Accepts until it is closed.

    Args:
        listening: the socket.
        admission: makes a connection's protocol.
        tls: how hands are shaken; None for plain connections.
        handshake_seconds_max: how long that may take.
    """

    def __init__(
        self,
        listening: socket.socket,
        admission: Admission[Connection],
        tls: ssl.SSLContext | None,
        handshake_seconds_max: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._admission = admission
        self._tls = tls
        self._handshake_seconds_max = handshake_seconds_max
        self._beginning: set[asyncio.Task[None]] = set()
        self._refused = 0
        self._say_after = 0.0
        self._pause: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._begin()

    def close(self) -> None:
        """Take no further connections; those that shake hands are ended."""
        if self._pause is not None:
            self._pause.cancel()
        elif self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)
        self._listening.close()
        for task in self._beginning:
            task.cancel()

    async def wait_closed(self) -> None:
        """After `close`: wait for the end of those that shook hands."""
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
                log.warning("no connection can be taken: %s", failure)
                self._loop.remove_reader(self._listening)
                self._pause = self._loop.call_later(PAUSE_SECONDS, self._begin)
                return
            connection = self._admission.admitted(address[0])
            if connection is None:
                accepted.close()
                continue
            accepted.setblocking(False)
            task = self._loop.create_task(self._connect(accepted, connection, address[0]))
            self._beginning.add(task)
            task.add_done_callback(partial(self._begun, accepted, connection))

    def _begun(
        self, accepted: socket.socket, connection: Connection, task: "asyncio.Task[None]"
    ) -> None:
        self._beginning.discard(task)
        if task.cancelled():
            # Here: a task that is cancelled before its first step runs none of its own.
            accepted.close()
            self._admission.disconnected(connection)

    async def _connect(self, accepted: socket.socket, connection: Connection, address: str) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else self._handshake_seconds_max,
            )
        except Exception as failure:
            accepted.close()
            self._admission.disconnected(connection)
            if not isinstance(failure, OSError):
                raise
            self._say(address, failure)

    def _say(self, address: str, failure: OSError) -> None:
        self._refused += 1
        now = self._loop.time()
        if now >= self._say_after:
            count, self._refused = self._refused, 0
            more = f", and {count - 1} more since the last line" if count > 1 else ""
            log.info("TLS: the handshake of %s failed%s: %s", address, more, failure)
            self._say_after = now + SAY_SECONDS
