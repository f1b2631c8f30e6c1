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
    """Write the facts, durably."""

    facts: ReplicaFacts


# On the log.


class OpenEpoch(NamedTuple):
    """`log.open_epoch`; then connections of followers are accepted."""

    epoch: int


class WriteRecords(NamedTuple):
    """`log.write`."""

    offset: int
    data: bytes


class Sync(NamedTuple):
    """Start a `log.sync` unless a running one covers all records; `Synced` reports its end."""


class Truncate(NamedTuple):
    """`log.truncate`, durably."""

    offset: int


class Drop(NamedTuple):
    """`log.drop`, durably."""

    dropped: tuple[tuple[str, int], ...]


class NeedGeneration(NamedTuple):
    """`log.need_generation`, durably."""

    end: int


class CommitUpTo(NamedTuple):
    """`log.commit` up to `min(end, log.end)`, after the writes before this action."""

    end: int


class AllowDeletion(NamedTuple):
    """The leader has deleted records below; this replica may, once its own retention allows it.

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
    """Close the connection to a leader, and make no other before the next `Connect`."""


class SayHello(NamedTuple):
    """First message of a session."""

    session: int
    hello: Hello


class Acknowledge(NamedTuple):
    """Message to the leader. It replaces earlier ones of the session that were not sent yet."""

    session: int
    ack: Ack


# To followers.


class SayWelcome(NamedTuple):
    """First reply in a session; chunks follow from `truncate_to` on. None: the session ends."""

    session: int
    welcome: Welcome


class EndSession(NamedTuple):
    """Close a follower's connection, with a reason for its log.

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
    """End the session: the leader has other bytes in a range.

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
    """The record that opened the epoch is committed, so the election counts as successful."""

    epoch: int
    seen: StateVersion


class RecordCommittedEnd(NamedTuple):
    """The epoch's leader has committed its log up to `end`."""

    epoch: int
    seen: StateVersion
    end: int


class SuspectLeader(NamedTuple):
    """This replica has lost its connection to the epoch's leader."""

    epoch: int
    seen: StateVersion


class RetractSuspicion(NamedTuple):
    """This replica has found the epoch's leader again."""

    epoch: int
    seen: StateVersion


class Resign(NamedTuple):
    """The epoch's leader cannot or must not lead: the nameservers start another epoch."""

    epoch: int
    seen: StateVersion


class ChangeInSync(NamedTuple):
    """Propose a configuration; refused unless the log's state has this version."""

    epoch: int
    version: StateVersion
    config: Config


class HandOver(NamedTuple):
    """Give the next epoch to a follower; refused unless the log's state has this version."""

    epoch: int
    version: StateVersion
    successor: str
    rank: Rank


# To the service around the log.


class Established(NamedTuple):
    """The epoch's record is committed: this replica leads, and starts the work of a leader."""

    epoch: int


class AllowAppends(NamedTuple):
    """Accept appends, or refuse them before they are written: too few followers, or a hand-over."""

    allowed: bool


class RoundAgreed(NamedTuple):
    """Reads of rounds up to this one may be served, with the records committed when they began."""

    round: int


class Alarm(NamedTuple):
    """An operator must know: this replica is blocked, or its log was damaged."""

    reason: str


# Last actions: the member returns no more.


class Reopen(NamedTuple):
    """No longer the leader: discard all state derived from the log, and open it again.

    Appended records may be cut, and the derived state cannot be reverted.
    """


class Remake(NamedTuple):
    """Move the log to another directory, and start as another replica with an empty log."""

    reason: str


class Halt(NamedTuple):
    """A rule was broken: stop participating, and do not change the log (`write_halt`)."""

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
