"""Keeps a service in the routes: announced to any nameserver, renewed in time, taken out."""

import asyncio
import logging

from rockoon_node.nameservers import Nameservers, pause_seconds
from rockoon_proto.errors import InvalidArgument, NodeNameTaken, RockoonError, WrongCluster
from rockoon_proto.v1.nameserver_pb2 import (
    Node,
    RegisterNodeReply,
    RegisterNodeRequest,
    UnregisterNodeRequest,
)
from rockoon_runtime.process import ExitStatus, Fatal, Stop

log = logging.getLogger(__name__)

CALL_SECONDS_MAX = 3.0
UNREGISTER_SECONDS_MAX = 1.0
RENEW_SECONDS_MIN = 0.05


class Registration:
    """A service's entry in the routes.

    Args:
        nameservers: any of them is told.
        node: the entry.

    Attributes:
        in_routes: set when a nameserver has taken the entry for the first time.
        settled: set then too, or when the entry was refused or every nameserver asked in vain.
    """

    def __init__(self, nameservers: Nameservers, node: Node) -> None:
        self._nameservers = nameservers
        self._node = node
        self._lease_id = 0
        # An unanswered call may have put us there as well.
        self._may_be_in_routes = False
        self.in_routes = asyncio.Event()
        self.settled = asyncio.Event()

    async def run(self, stop: Stop) -> None:
        """Announce and renew until cancelled.

        Args:
            stop: the service's; failed when the entry is refused for good. Others may be served
                then as long as an orderly end takes.
        """
        failed_rounds = 0
        while True:
            try:
                reply = await self._register()
            except RockoonError as reason:
                if self._is_final(reason):
                    self._may_be_in_routes = False
                    stop.fail(Fatal(ExitStatus.CONFIGURATION, str(reason)))
                    self.settled.set()
                    return
                if failed_rounds == 0:
                    log.warning("not registered: %s; serving what is known, and trying on", reason)
                self.settled.set()
                failed_rounds += 1
                await asyncio.sleep(pause_seconds(failed_rounds))
                continue
            if self._lease_id != reply.lease_id or failed_rounds:
                log.info("in the routes as %s at %s", self._node.name, self._node.address)
            failed_rounds = 0
            self._lease_id = reply.lease_id
            self.in_routes.set()
            self.settled.set()
            await asyncio.sleep(max(reply.renew_seconds, RENEW_SECONDS_MIN))

    def _is_final(self, reason: RockoonError) -> bool:
        """Whether asking again is no use.

        An entry that was once accepted is not the one that is wrong: then it is a nameserver, which
        somebody will set right, and a service that works is not ended for it.
        """
        if isinstance(reason, WrongCluster | InvalidArgument):
            return not self.in_routes.is_set()
        return isinstance(reason, NodeNameTaken)

    async def _register(self) -> RegisterNodeReply:
        request = RegisterNodeRequest(node=self._node, lease_id=self._lease_id)
        self._may_be_in_routes = True
        return await self._nameservers.call(
            lambda stub: stub.RegisterNode(
                request, timeout=CALL_SECONDS_MAX, metadata=self._nameservers.metadata
            )
        )

    async def leave(self) -> None:
        """Take the service out of the routes: one short try at each nameserver."""
        if not self._may_be_in_routes:
            return
        request = UnregisterNodeRequest(
            kind=self._node.kind, name=self._node.name, store_id=self._node.store_id
        )
        try:
            await self._nameservers.call(
                lambda stub: stub.UnregisterNode(
                    request, timeout=UNREGISTER_SECONDS_MAX, metadata=self._nameservers.metadata
                )
            )
        except RockoonError as reason:
            log.info("not taken out of the routes: %s", reason)
