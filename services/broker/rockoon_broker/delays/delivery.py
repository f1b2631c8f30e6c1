"""Delivery of delayed messages: appends due messages to their topics and closes undeliverable ones.

It also stores messages again that retention would delete before they are due, and counts those
that it has deleted.
"""

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from rockoon_broker import cold_reads
from rockoon_broker.append import AppendResult
from rockoon_broker.batch_columns import whole_columns_of
from rockoon_broker.delays.delayed_queues import DelayedQueues, Now, batch_for
from rockoon_broker.delays.rewriting import (
    CANCELLED,
    UNDELIVERABLE,
    AddressedRecord,
    Undeliverable,
    closing,
    delivered,
    destination,
    stored_once_more,
    unique_id_of,
)
from rockoon_broker.delays.timetable import due_times
from rockoon_broker.pending.pending_queue import Pending, PendingQueue
from rockoon_broker.pending.pending_records import CompletedMeanwhile, DueWork
from rockoon_broker.store.errors import UnknownOffset
from rockoon_broker.store.log.batch import AppendBatch
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.retention.retention import LogFileAge
from rockoon_broker.store.store import Store
from rockoon_core.errors import (
    BodyTooLarge,
    Busy,
    InvalidTopicName,
    MalformedBatch,
    PropertiesTooLarge,
    QueueNotFound,
    TopicNotFound,
)
from rockoon_format.batch import SYS_FLAGS_ALLOWED
from rockoon_format.message_id import encode_offset_id
from rockoon_format.record import Record, encode_host, encode_record

PART_BYTES = 1 << 20
"""Maximum size of records in one append; a single record may be longer."""


def records_of(batch: AppendBatch) -> list[Record]:
    """Decode the records of a batch, which must be whole and of its queue. Raises MalformedBatch: a
    record is not."""
    columns = whole_columns_of(batch)
    name = batch.topic.encode()
    records = []
    for index in range(len(columns)):
        record = columns.record(index)
        if (record.topic, record.queue_id) != (name, batch.queue_id):
            raise MalformedBatch(index=index, reason="of another topic or queue")
        if record.sys_flag & ~SYS_FLAGS_ALLOWED:
            raise MalformedBatch(index=index, reason="a forbidden system flag")
        if record.prepared_transaction_offset:
            raise MalformedBatch(index=index, reason="the record refers to another record")
        records.append(record)
    return records


def parts_by_queue(records: Sequence[AddressedRecord]) -> Iterator[tuple[QueueKey, list[bytes]]]:
    """Yield runs of records of one queue, of a bounded size."""
    key: QueueKey | None = None
    part: list[bytes] = []
    size = 0
    for one in records:
        frame = encode_record(one.record, room=True)
        if part and (key != (one.topic, one.queue_id) or size + len(frame) > PART_BYTES):
            assert key is not None
            yield key, part
            part, size = [], 0
        key = one.topic, one.queue_id
        part.append(frame)
        size += len(frame)
    if part:
        assert key is not None
        yield key, part


def parts_bounded(group: Sequence[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """Split records with their sources into parts of a bounded size, at least one record each."""
    part: list[tuple[int, bytes]] = []
    size = 0
    for one in group:
        if part and size + len(one[1]) > PART_BYTES:
            yield part
            part, size = [], 0
        part.append(one)
        size += len(one[1])
    yield part


log = logging.getLogger(__name__)

# Minimum time between turns: messages that are due close together are delivered together.
TURN_SECONDS = 0.05
# While messages wait. No event reports that the wall clock was set or that the machine slept, so
# due times are recomputed.
CLOCK_LOOK_SECONDS = 1.0
# Limits of one turn, which delays all other tasks.
DELIVERED_PER_TURN_MAX = 64
READ_BYTES_PER_TURN_MAX = 4 << 20
# Per search: scanning a million waiting messages needs as long as storing some hundred.
EXPIRING_MAX = 4096
ROLL_SECONDS = 10.0


@dataclass(slots=True)
class DelayCounts:
    """Counts since the process started."""

    delivered: int = 0
    cancelled: int = 0
    undeliverable: int = 0
    lost: int = 0
    rolled: int = 0
    lag_ms: int = 0
    """Delay of the last deliveries after their due time."""


class DelayedDelivery:
    """Delivers due messages and keeps pending ones. Used only by the event loop's thread.

    Args:
        reserved_ms: age at which retention deletes a CommitLog file.
        knows: returns whether this broker has a queue; raises a RockoonError if that is unknown
        yet.

    Attributes:
        work: runs due work; must be rung when messages arrive and when the log gets shorter.
        counts: counts of delivered, cancelled and lost messages.
    """

    def __init__(
        self,
        store: Store,
        queues: DelayedQueues,
        now: Now,
        *,
        reserved_ms: int,
        knows: Callable[[str, int], bool],
    ) -> None:
        self._store = store
        self._queues = queues
        self._records = queues.records
        self._now = now
        self._reserved_ms = reserved_ms
        self._knows = knows
        self._store_host = encode_host(*store.settings.store_host)
        # Records to be stored again, with the due times of their messages.
        self._expiring: deque[tuple[int, int]] = deque()
        self._roll_due = 0.0
        self.counts = DelayCounts()
        self.work = DueWork("delayed messages", TURN_SECONDS, self.step, self._pause_seconds)

    def use_retention(self, reserved_ms: int) -> None:
        """Use another age at which retention deletes a file, from the next turn on."""
        self._reserved_ms = reserved_ms
        self._roll_due = 0.0
        self.work.ring()

    def _pause_seconds(self) -> float | None:
        """Seconds until something is due if no message arrives; None if no message waits."""
        if not len(self._records):
            return None
        _, monotonic_ms = self._now()
        due_ms = self._queues.next_due_ms()
        pause_ms = min(due_ms, self._roll_due - monotonic_ms, CLOCK_LOOK_SECONDS * 1000)
        return max(pause_ms, 0.0) / 1000

    async def step(self) -> bool:
        """Run one turn: read new entries, deliver due messages, store expiring records again.

        Returns:
            Whether more messages are already due.

        Raises:
            RockoonError, StorageError, OSError: not possible now; unfinished work stays pending.
        """
        now_ms, monotonic_ms = self._now()
        self._records.add_entries()
        self._count_lost()
        if monotonic_ms >= self._roll_due:
            self._roll_due = monotonic_ms + ROLL_SECONDS * 1000
            if await self._roll(now_ms, monotonic_ms):
                self._roll_due = 0
        left = DELIVERED_PER_TURN_MAX
        for table in self._queues.tables.values():
            due = table.due(now_ms, monotonic_ms, left)
            if len(due):
                self.counts.lag_ms = max(0, now_ms - int(due.codes[0]))
                left -= await self._deliver(due)
            if left <= 0:
                return True
        return False

    async def _deliver(self, due: Pending) -> int:
        """Deliver entries, or the first of them; return how many were processed."""
        groups: dict[QueueKey, list[tuple[int, bytes]]] = {}
        read = size = 0
        for source in due.positions.tolist():
            read += 1
            try:
                record = await self._read(source)
                key = destination(record)
                self._check_destination(key, source)
            except (UnknownOffset, Undeliverable) as failure:
                await self._close_undeliverable(source, str(failure))
                continue
            frame = encode_record(delivered(record), room=True)
            groups.setdefault(key, []).append((source, frame))
            size += len(frame)
            if size >= READ_BYTES_PER_TURN_MAX:
                break
        for key, group in groups.items():
            for part in parts_bounded(group):
                await self._deliver_part(key, part)
        return read

    async def _read(self, source: int) -> Record:
        # An old record may not be in the page cache.
        return await cold_reads.read(partial(self._records.read, source))

    async def _deliver_part(self, key: QueueKey, part: Sequence[tuple[int, bytes]]) -> None:
        sources = [source for source, _ in part]

        def check() -> None:
            # The topic may have been deleted while the append waited for room in the log.
            if not self._knows(*key):
                raise TopicNotFound(topic=key[0])

        batch = AppendBatch.of_records(*key, [frame for _, frame in part])
        try:
            await self._queues.complete_by(batch, sources, check)
        except (MalformedBatch, BodyTooLarge, PropertiesTooLarge, InvalidTopicName) as refusal:
            # The log refuses a batch because of one record. Try each one alone, so that the bad
            # one does not block the rest.
            if len(part) == 1:
                await self._close_undeliverable(sources[0], str(refusal))
                return
            for one in part:
                await self._deliver_part(key, [one])
            return
        except (TopicNotFound, QueueNotFound, Busy, CompletedMeanwhile):
            # The next turn checks each of them again.
            return
        self.counts.delivered += len(sources)

    def _check_destination(self, key: QueueKey, source: int) -> None:
        if not self._knows(*key):
            raise Undeliverable(f"queue {key[1]} of topic {key[0]} no longer exists")
        if self._store.is_dropped(key[0], source):
            raise Undeliverable(f"topic {key[0]} was deleted; the present one was created later")

    async def _close_undeliverable(self, source: int, reason: str) -> None:
        if source < self._store.log_min_offset:
            # Retention was faster than this turn; the next turn counts it as lost.
            return
        try:
            await self._close(source, UNDELIVERABLE)
        except CompletedMeanwhile:
            return
        self.counts.undeliverable += 1
        log.error(
            "cannot deliver the delayed message %s: %s",
            encode_offset_id(self._store_host, source),
            reason,
        )

    async def cancel(self, record: Record) -> AppendResult:
        """Close the record of a cancelled message; raises as `complete_by`."""
        source = record.physical_offset
        placed = await self._close(source, CANCELLED, unique_id_of(record))
        self.counts.cancelled += 1
        return placed

    async def _close(self, source: int, why: str, unique_id: str = "") -> AppendResult:
        """Append a record that closes a message without delivery."""
        closed = closing(source, why, unique_id, self._now()[0], self._store.settings.store_host)
        return await self._queues.complete_by(batch_for(closed), [source])

    # Retention.

    async def _roll(self, now_ms: int, monotonic_ms: int) -> bool:
        """Store some expiring records again; return whether there are more."""
        if not self._expiring:
            self._expiring += expiring(
                self._store.log_files(),
                self._queues,
                reserved_ms=self._reserved_ms,
                now_ms=now_ms,
                monotonic_ms=monotonic_ms,
                count_max=EXPIRING_MAX,
            )
        count = min(len(self._expiring), DELIVERED_PER_TURN_MAX)
        for _ in range(count):
            source, due_ms = self._expiring.popleft()
            if self._records.all_wait([source]):
                await self._roll_one(source, due_ms)
        return count > 0

    async def _roll_one(self, source: int, due_ms: int) -> None:
        try:
            record = await self._read(source)
        except UnknownOffset as failure:
            await self._close_undeliverable(source, str(failure))
            return
        try:
            await self._queues.roll(source, stored_once_more(record, due_ms))
        except CompletedMeanwhile:
            return
        self.counts.rolled += 1

    def _count_lost(self) -> None:
        """Count messages that retention deleted before they were due because the disk was full."""
        gone = self._queues.complete_deleted()
        if gone:
            self.counts.lost += gone
            log.error(
                "%d delayed messages were deleted before they were due, with the log up to offset "
                "%d: the disk is too small",
                gone,
                self._store.log_min_offset,
            )


def expiring(
    files: Sequence[LogFileAge],
    queues: Iterable[PendingQueue],
    *,
    reserved_ms: int,
    now_ms: int,
    monotonic_ms: int,
    count_max: int,
) -> list[tuple[int, int]]:
    """Find some of the records that retention deletes before their messages are due.

    Only files older than half of the retention time are considered.

    Args:
        files: CommitLog files, oldest first.
        reserved_ms: age at which a file is deleted.
        now_ms, monotonic_ms: wall clock and monotonic clock.
        count_max: maximum number of results.

    Returns:
        (physical offset of the record, epoch milliseconds at which its message is due).
        (physical offset of the record, epoch milliseconds at which its message is due).
    """
    old = list(
        itertools.takewhile(lambda file: now_ms - file.newest_ms >= reserved_ms // 2, files[:-1])
    )
    if not old:
        return []
    starts = np.array([file.start for file in old])
    deleted_ms = np.array([max(file.newest_ms + reserved_ms, now_ms) for file in old])
    end = files[len(old)].start
    found: list[tuple[int, int]] = []
    for queue in queues:
        waiting = queue.pending_before(end)
        holder = np.maximum(np.searchsorted(starts, waiting.positions, side="right") - 1, 0)
        due_ms = due_times(waiting, now_ms, monotonic_ms)
        chosen = np.flatnonzero(due_ms >= deleted_ms[holder])[: count_max - len(found)]
        found += zip(waiting.positions[chosen].tolist(), due_ms[chosen].tolist(), strict=True)
    return found
