"""Lease of a node: it may reply only while no other process can have its name and its store's copy.

Invariants
- A reply that passed `check` was sent before the node's lease in etcd ended. Here the lease starts
  when its renewal was *sent*, by a clock that also runs while the machine sleeps; in etcd it starts
  later.
- A node that was awake all the time, and could not reach a nameserver with etcd, continues after
  the end of its lease: a cluster without nameservers or etcd still serves (ADR 27). A node that was
  stopped, swapped out or migrated during its lease does not reply before the next renewal.
- If a nameserver has reported another process with a copy of the store, the node does not reply
  before a nameserver reports the end of that process. Unreachable nameservers prove nothing.
- A name that another process has registered is lost for ever.
"""

import math
import time
from collections.abc import Callable
from functools import partial

from rockoon_core.clock import PAUSE_SECONDS_MAX
from rockoon_core.errors import NotReady

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
    """A node's right to reply under its name.

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
