"""Actions that a `Member` returns.

The caller carries them out in their order, each finished before the next, and all before the next
event; a crash may happen between any two. Calls to nameservers and messages to replicas need only
be sent: each may be lost.
"""

from typing import NamedTuple

from rockoon_core.replication_rules import Config, Rank, Report
from rockoon_replica.log_state import StateVersion
from rockoon_replica.messages import Ack, Hello, Welcome
from rockoon_replica.replica_facts import ReplicaFacts


class Persist(NamedTuple):
    """Write the replica's facts to disk, durably."""

    facts: ReplicaFacts


# On the log.


class OpenEpoch(NamedTuple):
    """Call `log.open_epoch` to append the record that opens the epoch; then accept connections of
    followers.
    """

    epoch: int


class WriteRecords(NamedTuple):
    """Call `log.write` to append records of the leader."""

    offset: int
    data: bytes


class Sync(NamedTuple):
    """Start a `log.sync` unless a running one covers all records; `Synced` reports its end."""


class Truncate(NamedTuple):
    """Call `log.truncate` to cut the log at a position, durably."""

    offset: int


class Drop(NamedTuple):
    """Call `log.drop` to record the leader's dropped topics, durably."""

    dropped: tuple[tuple[str, int], ...]


class NeedGeneration(NamedTuple):
    """Call `log.need_generation` to record which generation the log needs, durably."""

    end: int


class CommitUpTo(NamedTuple):
    """Call `log.commit` up to `min(end, log.end)`, after the writes before this action."""

    end: int


class AllowDeletion(NamedTuple):
    """Permit this log to delete the records that the leader has deleted, once its own retention
    allows it.

    The generation that both have in use contains those of their records that must be kept.
    """

    min_offset: int


# To a leader.


class Connect(NamedTuple):
    """Connect to the epoch's leader, retrying until connected; then `SessionOpened`.

    A connection to another leader, or of another epoch, is closed first.
    """

    leader: str
    epoch: int


class Disconnect(NamedTuple):
    """Close the connection to the leader, and open no other before the next `Connect`."""


class SayHello(NamedTuple):
    """Send the follower's first message of a session to the leader."""

    session: int
    hello: Hello


class Acknowledge(NamedTuple):
    """Send an acknowledgement to the leader; the session's unsent ones are dropped."""

    session: int
    ack: Ack


# To followers.


class SayWelcome(NamedTuple):
    """Send the leader's first reply in a session to the follower; chunks follow from `truncate_to`
    on. None: the session ends.
    """

    session: int
    welcome: Welcome


class EndSession(NamedTuple):
    """Close the connection to a follower; the follower logs the reason.

    `leads`: False if another replica, or this one in another epoch, may serve the follower.
    """

    session: int
    reason: str
    leads: bool = True


class SendRound(NamedTuple):
    """Send each follower a chunk with this number, with or without records."""

    round: int


# Between copies.


class CompareCopies(NamedTuple):
    """End the session with the leader, because its log has other bytes in a range than this one.

    Find the damaged copy by the records' checksums and by other copies, repair it, then reconnect.
    """

    leader: str
    begin: int
    end: int


# Calls to nameservers about this log. Each has the newest version that the replica has seen, which
# reveals an etcd whose history went back.


class ReportLog(NamedTuple):
    """Vote in the epoch's election; for a frozen log, report its state for the adoption.

    `facts` are as persisted last: `promised`, and the newest configuration with its version.
    """

    epoch: int
    report: Report
    facts: ReplicaFacts


class ConfirmEpoch(NamedTuple):
    """Report to the nameservers that the record that opened the epoch is committed: the election
    succeeded.
    """

    epoch: int
    seen: StateVersion


class RecordCommittedEnd(NamedTuple):
    """Report to the nameservers that the epoch's leader has committed its log up to `end`."""

    epoch: int
    seen: StateVersion
    end: int


class SuspectLeader(NamedTuple):
    """Report to the nameservers that this replica has lost its connection to the epoch's leader."""

    epoch: int
    seen: StateVersion


class RetractSuspicion(NamedTuple):
    """Report to the nameservers that this replica has found the epoch's leader again."""

    epoch: int
    seen: StateVersion


class Resign(NamedTuple):
    """Resign the epoch at the nameservers, because this leader cannot or must not lead: they start
    another epoch.
    """

    epoch: int
    seen: StateVersion


class ChangeInSync(NamedTuple):
    """Propose a configuration to the nameservers, if the log's state has this version."""

    epoch: int
    version: StateVersion
    config: Config


class HandOver(NamedTuple):
    """Request that the nameservers make a follower the next leader. They refuse unless the log's
    state has this version.
    """

    epoch: int
    version: StateVersion
    successor: str
    rank: Rank


# To the service around the log.


class Established(NamedTuple):
    """The epoch's record is committed: this replica leads, and the service starts the work of a
    leader.
    """

    epoch: int


class AllowAppends(NamedTuple):
    """Accept clients' appends, or refuse them before they are written: too few followers, or a
    hand-over.
    """

    allowed: bool


class RoundAgreed(NamedTuple):
    """Serve the waiting reads: a quorum has confirmed all rounds up to this number, so this replica
    still leads. The reads see the records that were committed when their round began.
    """

    round: int


class Alarm(NamedTuple):
    """Alert the operator: this replica is blocked, or its log was damaged."""

    reason: str


# Last actions: the member returns no more.


class Reopen(NamedTuple):
    """This replica leads no longer: discard all state derived from the log, and open the log again.

    Appended records may be cut, and the derived state cannot be reverted.
    """


class Remake(NamedTuple):
    """Move the log to another directory, and start as another replica with an empty log."""

    reason: str


class Halt(NamedTuple):
    """This replica broke a rule of replication: stop, and keep the log (`write_halt`)."""

    reason: str


Action = (
    Persist
    | OpenEpoch
    | WriteRecords
    | Sync
    | Truncate
    | Drop
    | NeedGeneration
    | CommitUpTo
    | AllowDeletion
    | Connect
    | Disconnect
    | SayHello
    | Acknowledge
    | SayWelcome
    | EndSession
    | SendRound
    | CompareCopies
    | ReportLog
    | ConfirmEpoch
    | SuspectLeader
    | RetractSuspicion
    | Resign
    | ChangeInSync
    | HandOver
    | Established
    | AllowAppends
    | RoundAgreed
    | Alarm
    | Reopen
    | Remake
    | Halt
)
