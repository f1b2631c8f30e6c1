"""Permanent watch: at one nameserver, and at the next nameserver if it fails."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import grpc

from rockoon_core.errors import NameserverUnavailable, RockoonError
from rockoon_core.failed_call import clock_corrected, from_rpc_error
from rockoon_core.nameservers import WatchRotation
from rockoon_node.nameservers import Nameservers
from rockoon_runtime.process import ExitStatus, Fatal, Stop

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
        while True:
            address = self._rotation.address
            try:
                await watch(address)
            except grpc.RpcError as failure:
                reason = from_rpc_error(failure, NameserverUnavailable, address=address)
                if clock_corrected(self._nameservers.access, reason):
                    continue
                if is_final(reason):
                    self._fail(stop, Fatal(ExitStatus.CONFIGURATION, f"{self._name}: {reason}"))
                    return
                log.info("%s: %s", self._name, reason)
            except Fatal as reason:
                self._fail(stop, reason)
                return
            pause = self._rotation.failed()
            if self._rotation.round_failed:
                self.attempted.set()
            await asyncio.sleep(pause)

    def _fail(self, stop: Stop, reason: Fatal) -> None:
        stop.fail(reason)
        self.attempted.set()
