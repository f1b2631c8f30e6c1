"""Events that a `Member` is told of, one at a time.

Sessions are numbers that the caller gives: one for each connection, in either direction, none
twice in a process. What arrives on a connection arrives in order, or the connection ends.
"""

from typing import NamedTuple

from rockoon_replica.log import WriteCheck
from rockoon_replica.log_state import LogState
from rockoon_replica.messages import Ack, Chunk, Hello, Welcome


class Started(NamedTuple):
    """The log is open; told once, before anything else."""


class StateSeen(NamedTuple):
    """A nameserver told the log's state; states may come late, twice, and out of order."""

    state: LogState


class SessionOpened(NamedTuple):
    """A follower's connection to the leader that `Connect` named stands."""

    session: int


class WelcomeArrived(NamedTuple):
    """The leader's answer to `SayHello`."""

    session: int
    welcome: Welcome


class ChunkArrived(NamedTuple):
    """Records of the leader; the wire's checksum was compared."""

    session: int
    chunk: Chunk


class HelloArrived(NamedTuple):
    """A follower wants what this replica, as leader, has."""

    session: int
    hello: Hello


class AckArrived(NamedTuple):
    """A follower's word. `sent_end` is the end of what it was sent in this session."""

    session: int
    ack: Ack
    sent_end: int


class SessionClosed(NamedTuple):
    """A connection ended, in either direction, for whatever reason."""

    session: int


class Synced(NamedTuple):
    """The log's `durable_end` has grown."""


class LeaderLost(NamedTuple):
    """Nothing was heard of the leader for as long as `Member.patience` says, or it refuses."""


class LeaderHeard(NamedTuple):
    """The leader that was lost is heard again."""


class RepeatDue(NamedTuple):
    """Some time has passed: what was asked of nameservers and has had no effect is asked again."""


class RoundAsked(NamedTuple):
    """A reader's question decides something: `RoundAgreed` says when it may be answered (rule 11).

    The caller asks for one round for all that wait; its number is `Member.round` afterwards.
    """


class HandOverAsked(NamedTuple):
    """The leader is to stop. `successor` None: who is furthest."""

    successor: str | None = None


class HandOverAbandoned(NamedTuple):
    """It took too long. Appends go on, unless the nameservers have been asked already."""


class RetentionHeld(NamedTuple):
    """Retention has waited for copies long enough: what lies below `end` is to go. 0: it waits for
    none any more."""

    end: int


class DamageFound(NamedTuple):
    """The bytes of the record at a position are proven wrong, by its checksum or by two copies."""

    position: int


class DamageRepaired(NamedTuple):
    """The record at a position was rewritten from another copy and verified, or is gone: retention
    deleted it, or the log was cut before it."""

    position: int


class LogStalled(NamedTuple):
    """The own log has not become durable for too long, while others may be well."""


class WritesChecked(NamedTuple):
    """The own log was checked: whether it can be written has changed."""

    check: WriteCheck


Event = (
    Started
    | StateSeen
    | SessionOpened
    | WelcomeArrived
    | ChunkArrived
    | HelloArrived
    | AckArrived
    | SessionClosed
    | Synced
    | LeaderLost
    | LeaderHeard
    | RepeatDue
    | RoundAsked
    | HandOverAsked
    | HandOverAbandoned
    | RetentionHeld
    | DamageFound
    | DamageRepaired
    | LogStalled
    | WritesChecked
)
