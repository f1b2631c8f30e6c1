"""A TCP connection to a name, whichever of its addresses answers (RFC 8305, "happy eyeballs").

Addresses are tried one after the other, each a moment after the one before, until one answers: an
address that is silent hides none behind it.
"""

import asyncio
import socket
import ssl
from collections import deque
from itertools import chain, zip_longest
from typing import Any

# RFC 8305 recommends it.
STAGGER_SECONDS = 0.25


async def connected_socket(host: str, port: int) -> socket.socket:
    """A socket that is connected to a host.

    Args:
        host: a name, or an IP address without brackets. A name is looked up each time: a pod comes
            back under its name at another address.

    Raises:
        OSError: the name has no address, or none of them takes connections; says why each did not.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    waiting = deque(_in_turns(found))
    trying: set[asyncio.Task[socket.socket]] = set()
    failures: list[str] = []
    try:
        while waiting or trying:
            if waiting:
                family, address = waiting.popleft()
                trying.add(loop.create_task(_connected(family, address)))
            pause = STAGGER_SECONDS if waiting else None
            done, trying = await asyncio.wait(
                trying, timeout=pause, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                failure = task.exception()
                if failure is None:
                    trying |= done - {task}
                    return task.result()
                failures.append(str(failure))
    finally:
        for task in trying:
            task.add_done_callback(_close_unwanted)
            task.cancel()
    raise OSError(", ".join(dict.fromkeys(failures)) or f"{host} has no address")


async def hand_to_loop(
    connected: socket.socket,
    protocol: asyncio.BaseProtocol,
    *,
    ssl: ssl.SSLContext | None,
    server_hostname: str | None,
) -> asyncio.Transport:
    """Give a connected socket to the running loop, which owns its descriptor from then on.

    Transports of asyncio use the socket object. A transport of uvloop uses the descriptor's number
    and closes it; the object forgets the number only if the transport is still open when
    `create_connection` resumes. If the peer has reset the connection by then, the object would
    close the number again later, when it belongs to another file of the process.

    Returns:
        A transport, possibly closed already.

    Raises:
        OSError: the TLS handshake failed. The connection is closed.
    """
    loop = asyncio.get_running_loop()
    try:
        transport, _ = await loop.create_connection(
            lambda: protocol, sock=connected, ssl=ssl, server_hostname=server_hostname
        )
    except BaseException:
        if isinstance(loop, asyncio.BaseEventLoop):
            connected.close()
        raise
    finally:
        if not isinstance(loop, asyncio.BaseEventLoop):
            connected.detach()
    return transport


def _in_turns(found: list[Any]) -> list[tuple[int, Any]]:
    """Addresses in their order, but IPv6 and IPv4 in turns."""
    by_family: dict[int, list[tuple[int, Any]]] = {}
    for family, *_, address in found:
        by_family.setdefault(family, []).append((family, address))
    return [each for each in chain(*zip_longest(*by_family.values())) if each is not None]


async def _connected(family: int, address: Any) -> socket.socket:
    connecting = socket.socket(family, socket.SOCK_STREAM)
    try:
        connecting.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connecting, address)
    except BaseException:
        connecting.close()
        raise
    return connecting


def _close_unwanted(task: "asyncio.Task[socket.socket]") -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()
