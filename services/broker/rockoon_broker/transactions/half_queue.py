"""Half messages in the store: reads them, and marks as ended those that RocketMQ has ended.

RocketMQ may have created the store, or may have used it since. A record of Rockoon that ends a half
message contains its physical offset. RocketMQ records ends in other ways, too: op records list
queue offsets of ended half messages, `consumerOffset.json` has the queue offset below which all
have ended, and copies of a half message end together (put_back.py).
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
    """Raised if there is no readable half message at a physical offset."""


class HalfQueue:
    """The queue of half messages. Used by the store's owner.

    Args:
        pending_index: index of ended messages, not loaded yet; this class adds its queue.

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
        """Read a half message; return its record and its properties.

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
        """Return store time (epoch milliseconds) and properties of a half message; once per half
        message, when this broker becomes leader. Raises as `read`."""
        found = self._facts_ahead.pop(position, None)
        if found is None:
            record, facts = self.read(position)
            return record.store_timestamp_ms, facts
        return found

    def read_ahead(self, count_max: int) -> None:
        """Read some waiting half messages in advance, so that this broker becomes leader faster."""
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
        """Return whether the record of a half message is committed; before, it cannot be read."""
        return position < self._store.visible_end

    def pending(self) -> Pending:
        """Return the waiting half messages."""
        return self.records.queue(HALF_QUEUE).pending()

    def apply_ops(self) -> None:
        """Mark the half messages as ended that new op records list; earlier records must be
        applied. Raises OSError."""
        assert self._ops_applied is not None, "this broker leads"
        queue = self.records.queue(HALF_QUEUE)
        end = self._store.max_offset(*_OP_QUEUE)
        if len(queue) and self._ops_applied < end:
            told = np.fromiter(self._ended_by_ops(self._ops_applied), np.int64)
            pending = queue.pending()
            queue.complete(pending.positions[np.isin(pending.offsets, told)])
        self._ops_applied = end

    def resume(self) -> None:
        """Mark the half messages as ended that RocketMQ has ended, if it has used the store. From
        now on, this broker ends them. Raises OSError."""
        self.apply_ops()
        self._ops_applied = None
        queue = self.records.queue(HALF_QUEUE)
        if self._is_foreign and len(queue):
            told = np.fromiter(self._ended_by_ops(0), np.int64)
            queue.complete(ended_elsewhere(self._store, queue.pending(), told))
        self._is_foreign = False

    def _ended_by_ops(self, first: int) -> Iterator[int]:
        """Yield the queue offsets of half messages that op records list, from an op record's offset
        on."""
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
    """Read RocketMQ's progress: the queue offset below which every half message has ended; empty if
    there is no file.

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
