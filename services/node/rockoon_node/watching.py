"""A watch that is always on: at one nameserver, or at the next when that one fails."""

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
    """Begins a watch again whenever it ends, at the same nameserver while it answers.

    Args:
        nameservers: whom to ask.
        name: of what is watched, for the log.

    Attributes:
        attempted: set when a nameserver has answered, or every one was asked in vain.
    """

    def __init__(self, nameservers: Nameservers, name: str) -> None:
        self._nameservers = nameservers
        self._name = name
        self._rotation = WatchRotation(nameservers.addresses)
        self.attempted = asyncio.Event()

    def answered(self) -> None:
        """To be called by the watch for every answer that it could use."""
        self._rotation.answered()
        self.attempted.set()

    async def run(
        self,
        watch: Callable[[str], Awaitable[None]],
        is_final: Callable[[RockoonError], bool],
        stop: Stop,
    ) -> None:
        """Watch until cancelled, or until there is no use in trying on.

        Args:
            watch: watches at an address until the nameserver there ends it; may raise Fatal.
            is_final: whether a refusal is one that no other nameserver would take back.
            stop: the service's; failed then.
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
                    self._give_up(stop, Fatal(ExitStatus.CONFIGURATION, f"{self._name}: {reason}"))
                    return
                log.info("%s: %s", self._name, reason)
            except Fatal as reason:
                self._give_up(stop, reason)
                return
            pause = self._rotation.failed()
            if self._rotation.round_failed:
                self.attempted.set()
            await asyncio.sleep(pause)

    def _give_up(self, stop: Stop, reason: Fatal) -> None:
        stop.fail(reason)
        self.attempted.set()
