"""Addresses of nodes, "host:port", and of this machine."""

import asyncio
import socket
from collections.abc import Sequence

from rockoon.errors import InvalidArgument, NoExternalAddress
from rockoon_format.record import encode_host
from rockoon_proto.v1.nameserver_pb2 import Node


def parse_addresses(nameservers: str | Sequence[str]) -> tuple[str, ...]:
    """Return the addresses in a text or a sequence. Raises InvalidArgument: there is no address, or
    one is not of the form "host:port"."""
    texts = (
        nameservers.replace(";", ",").split(",") if isinstance(nameservers, str) else nameservers
    )
    addresses = tuple(text.strip() for text in texts if text.strip())
    if not addresses:
        raise InvalidArgument(reason="nameserver addresses are missing")
    for address in addresses:
        host, _, port = address.rpartition(":")
        is_port = port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65_536
        if not host or "/" in host or not is_port:
            shown = address if len(address) <= 300 else f"{address[:300]}..."
            raise InvalidArgument(reason=f"{shown!r} is not of the form host:port")
        try:
            host.encode("idna")
        except UnicodeError as failure:
            raise InvalidArgument(reason=f"{host!r} is not a host name: {failure}") from None
    return addresses


def reachable(node: Node) -> str:
    """Return "host:port" of a node. Raises NoExternalAddress: the route has no address: the
    nameserver was called at its external listener, and the node has no external address."""
    if not node.address:
        raise NoExternalAddress(name=node.replica or node.name)
    return node.address


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
