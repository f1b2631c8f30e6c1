"""The nameservers this service was told of: any of them will do."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import grpc
from grpc import aio

from rockoon_proto.errors import NameserverUnavailable, RockoonError, from_rpc_error
from rockoon_proto.v1.nameserver_pb2_grpc import NameServerStub
from rockoon_runtime.wire import CLUSTER_METADATA_KEY

if TYPE_CHECKING:
    from rockoon_proto.v1.nameserver_pb2_grpc import NameServerAsyncStub

Reply = TypeVar("Reply")

# A machine that vanished sends no reset: only pings notice. Reconnecting is quick, because others
# wait for what this service decides.
CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", 64 << 20),
)
PAUSE_SECONDS = 0.1
PAUSE_SECONDS_MAX = 2.0


class Nameservers:
    """One channel for each address, shared by all who ask.

    Args:
        addresses: "host:port" of every nameserver; not empty.
        cluster: sent along, so that a nameserver of another cluster refuses.
    """

    def __init__(self, addresses: Sequence[str], cluster: str) -> None:
        self.addresses = tuple(addresses)
        self.metadata = ((CLUSTER_METADATA_KEY, cluster),)
        self._channels = {
            address: aio.insecure_channel(address, options=CHANNEL_OPTIONS)
            for address in self.addresses
        }
        # Where the next call goes first; moved on by calls that were not answered.
        self._turn = 0

    def stub(self, address: str) -> "NameServerAsyncStub":
        return NameServerStub(self._channels[address])

    async def call(self, method: Callable[["NameServerAsyncStub"], Awaitable[Reply]]) -> Reply:
        """Call one nameserver after the other until one answers.

        Args:
            method: makes the call, with its own deadline and `metadata`.

        Raises:
            RockoonError: what a nameserver answered, or NameserverUnavailable of the last.
        """
        trouble: RockoonError = NameserverUnavailable(address=", ".join(self.addresses))
        for _ in self.addresses:
            address = self.addresses[self._turn % len(self.addresses)]
            try:
                return await method(self.stub(address))
            except grpc.RpcError as failure:
                trouble = from_rpc_error(failure, NameserverUnavailable, address=address)
                if not trouble.retriable:
                    raise trouble from failure
                self._turn += 1
        raise trouble

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()


class Pauses:
    """How long to wait after each failure in a row: not at all while there are others to try."""

    def __init__(self, addresses: int) -> None:
        self._addresses = addresses
        self.failures = 0

    def answered(self) -> None:
        self.failures = 0

    async def wait(self) -> None:
        """Call after a failure."""
        self.failures += 1
        rounds, place = divmod(self.failures, self._addresses)
        if not place:
            await asyncio.sleep(min(PAUSE_SECONDS * 2 ** min(rounds - 1, 10), PAUSE_SECONDS_MAX))
