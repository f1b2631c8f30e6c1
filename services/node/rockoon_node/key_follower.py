"""Watches at the nameservers: at one, and at the next if it fails. Follower of the access keys."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import grpc

from rockoon_core.errors import NameserverUnavailable, NotAuthenticated, RockoonError
from rockoon_core.failed_call import from_rpc_error, may_sign_again
from rockoon_core.nameservers import WatchRotation
from rockoon_node.nameservers import Nameservers
from rockoon_proto.v1.access_pb2 import WatchKeysRequest
from rockoon_proto.v1.access_pb2_grpc import AccessKeysStub
from rockoon_runtime.access.gate import Gate
from rockoon_runtime.process import ExitStatus, Fatal, Stop

if TYPE_CHECKING:
    from rockoon_proto.v1.access_pb2_grpc import AccessKeysAsyncStub

log = logging.getLogger(__name__)


class Watching:
    """Restarts a watch whenever it ends, at the same nameserver as long as that one answers.

    Args:
        name: of the watched data, for the log.

    Attributes:
        attempted: set when a nameserver has answered, or when all have failed.
    """

    def __init__(self, nameservers: Nameservers, name: str) -> None:
        self._nameservers = nameservers
        self._name = name
        self._rotation = WatchRotation(nameservers.addresses)
        self.attempted = asyncio.Event()

    def answered(self) -> None:
        """Record that the nameserver has sent a useful reply; the watch calls this."""
        self._rotation.answered()
        self.attempted.set()

    async def run(
        self,
        watch: Callable[[str], Awaitable[None]],
        is_final: Callable[[RockoonError], bool],
        stop: Stop,
    ) -> None:
        """Keep a watch running, at one nameserver after the other, until cancelled or until a final
        error.

        Args:
            watch: watches at an address until the nameserver ends the watch; may raise Fatal.
            is_final: whether all nameservers would refuse with this error.
            stop: failed after a final error.
        """
        is_repeated = False
        while True:
            address = self._rotation.address
            try:
                await watch(address)
            except grpc.RpcError as failure:
                reason = from_rpc_error(failure, NameserverUnavailable, address=address)
                if may_sign_again(self._nameservers.access, reason):
                    if not is_repeated:
                        is_repeated = True
                        continue
                    # The nameserver does not know the renewed secret yet.
                    log.info("%s: %s; retrying after a pause", self._name, reason)
                elif is_final(reason):
                    self._fail(stop, Fatal(ExitStatus.CONFIGURATION, f"{self._name}: {reason}"))
                    return
                else:
                    log.info("%s: %s", self._name, reason)
            except Fatal as reason:
                self._fail(stop, reason)
                return
            is_repeated = False
            pause = self._rotation.failed()
            if self._rotation.round_failed:
                self.attempted.set()
            await asyncio.sleep(pause)

    def _fail(self, stop: Stop, reason: Fatal) -> None:
        stop.fail(reason)
        self.attempted.set()


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
