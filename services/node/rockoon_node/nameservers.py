"""Client of the nameservers: calls any of them, with failover."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import grpc

from rockoon_core.channels import Channels, Tls
from rockoon_core.errors import NameserverUnavailable
from rockoon_core.failed_call import from_rpc_error, may_sign_again
from rockoon_core.nameservers import FailoverOrder, call_any
from rockoon_core.pem_files import PemError
from rockoon_core.protocol import CLUSTER_METADATA_KEY
from rockoon_core.signature import Credentials
from rockoon_proto.v1.nameserver_pb2 import Node
from rockoon_proto.v1.nameserver_pb2_grpc import NameServerStub
from rockoon_runtime.settings import SettingsError

if TYPE_CHECKING:
    from grpc import aio

    from rockoon_proto.v1.nameserver_pb2_grpc import NameServerAsyncStub

Reply = TypeVar("Reply")


class Nameservers:
    """Channels to the nameservers, one for each address, shared by all callers.

    Args:
        addresses: "host:port" of every nameserver.
        cluster: sent with each call, so that a nameserver of another cluster refuses it.
        tls: certificates of the connections; None: plain connections.
        access: signs the calls; None: calls are not signed.

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
            raise SettingsError(
                "nameservers is empty: name at least one nameserver, where this service registers"
            )
        self.addresses = tuple(addresses)
        self.access = access
        self.metadata = ((CLUSTER_METADATA_KEY, cluster),)
        try:
            self._channels = Channels(tls, access)
        except PemError as failure:
            raise SettingsError(str(failure)) from failure
        self._order = FailoverOrder(self.addresses)

    def channel(self, address: str) -> "aio.Channel":
        return self._channels.get(address)

    def learn(self, nodes: Iterable[Node]) -> None:
        """Record the processes at the addresses of nodes; see `Channels.learn`."""
        self._channels.learn(nodes)

    def stub(self, address: str) -> "NameServerAsyncStub":
        stub: NameServerAsyncStub = self._channels.stub(address, NameServerStub)
        return stub

    async def call(self, method: Callable[["NameServerAsyncStub"], Awaitable[Reply]]) -> Reply:
        """Call one nameserver after the other until one answers.

        Args:
            method: makes the call, with its own deadline and `metadata`.

        Raises:
            RockoonError: the error of a nameserver.
            NameserverUnavailable: no nameserver answered; names the last one.
        """
        return await self._call_at(lambda address: method(self.stub(address)))

    async def call_channel(self, method: Callable[["aio.Channel"], Awaitable[Reply]]) -> Reply:
        """Call another gRPC service of the nameservers: `method` gets the channel."""
        return await self._call_at(lambda address: method(self._channels.get(address)))

    async def _call_at(self, method: Callable[[str], Awaitable[Reply]]) -> Reply:
        async def call_one(address: str, *, is_repeated: bool = False) -> Reply:
            try:
                return await method(address)
            except grpc.RpcError as failure:
                error = from_rpc_error(failure, NameserverUnavailable, address=address)
                if is_repeated or not may_sign_again(self.access, error):
                    raise error from failure
            return await call_one(address, is_repeated=True)

        return await call_any(self._order, call_one)

    async def close(self) -> None:
        await self._channels.close()
