"""Registration of a service in the routes: registers, renews, and unregisters it."""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from rockoon_core.clock import PAUSE_SECONDS_MAX, Backoff, wait_at_most
from rockoon_core.errors import (
    Busy,
    InvalidArgument,
    NodeNameTaken,
    NotAuthenticated,
    NotReady,
    RockoonError,
    WrongCluster,
    WrongIdentity,
)
from rockoon_core.nameservers import ROUND_PAUSE_SECONDS
from rockoon_core.protocol import PROTOCOL
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

# Shares of the lease.
# For differences of clocks, and the time from a check to the wire.
MARGIN = 0.1
# For one round of renewal calls to all nameservers. A round starts after at most RENEW_SHARE_MAX of
# the lease (see the nameserver), so a round without a reply ends before the lease.
ROUND = 0.25
# For a delayed next round on a busy machine.
SLACK = 0.5


# Seconds since the machine started, including suspended time. `monotonic` stops while a virtual
# machine is suspended. The machine would resume with a valid lease, although another process has
# the name by then. Not a Python function, since the lease is checked before each reply.
boot_seconds = partial(time.clock_gettime, time.CLOCK_BOOTTIME)


class NodeLease:
    """A node's right to reply under its name: no other process can have its name and its store.

    Invariants
    - A reply that passed `check` was sent before the node's lease in etcd ended. Here the lease
      starts when its renewal was *sent*, by a clock that also runs while the machine sleeps; in
      etcd it starts later.
    - A node that was awake all the time, and could not reach a nameserver with etcd, continues
      after the end of its lease: a cluster without nameservers or etcd still serves (ADR 27). A
      node that was stopped, swapped out or migrated during its lease does not reply before the next
      renewal.
    - If a nameserver has reported another process with a copy of the store, the node does not reply
      before a nameserver reports the end of that process. Unreachable nameservers prove nothing.
    - A name that another process has registered is lost for ever.

    Args:
        service: name of the service for error texts: "the broker".
        clock: seconds; also runs while the machine sleeps.
    """

    def __init__(self, service: str, clock: Callable[[], float] = boot_seconds) -> None:
        self._service = service
        self._clock = clock
        # Valid before the first registration: no nameserver can know the node.
        self._sure_until = math.inf
        self._ttl_seconds = 0.0
        self._has_predecessor = False
        self._refusal = ""

    def now(self) -> float:
        return self._clock()

    def check(self) -> None:
        """Raise NotReady if the node may not reply. Called before every reply, so it is cheap."""
        if self._clock() >= self._sure_until:
            raise NotReady(service=self._service, reason=self._refusal)

    @property
    def refusal(self) -> str:
        """Reason why the node may not reply now; empty if it may."""
        return self._refusal if self._clock() >= self._sure_until else ""

    def registration_started(self) -> None:
        """Suspend the lease until the first registration is answered: clients may know the node
        before the node knows that it must wait."""
        self._sure_until = -math.inf
        self._refusal = "it is not in the routes yet"

    def renewed(self, sent_seconds: float, ttl_seconds: float) -> None:
        """Extend the lease after a successful registration.

        Args:
            sent_seconds: when the registration was sent, by `now`.
            ttl_seconds: length of the lease in etcd.
        """
        self._has_predecessor = False
        self._ttl_seconds = ttl_seconds
        # From the time of sending. Counted from a late reply, the lease would last longer here than
        # in etcd, and another process could reply under this name.
        self._sure_until = sent_seconds + ttl_seconds * (1 - MARGIN)
        self._refusal = "its lease is over, and no nameserver has renewed it yet"

    def has_predecessor(self, seconds: float) -> None:
        """Suspend the lease: a former process under this name may still reply."""
        self._has_predecessor = True
        self._sure_until = -math.inf
        self._refusal = (
            "another process with a copy of its store has not ended, and may answer for "
            f"{seconds:.0f} s more"
        )

    def no_answer(self, round_seconds: float) -> None:
        """Keep the lease after a round in which no nameserver with etcd answered.

        Args:
            round_seconds: maximum time of another round.
        """
        if self._has_predecessor:
            return
        if not self._ttl_seconds:
            # Started without nameservers: serve with the stored state.
            self._sure_until = math.inf
        elif (now := self._clock()) < self._sure_until:
            # Until the end of the next round, counted from now. Counted from the start of this
            # round, a process that was stopped during a round would look the same.
            next_ends = now + PAUSE_SECONDS_MAX + round_seconds + self._ttl_seconds * SLACK
            self._sure_until = max(self._sure_until, next_ends)

    def lost(self, reason: str) -> None:
        """End the lease: another process has the name."""
        self._sure_until = -math.inf
        self._refusal = reason

    def left(self) -> None:
        """Keep a valid lease after leaving the routes: clients may still have the old routes."""
        if self._clock() < self._sure_until:
            self._sure_until = math.inf


CALL_SECONDS_MAX = 3.0
CALL_SECONDS_MIN = 0.5
# Interval of registrations while a former process may still reply.
PREDECESSOR_RETRY_SECONDS = 0.2
UNREGISTER_SECONDS_MAX = 1.0
RENEW_SECONDS_MIN = 0.05


class Registration:
    """A service's entry in the routes.

    Args:
        node: the entry.
        lease: updated after each registration.
        cluster_id: returns the id of the cluster that the service's store belongs to; 0: none.
        replica: called for each registration, returns the state of a replica; None: the node is no
            replica.

    Attributes:
        in_routes: set when the entry was accepted for the first time, and no other process can
            reply under its name.
        attempted: set also when the entry was refused, or when no nameserver answered.
    """

    def __init__(
        self,
        nameservers: Nameservers,
        node: Node,
        lease: NodeLease,
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
        # A call without a reply may have registered the node as well.
        self._may_be_in_routes = False
        self.in_routes = asyncio.Event()
        self.attempted = asyncio.Event()
        self._wanted = asyncio.Event()
        # Set by `leave`. The lock is held during each call, so that no call registers the node
        # after `leave`.
        self._leaving = False
        self._calling = asyncio.Lock()

    async def run(self, stop: Stop) -> None:
        """Register the service and renew its registration until cancelled, or until `leave`.

        Args:
            stop: failed if the entry is refused finally. The lease ends then.
        """
        failed, waits = False, False
        backoff = Backoff(ROUND_PAUSE_SECONDS)
        self._lease.registration_started()
        while not self._leaving:
            try:
                # `leave` waits for this lock: a registration that arrives after the
                # unregistration would undo it.
                async with self._calling:
                    if self._leaving:
                        return
                    # Before the call: see the invariants of `NodeLease`.
                    sent_seconds = self._lease.now()
                    reply = await self._register()
            except RockoonError as reason:
                if self._is_final(reason):
                    # With a lease, unregistering informs the process that has the name now.
                    self._may_be_in_routes = self._lease_id != 0
                    self._lease.lost(str(reason))
                    stop.fail(Fatal(ExitStatus.CONFIGURATION, str(reason)))
                    self.attempted.set()
                    return
                if not failed:
                    log.warning(
                        "not registered: %s; serving with the known routes, and retrying", reason
                    )
                # Busy: a nameserver answered and did not renew the lease.
                if not isinstance(reason, Busy):
                    # A slow etcd may need longer than the time of a renewal.
                    self._call_seconds = CALL_SECONDS_MAX
                    nameservers = len(self._nameservers.addresses)
                    self._lease.no_answer(CALL_SECONDS_MAX * nameservers)
                self.attempted.set()
                failed = True
                await asyncio.sleep(backoff.next_seconds())
                continue
            if self._lease_id != reply.lease_id or failed:
                log.info("registered as %s at %s", self._node.name, self._node.address)
            failed = False
            backoff.reset()
            self._log_differences(tuple(reply.differences))
            self._lease_id = reply.lease_id
            share = reply.ttl_seconds * ROUND / len(self._nameservers.addresses)
            self._call_seconds = min(max(share, CALL_SECONDS_MIN), CALL_SECONDS_MAX)
            if reply.predecessor_seconds > 0:
                if not waits:
                    log.warning(
                        "another process with a copy of this store has not ended: serving starts "
                        "when its lease is over, in at most %.0f s",
                        reply.predecessor_seconds,
                    )
                waits = True
                self._lease.has_predecessor(reply.predecessor_seconds)
                await asyncio.sleep(min(reply.renew_seconds, PREDECESSOR_RETRY_SECONDS))
                continue
            waits = False
            self._lease.renewed(sent_seconds, reply.ttl_seconds)
            self.in_routes.set()
            self.attempted.set()
            # A late reply has used a part of the lease: a round without a reply must still end
            # before the lease.
            round_seconds = self._call_seconds * len(self._nameservers.addresses)
            latest = sent_seconds + reply.ttl_seconds * (1 - MARGIN) - round_seconds
            pause = min(reply.renew_seconds, latest - self._lease.now())
            await self._wait_to_renew(max(pause, RENEW_SECONDS_MIN))

    async def _wait_to_renew(self, seconds: float) -> None:
        await wait_at_most(seconds, self._wanted.wait())
        self._wanted.clear()

    def renew_now(self) -> None:
        """Register immediately, because facts of the replica have changed."""
        self._wanted.set()

    def set_drained(self, *, drained: bool) -> None:
        """Set whether the routes report the node as drained."""
        if self._node.drained != drained:
            self._node.drained = drained
            self._wanted.set()

    def _is_final(self, reason: RockoonError) -> bool:
        """True if a refusal is final, so a retry is useless.

        If the entry was accepted before, a misconfigured nameserver is the cause. An operator can
        repair it, so a working service does not end.
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
        # Before the call: its reply may be lost although the node was registered.
        self._may_be_in_routes = True
        return await self._nameservers.call(
            lambda stub: stub.RegisterNode(
                request, timeout=self._call_seconds, metadata=self._nameservers.metadata
            )
        )

    def _log_differences(self, differences: tuple[str, ...]) -> None:
        """Log settings that differ from the rest of the cluster, if they have changed."""
        if differences != self._differences:
            self._differences = differences
            for difference in differences:
                log.warning("setting differs from the rest of the cluster: %s", difference)

    async def leave(self) -> None:
        """Unregister the service finally, with one short attempt at each nameserver."""
        self._leaving = True
        # First: clients with the old routes still get replies while the service drains.
        self._lease.left()
        if not self._may_be_in_routes:
            return
        # A call in progress could otherwise register the node again after the unregistration.
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
            log.info(
                "could not unregister: %s; the routes list this node until its lease ends", reason
            )
