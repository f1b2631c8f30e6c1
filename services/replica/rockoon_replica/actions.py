"""Actions that a `Member` decides on.

The caller carries them out in their order, each finished before the next, and all of them before
the next event; a crash may come between any two. Calls to nameservers and messages to replicas need
only be sent: each may be lost.
"""

from typing import NamedTuple

from rockoon_core.replication_rules import Config, Rank, Report
from rockoon_replica.log_state import Version
from rockoon_replica.messages import Ack, Hello, Welcome
from rockoon_replica.replica_facts import ReplicaFacts


class Persist(NamedTuple):
    """Write the facts, durably."""

    facts: ReplicaFacts


# On the log.


class OpenEpoch(NamedTuple):
    """`log.open_epoch`; then connections of followers are taken."""

    epoch: int


class Write(NamedTuple):
    """`log.write`."""

    offset: int
    data: bytes


class Sync(NamedTuple):
    """Have a `log.sync` begin unless one on its way covers all; `Synced` tells of its end."""


class Truncate(NamedTuple):
    """`log.truncate`, durably."""

    offset: int


class Drop(NamedTuple):
    """`log.drop`, durably."""

    dropped: tuple[tuple[str, int], ...]


class NeedGeneration(NamedTuple):
    """`log.need_generation`, durably."""

    end: int


class Commit(NamedTuple):
    """`log.commit` as far as the log goes: `min(end, log.end)`, after what was written before."""

    end: int


class AllowDeletion(NamedTuple):
    """The leader has deleted what is below; this replica may, when its own clock says so too.

    What has to be kept of it is in the generation that both have in force.
    """

    min_offset: int


# To a leader.


class Connect(NamedTuple):
    """Connect to the epoch's leader, again and again until it stands; then `SessionOpened`.

    A connection to another leader, or of another epoch, is ended first.
    """

    leader: str
    epoch: int


class Disconnect(NamedTuple):
    """End the connection to a leader, and make no other before the next `Connect`."""


class SayHello(NamedTuple):
    """First message of a session."""

    session: int
    hello: Hello


class Acknowledge(NamedTuple):
    """Message to the leader. A later one of the session makes earlier ones needless."""

    session: int
    ack: Ack


# To followers.


class SayWelcome(NamedTuple):
    """First answer in a session; from `truncate_to` on, chunks follow. None: the session ends."""

    session: int
    welcome: Welcome


class EndSession(NamedTuple):
    """End a follower's connection, with a reason for its log.

    `leads` is false where another replica, or this one in another epoch, may take the follower.
    """

    session: int
    reason: str
    leads: bool = True


class SendRound(NamedTuple):
    """Send each follower a chunk with this number at once, with or without records."""

    round: int


# Between copies.


class Compare(NamedTuple):
    """End the session: the leader has other bytes in a range.

    Find out which copy is damaged, by the records' checksums and by other copies, have it repaired,
    then connect again.
    """

    leader: str
    begin: int
    end: int


# Calls to nameservers, about this log, on behalf of this replica. Each names the newest version
# that the replica has seen, so that an etcd whose history went back is found out.


class ReportLog(NamedTuple):
    """Take part in the epoch's election; or, of a frozen log, say what is known of it.

    `facts` are what was persisted last: `promised`, and the newest configuration with its version.
    """

    epoch: int
    report: Report
    facts: ReplicaFacts


class ConfirmEpoch(NamedTuple):
    """The record that opened the epoch is committed: the election was not in vain."""

    epoch: int
    seen: Version


class RecordCommittedEnd(NamedTuple):
    """The epoch's leader has committed its log up to here."""

    epoch: int
    seen: Version
    end: int


class SuspectLeader(NamedTuple):
    """This replica has lost the epoch's leader."""

    epoch: int
    seen: Version


class RetractSuspicion(NamedTuple):
    """It has not."""

    epoch: int
    seen: Version


class Resign(NamedTuple):
    """The epoch's leader cannot or must not lead it: another epoch has to begin."""

    epoch: int
    seen: Version


class ChangeInSync(NamedTuple):
    """Propose a configuration; refused unless the log's state has this very version."""

    epoch: int
    version: Version
    config: Config


class HandOver(NamedTuple):
    """Give the next epoch to a follower; refused unless the log's state has this very version."""

    epoch: int
    version: Version
    successor: str
    rank: Rank


# To the service around the log.


class Established(NamedTuple):
    """The epoch's record is committed: this replica leads, and does what only a leader does."""

    epoch: int


class AllowAppends(NamedTuple):
    """Take appends, or refuse them before they are written: too few followers, or a hand-over."""

    allowed: bool


class RoundAgreed(NamedTuple):
    """Questions up to this round may be answered by what was committed when they were asked."""

    round: int


class Alarm(NamedTuple):
    """Somebody should know: this replica is stuck, or its log was damaged."""

    reason: str


# Last actions: the member decides nothing more.


class Reopen(NamedTuple):
    """No longer the leader: end all that was made of the log in memory, open it again.

    What was appended may be cut, and nothing in memory can take it back.
    """


class Remake(NamedTuple):
    """Set the log aside and begin anew, empty, as another replica."""

    reason: str


class Halt(NamedTuple):
    """A rule was broken: leave service, and leave the log as it is (`halt.py`)."""

    reason: str


Action = (
    Persist
    | OpenEpoch
    | Write
    | Sync
    | Truncate
    | Drop
    | NeedGeneration
    | Commit
    | AllowDeletion
    | Connect
    | Disconnect
    | SayHello
    | Acknowledge
    | SayWelcome
    | EndSession
    | SendRound
    | Compare
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
