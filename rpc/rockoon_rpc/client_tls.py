"""TLS of a channel."""

import ssl
from typing import NamedTuple

ALPN = "h2"


class ChannelTls(NamedTuple):
    """How a channel connects over TLS.

    Attributes:
        context: has the trusted authorities, and offers `ALPN`.
        server_name: the name that the server's certificate must have; empty for the host of the
            address.
    """

    context: ssl.SSLContext
    server_name: str
