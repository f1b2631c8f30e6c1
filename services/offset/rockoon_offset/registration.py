"""Keeps the service in the routes: announced, renewed in time, taken out at the end.

A cluster has one offset service. The nameservers see to it: they refuse a second one under another
name, and the same name with another store.
"""

import asyncio
import logging

from rockoon_offset.nameservers import Nameservers, Pauses
from rockoon_proto.errors import InvalidArgument, NodeNameTaken, RockoonError, WrongCluster
from rockoon_proto.v1.nameserver_pb2 import (
    Node,
    RegisterNodeReply,
    RegisterNodeRequest,
    UnregisterNodeRequest,
)
from rockoon_runtime.process import ExitStatus, Fatal

log = logging.getLogger(__name__)

CALL_SECONDS_MAX = 3.0
UNREGISTER_SECONDS_MAX = 1.0
RENEW_SECONDS_MIN = 0.05


class Registration:
    """The service's entry in the routes.

    Args:
        nameservers: any of them is told.
        node: the entry.
    """

    def __init__(self, nameservers: Nameservers, node: Node) -> None:
        self._nameservers = nameservers
        self._node = node
        self._lease_id = 0
        self.in_routes = asyncio.Event()

    async def run(self) -> None:
        """Announce and renew until cancelled.

        Raises:
            Fatal: another live offset service has the place, or the cluster is another.
        """
        # `call` has asked every nameserver when it fails, so each failure is a whole round.
        pauses = Pauses(1)
        while True:
            try:
                reply = await self._register()
            except (NodeNameTaken, WrongCluster, InvalidArgument) as refusal:
                raise Fatal(ExitStatus.CONFIGURATION, str(refusal)) from refusal
            except RockoonError as reason:
                if pauses.failures == 0:
                    log.warning("not registered: %s; serving from what is known", reason)
                await pauses.wait()
                continue
            if self._lease_id != reply.lease_id or pauses.failures:
                log.info("in the routes as %s at %s", self._node.name, self._node.address)
            pauses.answered()
            self._lease_id = reply.lease_id
            self.in_routes.set()
            await asyncio.sleep(max(reply.renew_seconds, RENEW_SECONDS_MIN))

    async def _register(self) -> RegisterNodeReply:
        request = RegisterNodeRequest(node=self._node, lease_id=self._lease_id)
        return await self._nameservers.call(
            lambda stub: stub.RegisterNode(
                request, timeout=CALL_SECONDS_MAX, metadata=self._nameservers.metadata
            )
        )

    async def leave(self) -> None:
        """Take the service out of the routes: one short try at each nameserver."""
        if not self._lease_id:
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
