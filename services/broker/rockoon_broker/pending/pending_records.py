"""The pending records of some queues, and the one way in which they stop waiting.

Invariants:
1. A record is completed by another one in the log that names it. From the append of that one to the
   note of it here there is no pause, and whether it still waits is looked at behind the last wait
   for room. So two that want to complete the same record cannot both append.
2. Nothing is completed before it was taken in: taken in afterwards it would seem to wait for good.
3. What cannot be appended now stays pending.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rockoon_broker.append import AppendResult, Appends
from rockoon_broker.pending.pending_index import PendingIndex
from rockoon_broker.pending.pending_queue import PendingQueue
from rockoon_broker.store.log.batch import Batch
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.store import Store
from rockoon_format.consume_queue import EntryArray
from rockoon_format.record import Record, decode_record

TakeIn = Callable[[int, EntryArray], None]
"""Takes entries into a queue, like `PendingQueue.take_in`."""


class CompletedMeanwhile(Exception):
    """While one caller waited for room in the log, another has completed the record."""


class PendingRecords:
    """What waits in some queues of an open store. Used by whoever owns the store.

    Args:
        store: open.
        appends: the way into it.
        pending_index: what is completed, not loaded yet; the queues are added to it here.
        keys: the queues. Nobody else completes their entries.
    """

    def __init__(
        self, store: Store, appends: Appends, pending_index: PendingIndex, keys: Iterable[QueueKey]
    ) -> None:
        self._store = store
        self._appends = appends
        self._pending_index = pending_index
        self.keys: tuple[QueueKey, ...] = ()
        self._take_in: dict[QueueKey, TakeIn] = {}
        for key in keys:
            self.add(*key)

    def __len__(self) -> int:
        """How many wait."""
        return sum(len(self.queue(key)) for key in self.keys)

    def add(self, topic: str, queue_id: int) -> None:
        """Follow one more queue; not once this broker leads."""
        self.keys += ((topic, queue_id),)
        self._pending_index.add_queue(topic, queue_id)

    def queue(self, key: QueueKey) -> PendingQueue:
        """One of the queues."""
        return self._pending_index.queue(*key)

    def take_in_by(self, key: QueueKey, take_in: TakeIn) -> None:
        """Have a queue's new entries taken in by another than the queue itself."""
        self._take_in[key] = take_in

    def take_in(self) -> None:
        """Take note of new entries.

        Raises:
            OSError: the disk.
        """
        for key in self.keys:
            while (found := self._pending_index.new_entries(key)) is not None:
                # Only now: loading the index replaces the queues.
                self._take_in.get(key, self.queue(key).take_in)(*found)

    def read(self, position: int) -> Record:
        """The record at a physical offset, pending or not.

        Raises:
            UnknownOffset: none starts there, or not any more, or readers do not see it yet.
            OSError: the disk.
        """
        return decode_record(self._store.read_at(position), check_crc=False)

    def which_wait(self, positions: ArrayLike) -> NDArray[np.bool_]:
        """Which of some physical offsets are those of records that wait, bool[n]."""
        wanted = np.asarray(positions, np.int64)
        waits = np.zeros(len(wanted), np.bool_)
        for key in self.keys:
            waits |= self.queue(key).are_pending(wanted)
        return waits

    def all_wait(self, positions: Sequence[int]) -> bool:
        """Whether all of some physical offsets are those of records that wait."""
        return bool(self.which_wait(positions).all())

    async def complete_by(
        self, batch: Batch, sources: Sequence[int], check: Callable[[], None] = lambda: None
    ) -> AppendResult:
        """Append records that were made out of waiting ones, which do not wait any more then.

        Waits only for room in the log. Cancelling it is safe: all of it was done, or nothing.

        Args:
            batch: each record names its source (sources.py).
            sources: physical offsets of what they were made out of.
            check: raises when the batch may not be appended. Asked again after every wait.

        Raises:
            CompletedMeanwhile: one of the sources does not wait; nothing was appended.
            RockoonError: the store does not take the batch; its sources wait on.
        """

        def check_all() -> None:
            if not self.all_wait(sources):
                self.take_in()
                if not self.all_wait(sources):
                    raise CompletedMeanwhile
            check()

        placed = await self._appends.place(batch, check_all)
        # No await above this line since the append, or another caller finds them waiting.
        self.complete(sources)
        return placed

    def complete(self, positions: ArrayLike) -> None:
        """Note what the log says already, or what it cannot say because the record is lost."""
        for key in self.keys:
            self.queue(key).complete(positions)

    def take_gone(self) -> list[int]:
        """Complete what retention has deleted while it waited; returns the physical offsets."""
        log_min = self._store.log_min_offset
        gone: list[int] = []
        for key in self.keys:
            gone += self.queue(key).take_gone(log_min).positions.tolist()
        return gone
