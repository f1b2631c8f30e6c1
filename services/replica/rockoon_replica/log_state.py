"""State of one log, as nameservers keep it in etcd: leader, voters, operators' requests.

Independent of the wire format.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rockoon_core.replication_rules import Config, Rank, Report


class StateVersion(NamedTuple):
    """Version of a `LogState`; newer ones are greater.

    `number` grows by one with each change. `history` grows when an operator adopts the log after
    etcd was restored from a backup, whose numbers went back.
    """

    history: int
    number: int


class ProcessRun(NamedTuple):
    """One start of a replica's process, by its count and a random number.

    Attributes:
        starts: number of starts of a process on the store, including this one; 0: not counted.
        number: random. Two starts have the same count if a disk was restored from a snapshot.
    """

    starts: int
    number: int


NO_RUN = ProcessRun(0, 0)


class Move(NamedTuple):
    """An operator's request to replace one replica by another; the leader carries it out."""

    leaves: str
    joins: str


class CopiesWish(NamedTuple):
    """An operator's request for a number of voters; the leader carries it out.

    `stays`: a replica that remains a voter if there are to be fewer; None: the leader.
    """

    copies: int
    stays: str | None = None


class AcceptedLoss(NamedTuple):
    """An operator's decision to elect a leader although committed records are lost.

    `epoch` began with it, at the end of the chosen log, `end`. A log without that epoch that is
    longer than `end` has lost records.
    """

    epoch: int
    end: int


@dataclass(frozen=True, kw_only=True)
class LogState:
    """State of a log at the nameservers.

    Attributes:
        log: its name, "broker-a".
        version: version of this state.
        epoch: grows when a leadership ends; 1 at first.
        leader: replica id; None during an election.
        at_least: rank of the leader's log when it was elected; a leader with less has lost records.
        config: voters, and the quorum that commits a record.
        replicas: ids of all assigned replicas, voters and learners; the first is preferred.
        reports: reports of this epoch's election.
        copies: intended number of voters. If there are fewer, the leader proposes more.
        wish: an operator's wish for another number, which may be lower.
        moves: operators' wishes, in order.
        confirmed: the leader has reported that this epoch's record is committed.
        vain_epochs: number of epochs that ended unconfirmed since the last confirmed one.
        loss: the last one that an operator has accepted.
        frozen: no changes until an operator adopts the log: etcd's history went back.
        runs: latest registered start of each replica, by its id.
        held: why the election waits for an operator; empty if it does not.
    """

    log: str
    version: StateVersion
    epoch: int
    leader: str | None
    at_least: Rank
    config: Config
    replicas: tuple[str, ...] = ()
    reports: Mapping[str, Report] = field(default_factory=dict)
    copies: int = 1
    wish: CopiesWish | None = None
    moves: tuple[Move, ...] = ()
    confirmed: bool = False
    vain_epochs: int = 0
    loss: AcceptedLoss | None = None
    frozen: bool = False
    runs: Mapping[str, ProcessRun] = field(default_factory=dict)
    held: str = ""
