"""Standing: the state of one copy of a log, for operators, metrics and readiness."""

import asyncio
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from rockoon_replica.copy_check import CheckCounts
from rockoon_replica.log import WriteCheck
from rockoon_replica.member import Role

if TYPE_CHECKING:
    from rockoon_replica.replica import Replica


class FollowerProgress:
    """A follower's progress, as its leader knows; kept when the connection ends.

    Args:
        now: the loop's time, seconds.

    Attributes:
        session: its present connection; None if there is none.
        durable_end: its last acknowledged end, in this connection or the former one.
    """

    def __init__(self, now: float) -> None:
        self.session: int | None = None
        self.durable_end = 0
        self._caught_up_at = now
        # The leader's end at the follower's last acknowledgement, and its time.
        self._mark = (0, now)

    def opened(self, session: int, durable_end: int) -> None:
        self.session, self.durable_end = session, durable_end

    def closed(self, session: int) -> None:
        # A follower that has reconnected has another session.
        if self.session == session:
            self.session = None

    def acknowledged(self, durable_end: int, leader_end: int, now: float) -> None:
        """Record a follower's acknowledgement. If the follower has the leader's former end, it had
        all records at that time, as in Kafka.
        """
        self.durable_end = durable_end
        if durable_end >= self._mark[0]:
            self._caught_up_at = self._mark[1]
        self._mark = (leader_end, now)

    def behind_seconds(self, leader_end: int, now: float) -> float:
        """Seconds since the follower had all records of the leader; 0 if it has all now."""
        return 0.0 if self.durable_end >= leader_end else now - self._caught_up_at


class CopyRecord:
    """State of one copy of a log, kept while its replicas are replaced in the process.

    Args:
        now: the loop's time, seconds.

    Attributes:
        is_ready: it leads, or was level with a leader that commits on the present connection.
        truncated_bytes: bytes cut because the leader had other ones.
        checks: counts of checks and repairs.
        writes: whether the log could be written at the last check.
        refused_at: the loop's time of the last hand-over because clients' records were refused,
            seconds.
        run_raised: set when the store counts more starts than were registered.
    """

    def __init__(self, now: float) -> None:
        self.is_ready = False
        self.truncated_bytes = 0
        self.checks = CheckCounts()
        self.writes = WriteCheck()
        self.refused_at = -math.inf
        self.run_raised = asyncio.Event()
        self._since = now
        self._unready_seconds = 0.0

    def set_ready(self, *, is_ready: bool, now: float) -> bool:
        """Set whether this copy is ready; returns whether that changed."""
        if is_ready == self.is_ready:
            return False
        self._unready_seconds = self.unready_seconds(now)
        self._since, self.is_ready = now, is_ready
        return True

    def unready_seconds(self, now: float) -> float:
        """Total seconds in which this copy had no leader that commits, or lacked some of the
        leader's records.
        """
        return self._unready_seconds + (0.0 if self.is_ready else now - self._since)


class Lag(NamedTuple):
    """Lag of another replica of a log behind its leader.

    Attributes:
        replica: its id.
        connected: to this leader, now.
        durable_end: last acknowledged; None before its first acknowledgement to this leader.
        bytes, seconds: records that it lacks, and for how long it has lacked any.
    """

    replica: str
    connected: bool = False
    durable_end: int | None = None
    bytes: int | None = None
    seconds: float | None = None


def lagging(replica: "Replica", now: float) -> Iterator[Lag]:
    """Lag of the other replicas, voters and learners, if this one leads; otherwise none."""
    state = replica.state
    if state is None or replica.role is not Role.LEADING:
        return
    end = replica.replicated.end
    for who in sorted(state.config.in_sync.union(state.replicas) - {replica.member.replica}):
        known = replica.progress.get(who)
        if known is None:
            yield Lag(who)
        else:
            yield Lag(
                who,
                known.session is not None,
                known.durable_end,
                max(0, end - known.durable_end),
                known.behind_seconds(end, now),
            )


def trouble(replica: "Replica") -> str:
    """Describe the problem of a replica; empty if it is ready and, as a leader, accepts appends."""
    found = _trouble(replica)
    if not replica.member.facts.sound:
        doubt = "it may have lost records, and does not vote before it has copied them again"
        found = f"{found}; {doubt}" if found else doubt
    if damaged := replica.member.facts.damaged:
        places = ", ".join(map(str, damaged))
        doubt = f"its records at {places} are damaged, and are rewritten from another copy"
        return f"{found}; {doubt}" if found else doubt
    return found


def _trouble(replica: "Replica") -> str:
    state = replica.state
    if reason := replica.member.writes.reason:
        return f"it cannot write: {reason}"
    if replica.role is Role.LEADING and not replica.appends_allowed:
        return "it leads, and accepts no appends: too few copies are connected to it"
    if replica.is_ready:
        return ""
    if replica.refusal:
        return f"it cannot write: {replica.refusal}"
    if replica.member.refused:
        return f"it must be replaced: {replica.member.refused}"
    if state is None:
        return "the log waits for its first copies to register, or no nameserver answers"
    if not replica.member.is_registered:
        return "etcd does not have this start of its process yet"
    if state.leader is None:
        if state.held:
            return f"the election waits for an operator: {state.held}"
        return "an election is running"
    if replica.role is not Role.FOLLOWER:
        return "it leads, and too few copies are connected to it"
    if not replica.member.is_matched:
        return "not connected to the leader"
    return "catching up"
