"""TLS settings of a channel."""

import ssl
from typing import NamedTuple

ALPN = "h2"


class ChannelTls(NamedTuple):
    """TLS settings for a connection of a channel.

    Attributes:
        context: TLS context with the trusted CA certificates; it offers the protocol `ALPN`.
        server_name: name that the server's certificate must contain; empty: the host of the
            address.
    """

    context: ssl.SSLContext
    server_name: str
