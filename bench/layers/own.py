"""The layer of this checkout. No other module of the benches names its server and its channel."""

from rockoon_rpc.channel import Channel
from rockoon_rpc.server import Server

__all__ = ["Channel", "Server"]
