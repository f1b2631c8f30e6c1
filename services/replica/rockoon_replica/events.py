"""Events that a `Member` handles, one at a time.

The caller numbers sessions: one for each connection, in either direction, unique in a process.
Messages on a connection arrive in order, or the connection ends.
"""

from typing import NamedTuple

from rockoon_replica.log import WriteCheck
from rockoon_replica.log_state import LogState
from rockoon_replica.messages import Ack, Hello, RecordChunk, Welcome


class Started(NamedTuple):
    """The log is open; the first event, once."""


class StateSeen(NamedTuple):
    """A nameserver sent the log's state; states may arrive late, twice, and out of order."""

    state: LogState


class SessionOpened(NamedTuple):
    """The follower's connection to the leader of `Connect` is open."""

    session: int


class WelcomeArrived(NamedTuple):
    """The leader's reply to `SayHello`."""

    session: int
    welcome: Welcome


class ChunkArrived(NamedTuple):
    """Records of the leader; the wire's checksum was verified."""

    session: int
    chunk: RecordChunk


class HelloArrived(NamedTuple):
    """A follower requests records from this replica, as leader."""

    session: int
    hello: Hello


class AckArrived(NamedTuple):
    """A follower's acknowledgement. `sent_end`: end of the records sent to it in this session."""

    session: int
    ack: Ack
    sent_end: int


class SessionClosed(NamedTuple):
    """A connection ended, in either direction, for any reason."""

    session: int


class Synced(NamedTuple):
    """The log's `durable_end` has increased."""


class LeaderLost(NamedTuple):
    """The leader was silent for as long as `Member.patience` says, or refuses connections."""


class LeaderHeard(NamedTuple):
    """The lost leader has sent a message again."""


class RepeatDue(NamedTuple):
    """Time to repeat calls to nameservers without an effect yet: call or reply may be lost."""


class RoundAsked(NamedTuple):
    """A client's read must be confirmed: `RoundAgreed` reports when it may be served (rule 11).

    The caller starts one round for all waiting reads; its number is then `Member.round`.
    """


class HandOverAsked(NamedTuple):
    """This leader should hand over; `successor` None: to the follower with the most records."""

    successor: str | None = None


class HandOverAbandoned(NamedTuple):
    """The hand-over timed out. The leader accepts appends again, unless it has already called the
    nameservers.
    """


class RetentionHeld(NamedTuple):
    """Retention has waited long enough for slow copies: the log must delete the records below
    `end`, even if a copy lacks them. 0: no copy delays retention.
    """

    end: int


class DamageFound(NamedTuple):
    """The bytes of the record at a position are proven wrong, by its checksum or by two copies."""

    position: int


class DamageRepaired(NamedTuple):
    """The record at a position was rewritten from another copy and verified, or does not exist any
    more: retention deleted it, or the log was cut before it."""

    position: int


class LogStalled(NamedTuple):
    """Syncs of this replica's log stalled for too long; other replicas may be healthy."""


class WritesChecked(NamedTuple):
    """A check found that this replica's disk accepts writes again, or refuses them."""

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
