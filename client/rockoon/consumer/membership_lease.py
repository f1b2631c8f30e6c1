"""Membership lease: how long a member may rely on its queues, by its own clock. Makes no calls.

The offset service grants a queue to another member when the lease of this one has ended, or when it
did not release the queue in time. A process that was stopped (a signal, a suspended machine) does
not know this before its next call. Without a check of the clock, it would handle messages of queues
that another member owns.

Orderly members trust a grant only while the last heartbeat that got a reply is recent enough. Other
members continue if the service does not reply: handling messages twice is better than handling
none. But they stop if their own process was stopped.

Invariant: after a stop of the process, no grant is valid until a later heartbeat got a reply, and
earlier grants never are.
"""

# Share of the time that a silent member may keep a queue. The rest covers a hand-over that the last
# reply did not contain (one heartbeat interval), clock drift, and the start of a call.
_SAFE_SHARE = 0.75
# A pause of the event loop counts as a stop of the process from this share of the granted time on.
_SLEEP_SHARE_MIN = 0.25
_TICKS_PER_SLEEP = 4
_TICK_SECONDS_MAX = 10.0


class MembershipLease:
    """Decides whether the grants of one member are valid. Times are seconds of a monotonic clock.

    Args:
        orderly: no other member may own a queue while this member trusts its grant.
    """

    def __init__(self, *, orderly: bool) -> None:
        self.expirations = 0
        """Number of times that all grants may have ended."""
        self.granted_seconds = float("inf")
        """Time for which the member keeps its queues without a heartbeat."""
        self.tick_seconds = 1.0
        """Interval at which `tick` is to be called."""
        self._orderly = orderly
        self._lease_seconds = float("inf")
        self._safe_seconds = float("inf")
        self._sleep_seconds = float("inf")
        # Send time of the last heartbeat that got a reply.
        self._renewed_at = 0.0
        # Time of the last call of `tick`.
        self._ticked_at = 0.0
        # Time at which the end of the last stop was detected.
        self._woke_at = 0.0

    def renew(
        self, lease_seconds: float, handover_seconds_max: float, heartbeat_seconds: float
    ) -> None:
        """Apply the times of the last heartbeat reply."""
        # A silent member is not notified that another member waits for a queue, and loses the queue
        # after the hand-over time although its lease is valid. If the hand-over time is 0, the
        # service grants the queue immediately, no time is safe, and the lease is used.
        self._lease_seconds = lease_seconds
        self.granted_seconds = granted = min(lease_seconds, handover_seconds_max or float("inf"))
        self._safe_seconds = safe = _SAFE_SHARE * granted
        # When a stop begins, the last heartbeat is up to one interval old.
        self._sleep_seconds = max(safe - heartbeat_seconds, _SLEEP_SHARE_MIN * granted)
        self.tick_seconds = min(self._sleep_seconds / _TICKS_PER_SLEEP, _TICK_SECONDS_MAX)

    def tick(self, now: float) -> bool:
        """Record that the process runs; return True if it was stopped for too long."""
        slept = self._ticked_at > 0 and now - self._ticked_at > self._sleep_seconds
        if slept:
            self._woke_at = now
        self._ticked_at = now
        return slept

    def answered(self, sent_at: float, now: float) -> float | None:
        """Record the reply to a heartbeat.

        Args:
            sent_at: send time, with which `tick` was called.
            now: time of the reply.

        Returns:
            Seconds since the heartbeat before, if grants may have ended since; None otherwise.
        """
        # Upper bound: the service got this heartbeat before `now`, and the last one after its send
        # time.
        silence = now - self._renewed_at
        silence_max = self._safe_seconds if self._orderly else self._lease_seconds
        # Second condition: the process was stopped between two heartbeats, maybe for less than a
        # lease. The decisions of the service during the stop are unknown until this reply.
        lapsed = self._renewed_at > 0 and (
            silence > silence_max or self._renewed_at < self._woke_at
        )
        # The send time, not the time of the reply: the service may measure the lease from then.
        self._renewed_at = sent_at
        if not lapsed:
            return None
        self.expirations += 1
        return silence

    def valid_since(self, expirations: int, now: float) -> bool:
        """Return True if a grant is valid.

        Args:
            expirations: value of `expirations` before the grant was requested.
            now: current time.
        """
        # The grant is older than the last expiration: another member may own the queue.
        if expirations != self.expirations:
            return False
        if self._orderly:
            return now - self._renewed_at < self._safe_seconds
        return self._woke_at <= self._renewed_at and now - self._ticked_at <= self._sleep_seconds
