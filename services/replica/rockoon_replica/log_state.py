"""State of one log, as the nameservers keep it in etcd: who leads, who votes, what is wished.

Free of the wire, so that rules and members need none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rockoon_core.replication_rules import Config, Rank, Report


class Version(NamedTuple):
    """Age of a `LogState`, newer ones are greater.

    `number` grows by one with each change. `history` grows when an operator has the log go on with
    an etcd that was restored from a backup, whose numbers went back.
    """

    history: int
    number: int


class Run(NamedTuple):
    """One start of a replica's process.

    Attributes:
        starts: how often a process was started on the store, this start included; 0: not counted.
        number: random. Two starts have the same count if a disk was put back to a snapshot.
    """

    starts: int
    number: int


NO_RUN = Run(0, 0)


class Move(NamedTuple):
    """An operator's wish that one replica takes another's place; the leader makes it true."""

    leaves: str
    joins: str


class CopiesWish(NamedTuple):
    """An operator's wish for so many voters; the leader makes it true.

    `stays` is one of them when there are to be fewer; None: the leader.
    """

    copies: int
    stays: str | None = None


class Loss(NamedTuple):
    """An operator had the log go on without records that were committed.

    `epoch` began with it, where the chosen log ended: at `end`. A log without that epoch that goes
    beyond `end` has records that were given up.
    """

    epoch: int
    end: int


@dataclass(frozen=True, kw_only=True)
class LogState:
    """What the nameservers know of a log.

    Attributes:
        log: its name, "broker-a".
        version: of this state.
        epoch: grows whenever a leadership ends; 1 at first.
        leader: replica id; None while an election is on.
        at_least: rank of the leader's log when it was chosen; a leader with less has lost records.
        config: who votes, and how many make a record committed.
        replicas: ids of all that are assigned, voters and learners; the first is preferred.
        reports: of this epoch's election.
        copies: how many are to vote. While fewer do, the leader proposes so many.
        wish: how many an operator wants instead, also fewer than vote.
        moves: what operators want, in their order.
        confirmed: the leader has said that this epoch's record is committed.
        vain_epochs: that ended unconfirmed, since the last confirmed one.
        loss: the last one that an operator has accepted.
        frozen: nothing changes until an operator says so: etcd's history went back.
        runs: latest registered start of each replica, by its id.
        held: why the election waits for an operator; empty when it does not.
    """

    log: str
    version: Version
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
    loss: Loss | None = None
    frozen: bool = False
    runs: Mapping[str, Run] = field(default_factory=dict)
    held: str = ""
