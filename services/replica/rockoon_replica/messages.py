"""Messages between a follower and its leader, in the order in which they first come.

One connection is one session. The follower says `Hello`, is told in a `Welcome` where its log is
the leader's, cuts it there, and from then on takes a `Chunk` and answers with an `Ack`.
"""

from typing import NamedTuple

from rockoon_core.replication_rules import Boundary

# How many bytes before the consistent point are compared. Epochs say where logs are the same;
# the checksum finds a disk that says otherwise.
TAIL_BYTES = 64 * 1024


class Hello(NamedTuple):
    """A follower's first word: what its log has."""

    epoch: int
    replica: str
    boundaries: tuple[Boundary, ...]
    min_offset: int
    end: int


class Welcome(NamedTuple):
    """A leader's answer: how far the follower's log is its own.

    Attributes:
        epoch, leader: in which epoch, and who says so.
        truncate_to: where the follower cuts its log. For a log without records: where it begins.
            None: nothing says that one record is the same, or the leader has no longer what comes
            next. The follower's log has to be made anew (REMAKE).
        tail_crc: `LogView.tail_crc` of the leader's log before that point; `tail_size` long.
        leader_end: end of the leader's log.
        min_offset: of the leader's log.
        dropped: `LogView.dropped` of the leader's log.
        generation_end: up to where the leader's generation was made; 0: it has none.
    """

    epoch: int
    leader: str
    truncate_to: int | None
    tail_crc: int
    leader_end: int
    min_offset: int
    dropped: tuple[tuple[str, int], ...] = ()
    generation_end: int = 0


class Chunk(NamedTuple):
    """Whole records, or none: then it says how far the log is committed, and asks a round.

    Attributes:
        offset: where `data` begins.
        data: as it lies in the leader's log. Its checksum was compared where it came in.
        round: the latest question of the leader, answered by an `Ack` of it.
        generation: identity of the one that the leader has in force; 0: none.
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
    """A follower's acknowledgement.

    Attributes:
        durable_end: behind the last byte that is on its disk.
        round: the latest that it has seen.
        is_lacking: it begins behind records that it has in no generation either
            (`Generation.is_lacking`).
        writes_fail: its disk refuses writes; until a write succeeds it cannot lead.
        is_damaged: some of its records are proven wrong and were not rewritten yet.
    """

    durable_end: int
    round: int
    is_lacking: bool = False
    writes_fail: bool = False
    is_damaged: bool = False


def tail_size(point: int, hello: Hello, welcome_min_offset: int) -> int:
    """How much before the consistent point both logs have, and compare; the same for both ends."""
    return max(0, min(TAIL_BYTES, point - max(hello.min_offset, welcome_min_offset)))
