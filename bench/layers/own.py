"""The layer of this checkout, under the names that the benchmarks use. No other module of the
benchmarks imports its server and channel."""

from rockoon_rpc.channel import Channel
from rockoon_rpc.server import Server

__all__ = ["Channel", "Server"]
