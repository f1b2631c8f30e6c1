"""Follower of the access keys: watches them on any nameserver, and restarts a broken watch."""

import asyncio
import logging
from typing import TYPE_CHECKING

from rockoon_core.errors import NotAuthenticated, RockoonError
from rockoon_node.nameservers import Nameservers
from rockoon_node.watching import Watching
from rockoon_proto.v1.access_pb2 import WatchKeysRequest
from rockoon_proto.v1.access_pb2_grpc import AccessKeysStub
from rockoon_runtime.access.gate import Gate
from rockoon_runtime.process import Stop

if TYPE_CHECKING:
    from rockoon_proto.v1.access_pb2_grpc import AccessKeysAsyncStub

log = logging.getLogger(__name__)


class KeyFollower:
    """Updates the access keys with which a service checks its callers. While no nameserver answers,
    keys stay.

    Keys older than the current ones are ignored, so a nameserver that lags does not restore a
    revoked key. They are accepted if etcd itself went back: all nameservers have older keys, and
    the nameserver can reach etcd.

    Args:
        gate: receives the keys.
        addresses: addresses at which the service is called; empty ones are ignored.

    Attributes:
        attempted: set when keys have arrived, or when no nameserver has answered.
    """

    def __init__(self, nameservers: Nameservers, gate: Gate, *addresses: str) -> None:
        gate.authentication.audiences = {address for address in addresses if address}
        self._nameservers = nameservers
        self._gate = gate
        self._watching = Watching(nameservers, "access keys")
        self._revision = 0
        # Number of consecutive nameservers that can reach etcd and sent older keys.
        self._older = 0

    @property
    def attempted(self) -> asyncio.Event:
        return self._watching.attempted

    async def run(self, stop: Stop) -> None:
        """Follow the nameservers' access keys until cancelled.

        Args:
            stop: failed if the nameservers do not accept the cluster secret of the service.
        """
        await self._watching.run(self._watch, self._is_final, stop)

    def _is_final(self, reason: RockoonError) -> bool:
        return isinstance(reason, NotAuthenticated) and not self._gate.keys.loaded

    async def _watch(self, address: str) -> None:
        stub: AccessKeysAsyncStub = AccessKeysStub(self._nameservers.channel(address))
        request = WatchKeysRequest()
        async for update in stub.WatchKeys(request, metadata=self._nameservers.metadata):
            if update.revision < self._revision:
                all_older = self._older >= len(self._nameservers.addresses)
                if not (update.etcd_reachable and all_older):
                    self._older += update.etcd_reachable
                    log.info("nameserver %s has older access keys; trying the next one", address)
                    return
            self._older = 0
            self._revision = update.revision
            self._gate.update(update.keys)
            self._watching.answered()
