"""Lease of a node: it may answer while nobody else can have its name and a copy of its store.

Invariants
- An answer given while `check` passes was given before the node's lease in etcd ended. The lease
  counts here from when its renewal was *sent*, by a clock that goes on while the machine sleeps; in
  etcd it counts from later.
- A node that was awake all the time and reached nobody who could tell goes on when its lease is
  over: a cluster whose nameservers or etcd are away goes on serving (ADR 27). One that slept
  through its lease, stopped, swapped out or migrated, does not answer before it is renewed.
- One that was told of another process with a copy of its store answers when a nameserver says that
  this one is over, and not before: who reached nobody proves nothing about the other.
- A name that was taken by another process stays taken.
"""

import math
import time
from collections.abc import Callable

from rockoon_core.backoff import PAUSE_SECONDS_MAX
from rockoon_core.errors import NotReady

# Of the lease. Clocks that run apart, and the way from a check to the wire.
MARGIN = 0.1
# Of the lease: how long a renewal may take, all nameservers asked. With what lies before it, which
# nameservers say (RENEW_SHARE_MAX of theirs), one that nobody answers ends before the lease does.
ROUND = 0.25
# Of the lease: how much later than it should, on a busy machine, the next round may end.
SLACK = 0.5


def boot_seconds() -> float:
    """Seconds since the machine started, those included in which it slept."""
    # Not `monotonic`, which stands still while a virtual machine is suspended: it would wake up
    # with its lease, long after another process has taken the name.
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """A node's right to answer in its name.

    Args:
        service: who it is, for the refusals: "the broker".
        clock: seconds; goes on while the machine sleeps.
    """

    def __init__(self, service: str, clock: Callable[[], float] = boot_seconds) -> None:
        self._service = service
        self._clock = clock
        # Before anybody is asked nobody can have been told of the node.
        self._sure_until = math.inf
        self._ttl_seconds = 0.0
        self._has_predecessor = False
        self._refusal = ""

    def now(self) -> float:
        return self._clock()

    def check(self) -> None:
        """Raise NotReady unless the node may answer. Cheap: it is asked before every answer."""
        if self._clock() >= self._sure_until:
            raise NotReady(service=self._service, reason=self._refusal)

    @property
    def refusal(self) -> str:
        """Why nothing is answered now; empty if it is."""
        return self._refusal if self._clock() >= self._sure_until else ""

    def first_asked(self) -> None:
        """The node is being put into the routes, and may learn from the answer that it has to wait
        although others know of it by then."""
        self._sure_until = -math.inf
        self._refusal = "it is not in the routes yet"

    def renewed(self, sent_seconds: float, ttl_seconds: float) -> None:
        """A nameserver has put the node into the routes, or left it there.

        Args:
            sent_seconds: when it was asked, by `now`.
            ttl_seconds: how long the lease lives.
        """
        self._has_predecessor = False
        self._ttl_seconds = ttl_seconds
        # From when it was sent. Counted from a slow answer, the lease would last longer here than
        # in etcd, and somebody else could answer in this name.
        self._sure_until = sent_seconds + ttl_seconds * (1 - MARGIN)
        self._refusal = "its lease is over, and no nameserver has renewed it yet"

    def has_predecessor(self, seconds: float) -> None:
        """The node is in the routes, and the process that was there before may still answer."""
        self._has_predecessor = True
        self._sure_until = -math.inf
        self._refusal = (
            "another process with a copy of its store has not ended, and may answer for "
            f"{seconds:.0f} s more"
        )

    def nobody_told(self, round_seconds: float) -> None:
        """Nobody who was asked could tell: all nameservers, or their etcd, are away.

        Args:
            round_seconds: how long it may take to ask all of them once more.
        """
        if self._has_predecessor:
            return
        if not self._ttl_seconds:
            # Started while nameservers are away: it serves what is known.
            self._sure_until = math.inf
        elif (now := self._clock()) < self._sure_until:
            # Until the next round has ended. By when this one was sent it could not be told from
            # one that was under way when the process was stopped.
            next_ends = now + PAUSE_SECONDS_MAX + round_seconds + self._ttl_seconds * SLACK
            self._sure_until = max(self._sure_until, next_ends)

    def lost(self, reason: str) -> None:
        """The name is another's. Nothing is answered any more."""
        self._sure_until = -math.inf
        self._refusal = reason

    def left(self) -> None:
        """The node has left the routes by itself: it answers who has not heard of it yet."""
        if self._clock() < self._sure_until:
            self._sure_until = math.inf
