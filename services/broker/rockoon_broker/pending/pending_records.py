"""The pending records of some queues, and the only way to complete them.

Invariants:
1. A record is completed by another record in the log that names it. There is no await between the
   append of that record and its completion here, and after the last wait for room, the
   caller checks that the record is still pending. So two callers cannot both complete a record.
2. No record is completed before its entry was added; otherwise the entry would be added later and
   stay pending forever.
3. If an append is impossible now, the record stays pending.

`DueWork` runs the due work of pending messages in turns.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rockoon_broker.append import AppendResult, Appends
from rockoon_broker.pending.pending_index import PendingIndex
from rockoon_broker.pending.pending_queue import PendingQueue
from rockoon_broker.store.errors import StorageError, StoreClosed, StoreSyncFailed
from rockoon_broker.store.log.batch import AppendBatch
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.store import Store
from rockoon_core.errors import RockoonError
from rockoon_format.consume_queue import EntryArray
from rockoon_format.record import Record, decode_record
from rockoon_runtime.waking import WorkRounds

log = logging.getLogger(__name__)
# After a failure. RocketMQ waits ten seconds (ScheduleMessageService).
PAUSE_SECONDS = 1.0


class DueWork:
    """Runs turns one after the other. Used only by the event loop's thread.

    Args:
        name: the work's name in logs: "delayed messages".
        apart_seconds: minimum time between the starts of two turns, so that messages that are due
            close together are handled together.
        step: one turn; returns whether more is already due. If it raises RockoonError,
            StorageError or OSError, unfinished work stays pending.
        pause_seconds: returns the time until something is due; None if nothing will be.
    """

    def __init__(
        self,
        name: str,
        apart_seconds: float,
        step: Callable[[], Awaitable[bool]],
        pause_seconds: Callable[[], float | None],
    ) -> None:
        self._name = name
        self._step = step
        self._pause_seconds = pause_seconds
        self._turns = WorkRounds(apart_seconds)
        self.failure: Exception | None = None
        """Error for which due work currently waits."""

    def ring(self) -> None:
        """Wake the task for new records or a shorter log."""
        self._turns.ring()

    async def run(self) -> None:
        """Run turns until cancelled or the store has ended."""
        while True:
            self._turns.begin()
            is_more, pause_seconds = False, None
            try:
                is_more = await self._step()
                pause_seconds = self._pause_seconds()
                self.failure = None
            except (StoreSyncFailed, StoreClosed):
                return
            except (RockoonError, StorageError, OSError) as failure:
                if self.failure is None:
                    log.warning("%s are delayed, retrying: %s", self._name, failure)
                self.failure = failure
                await asyncio.sleep(PAUSE_SECONDS)
                # Retry without a ring, because records that this turn did not read ring only once.
                pause_seconds = 0.0
            await (asyncio.sleep(0) if is_more else self._turns.wait_next(pause_seconds))


AddEntries = Callable[[int, EntryArray], None]
"""Adds entries to a queue, like `PendingQueue.add_entries`."""


class CompletedMeanwhile(Exception):
    """Another caller has completed the record while this one waited for room in the log."""


class PendingRecords:
    """Pending records of some queues of an open store. Used by the store's owner.

    Args:
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
        """Add new entries to the queues. Raises OSError."""
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
            batch: each record names its source (pending_queue.py).
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
