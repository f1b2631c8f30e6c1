"""Addresses of nodes, "host:port"."""

from collections.abc import Sequence

from rockoon.errors import InvalidArgument, NoExternalAddress
from rockoon_proto.v1.nameserver_pb2 import Node


def parse_addresses(nameservers: str | Sequence[str]) -> tuple[str, ...]:
    """Return the addresses in a text or a sequence.

    Raises:
        InvalidArgument: there is no address, or one is not of the form "host:port".
    """
    texts = (
        nameservers.replace(";", ",").split(",") if isinstance(nameservers, str) else nameservers
    )
    addresses = tuple(text.strip() for text in texts if text.strip())
    if not addresses:
        raise InvalidArgument(reason="nameserver addresses are missing")
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or "/" in host or not 0 < int(port) < 65_536:
            raise InvalidArgument(reason=f"{address!r} is not of the form host:port")
        try:
            host.encode("idna")
        except UnicodeError as failure:
            raise InvalidArgument(reason=f"{host!r} is not a host name: {failure}") from None
    return addresses


def reachable(node: Node) -> str:
    """Return "host:port" of a node.

    Raises:
        NoExternalAddress: the route has no address: the nameserver was called at its external
            listener, and the node has no external address.
    """
    if not node.address:
        raise NoExternalAddress(name=node.name)
    return node.address
