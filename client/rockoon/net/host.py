"""Determines this machine's IP address, which producers store in records (the "born host")."""

import asyncio
import socket

from rockoon_format.record import encode_host

LOOPBACK = encode_host("127.0.0.1", 0)


async def born_host(peer: str) -> bytes:
    """Return this machine's IP address on the route to `peer` ("host:port"), with port 0.

    Nothing is sent. Without a route the result is 127.0.0.1: the address is informational.
    """
    host, _, port = peer.rpartition(":")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_DGRAM
        )
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return encode_host(probe.getsockname()[0].partition("%")[0], 0)
    except (OSError, ValueError, IndexError):
        return LOOPBACK
