"""The nameservers a broker was told of: any of them will do."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from grpc import aio

from rockoon_proto.v1.nameserver_pb2_grpc import NameServerStub
from rockoon_runtime.wire import CLUSTER_METADATA_KEY

if TYPE_CHECKING:
    from rockoon_proto.v1.nameserver_pb2_grpc import NameServerAsyncStub

# A nameserver whose machine vanished sends no reset: only pings notice.
CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", 64 << 20),
)

ROUND_PAUSE_SECONDS = 0.1
ROUND_PAUSE_SECONDS_MAX = 2.0


class Nameservers:
    """One channel for each address, shared by all who ask.

    Args:
        addresses: "host:port" of every nameserver.
        cluster: sent along, so that a nameserver of another cluster refuses.
    """

    def __init__(self, addresses: Sequence[str], cluster: str) -> None:
        self.addresses = tuple(addresses)
        self.metadata = ((CLUSTER_METADATA_KEY, cluster),)
        self._channels = {
            address: aio.insecure_channel(address, options=CHANNEL_OPTIONS)
            for address in self.addresses
        }

    def stub(self, address: str) -> "NameServerAsyncStub":
        return NameServerStub(self._channels[address])

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()


class Turns:
    """Whose turn it is: the same nameserver while it answers, the next one when it does not.

    Args:
        addresses: in the order to try; not empty.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = tuple(addresses)
        self._index = 0
        self._failures = 0

    @property
    def address(self) -> str:
        return self._addresses[self._index]

    @property
    def round_failed(self) -> bool:
        """Whether every nameserver has failed since one last answered."""
        return self._failures >= len(self._addresses)

    def answered(self) -> None:
        self._failures = 0

    def failed(self) -> float:
        """Go on to the next; returns how long to wait before trying it, seconds."""
        self._failures += 1
        self._index = (self._index + 1) % len(self._addresses)
        rounds, place = divmod(self._failures, len(self._addresses))
        if place:
            return 0.0
        return float(min(ROUND_PAUSE_SECONDS * 2 ** (rounds - 1), ROUND_PAUSE_SECONDS_MAX))
