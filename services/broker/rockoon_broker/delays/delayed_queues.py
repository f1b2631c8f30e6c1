"""Delayed messages in the store: their queues, due times and names.

There is one queue per level, and one for messages with their own deliver time. A message that is
stored again waits in the latter, under the name that its producer knows (`RolledMessages`).
RocketMQ's files state what it has delivered of a store (delay_offsets.py).
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.append import AppendResult, Appends
from rockoon_broker.delays.delay_offsets import TimerCheckpoint
from rockoon_broker.delays.rewriting import TIMED_QUEUE, AddressedRecord, DelayRules
from rockoon_broker.delays.timetable import Timetable, due_times
from rockoon_broker.pending.pending_index import PendingIndex
from rockoon_broker.pending.pending_queue import PendingQueue
from rockoon_broker.pending.pending_records import PendingRecords
from rockoon_broker.store.errors import UnknownOffset
from rockoon_broker.store.log.batch import AppendBatch
from rockoon_broker.store.log.reading import LogChunk
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.store import Store
from rockoon_format.consume_queue import EntryArray
from rockoon_format.delay_levels import DELIVER_TIME_MS_MIN, timer_deliver_ms
from rockoon_format.names import SCHEDULE_TOPIC, TIMER_TOPIC
from rockoon_format.record import encode_record

TIMED_KEY = (TIMER_TOPIC, TIMED_QUEUE)
_ROLLED_NOTE = "delays/rolled"

Now = Callable[[], tuple[int, int]]
"""Returns the wall clock and a monotonic clock, milliseconds each."""


_PAIR = np.dtype([("first", "<i8"), ("now", "<i8")])


class RolledMessages:
    """Maps records that were stored again to the names of their messages, as physical offsets.

    A producer identifies its message by the first record in which it waited; this id stays valid.
    """

    def __init__(self) -> None:
        self._nows: dict[int, int] = {}
        self._firsts: dict[int, int] = {}

    def now(self, first: int) -> int:
        """Return the record in which the message with the given first record waits now."""
        return self._nows.get(first, first)

    def first(self, now: int) -> int:
        """Return the first record of the message that waits in the given record."""
        return self._firsts.get(now, now)

    def positions(self) -> NDArray[np.int64]:
        """Return the records in which all these messages wait now."""
        return np.fromiter(self._firsts, np.int64, len(self._firsts))

    def follow(self, source: int, now: int) -> None:
        """Record that the message that waited at `source` now waits at `now`."""
        if source not in self._firsts and now in self._firsts:
            # A start may apply it again for a message that was stored several times.
            return
        first = self._firsts.pop(source, source)
        self._nows[first] = now
        self._firsts[now] = first

    def remove(self, positions: Iterable[int]) -> None:
        """Remove messages that no longer wait."""
        for position in positions:
            first = self._firsts.pop(position, None)
            if first is not None:
                del self._nows[first]

    def to_bytes(self) -> bytes:
        """Encode for the snapshot: pairs (first, now), int64 each, little-endian."""
        count = len(self._nows)
        pairs = np.empty(count, _PAIR)
        pairs["first"] = np.fromiter(self._nows.keys(), np.int64, count)
        pairs["now"] = np.fromiter(self._nows.values(), np.int64, count)
        return pairs.tobytes()

    def load(self, raw: bytes) -> None:
        """Replace the content by that of `to_bytes`."""
        pairs = np.frombuffer(raw, _PAIR)
        firsts, nows = pairs["first"].tolist(), pairs["now"].tolist()
        self._nows = dict(zip(firsts, nows, strict=True))
        self._firsts = dict(zip(nows, firsts, strict=True))


class DelayedQueues:
    """The queues of delayed messages. Used by the store's owner.

    Args:
        pending_index: completed messages, not loaded yet; the queues are added to it here.

    Attributes:
        records: the waiting messages.
        rolled: names of messages that were stored again.
        tables: due times of waiting messages by queue; empty before `resume`.
    """

    def __init__(
        self,
        store: Store,
        appends: Appends,
        pending_index: PendingIndex,
        now: Now,
        rules: DelayRules,
    ) -> None:
        self._now = now
        delays_ms: dict[QueueKey, int] = {
            (SCHEDULE_TOPIC, level): delay_ms for level, delay_ms in enumerate(rules.levels_ms)
        }
        # Messages of a level wait there too after they were stored again.
        delays_ms[TIMED_KEY] = max(rules.delay_seconds_max * 1000, *rules.levels_ms)
        self._store = store
        self._delays_ms = delays_ms
        self.records = PendingRecords(store, appends, pending_index, delays_ms)
        self.find_levels()
        self.rolled = RolledMessages()
        pending_index.add_note(_ROLLED_NOTE, self.rolled.to_bytes, self.rolled.load)
        pending_index.add_named(self._apply_rolled)
        self.tables: dict[QueueKey, Timetable] = {}

    def __iter__(self) -> Iterator[PendingQueue]:
        return map(self.records.queue, self.records.keys)

    def find_levels(self) -> None:
        """Add queues of former levels, so that their messages are still delivered."""
        for topic, queue_id in self._store.queues():
            if topic == SCHEDULE_TOPIC and (topic, queue_id) not in self._delays_ms:
                self._delays_ms[topic, queue_id] = self._delays_ms[TIMED_KEY]
                self.records.add(topic, queue_id)

    def discard_completed(self) -> None:
        """Discard the names of completed messages, while this replica follows."""
        rolled = self.rolled.positions()
        if not len(rolled):
            return
        self.rolled.remove(rolled[~self.records.which_wait(rolled)].tolist())

    def resume(self, timer: TimerCheckpoint) -> None:
        """Continue the work of an earlier process, after the pending index is loaded.

        Args:
            timer: progress of RocketMQ's timer.
        """
        now_ms, monotonic_ms = self._now()
        for key, delay_ms in self._delays_ms.items():
            table = self.tables[key] = Timetable(self.records.queue(key), delay_ms)
            self.records.set_entry_adder(key, self._entry_adder(table))
            if key == TIMED_KEY:
                self._apply_rocketmq(timer)
            table.resume(now_ms, monotonic_ms)
        self.discard_completed()

    def next_due_ms(self) -> int:
        """Return the milliseconds until a message may be due, never too many; the result is wrong
        once the wall clock is set."""
        now_ms, monotonic_ms = self._now()
        return min(table.next_due_ms(now_ms, monotonic_ms) for table in self.tables.values())

    def first_due(self, count_max: int) -> list[tuple[int, int]]:
        """Return due time, epoch milliseconds, and position of the next due messages."""
        now_ms, monotonic_ms = self._now()
        found: list[tuple[int, int]] = []
        for queue in self:
            pending = queue.pending()
            due_at_ms = due_times(pending, now_ms, monotonic_ms)
            first = np.argsort(due_at_ms, kind="stable")[:count_max]
            found += zip(due_at_ms[first].tolist(), pending.positions[first].tolist(), strict=True)
        return sorted(found)[:count_max]

    async def complete_by(
        self, batch: AppendBatch, sources: Sequence[int], check: Callable[[], None] = lambda: None
    ) -> AppendResult:
        """Append the completion of some messages; see `PendingRecords.complete_by`."""
        placed = await self.records.complete_by(batch, sources, check)
        self.rolled.remove(sources)
        return placed

    async def roll(self, source: int, again: AddressedRecord) -> None:
        """Store a message again; it keeps its name. Raises as `PendingRecords.complete_by`."""
        placed = await self.records.complete_by(batch_for(again), [source])
        # Not `remove`: the name of the source now refers to the new record.
        self.rolled.follow(source, placed.first.first_physical_offset)

    def complete_deleted(self) -> int:
        """Complete waiting messages that retention has deleted; return how many."""
        gone = self.records.complete_deleted()
        self.rolled.remove(gone)
        return len(gone)

    def low_waters(self) -> dict[QueueKey, int]:
        """Queue offsets below which all messages are completed."""
        return {key: self.records.queue(key).low_water for key in self.records.keys}

    def pending_by_level(self) -> dict[int, int]:
        """Number of waiting messages by level from 1; 0: those with their own deliver time."""
        return {_level(key): len(self.records.queue(key)) for key in self.records.keys}

    def _entry_adder(self, table: Timetable) -> Callable[[int, EntryArray], None]:
        return lambda first, entries: table.add_entries(first, entries, *self._now())

    def _apply_rocketmq(self, timer: TimerCheckpoint) -> None:
        """Read the deliver times of RocketMQ's entries, which have tag hashes instead, and complete
        the delivered ones."""
        queue = self.records.queue(TIMED_KEY)
        pending = queue.pending()
        codes = pending.codes
        for index in np.flatnonzero(codes < DELIVER_TIME_MS_MIN).tolist():
            # The error of a damaged record is reported at its delivery.
            with contextlib.suppress(UnknownOffset):
                properties = self.records.read(int(pending.positions[index])).properties
                codes[index] = timer_deliver_ms(properties) or codes[index]
        queue.revise(codes, pending.deadlines_ms)
        done = (pending.offsets < timer.known_below) & (codes <= timer.delivered_until_ms)
        queue.complete(pending.positions[done])

    def _apply_rolled(
        self, chunk: LogChunk, indices: NDArray[np.int64], sources: NDArray[np.int64]
    ) -> None:
        records = chunk.records
        if TIMER_TOPIC.encode() not in records.topics:
            return
        is_timed = records.topic_numbers[indices] == records.topics.index(TIMER_TOPIC.encode())
        is_timed &= records.queue_ids[indices] == TIMED_QUEUE
        nows = records.physical_offsets[indices[is_timed]].tolist()
        for source, now in zip(sources[is_timed].tolist(), nows, strict=True):
            self.rolled.follow(source, now)


def batch_for(addressed: AddressedRecord) -> AppendBatch:
    """Return a batch of one record made by the broker."""
    frame = encode_record(addressed.record, room=True)
    return AppendBatch.of_records(addressed.topic, addressed.queue_id, [frame])


def _level(key: QueueKey) -> int:
    return key[1] + 1 if key[0] == SCHEDULE_TOPIC else 0
