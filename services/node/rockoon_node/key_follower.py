"""Follows the access keys: a watch on any nameserver, begun again when it breaks."""

import asyncio
import logging
from typing import TYPE_CHECKING

import grpc

from rockoon_node.nameservers import Nameservers, Turns
from rockoon_proto.errors import NameserverUnavailable, NotAuthenticated
from rockoon_proto.failed_call import clock_corrected, from_rpc_error
from rockoon_proto.v1.access_pb2 import WatchKeysRequest
from rockoon_proto.v1.access_pb2_grpc import AccessKeysStub
from rockoon_runtime.access.gate import Gate
from rockoon_runtime.process import ExitStatus, Fatal, Stop

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
        settled: set when keys are in force, or every nameserver was asked in vain.
    """

    def __init__(self, nameservers: Nameservers, gate: Gate, *addresses: str) -> None:
        gate.audiences = {address for address in addresses if address}
        self._nameservers = nameservers
        self._gate = gate
        self._turns = Turns(nameservers.addresses)
        self._revision = 0
        # How many nameservers in a row, with etcd in reach, have told of older keys than are in
        # force.
        self._older = 0
        self.settled = asyncio.Event()

    async def run(self, stop: Stop) -> None:
        """Follow until cancelled.

        Args:
            stop: the service's; failed when the nameservers do not know its cluster secret.
        """
        while True:
            address = self._turns.address
            try:
                await self._watch(address)
            except grpc.RpcError as failure:
                reason = from_rpc_error(failure, NameserverUnavailable, address=address)
                if clock_corrected(self._nameservers.access, reason):
                    continue
                if isinstance(reason, NotAuthenticated) and not self._gate.keys.loaded:
                    stop.fail(Fatal(ExitStatus.CONFIGURATION, f"access keys: {reason}"))
                    self.settled.set()
                    return
                log.info("access keys: %s", reason)
            pause = self._turns.failed()
            if self._turns.round_failed:
                self.settled.set()
            await asyncio.sleep(pause)

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
            self._turns.answered()
            self.settled.set()
