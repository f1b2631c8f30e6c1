"""The layer under test: the only module here that names a server and a channel of Rockoon's."""

import ssl
from pathlib import Path

from grpc import aio

from rockoon_core.channels import Dialer, Tls
from rockoon_rpc.limits import Limits
from rockoon_rpc.server import Server


def server(message_bytes_max: int = 64 << 20, calls_max: int | None = None) -> Server:
    """A server that shares its port with its successor."""
    limits = Limits(message_bytes_max=message_bytes_max)
    return Server(limits=limits, calls_max=calls_max, reuse_port=True)


def channel(address: str, ca: Path | None = None) -> aio.Channel:
    """A channel to "host:port".

    Args:
        ca: certificate of the authority that signed the server's; None means no TLS.
    """
    return Dialer(None if ca is None else Tls(ca=ca)).channel(address)


def server_tls(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])
    return context
