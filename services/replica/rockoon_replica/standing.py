"""Standing: how one copy of a log is, for people, metrics and readiness. Decides nothing."""

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
    """How far a follower has come, as its leader has heard; stays when the connection ends.

    Args:
        now: the loop's time, seconds.

    Attributes:
        session: its present connection; None while there is none.
        durable_end: what it has acknowledged, in this connection or the last one.
    """

    def __init__(self, now: float) -> None:
        self.session: int | None = None
        self.durable_end = 0
        self._caught_up_at = now
        # The leader's end when the follower was heard last, and when that was.
        self._mark = (0, now)

    def opened(self, session: int, durable_end: int) -> None:
        self.session, self.durable_end = session, durable_end

    def closed(self, session: int) -> None:
        # A follower that has come again has another one.
        if self.session == session:
            self.session = None

    def acknowledged(self, durable_end: int, leader_end: int, now: float) -> None:
        """It has what the leader had when it was heard before: it was level then (as in Kafka)."""
        self.durable_end = durable_end
        if durable_end >= self._mark[0]:
            self._caught_up_at = self._mark[1]
        self._mark = (leader_end, now)

    def behind_seconds(self, leader_end: int, now: float) -> float:
        """For how long it has not had everything; 0 when it has."""
        return 0.0 if self.durable_end >= leader_end else now - self._caught_up_at


class Record:
    """What a process remembers of its copy over all lives of its replica.

    Args:
        now: the loop's time, seconds.

    Attributes:
        is_ready: it leads, or has been level with a leader that commits on the present connection.
        truncated_bytes: how much was cut because the leader has something else.
        checks: of its records against their checksums.
        writes: whether the log could be written when it was last checked.
        refused_at: the loop's time when this copy last handed over because clients' records were
            refused, seconds.
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

    def note(self, *, is_ready: bool, now: float) -> bool:
        """Returns whether that is a change."""
        if is_ready == self.is_ready:
            return False
        self._unready_seconds = self.unready_seconds(now)
        self._since, self.is_ready = now, is_ready
        return True

    def unready_seconds(self, now: float) -> float:
        """For how long in all this copy had no leader that commits, or was not level with it."""
        return self._unready_seconds + (0.0 if self.is_ready else now - self._since)


class Lag(NamedTuple):
    """How far another replica of a log is behind its leader.

    Attributes:
        replica: its id.
        connected: to this leader, now.
        durable_end: what it has acknowledged last; None when this leader has not heard it yet.
        bytes, seconds: how much it has not got, and for how long it has not had everything.
    """

    replica: str
    connected: bool = False
    durable_end: int | None = None
    bytes: int | None = None
    seconds: float | None = None


def lagging(replica: "Replica", now: float) -> Iterator[Lag]:
    """How the others are, voters and learners, as a leader knows; nothing of who does not lead."""
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
    """What is wrong with a replica, for people; empty when it is ready, and takes what it leads."""
    found = _trouble(replica)
    if not replica.member.facts.sound:
        doubt = "it may have lost records, and elects nobody before it has copied them again"
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
        return "it leads, and takes nothing: too few copies are connected to it"
    if replica.is_ready:
        return ""
    if replica.refusal:
        return f"it cannot write: {replica.refusal}"
    if replica.member.refused:
        return f"it has to be replaced: {replica.member.refused}"
    if state is None:
        return "no nameserver has told it about the log"
    if not replica.member.is_registered:
        return "etcd does not have this start of its process yet"
    if state.leader is None:
        if state.held:
            return f"the election waits for an operator: {state.held}"
        return "the log waits for its replicas" if not state.epoch else "an election is on"
    if replica.role is not Role.FOLLOWER:
        return "it leads, and too few copies are connected to it"
    if not replica.member.is_matched:
        return "not connected to the leader"
    return "catching up"
