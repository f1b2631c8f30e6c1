"""Follows the access keys: a watch on any nameserver, begun again when it breaks."""

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
    """Keeps a service's gate up to date; while no nameserver answers, keys stay as they were.

    A nameserver that lags does not bring a revoked key back: older keys than those in force are
    left aside, unless etcd itself went back: nothing newer comes from anywhere, and the nameserver
    that tells them has etcd in reach.

    Args:
        nameservers: whom to ask.
        gate: takes the keys.
        addresses: at which the service is called; empty ones are none.

    Attributes:
        attempted: set when keys are in force, or every nameserver was asked in vain.
    """

    def __init__(self, nameservers: Nameservers, gate: Gate, *addresses: str) -> None:
        gate.authentication.audiences = {address for address in addresses if address}
        self._nameservers = nameservers
        self._gate = gate
        self._watching = Watching(nameservers, "access keys")
        self._revision = 0
        # How many nameservers in a row, with etcd in reach, have told of older keys than are in
        # force.
        self._older = 0

    @property
    def attempted(self) -> asyncio.Event:
        return self._watching.attempted

    async def run(self, stop: Stop) -> None:
        """Follow until cancelled.

        Args:
            stop: the service's; failed when the nameservers do not know its cluster secret.
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
                    log.info("nameserver %s is behind with the access keys", address)
                    return
            self._older = 0
            self._revision = update.revision
            self._gate.update(update.keys)
            self._watching.answered()
