"""The layer of this checkout. No other module of the benches names its server and its channel."""

from rockoon_core.http2.channel import Http2Channel as Channel
from rockoon_rpc.server import Server

__all__ = ["Channel", "Server"]
