"""The nameservers a service was told of: any of them will do."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import grpc

from rockoon_core.channels import Channels, Tls
from rockoon_core.errors import NameserverUnavailable, RockoonError
from rockoon_core.failed_call import clock_corrected, from_rpc_error
from rockoon_core.pem_files import PemError
from rockoon_core.signature import Credentials
from rockoon_proto.v1.nameserver_pb2_grpc import NameServerStub
from rockoon_runtime.settings import SettingsError
from rockoon_runtime.wire import CLUSTER_METADATA_KEY

if TYPE_CHECKING:
    from grpc import aio

    from rockoon_proto.v1.nameserver_pb2_grpc import NameServerAsyncStub

Reply = TypeVar("Reply")

# A machine that vanished sends no reset: only pings notice. Reconnecting is quick, because others
# wait for what this service learns.
CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # How long an attempt may take: one into a network that is cut would hold up the next for 20 s.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", 64 << 20),
)

PAUSE_SECONDS = 0.1
PAUSE_SECONDS_MAX = 2.0
# An outage may last: 2 to the power of its rounds soon is no float any more.
DOUBLINGS_MAX = 10


def pause_seconds(failed_rounds: int) -> float:
    """How long to wait when every nameserver has failed.

    Args:
        failed_rounds: how often in a row; at least 1.
    """
    return min(PAUSE_SECONDS * 2.0 ** min(failed_rounds - 1, DOUBLINGS_MAX), PAUSE_SECONDS_MAX)


class FailoverOrder:
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
        return 0.0 if place else pause_seconds(rounds)


class Nameservers:
    """One channel for each address, shared by all who ask.

    Args:
        addresses: "host:port" of every nameserver.
        cluster: sent along, so that a nameserver of another cluster refuses.
        tls: how they are called; None means plainly.
        access: signs the calls; None means that they are not signed.

    Raises:
        SettingsError: there is no address, or a file of `tls` cannot be used.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        cluster: str,
        tls: Tls | None = None,
        access: Credentials | None = None,
    ) -> None:
        if not addresses:
            raise SettingsError("nameservers is empty: whom should this service tell where it is?")
        self.addresses = tuple(addresses)
        self.access = access
        self.metadata = ((CLUSTER_METADATA_KEY, cluster),)
        try:
            self._channels = Channels(CHANNEL_OPTIONS, tls, access)
        except PemError as failure:
            raise SettingsError(str(failure)) from failure
        # Index of the nameserver that the next call asks first.
        self._first = 0

    def channel(self, address: str) -> "aio.Channel":
        return self._channels.get(address)

    def stub(self, address: str) -> "NameServerAsyncStub":
        return NameServerStub(self._channels.get(address))

    async def call(self, method: Callable[["NameServerAsyncStub"], Awaitable[Reply]]) -> Reply:
        """Call one nameserver after the other until one answers.

        Args:
            method: makes the call, with its own deadline and `metadata`.

        Raises:
            RockoonError: what a nameserver answered, or NameserverUnavailable of the last.
        """
        trouble: RockoonError = NameserverUnavailable(address=", ".join(self.addresses))
        # Read once: calls that fail at the same time would else make each other skip one.
        first = self._first
        for step in range(len(self.addresses)):
            index = (first + step) % len(self.addresses)
            address = self.addresses[index]
            try:
                return await method(self.stub(address))
            except grpc.RpcError as failure:
                trouble = from_rpc_error(failure, NameserverUnavailable, address=address)
                if clock_corrected(self.access, trouble):
                    # Once: a clock that is right already is not corrected again.
                    return await self.call(method)
                # Also behind an answer that is final: another nameserver may know better next time.
                self._first = (index + 1) % len(self.addresses)
                if not trouble.retriable:
                    raise trouble from failure
        raise trouble

    async def close(self) -> None:
        await self._channels.close()
