"""The pending records of some queues, and the only way to complete them.

Invariants:
1. A record is completed by another record in the log that names it. There is no await between the
   append of that record and its completion here, and after the last wait for room, the
   caller checks that the record is still pending. So two callers cannot both complete a record.
2. No record is completed before it was taken in; otherwise it would be added later and pend
forever.
3. If an append is impossible now, the record stays pending.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rockoon_broker.append import AppendResult, Appends
from rockoon_broker.pending.pending_index import PendingIndex
from rockoon_broker.pending.pending_queue import PendingQueue
from rockoon_broker.store.log.batch import AppendBatch
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.store import Store
from rockoon_format.consume_queue import EntryArray
from rockoon_format.record import Record, decode_record

AddEntries = Callable[[int, EntryArray], None]
"""Adds entries to a queue, like `PendingQueue.add_entries`."""


class CompletedMeanwhile(Exception):
    """Another caller has completed the record while this one waited for room in the log."""


class PendingRecords:
    """Pending records of some queues of an open store. Used by the store's owner.

    Args:
        store: open.
        appends: appends to it.
        pending_index: completed messages, not loaded yet; the queues are added to it here.
        keys: the queues. No other code completes their entries.
    """

    def __init__(
        self, store: Store, appends: Appends, pending_index: PendingIndex, keys: Iterable[QueueKey]
    ) -> None:
        self._store = store
        self._appends = appends
        self._pending_index = pending_index
        self.keys: tuple[QueueKey, ...] = ()
        self._entry_adders: dict[QueueKey, AddEntries] = {}
        for key in keys:
            self.add(*key)

    def __len__(self) -> int:
        return sum(len(self.queue(key)) for key in self.keys)

    def add(self, topic: str, queue_id: int) -> None:
        """Follow one more queue; only before this broker leads."""
        self.keys += ((topic, queue_id),)
        self._pending_index.add_queue(topic, queue_id)

    def queue(self, key: QueueKey) -> PendingQueue:
        return self._pending_index.queue(*key)

    def set_entry_adder(self, key: QueueKey, add_entries: AddEntries) -> None:
        """Set a replacement for a queue's `add_entries`."""
        self._entry_adders[key] = add_entries

    def add_entries(self) -> None:
        """Add new entries to the queues.

        Raises:
            OSError: the disk.
        """
        for key in self.keys:
            while (found := self._pending_index.new_entries(key)) is not None:
                # Looked up here, because loading the index replaces the queues.
                self._entry_adders.get(key, self.queue(key).add_entries)(*found)

    def read(self, position: int) -> Record:
        """Return the record at a physical offset, pending or not.

        Raises:
            UnknownOffset: no visible record starts there.
            OSError: the disk.
        """
        return decode_record(self._store.read_at(position), check_crc=False)

    def which_wait(self, positions: ArrayLike) -> NDArray[np.bool_]:
        """Return for physical offsets whether each is that of a pending record, bool[n]."""
        wanted = np.asarray(positions, np.int64)
        waits = np.zeros(len(wanted), np.bool_)
        for key in self.keys:
            waits |= self.queue(key).are_pending(wanted)
        return waits

    def all_wait(self, positions: Sequence[int]) -> bool:
        """Return whether all given physical offsets are those of pending records."""
        return bool(self.which_wait(positions).all())

    async def complete_by(
        self, batch: AppendBatch, sources: Sequence[int], check: Callable[[], None] = lambda: None
    ) -> AppendResult:
        """Append records made from pending ones, which completes the latter.

        Waits only for room in the log. If it is cancelled, everything was done or nothing.

        Args:
            batch: each record names its source (sources.py).
            sources: physical offsets of the pending records.
            check: raises if the batch may not be appended. Called again after every wait.

        Raises:
            CompletedMeanwhile: a source is no longer pending; nothing was appended.
            RockoonError: the store refuses the batch; its sources stay pending.
        """

        def check_all() -> None:
            if not self.all_wait(sources):
                self.add_entries()
                if not self.all_wait(sources):
                    raise CompletedMeanwhile
            check()

        placed = await self._appends.append(batch, check_all)
        # No await between the append and this, or another caller would find them pending.
        self.complete(sources)
        return placed

    def complete(self, positions: ArrayLike) -> None:
        """Complete records by their offsets, after their completion is in the log or they are
        lost."""
        for key in self.keys:
            self.queue(key).complete(positions)

    def complete_deleted(self) -> list[int]:
        """Complete records that retention has deleted; return their physical offsets."""
        log_min = self._store.log_min_offset
        gone: list[int] = []
        for key in self.keys:
            gone += self.queue(key).complete_deleted(log_min).positions.tolist()
        return gone
