"""The half messages in the store: read by position, taken in, completed.

A store may be from RocketMQ, or may have been used by it since. RocketMQ's ends are not always
named by a record's source: op records name them, `consumerOffset.json` has the queue offset below
which all have ended, and copies of a half message end together (put_back.py).
"""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.append import Appends
from rockoon_broker.config_files import read_config
from rockoon_broker.pending.pending_index import PendingIndex
from rockoon_broker.pending.pending_queue import Pending
from rockoon_broker.pending.pending_records import PendingRecords
from rockoon_broker.store.errors import StoreLayoutError, UnknownOffset
from rockoon_broker.store.log.reading import LogChunk
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.store import Store
from rockoon_broker.transactions.half_messages import (
    GIVEN_UP_TOPIC,
    HALF_QUEUE_ID,
    HALF_TOPIC,
    OP_TOPIC,
    HalfFacts,
    NotAHalfMessage,
    facts_of,
    op_offsets,
)
from rockoon_broker.transactions.put_back import ended_elsewhere, records_of
from rockoon_format.config_json import (
    TOPIC_GROUP_SEPARATOR,
    ConfigError,
    GroupTopic,
    read_consumer_offsets,
)
from rockoon_format.names import TRANSACTION_GROUP
from rockoon_format.properties import PROPERTY_TRANSACTION_CHECK_TIMES
from rockoon_format.record import Record

HALF_QUEUE = (HALF_TOPIC, HALF_QUEUE_ID)
_OP_QUEUE = (OP_TOPIC, HALF_QUEUE_ID)
_STORED_AGAIN = PROPERTY_TRANSACTION_CHECK_TIMES.encode()
CONSUMER_OFFSETS_FILE = "consumerOffset.json"
_OPS_NOTE = "transactions/ops"
_FOREIGN_NOTE = "transactions/foreign"


class HalfMessageNotFound(ValueError):
    """No half message can be read at a physical offset."""


class HalfQueue:
    """The queue of half messages. Used by the store's owner.

    Args:
        store: open.
        appends: appends to it.
        pending_index: completed messages, not loaded yet; the queue is added to it here.

    Attributes:
        records: the waiting half messages.
    """

    def __init__(self, store: Store, appends: Appends, pending_index: PendingIndex) -> None:
        self._store = store
        self.records = PendingRecords(store, appends, pending_index, [HALF_QUEUE])
        # Queue offset up to which op records were applied; None once this broker leads, whose
        # op records name only half messages that have already ended.
        self._ops_applied: int | None = 0
        # Whether RocketMQ has stored half messages again or moved them away, and the effect has
        # not been checked yet.
        self._is_foreign = False
        # Read ahead, by physical offset: store time and facts.
        self._facts_ahead: dict[int, tuple[int, HalfFacts]] = {}
        self._read_below = 0
        pending_index.add_note(_OPS_NOTE, self._write_ops_applied, self._read_ops_applied)
        pending_index.add_note(_FOREIGN_NOTE, self._write_foreign, self._read_foreign)
        pending_index.add_named(self._detect_foreign)

    def read(self, position: int) -> tuple[Record, HalfFacts]:
        """Return a half message and its facts.

        Args:
            position: physical offset of its record.

        Raises:
            HalfMessageNotFound: there is no half message there.
            OSError: the disk.
        """
        try:
            record = self.records.read(position)
            return record, facts_of(record)
        except (UnknownOffset, NotAHalfMessage) as failure:
            raise HalfMessageNotFound(str(failure)) from failure

    def pop_facts(self, position: int) -> tuple[int, HalfFacts]:
        """Return store time, epoch milliseconds, and facts of a half message, once, when this
        broker starts to lead. Raises as `read`."""
        found = self._facts_ahead.pop(position, None)
        if found is None:
            record, facts = self.read(position)
            return record.store_timestamp_ms, facts
        return found

    def read_ahead(self, count_max: int) -> None:
        """Read some waiting half messages ahead, so that starting to lead is fast."""
        pending = self.records.queue(HALF_QUEUE).pending_from(self._read_below)
        ahead = zip(pending.offsets.tolist(), pending.positions.tolist(), strict=True)
        for offset, position in itertools.islice(ahead, count_max):
            self._read_below = offset + 1
            # Reported when this broker starts to lead.
            with contextlib.suppress(HalfMessageNotFound):
                record, facts = self.read(position)
                self._facts_ahead[position] = record.store_timestamp_ms, facts
        if len(self._facts_ahead) > 2 * len(self.records) + count_max:
            known = np.fromiter(self._facts_ahead, np.int64, len(self._facts_ahead))
            waits = known[self.records.which_wait(known)].tolist()
            self._facts_ahead = {position: self._facts_ahead[position] for position in waits}

    def is_visible(self, position: int) -> bool:
        """Return whether a half message is committed; before that it cannot be read."""
        return position < self._store.visible_end

    def pending(self) -> Pending:
        """Return the waiting half messages."""
        return self.records.queue(HALF_QUEUE).pending()

    def apply_ops(self) -> None:
        """Complete half messages named by new op records, after all earlier records were applied.

        Raises:
            OSError: the disk.
        """
        assert self._ops_applied is not None, "this broker leads"
        queue = self.records.queue(HALF_QUEUE)
        end = self._store.max_offset(*_OP_QUEUE)
        if len(queue) and self._ops_applied < end:
            told = np.fromiter(self._ended_by_ops(self._ops_applied), np.int64)
            pending = queue.pending()
            queue.complete(pending.positions[np.isin(pending.offsets, told)])
        self._ops_applied = end

    def resume(self) -> None:
        """Complete half messages that RocketMQ has ended, if it has used the store; from now on
        this broker ends them.

        Raises:
            OSError: the disk.
        """
        self.apply_ops()
        self._ops_applied = None
        queue = self.records.queue(HALF_QUEUE)
        if self._is_foreign and len(queue):
            told = np.fromiter(self._ended_by_ops(0), np.int64)
            queue.complete(ended_elsewhere(self._store, queue.pending(), told))
        self._is_foreign = False

    def _ended_by_ops(self, first: int) -> Iterator[int]:
        """Yield queue offsets of half messages that op records from an offset on name."""
        for record in records_of(self._store, *_OP_QUEUE, first):
            yield from op_offsets(record.body)

    def _detect_foreign(
        self, chunk: LogChunk, indices: NDArray[np.int64], _: NDArray[np.int64]
    ) -> None:
        topics = chunk.records.topics
        if HALF_TOPIC.encode() in topics and _STORED_AGAIN in chunk.frames:
            self._is_foreign = True
        if GIVEN_UP_TOPIC.encode() in topics:
            number = topics.index(GIVEN_UP_TOPIC.encode())
            given_up = np.flatnonzero(chunk.records.topic_numbers == number)
            # Records that Rockoon moved there name their source.
            self._is_foreign |= not np.isin(given_up, indices).all()

    def _write_ops_applied(self) -> bytes:
        applied = self._ops_applied
        applied = self._store.max_offset(*_OP_QUEUE) if applied is None else applied
        return applied.to_bytes(8, "little")

    def _read_ops_applied(self, raw: bytes) -> None:
        self._ops_applied = int.from_bytes(raw, "little")

    def _write_foreign(self) -> bytes:
        return bytes([self._is_foreign])

    def _read_foreign(self, raw: bytes) -> None:
        self._is_foreign = any(raw)


def rocketmq_progress(config: Path) -> dict[QueueKey, int]:
    """Return the queue offset below which RocketMQ has ended every half message; empty without
    file.

    Args:
        config: the store's config directory.

    Raises:
        StoreLayoutError: the file cannot be read. A guess could commit messages again.
    """
    path = config / CONSUMER_OFFSETS_FILE
    content = read_config(path)
    if content is None:
        return {}
    try:
        found = read_consumer_offsets(content)
    except ConfigError as failure:
        raise StoreLayoutError(f"{path} cannot be read: {failure}") from failure
    own = f"{HALF_TOPIC}{TOPIC_GROUP_SEPARATOR}{TRANSACTION_GROUP}"
    for fault in found.faults:
        # Entries of consumer groups belong to the offset service.
        if fault.key == own:
            raise StoreLayoutError(f"{path} cannot be read: {fault.place}: {fault.reason}")
    progress = found.offsets.get(GroupTopic(TRANSACTION_GROUP, HALF_TOPIC), {})
    return {HALF_QUEUE: progress[HALF_QUEUE_ID]} if HALF_QUEUE_ID in progress else {}
