"""Messages between a follower and its leader, in the order of their first use.

One connection is one session. The follower sends `Hello`. The leader's `Welcome` has the position
up to which both logs are equal. The follower cuts its log there, then receives each `RecordChunk`
and replies with an `Ack`.
"""

from typing import NamedTuple

from rockoon_core.replication_rules import Boundary

# Number of bytes before the consistent point that are compared. Epochs show where logs are equal;
# the checksum detects a disk that differs.
TAIL_BYTES = 64 * 1024


class Hello(NamedTuple):
    """A follower's first message to its leader: the extent of the follower's log."""

    epoch: int
    replica: str
    boundaries: tuple[Boundary, ...]
    min_offset: int
    end: int


class Welcome(NamedTuple):
    """A leader's reply to Hello: the position up to which the follower's log equals the leader's
    log.

    Attributes:
        epoch, leader: the leader's epoch and replica id.
        truncate_to: position at which the follower cuts its log; for a log without records, where
            it begins. None: no record is known to be equal, or the leader has deleted the next
            ones. The follower's log must be remade (REMAKE).
        tail_crc: `LogView.tail_crc` of the leader's log before that point; `tail_size` long.
        leader_end: end of the leader's log.
        min_offset: oldest position of the leader's log.
        dropped: `LogView.dropped` of the leader's log.
        generation_end: position up to which the leader's generation was made; 0: it has none.
    """

    epoch: int
    leader: str
    truncate_to: int | None
    tail_crc: int
    leader_end: int
    min_offset: int
    dropped: tuple[tuple[str, int], ...] = ()
    generation_end: int = 0


class RecordChunk(NamedTuple):
    """A leader's message to followers: whole records or none, its committed end, and the number of
    its round.

    Attributes:
        offset: of `data`.
        data: unmodified bytes of the leader's log. Their checksum was verified on arrival.
        round: the latest round of the leader, confirmed by an `Ack` with its number.
        generation: identity of the one that the leader has in use; 0: none.
    """

    epoch: int
    leader: str
    offset: int
    data: bytes
    committed_end: int
    min_offset: int
    round: int
    generation: int = 0


class Ack(NamedTuple):
    """A follower's acknowledgement to its leader.

    Attributes:
        durable_end: end of the durable records.
        round: the latest round that it has received.
        is_lacking: it lacks a generation that its log needs (`Generation.is_lacking`).
        writes_fail: its disk refuses writes; until a write succeeds it cannot lead.
        is_damaged: some of its records are proven wrong and were not rewritten yet.
    """

    durable_end: int
    round: int
    is_lacking: bool = False
    writes_fail: bool = False
    is_damaged: bool = False


def tail_size(point: int, hello: Hello, welcome_min_offset: int) -> int:
    """Number of bytes before the consistent point that both logs have and compare."""
    return max(0, min(TAIL_BYTES, point - max(hello.min_offset, welcome_min_offset)))
