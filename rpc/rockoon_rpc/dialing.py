"""Connects to a host over any of its addresses (RFC 8305, "happy eyeballs").

Attempts start one after the other with a short delay between two, until one address answers. So
an address that does not answer delays the connection by one delay only.

Only the event loop creates and closes the sockets. No other object has a descriptor of a socket, so
no code can close the descriptor number again after the system has reused it for another file.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from itertools import chain, zip_longest
from typing import Any, TypeVar

# RFC 8305 recommends it.
STAGGER_SECONDS = 0.25

P = TypeVar("P", bound=asyncio.BaseProtocol)


async def dialed(
    host: str,
    port: int,
    protocol: Callable[[], P],
    tls: ssl.SSLContext | None = None,
    server_name: str | None = None,
) -> tuple[asyncio.Transport, P]:
    """Connect to a host and complete the TLS handshake.

    Args:
        host: a name, or an IP address without brackets. A name is resolved for each connection,
            because a restarted pod has the same name and another address.
        protocol: creates the asyncio protocol of a connection; called once per attempt.
        tls: TLS context; None: no TLS.
        server_name: name that the server's certificate must contain.

    Returns:
        The transport, which the peer may already have closed, and its protocol.

    Raises:
        OSError: the name has no address, or no address accepts a connection; the text has the
            reason of each.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    waiting = deque(_alternating(found))
    trying: set[asyncio.Task[tuple[asyncio.Transport, P]]] = set()
    failures: list[str] = []
    try:
        while waiting or trying:
            if waiting:
                address = waiting.popleft()
                connecting = loop.create_connection(
                    protocol, address, port, ssl=tls, server_hostname=server_name
                )
                trying.add(loop.create_task(connecting))
            pause = STAGGER_SECONDS if waiting else None
            done, trying = await asyncio.wait(
                trying, timeout=pause, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                failure = task.exception()
                if failure is None:
                    trying |= done - {task}
                    return task.result()
                if not isinstance(failure, OSError):
                    raise failure
                failures.append(str(failure))
    finally:
        for task in trying:
            task.add_done_callback(_close_unwanted)
            task.cancel()
    raise OSError(", ".join(dict.fromkeys(failures)) or f"{host} has no address")


def _alternating(found: list[Any]) -> list[str]:
    """Return addresses with IPv6 and IPv4 alternating; otherwise their order is kept."""
    by_family: dict[int, list[str]] = {}
    for family, *_, address in found:
        by_family.setdefault(family, []).append(address[0])
    return [each for each in chain(*zip_longest(*by_family.values())) if each is not None]


def _close_unwanted(task: "asyncio.Task[tuple[asyncio.Transport, Any]]") -> None:
    if not task.cancelled() and task.exception() is None:
        task.result()[0].abort()
