"""The half messages as the store holds them: read by their place, taken in, completed.

A store may come from RocketMQ, or have been with it since. What that has ended is not always named
by a record's source: its op records say it, `consumerOffset.json` says below which queue offset
nothing waits any more, and half messages that it has stored again end together (put_back.py).
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rockoon_broker.append import Appends
from rockoon_broker.config_files import read_config
from rockoon_broker.pending.pending_index import PendingIndex
from rockoon_broker.pending.pending_queue import Pending
from rockoon_broker.pending.pending_records import PendingRecords
from rockoon_broker.store.errors import StoreLayoutError, UnknownOffset
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.store import Store
from rockoon_broker.transactions.half_messages import (
    HALF_QUEUE_ID,
    HALF_TOPIC,
    OP_TOPIC,
    HalfFacts,
    NotAHalfMessage,
    facts_of,
    op_offsets,
)
from rockoon_broker.transactions.put_back import over_with_their_transaction, records_of
from rockoon_format.config_json import ConfigError, GroupTopic, read_consumer_offsets
from rockoon_format.names import TRANSACTION_GROUP
from rockoon_format.record import Record

HALF_QUEUE = (HALF_TOPIC, HALF_QUEUE_ID)
CONSUMER_OFFSETS_FILE = "consumerOffset.json"
_OPS_NOTE = "transactions/ops"


class HalfMessageGone(ValueError):
    """No half message can be read at a physical offset."""


class HalfQueue:
    """The queue of half messages. Used by whoever owns the store.

    Args:
        store: open.
        appends: the way into it.
        pending_index: what is completed, not loaded yet; the queue is added to it here.

    Attributes:
        records: what waits.
    """

    def __init__(self, store: Store, appends: Appends, pending_index: PendingIndex) -> None:
        self._store = store
        self.records = PendingRecords(store, appends, pending_index, [HALF_QUEUE])
        # Op records below this queue offset were applied before.
        self._ops_applied = 0
        pending_index.add_note(_OPS_NOTE, self._write_ops_applied, self._read_ops_applied)

    def read(self, position: int) -> tuple[Record, HalfFacts]:
        """A half message and what it says of itself.

        Args:
            position: physical offset of its record.

        Raises:
            HalfMessageGone: none is there, or not any more.
            OSError: the disk.
        """
        try:
            record = self.records.read(position)
            return record, facts_of(record)
        except (UnknownOffset, NotAHalfMessage) as failure:
            raise HalfMessageGone(str(failure)) from failure

    def is_visible(self, position: int) -> bool:
        """Whether a half message is as durable as was promised; it cannot be read before."""
        return position < self._store.visible_end

    def pending(self) -> Pending:
        """The half messages that wait."""
        return self.records.queue(HALF_QUEUE).pending()

    def apply_rocketmq(self, *, rebuilt: bool) -> None:
        """At a start: complete what has ended by RocketMQ's word, as far as it has used the store.

        Args:
            rebuilt: what waits was worked out without a snapshot, so RocketMQ may have stored half
                messages again as well.

        Raises:
            OSError: the disk.
        """
        queue = self.records.queue(HALF_QUEUE)
        if not len(queue):
            return
        told = np.fromiter(self._told_ended(), np.int64)
        pending = queue.pending()
        queue.complete(pending.positions[np.isin(pending.offsets, told)])
        if rebuilt:
            queue.complete(over_with_their_transaction(self._store, queue.pending(), told))

    def _told_ended(self) -> Iterator[int]:
        """Queue offsets of half messages that new op records name."""
        for record in records_of(self._store, OP_TOPIC, HALF_QUEUE_ID, self._ops_applied):
            yield from op_offsets(record.body)

    def _write_ops_applied(self) -> bytes:
        return self._store.max_offset(OP_TOPIC, HALF_QUEUE_ID).to_bytes(8, "little")

    def _read_ops_applied(self, raw: bytes) -> None:
        self._ops_applied = int.from_bytes(raw, "little")


def rocketmq_progress(config: Path) -> dict[QueueKey, int]:
    """Queue offset below which RocketMQ has seen to every half message; none without its file.

    Args:
        config: the store's config directory.

    Raises:
        StoreLayoutError: the file cannot be read. Going on could commit again what was committed.
    """
    path = config / CONSUMER_OFFSETS_FILE
    content = read_config(path)
    if content is None:
        return {}
    try:
        found = read_consumer_offsets(content)
    except ConfigError as failure:
        raise StoreLayoutError(f"{path} cannot be read: {failure}") from failure
    progress = found.offsets.get(GroupTopic(TRANSACTION_GROUP, HALF_TOPIC), {})
    return {HALF_QUEUE: progress[HALF_QUEUE_ID]} if HALF_QUEUE_ID in progress else {}
