"""Connects to a host over any of its addresses (RFC 8305, "happy eyeballs").

Attempts start one after the other with a short delay between two, until one address answers. So
an address that does not answer delays the connection by one delay only. While no address answers,
the name is looked up again: a DNS cache may still have the address of a former pod.

Only the event loop creates and closes the sockets. No other object has a descriptor of a socket, so
no code can close the descriptor number again after the system has reused it for another file.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain, zip_longest
from typing import Any, Generic, TypeVar

# RFC 8305 recommends it.
STAGGER_SECONDS = 0.25
# Interval of lookups while the addresses of the last one do not answer.
LOOKUP_SECONDS = 0.5

P = TypeVar("P", bound=asyncio.BaseProtocol)


async def dialed(
    host: str,
    port: int,
    protocol: Callable[[], P],
    tls: ssl.SSLContext | None = None,
    server_name: str | None = None,
    known: Callable[[], Iterable[str]] = tuple,
) -> tuple[asyncio.Transport, P]:
    """Connect to a host and complete the TLS handshake.

    Args:
        host: a name, or an IP address without brackets. A name is resolved for each connection,
            because a restarted pod has the same name and another address.
        protocol: creates the asyncio protocol of a connection; called once per attempt.
        tls: TLS context; None: no TLS.
        server_name: name that the server's certificate must contain.
        known: returns IP addresses that are tried before those of the lookup; called again while
            no address answers.

    Returns:
        The transport, which the peer may already have closed, and its protocol.

    Raises:
        OSError: the name has no address, or no address accepts a connection; the text has the
            reason of each.
    """
    loop = asyncio.get_running_loop()
    attempts: _Attempts[P] = _Attempts(
        lambda address: loop.create_connection(
            protocol, address, port, ssl=tls, server_hostname=server_name
        )
    )
    lookup: asyncio.Task[list[Any]] | None = None
    next_lookup = loop.time()
    try:
        while True:
            attempts.add(known())
            attempts.start(loop.time())
            if lookup is None and loop.time() >= next_lookup:
                found = loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                lookup = loop.create_task(found)
                next_lookup = loop.time() + LOOKUP_SECONDS
            if lookup is None and not attempts.tasks:
                break
            await asyncio.wait(
                [*attempts.tasks, *filter(None, [lookup])],
                timeout=STAGGER_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if lookup is not None and lookup.done():
                try:
                    attempts.add(_alternating(lookup.result()))
                except OSError as failure:
                    attempts.failures.append(str(failure))
                lookup = None
            if (connection := attempts.result()) is not None:
                return connection
    finally:
        if lookup is not None:
            lookup.cancel()
        for task in attempts.tasks:
            task.add_done_callback(_close_unwanted)
            task.cancel()
    raise OSError(", ".join(dict.fromkeys(attempts.failures)) or f"{host} has no address")


class _Attempts(Generic[P]):
    """Attempts to connect to the addresses of one host.

    Args:
        connect: connects to an address.

    Attributes:
        tasks: the attempts in progress.
        failures: texts of failed attempts and lookups.
    """

    def __init__(self, connect: Callable[[str], Any]) -> None:
        self.tasks: set[asyncio.Task[tuple[asyncio.Transport, P]]] = set()
        self.failures: list[str] = []
        self._connect = connect
        self._waiting: deque[str] = deque()
        self._seen: set[str] = set()
        self._next_start = float("-inf")

    def add(self, addresses: Iterable[str]) -> None:
        """Add the addresses that are new."""
        self._waiting.extend(each for each in addresses if each not in self._seen)
        self._seen.update(self._waiting)

    def start(self, now: float) -> None:
        """Start the next attempt, unless the last one was started shortly before."""
        if self._waiting and now >= self._next_start:
            connecting = self._connect(self._waiting.popleft())
            self.tasks.add(asyncio.get_running_loop().create_task(connecting))
            self._next_start = now + STAGGER_SECONDS

    def result(self) -> tuple[asyncio.Transport, P] | None:
        """Return the connection of the first attempt that succeeded; None: none has.

        After a failed attempt the next one starts without a delay.
        """
        for task in [each for each in self.tasks if each.done()]:
            self.tasks.remove(task)
            failure = task.exception()
            if failure is None:
                return task.result()
            if not isinstance(failure, OSError):
                raise failure
            self.failures.append(str(failure))
            self._next_start = float("-inf")
        return None


def _alternating(found: list[Any]) -> list[str]:
    """Return addresses with IPv6 and IPv4 alternating; otherwise their order is kept."""
    by_family: dict[int, list[str]] = {}
    for family, *_, address in found:
        by_family.setdefault(family, []).append(address[0])
    return [each for each in chain(*zip_longest(*by_family.values())) if each is not None]


def _close_unwanted(task: "asyncio.Task[tuple[asyncio.Transport, Any]]") -> None:
    if not task.cancelled() and task.exception() is None:
        task.result()[0].abort()
