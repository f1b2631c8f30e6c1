"""Keeps a service in the routes: announced to any nameserver, renewed in time, taken out."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from rockoon_core.backoff import Backoff
from rockoon_core.errors import (
    Busy,
    InvalidArgument,
    NodeNameTaken,
    NotAuthenticated,
    RockoonError,
    WrongCluster,
    WrongIdentity,
)
from rockoon_core.nameservers import ROUND_PAUSE_SECONDS
from rockoon_core.protocol import PROTOCOL
from rockoon_node.lease import MARGIN, ROUND, Lease
from rockoon_node.nameservers import Nameservers
from rockoon_proto.v1.nameserver_pb2 import (
    Node,
    RegisterNodeReply,
    RegisterNodeRequest,
    ReplicaFacts,
    UnregisterNodeRequest,
)
from rockoon_runtime.process import ExitStatus, Fatal, Stop

log = logging.getLogger(__name__)

CALL_SECONDS_MAX = 3.0
CALL_SECONDS_MIN = 0.5
# While the process before may still answer.
PREDECESSOR_LOOK_SECONDS = 0.2
UNREGISTER_SECONDS_MAX = 1.0
RENEW_SECONDS_MIN = 0.05


class Registration:
    """A service's entry in the routes.

    Args:
        nameservers: any of them is told.
        node: the entry.
        lease: is told what becomes of the entry.
        cluster_id: tells the cluster that the service's store belongs to; 0 for none.
        replica: tells what a log's replica knows, with each call; None for a node that is none.

    Attributes:
        in_routes: set when a nameserver has taken the entry for the first time, and nobody else
            answers in its name any more.
        attempted: set then too, or when the entry was refused or every nameserver asked in vain.
    """

    def __init__(
        self,
        nameservers: Nameservers,
        node: Node,
        lease: Lease,
        cluster_id: Callable[[], int] = lambda: 0,
        replica: Callable[[], ReplicaFacts] | None = None,
    ) -> None:
        self._nameservers = nameservers
        self._node = node
        self._lease = lease
        self._cluster_id = cluster_id
        self._replica = replica
        self._differences: tuple[str, ...] = ()
        self._lease_id = 0
        self._call_seconds = CALL_SECONDS_MAX
        # An unanswered call may have put us there as well.
        self._may_be_in_routes = False
        self.in_routes = asyncio.Event()
        self.attempted = asyncio.Event()
        self._wanted = asyncio.Event()
        # Written by `leave`. The lock is held for each call, so that none puts back what has left.
        self._leaving = False
        self._calling = asyncio.Lock()

    async def run(self, stop: Stop) -> None:
        """Announce and renew until cancelled, or until the service leaves.

        Args:
            stop: the service's; failed when the entry is refused for good. Nobody is answered
                from then on.
        """
        failed, waits = False, False
        backoff = Backoff(ROUND_PAUSE_SECONDS)
        self._lease.first_asked()
        while not self._leaving:
            try:
                # `leave` takes this too: a registration that arrived behind the goodbye would undo
                # it.
                async with self._calling:
                    if self._leaving:
                        return
                    # Before the call: see the invariants of `Lease`.
                    sent_seconds = self._lease.now()
                    reply = await self._register()
            except RockoonError as reason:
                if self._is_final(reason):
                    # With a lease, the goodbye tells who has taken over that this process is over.
                    self._may_be_in_routes = self._lease_id != 0
                    self._lease.lost(str(reason))
                    stop.fail(Fatal(ExitStatus.CONFIGURATION, str(reason)))
                    self.attempted.set()
                    return
                if not failed:
                    log.warning("not registered: %s; serving what is known, and trying on", reason)
                # Busy is an answer: somebody could tell, and did not renew.
                if not isinstance(reason, Busy):
                    # A slow etcd may need longer than a renewal has.
                    self._call_seconds = CALL_SECONDS_MAX
                    nameservers = len(self._nameservers.addresses)
                    self._lease.nobody_told(CALL_SECONDS_MAX * nameservers)
                self.attempted.set()
                failed = True
                await asyncio.sleep(backoff.next_seconds())
                continue
            if self._lease_id != reply.lease_id or failed:
                log.info("in the routes as %s at %s", self._node.name, self._node.address)
            failed = False
            backoff.reset()
            self._tell(tuple(reply.differences))
            self._lease_id = reply.lease_id
            share = reply.ttl_seconds * ROUND / len(self._nameservers.addresses)
            self._call_seconds = min(max(share, CALL_SECONDS_MIN), CALL_SECONDS_MAX)
            if reply.predecessor_seconds > 0:
                if not waits:
                    log.warning(
                        "another process with a copy of this store has not ended: serving begins "
                        "when its lease is over, in %.0f s at most",
                        reply.predecessor_seconds,
                    )
                waits = True
                self._lease.has_predecessor(reply.predecessor_seconds)
                await asyncio.sleep(min(reply.renew_seconds, PREDECESSOR_LOOK_SECONDS))
                continue
            waits = False
            self._lease.renewed(sent_seconds, reply.ttl_seconds)
            self.in_routes.set()
            self.attempted.set()
            # A slow answer has taken some of the lease: a round that nobody answers must still end
            # before it does.
            round_seconds = self._call_seconds * len(self._nameservers.addresses)
            latest = sent_seconds + reply.ttl_seconds * (1 - MARGIN) - round_seconds
            pause = min(reply.renew_seconds, latest - self._lease.now())
            await self._wait_to_renew(max(pause, RENEW_SECONDS_MIN))

    async def _wait_to_renew(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wanted.wait()
        self._wanted.clear()

    def renew_now(self) -> None:
        """Register immediately, because facts of the replica have changed."""
        self._wanted.set()

    def _is_final(self, reason: RockoonError) -> bool:
        """Whether asking again is no use.

        An entry that was once accepted is not the one that is wrong: then it is a nameserver, which
        somebody will set right, and a service that works is not ended for it.
        """
        if isinstance(reason, WrongCluster | InvalidArgument | WrongIdentity | NotAuthenticated):
            return not self.in_routes.is_set()
        return isinstance(reason, NodeNameTaken)

    async def _register(self) -> RegisterNodeReply:
        request = RegisterNodeRequest(
            node=self._node,
            lease_id=self._lease_id,
            cluster_id=self._cluster_id(),
            protocol=PROTOCOL,
            replica=None if self._replica is None else self._replica(),
        )
        # Before the call, since an answer may get lost that put the node there.
        self._may_be_in_routes = True
        return await self._nameservers.call(
            lambda stub: stub.RegisterNode(
                request, timeout=self._call_seconds, metadata=self._nameservers.metadata
            )
        )

    def _tell(self, differences: tuple[str, ...]) -> None:
        """Say where this node differs from others, when that has changed."""
        if differences != self._differences:
            self._differences = differences
            for difference in differences:
                log.warning("not as in the rest of the cluster: %s", difference)

    async def leave(self) -> None:
        """Take the service out of the routes, for good: one short try at each nameserver."""
        self._leaving = True
        # First: a client that has not heard of the goodbye yet is still answered while this drains.
        self._lease.left()
        if not self._may_be_in_routes:
            return
        # A call that is under way would put the entry back when it overtakes the goodbye.
        with suppress(TimeoutError):
            async with asyncio.timeout(UNREGISTER_SECONDS_MAX), self._calling:
                pass
        request = UnregisterNodeRequest(
            kind=self._node.kind,
            name=self._node.name,
            store_id=self._node.store_id,
            lease_id=self._lease_id,
        )
        try:
            await self._nameservers.call(
                lambda stub: stub.UnregisterNode(
                    request, timeout=UNREGISTER_SECONDS_MAX, metadata=self._nameservers.metadata
                )
            )
        except RockoonError as reason:
            log.info("not taken out of the routes: %s", reason)
