"""Detection of half messages that RocketMQ has stored more than once.

At each check RocketMQ appends the half message again, with TRANSACTION_CHECK_TIMES one
higher, and moves its progress past the former copy. The record that ends the transaction names one
of the copies; or the last copy is moved to TRANS_CHECK_MAX_TIME_TOPIC, and only the progress shows
that it has ended. Progress is written seconds later, so after a crash every copy seems to wait.

So a transaction (producer group and id) ends with any of its copies; while it is open, only the
newest copy waits.
Source: TransactionalMessageServiceImpl#check, #putBackHalfMsgQueue, #needDiscard.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rockoon_broker.pending.pending_queue import IntArray, Pending, sources_of
from rockoon_broker.store.errors import StoreDamaged, UnknownOffset
from rockoon_broker.store.reading.reader import TimeBoundary
from rockoon_broker.store.store import Store
from rockoon_broker.transactions.half_messages import (
    GIVEN_UP_QUEUE_ID,
    GIVEN_UP_TOPIC,
    HALF_QUEUE_ID,
    HALF_TOPIC,
)
from rockoon_format.columns import decode_columns
from rockoon_format.properties import (
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_UNIQ_KEY,
    decode,
)
from rockoon_format.record import Record, decode_record

# Copies keep the born time set by their producer's clock.
CLOCKS_APART_MS = 3_600_000


class TransactionName(NamedTuple):
    """Identity of a transaction: producer group and id, equal in all copies of its half message."""

    group: str
    transaction_id: str


@dataclass(frozen=True, slots=True)
class _Copy:
    offset: int
    position: int
    is_repeated: bool
    """True if a check of RocketMQ has stored this copy."""


def ended_elsewhere(store: Store, pending: Pending, told: IntArray) -> list[int]:
    """Return half messages that seem to wait, although their transaction has ended or a newer copy
    of the half message waits.

    A start without a snapshot calls this function. It reads half messages that are as young as the
    given ones and, if some have copies, the log from the first of them on.

    Args:
        pending: half messages that seem to wait.
        told: queue offsets of half messages that op records list.

    Returns:
        Their physical offsets.

    Raises:
        OSError: the disk.
    """
    waiting, since_ms = _names_of(store, pending.positions.tolist())
    if not waiting:
        return []
    copies = _copies(store, frozenset(waiting.values()), since_ms)
    over = {name for name, _ in _stored(store, GIVEN_UP_TOPIC, GIVEN_UP_QUEUE_ID, since_ms)}
    ended = frozenset(told.tolist())
    over |= {name for name, each in copies.items() if any(copy.offset in ended for copy in each)}
    open_yet = {name: each for name, each in copies.items() if len(each) > 1 and name not in over}
    if open_yet:
        named = _named_in_log(store, [copy.position for each in open_yet.values() for copy in each])
        over |= {n for n, each in open_yet.items() if any(copy.position in named for copy in each)}
    newest = {
        name: max((copy.position for copy in each if copy.is_repeated), default=-1)
        for name, each in copies.items()
    }
    return [
        position
        for position, name in waiting.items()
        if name in over or position < newest.get(name, -1)
    ]


def name_of(record: Record) -> TransactionName | None:
    """Return the transaction of a half message or an abandoned message; None if it has no
    identity."""
    properties = decode(record.properties)
    group = properties.get(PROPERTY_PRODUCER_GROUP)
    transaction_id = properties.get(PROPERTY_UNIQ_KEY)
    return TransactionName(group, transaction_id) if group and transaction_id else None


def _names_of(store: Store, positions: list[int]) -> tuple[dict[int, TransactionName], int]:
    """Return the transactions of half messages, and a time before which no copy of them was
    stored."""
    names: dict[int, TransactionName] = {}
    first_ms = 2**63 - 1
    for position in positions:
        try:
            record = decode_record(store.read_at(position), check_crc=False)
        except UnknownOffset:
            # Reported when the half messages are taken over.
            continue
        name = name_of(record)
        if name is not None:
            names[position] = name
            # A copy stored later may have an earlier store time, if store times decrease.
            stored_ms = store.runs.least_ms(position, record.store_timestamp_ms)
            first_ms = min(first_ms, record.born_timestamp_ms, stored_ms)
    return names, first_ms - CLOCKS_APART_MS


def _copies(
    store: Store, names: Collection[TransactionName], since_ms: int
) -> Mapping[TransactionName, list[_Copy]]:
    copies: dict[TransactionName, list[_Copy]] = defaultdict(list)
    for name, record in _stored(store, HALF_TOPIC, HALF_QUEUE_ID, since_ms):
        if name in names:
            is_repeated = PROPERTY_TRANSACTION_CHECK_TIMES in decode(record.properties)
            copy = _Copy(record.queue_offset, record.physical_offset, is_repeated)
            copies[name].append(copy)
    return copies


def _stored(
    store: Store, topic: str, queue_id: int, since_ms: int
) -> Iterator[tuple[TransactionName, Record]]:
    first = store.search_offset(topic, queue_id, since_ms, TimeBoundary.LOWER)
    for record in records_of(store, topic, queue_id, first):
        name = name_of(record)
        if name is not None:
            yield name, record


def records_of(store: Store, topic: str, queue_id: int, first: int) -> Iterator[Record]:
    """Yield the records of a queue from an offset on; skips damaged ones. Raises OSError."""
    end = store.max_offset(topic, queue_id)
    offset = max(first, store.min_offset(topic, queue_id))
    while offset < end:
        try:
            found = store.get(topic, queue_id, offset)
        except StoreDamaged:
            offset += 1
            continue
        if found.frames:
            columns = decode_columns(found.frames, found.lengths)
            yield from map(columns.record, range(len(columns)))
        offset = max(found.next_offset, offset + 1)


def _named_in_log(store: Store, positions: list[int]) -> frozenset[int]:
    """Return the half messages that a committed message, or another record that ends them,
    names."""
    wanted = np.array(positions, np.int64)
    named: set[int] = set()
    position = int(wanted.min())
    while position < store.visible_end:
        chunk = store.read_log(position)
        _, sources = sources_of(chunk.frames, chunk.records)
        named.update(sources[np.isin(sources, wanted)].tolist())
        position = chunk.next_offset
    return frozenset(named)
