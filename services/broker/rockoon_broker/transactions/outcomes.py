"""Outcomes of transactions: a repeated call to end a transaction gets the same reply as the first.

Only the newest are kept. Of older transactions it is known that they ended, but not how.

    snapshot: half's position 8 | resolution 1 | queue offset 8 | position 8 | store time 8, each
    little-endian; the last three locate the committed message, else -1.
"""

from collections import OrderedDict
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.transactions.half_messages import GIVEN_UP_TOPIC, OP_TOPIC
from rockoon_format.record import SYS_FLAG_TRANSACTION, TRANSACTION_COMMIT, Record
from rockoon_format.scan import Scan

REMEMBERED_MAX = 65_536
# After a restart only calls that were open before it are repeated.
SNAPSHOT_MAX = 4096
_TOPICS_OF_ENDS = (OP_TOPIC.encode(), GIVEN_UP_TOPIC.encode())

_ROW = np.dtype(
    [
        ("half", "<i8"),
        ("ending", "<u1"),
        ("queue_offset", "<i8"),
        ("position", "<i8"),
        ("store_timestamp_ms", "<i8"),
    ]
)
assert _ROW.itemsize == 33


class TransactionEnding(IntEnum):
    """How a half message has ended."""

    COMMITTED = 1
    ROLLED_BACK = 2
    GIVEN_UP = 3


@dataclass(frozen=True, slots=True)
class TransactionOutcome:
    ending: TransactionEnding
    queue_offset: int = -1
    """Queue offset of the committed message; -1 without one."""
    position: int = -1
    """Physical offset of the record that ended the half message; -1 if unknown."""
    store_timestamp_ms: int = -1


def outcome_of(record: Record) -> TransactionOutcome | None:
    """Return the outcome that a stored record gives to the half message it names as its source.

    None if the record was made from another kind of record.
    """
    ending: TransactionEnding | None = None
    if record.sys_flag & SYS_FLAG_TRANSACTION == TRANSACTION_COMMIT:
        ending = TransactionEnding.COMMITTED
    elif record.topic == OP_TOPIC.encode():
        ending = TransactionEnding.ROLLED_BACK
    elif record.topic == GIVEN_UP_TOPIC.encode():
        ending = TransactionEnding.GIVEN_UP
    if ending is None:
        return None
    offset = record.queue_offset if ending is TransactionEnding.COMMITTED else -1
    return TransactionOutcome(ending, offset, record.physical_offset, record.store_timestamp_ms)


def may_be_ends(records: Scan) -> NDArray[np.bool_]:
    """Return which records of a part of the log may end a half message, bool[n]."""
    topics = [topic in _TOPICS_OF_ENDS for topic in records.topics]
    ends: NDArray[np.bool_] = np.array(topics, np.bool_)[records.topic_numbers]
    ends |= records.sys_flags & SYS_FLAG_TRANSACTION == TRANSACTION_COMMIT
    return ends


class Outcomes:
    """The newest outcomes, by the physical offset of the half message. Pure."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, TransactionOutcome] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, half_position: int) -> TransactionOutcome | None:
        return self._known.get(half_position)

    def add(self, half_position: int, outcome: TransactionOutcome) -> None:
        """Add an outcome; the oldest one may be discarded."""
        self._known[half_position] = outcome
        if len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)

    def to_bytes(self) -> bytes:
        """Encode the newest outcomes for the snapshot."""
        known = [
            (
                half,
                outcome.ending,
                outcome.queue_offset,
                outcome.position,
                outcome.store_timestamp_ms,
            )
            for half, outcome in self._known.items()
        ]
        return np.array(known[-SNAPSHOT_MAX:], _ROW).tobytes()

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Outcomes":
        """Decode the result of `to_bytes`.

        Raises:
            ValueError: the bytes are malformed.
        """
        outcomes = cls()
        for half, ending, queue_offset, position, stored_ms in np.frombuffer(raw, _ROW).tolist():
            outcomes.add(
                half,
                TransactionOutcome(TransactionEnding(ending), queue_offset, position, stored_ms),
            )
        return outcomes
