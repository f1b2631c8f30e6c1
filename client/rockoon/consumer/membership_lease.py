"""Membership lease: for how long a member may rely on its queues, by its own clock. Pure.

The offset service grants a queue to another member when this one's lease has ended, or when it has
not let go in time. A process that was stopped, or whose machine was, learns neither before it calls
again, and goes on with what it holds meanwhile unless it looks at the clock.

Members that keep an order trust a grant only while the last answered heartbeat is young enough. The
others go on when the service does not answer: what they handle may be handled twice, and that is
better than nothing being handled. But they do not when it was they who slept.

Invariant: after a sleep nothing is trusted until a heartbeat that was sent later was answered, and
what was granted before that never again.
"""

# Of the time that a silent member may keep a queue. The rest is for what the last answer may not
# have told yet (one pause between heartbeats), for clocks that differ in pace, and for a call to
# begin.
_SURE_SHARE = 0.75
# A sleep is no shorter than this share, or a busy loop would pass for one.
_SLEEP_SHARE_MIN = 0.25
_TICKS_PER_SLEEP = 4
_TICK_SECONDS_MAX = 10.0


class MembershipLease:
    """One member's trust in its grants. Times are seconds of one monotonic clock.

    Args:
        orderly: others must not have a queue while this member trusts its grant.
    """

    def __init__(self, *, orderly: bool) -> None:
        self.expirations = 0
        """How often all that had been granted may have ended."""
        self.granted_seconds = float("inf")
        """How long the member keeps its queues without a word."""
        self.tick_seconds = 1.0
        """How often `ticks` is to be called."""
        self._orderly = orderly
        self._lease_seconds = float("inf")
        self._sure_seconds = float("inf")
        self._sleep_seconds = float("inf")
        # When the last answered heartbeat was sent.
        self._heard_at = 0.0
        self._awake_at = 0.0
        # When the last sleep was found to be over.
        self._woke_at = 0.0

    def renew(
        self, lease_seconds: float, handover_seconds_max: float, heartbeat_seconds: float
    ) -> None:
        """Take in what the service grants, as its last answer says."""
        # Who is silent does not hear that another member asks, and is overtaken when it has not
        # let go in time, though its lease goes on. Without any time to let go nothing is sure.
        self._lease_seconds = lease_seconds
        self.granted_seconds = granted = min(lease_seconds, handover_seconds_max or float("inf"))
        self._sure_seconds = sure = _SURE_SHARE * granted
        # When a sleep begins, the last heartbeat is up to one pause old.
        self._sleep_seconds = max(sure - heartbeat_seconds, _SLEEP_SHARE_MIN * granted)
        self.tick_seconds = min(self._sleep_seconds / _TICKS_PER_SLEEP, _TICK_SECONDS_MAX)

    def ticks(self, now: float) -> bool:
        """The process runs. Returns whether it had not for too long."""
        slept = self._awake_at > 0 and now - self._awake_at > self._sleep_seconds
        if slept:
            self._woke_at = now
        self._awake_at = now
        return slept

    def answered(self, sent_at: float, now: float) -> float | None:
        """A heartbeat was answered.

        Args:
            sent_at: when it was sent, which `ticks` was told.
            now: when the answer came.

        Returns:
            The seconds of silence before, if grants may have ended in them.
        """
        # The service heard of this one before now, and of the last one after it was sent.
        silence = now - self._heard_at
        silence_max = self._sure_seconds if self._orderly else self._lease_seconds
        # The second: it slept between two heartbeats, maybe shorter than a lease. Until an answer
        # to a later one nobody knows what was decided meanwhile.
        lapsed = self._heard_at > 0 and (silence > silence_max or self._heard_at < self._woke_at)
        # When it was sent, not when the answer came: the service counts from no later than that.
        self._heard_at = sent_at
        if not lapsed:
            return None
        self.expirations += 1
        return silence

    def valid_since(self, expirations: int, now: float) -> bool:
        """Whether a grant is to be trusted.

        Args:
            expirations: as they were counted before it was asked for.
            now: the time.
        """
        # Granted before a lapse: the service may have given it away since.
        if expirations != self.expirations:
            return False
        if self._orderly:
            return now - self._heard_at < self._sure_seconds
        return self._woke_at <= self._heard_at and now - self._awake_at <= self._sleep_seconds
