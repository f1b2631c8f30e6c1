"""Watches at the nameservers: at one, and at the next if it fails. Follower of the access keys."""

import asyncio
import logging
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

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
    from grpc import aio

    from rockoon_proto.v1.access_pb2 import KeysUpdate

log = logging.getLogger(__name__)


class Watching:
    """Restarts a watch whenever it ends, at the same nameserver as long as that one answers.

    Args:
        name: name of the watched data, for the log.

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


class Complete(Protocol):
    """An update that contains all watched data."""

    revision: int
    etcd_reachable: bool


Update = TypeVar("Update", bound=Complete)


class CompleteUpdates(Generic[Update]):
    """Follows data of a nameserver; each update contains all of the data, not only changes. While
    no nameserver answers, the last data stays in use.

    Data older than the current one is ignored, so a nameserver that lags does not restore deleted
    data. It is accepted if etcd itself went back: all nameservers have older data, and the
    nameserver can reach etcd.

    Args:
        name: name of the data, for the log.
        watch: opens the watch at a nameserver.
        apply: called with each accepted update.

    Attributes:
        attempted: set when data has arrived, or when no nameserver has answered.
        revision: revision of the current data; set it before `run` if the service has data of its
            last run.
    """

    def __init__(
        self,
        nameservers: Nameservers,
        name: str,
        watch: Callable[["aio.Channel"], AsyncIterable[Update]],
        apply: Callable[[Update], None],
    ) -> None:
        self._nameservers = nameservers
        self._name = name
        self._open = watch
        self._apply = apply
        self._watching = Watching(nameservers, name)
        self.revision = 0
        # Number of consecutive nameservers that can reach etcd and sent older data.
        self._older = 0

    @property
    def attempted(self) -> asyncio.Event:
        return self._watching.attempted

    async def run(
        self, stop: Stop, is_final: Callable[[RockoonError], bool] = lambda _: False
    ) -> None:
        """Follow the data until cancelled; see `Watching.run`."""
        await self._watching.run(self._watch, is_final, stop)

    async def _watch(self, address: str) -> None:
        async for update in self._open(self._nameservers.channel(address)):
            if update.revision < self.revision:
                all_older = self._older >= len(self._nameservers.addresses)
                if not (update.etcd_reachable and all_older):
                    self._older += update.etcd_reachable
                    log.info("nameserver %s has older %s; trying the next one", address, self._name)
                    return
            self._older = 0
            self.revision = update.revision
            self._apply(update)
            self._watching.answered()


class KeyFollower:
    """Updates the access keys with which a service checks its callers; see `CompleteUpdates`.

    Args:
        gate: receives the keys.
        addresses: addresses at which the service is called; empty ones are ignored.

    Attributes:
        attempted: set when keys have arrived, or when no nameserver has answered.
    """

    def __init__(self, nameservers: Nameservers, gate: Gate, *addresses: str) -> None:
        gate.authentication.audiences = {address for address in addresses if address}
        self._gate = gate

        def watch(channel: "aio.Channel") -> "AsyncIterable[KeysUpdate]":
            calls = AccessKeysStub(channel)
            return calls.WatchKeys(WatchKeysRequest(), metadata=nameservers.metadata)

        self._updates = CompleteUpdates(
            nameservers, "access keys", watch, lambda update: gate.update(update.keys)
        )

    @property
    def attempted(self) -> asyncio.Event:
        return self._updates.attempted

    async def run(self, stop: Stop) -> None:
        """Follow the nameservers' access keys until cancelled.

        Args:
            stop: failed if the nameservers do not accept the cluster secret of the service.
        """
        await self._updates.run(stop, self._is_final)

    def _is_final(self, reason: RockoonError) -> bool:
        return isinstance(reason, NotAuthenticated) and not self._gate.keys.loaded
