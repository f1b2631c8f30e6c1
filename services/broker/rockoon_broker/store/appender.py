"""Appender: a batch is checked, numbered, stamped with its place and time, and written."""

from collections.abc import Sequence

import numpy as np

from rockoon_broker.store.errors import BatchTooLarge
from rockoon_broker.store.log.batch import Batch
from rockoon_broker.store.log.commit_log import CommitLog
from rockoon_broker.store.log.epochs import Epochs, Mark, Renewal
from rockoon_broker.store.log.found_keys import FoundKeys, KeyStretch
from rockoon_broker.store.log.time_runs import TimeRuns
from rockoon_broker.store.queues.consume_queue import ConsumeQueue
from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_broker.store.queues.dispatch_queue import DispatchQueue, Undispatched
from rockoon_broker.store.queues.queue_numbers import numbers_of
from rockoon_broker.store.queues.tails import TAIL_BYTES_MAX
from rockoon_broker.store.recovery.recovery_points import RecoveryPoints
from rockoon_broker.store.settings import NO_LIMITS, StoreSettings
from rockoon_core.light_dataclass import light_dataclass
from rockoon_format.batch import (
    SYS_FLAGS_ALLOWED,
    BatchLayout,
    check_batch,
    encode_batch,
    stamp_batch,
    with_checksums,
)
from rockoon_format.batch_checking import DELAYED_TOPICS
from rockoon_format.consume_queue import ENTRY, EntryArray
from rockoon_format.group_batches import GivenBatch, GroupRules, stamp_batches
from rockoon_format.index_entries import PackedKeys, packed_keys
from rockoon_format.log_marks import (
    EPOCH_PROPERTIES,
    LOG_QUEUE,
    LOG_TOPIC,
    TOPIC_PROPERTIES,
    EpochMark,
    LogTopics,
    TopicChange,
    encode_epoch_mark,
    encode_topic_change,
)
from rockoon_format.record import TRANSACTION_COMMIT, encode_host, fits

# Of a file, for what is known of topics; there each takes some thirty bytes.
TABLE_SHARE_MAX = 0.25
# A record comes to other copies in one message, of 64 MiB at most.
TABLE_BYTES_MAX = 32 << 20
_DELAYED_TOPICS = frozenset(topic.decode() for topic in DELAYED_TOPICS)
_FLAGS_MADE_HERE = SYS_FLAGS_ALLOWED | TRANSACTION_COMMIT


@light_dataclass
class Appended:
    """Where a batch went."""

    first_queue_offset: int
    first_physical_offset: int
    end_offset: int
    """Physical offset behind the batch: durable once `confirm` was called with this or more."""
    count: int
    store_timestamp_ms: int


class Appender:
    """Puts batches at the end of an open log; owned by the thread that owns the store.

    Args:
        settings: the store's.
        log, queues: open.
        runs: told of each batch; says when store times have to go back.
        points: without its cap they may not.
        undispatched: gets the entries of each batch.
        epochs: told of marks; once there are some, each file begins with one.
        found_keys: gets those of each batch, if they are wanted.
    """

    def __init__(
        self,
        settings: StoreSettings,
        log: CommitLog,
        queues: ConsumeQueues,
        runs: TimeRuns,
        points: RecoveryPoints,
        undispatched: DispatchQueue,
        epochs: Epochs,
        found_keys: FoundKeys,
    ) -> None:
        self._settings = settings
        self._store_host = encode_host(*settings.store_host)
        self._record_limits = settings.record_limits
        self._group_rules = GroupRules(
            **self._record_limits,
            sys_flags_allowed=SYS_FLAGS_ALLOWED,
            with_room=settings.record_checksums,
            store_host=self._store_host,
        )
        self._log = log
        self._queues = queues
        self._runs = runs
        self._points = points
        self._undispatched = undispatched
        self._epochs = epochs
        self._found_keys = found_keys

    def append(self, batch: Batch, now_ms: int) -> Appended:
        """See `Store.append`; whether the store takes anything is the caller's to know."""
        frames, layout = self._checked(batch)
        queue = self._queues.find_or_create(*batch.queue)
        offset, stored_ms = self._place(layout.total_bytes, now_ms)
        return self._write(queue, frames, layout, offset, stored_ms)

    def append_group(self, batches: Sequence[Batch], now_ms: int) -> list[Appended | None]:
        """See `Store.append_group`; the caller has checked that the store is writable."""
        placed: list[Appended | None] = [None] * len(batches)
        given: list[GivenBatch] = []
        # Each with the index of its batch.
        queues: list[tuple[int, ConsumeQueue]] = []
        total, find = 0, self._queues.find
        for index, batch in enumerate(batches):
            topic, queue_id = batch.topic, batch.queue_id
            queue = find(topic, queue_id)
            # A new queue is made when its first batch is known to be right.
            if queue is None or topic in _DELAYED_TOPICS:
                continue
            queues.append((index, queue))
            # `GivenBatch(...)` would be another Python call.
            fields = (batch.source, batch.lengths, topic, queue_id, queue.next_offset, batch.bounds)
            given.append(tuple.__new__(GivenBatch, fields))
            total += batch.frames_bytes
        if not given or (len(given) > 1 and not fits(total, self._log.file_bytes // 2)):
            return placed
        offset, stored_ms = self._place(total, now_ms)
        stored, listed, keys = stamp_batches(
            given,
            self._group_rules,
            with_keys=self._found_keys.wanted,
            first_physical_offset=offset,
            store_timestamp_ms=stored_ms,
        )
        if not stored:
            return placed
        self._log.write(offset, stored)
        self._note_written(offset, stored_ms, keys)
        start, stored_bytes = offset, len(stored)
        for (index, queue), own in zip(queues, listed, strict=True):
            if own is None:
                continue
            size, kept = batches[index].frames_bytes, b""
            end = offset + size
            if size <= TAIL_BYTES_MAX:
                # What is kept must not keep the whole group in memory.
                is_whole = size == stored_bytes
                kept = bytes(stored if is_whole else stored[offset - start : end - start])
            entries = np.frombuffer(own, ENTRY)
            placed[index] = self._listed(queue, entries, offset, stored_ms, kept, end)
            offset = end
        return placed

    def open_epoch(self, epoch: int, leader: str, now_ms: int, topics: LogTopics) -> Appended:
        """See `Store.open_epoch`."""
        mark, body = self._numbered(self._epochs.next_mark(epoch, leader, self._log.end, topics))
        frames, layout = self._encoded(body, EPOCH_PROPERTIES, now_ms)
        offset, stored_ms = self._place(layout.total_bytes, now_ms, is_mark=True)
        return self._write_mark(mark, frames, layout, offset, stored_ms)

    def change_topics(self, change: TopicChange, now_ms: int) -> Appended:
        """See `Store.change_topics`."""
        known = self._epochs.mark()._replace(topics=self._epochs.topics.after(change))
        table_bytes = len(encode_epoch_mark(known))
        if table_bytes > self._table_bytes_max:
            # Each file begins with it, and messages have to have room behind it.
            raise BatchTooLarge(f"{table_bytes} bytes of topics are too many for a file")
        body = encode_topic_change(change)
        frames, layout = self._encoded(body, TOPIC_PROPERTIES, now_ms)
        offset, stored_ms = self._place(layout.total_bytes, now_ms)
        appended = self._write_mark(change, frames, layout, offset, stored_ms)
        for topic in change.anew:
            self._queues.restart_numbering(topic)
        return appended

    def _checked(self, batch: Batch) -> tuple[bytes, BatchLayout]:
        settings, frames = self._settings, batch.frames
        layout = check_batch(
            frames,
            batch.sizes,
            topic=batch.topic.encode(),
            queue_id=batch.queue_id,
            **(NO_LIMITS if batch.internal else self._record_limits),
            sys_flags_allowed=_FLAGS_MADE_HERE if batch.internal else SYS_FLAGS_ALLOWED,
            sources_allowed=batch.internal,
            delay_levels_ms=settings.delay_levels_ms,
        )
        if settings.record_checksums:
            return with_checksums(frames, layout)
        return frames, layout

    def _place(self, batch_bytes: int, now_ms: int, *, is_mark: bool = False) -> tuple[int, int]:
        """Where a batch goes, a physical offset, and its store time."""
        stored_ms, begins_run = now_ms, False
        if now_ms < self._runs.newest_ms:
            begins_run = self._runs.is_behind(now_ms) and self._points.is_capped(now_ms)
            stored_ms = now_ms if begins_run else self._runs.newest_ms
        offset = self._log.place(batch_bytes, in_next_file=begins_run)
        # Once the log has had an epoch, retention may take all files but the last: each has to say
        # where epochs began, or a follower's log would be taken for another one.
        if offset % self._log.file_bytes == 0 and self._epochs.epoch and not is_mark:
            mark, body = self._numbered(self._epochs.mark())
            frames, layout = self._encoded(body, EPOCH_PROPERTIES, now_ms)
            # Before the mark is there, which a refused batch must not leave.
            if not fits(layout.total_bytes + batch_bytes, self._log.file_bytes):
                raise BatchTooLarge(f"a batch of {batch_bytes} bytes fits into no file")
            self._write_mark(mark, frames, layout, offset, stored_ms)
            offset = self._log.end
        return offset, stored_ms

    def _numbered(self, mark: EpochMark) -> tuple[EpochMark, bytes]:
        """A mark with the numbers that queues have come to, if they leave messages room, and its
        body: of a hundred thousand queues a megabyte, which is encoded once."""
        numbered = mark._replace(numbers=numbers_of(self._queues))
        body = encode_epoch_mark(numbered)
        fits_in = len(body) <= self._table_bytes_max
        return (numbered, body) if fits_in else (mark, encode_epoch_mark(mark))

    @property
    def _table_bytes_max(self) -> float:
        return min(self._log.file_bytes * TABLE_SHARE_MAX, TABLE_BYTES_MAX)

    def _encoded(self, body: bytes, properties: bytes, now_ms: int) -> tuple[bytes, BatchLayout]:
        """A record of the log's own."""
        frames, lengths = encode_batch(
            LOG_TOPIC.encode(),
            LOG_QUEUE,
            [body],
            [properties],
            now_ms,
            self._store_host,
        )
        lengths_bytes = lengths.astype("<u4").tobytes()
        return self._checked(Batch(LOG_TOPIC, LOG_QUEUE, frames, lengths_bytes, internal=True))

    def _write_mark(
        self, mark: Mark, frames: bytes, layout: BatchLayout, offset: int, stored_ms: int
    ) -> Appended:
        queue = self._queues.find_or_create(LOG_TOPIC, LOG_QUEUE)
        anew = mark.anew if isinstance(mark, TopicChange) else ()
        appended = self._write(queue, frames, layout, offset, stored_ms, anew)
        self._epochs.note(offset, mark)
        return appended

    def _write(
        self,
        queue: ConsumeQueue,
        frames: bytes,
        layout: BatchLayout,
        offset: int,
        stored_ms: int,
        anew: tuple[str, ...] = (),
    ) -> Appended:
        stored, entries = stamp_batch(
            frames,
            layout,
            first_queue_offset=queue.next_offset,
            first_physical_offset=offset,
            store_timestamp_ms=stored_ms,
            store_host=self._store_host,
        )
        has_reader = self._found_keys.wanted
        keys = packed_keys(stored.tobytes(), offset) if has_reader else None
        self._log.write(offset, stored.data)
        self._note_written(offset, stored_ms, keys)
        if anew:
            self._undispatched.add(Renewal(offset, self._log.end, anew))
        kept = stored.tobytes() if len(stored) <= TAIL_BYTES_MAX else b""
        return self._listed(queue, entries, offset, stored_ms, kept)

    def _listed(
        self,
        queue: ConsumeQueue,
        entries: EntryArray,
        offset: int,
        stored_ms: int,
        kept: bytes,
        end: int | None = None,
    ) -> Appended:
        """A batch was written: its numbers are used up, and its entries are to be written.

        Not before the write: a refused one uses up no numbers. Between the two nothing may fail:
        the next batch would get the same ones.

        Args:
            offset: its physical offset.
            kept: its bytes, or none if they are too many.
            end: behind it; None: the log's end.
        """
        end = self._log.end if end is None else end
        first, count = queue.next_offset, len(entries)
        queue.next_offset = first + count
        self._undispatched.add(Undispatched(queue, first, entries, end, stored_ms, kept))
        return Appended(first, offset, end, count, stored_ms)

    def _note_written(self, offset: int, stored_ms: int, keys: PackedKeys | None) -> None:
        """Something with these keys was written at a physical offset, where the log ended."""
        if stored_ms < self._runs.newest_ms:
            self._points.lift_cap(offset)
        self._runs.note(offset, stored_ms)
        if keys is not None:
            self._found_keys.add(KeyStretch(offset, self._log.end, keys, stored_ms))
