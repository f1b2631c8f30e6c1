"""Appender: checks batches, assigns queue offsets, positions and store times, and writes them."""

from collections.abc import Sequence

from rockoon_broker.store.errors import BatchTooLarge
from rockoon_broker.store.log.batch import AppendBatch
from rockoon_broker.store.log.commit_log import CommitLog
from rockoon_broker.store.log.epochs import Epochs, Mark, Renewal
from rockoon_broker.store.log.found_keys import FoundKeys
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
    GivenBatch,
    GroupAppendRules,
    check_batch,
    encode_batch,
    stamp_batch,
    stamp_batches,
    with_checksums,
)
from rockoon_format.batch_checking import DELAYED_TOPICS
from rockoon_format.consume_queue import ENTRY_BYTES
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

# Maximum share of a file for the table of topics, which has about thirty bytes for each.
TABLE_SHARE_MAX = 0.25
# A record is copied in one message, whose maximum is 64 MiB.
TABLE_BYTES_MAX = 32 << 20
_DELAYED_TOPICS = frozenset(topic.decode() for topic in DELAYED_TOPICS)
_FLAGS_MADE_HERE = SYS_FLAGS_ALLOWED | TRANSACTION_COMMIT


@light_dataclass
class Appended:
    """Position of an appended batch."""

    first_queue_offset: int
    first_physical_offset: int
    end_offset: int
    """Physical offset after the batch. With `flush=async` and one copy the batch is committed when
    it is appended; otherwise when `Store.confirm` is called with this offset or a higher one."""
    count: int
    store_timestamp_ms: int


class Appender:
    """Appends batches to an open log; owned by the thread that owns the store.

    Args:
        settings: the store's settings.
        log, queues: open.
        runs: gets the time of each batch. If the clock was set back far enough, it decides that the
            next store time is earlier than the last.
        points: recovery points. Before store times decrease, a checkpoint with earlier times must
            be on the disk. A start trusts the checkpoint: if its times were later than the new
            records, the start would treat these records as durable.
        undispatched: gets the queue entries of each batch.
        epochs: gets each epoch mark, a record that lists the log's epochs. Each file of a
            replicated log starts with one.
        found_keys: gets the keys of each batch, if they are wanted.
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
        self._store_host = encode_host(*settings.store_host)
        self.use_limits(settings)
        self._log = log
        self._queues = queues
        self._runs = runs
        self._points = points
        self._undispatched = undispatched
        self._epochs = epochs
        self._found_keys = found_keys

    def use_limits(self, settings: StoreSettings) -> None:
        """Use the limits of records in other settings."""
        self._settings = settings
        self._record_limits = settings.record_limits
        self._group_rules = GroupAppendRules(
            **self._record_limits,
            sys_flags_allowed=SYS_FLAGS_ALLOWED,
            with_room=settings.record_checksums,
            store_host=self._store_host,
        )

    def append(self, batch: AppendBatch, now_ms: int) -> Appended:
        """Append a batch; see `Store.append`. The caller has checked that the store is writable."""
        frames, layout = self._checked(batch)
        queue = self._queues.find_or_create(*batch.queue)
        offset, stored_ms = self._position(layout.total_bytes, now_ms)
        return self._write(queue, frames, layout, offset, stored_ms)

    def append_group(self, batches: Sequence[AppendBatch], now_ms: int) -> list[Appended | None]:
        """Append batches by one write; see `Store.append_group`. The caller has checked that the
        store is writable."""
        results: list[Appended | None] = [None] * len(batches)
        given: list[GivenBatch] = []
        # The queue of each given batch, with the batch's index.
        queues: list[tuple[int, ConsumeQueue]] = []
        total, get = 0, self._queues.get
        for index, batch in enumerate(batches):
            topic, queue_id = batch.topic, batch.queue_id
            queue = get((topic, queue_id))
            # `append` creates a new queue, once its first batch is known to be valid.
            if queue is None or topic in _DELAYED_TOPICS:
                continue
            queues.append((index, queue))
            # `GivenBatch(...)` would be another Python call.
            fields = (batch.source, batch.lengths, topic, queue_id, queue.next_offset, batch.bounds)
            given.append(tuple.__new__(GivenBatch, fields))
            total += batch.frames_bytes
        # A group is written to one file. If a large group does not fit into the rest of the current
        # file, this rest stays blank. So batches of a large group are appended one by one.
        if not given or (len(given) > 1 and not fits(total, self._log.file_bytes // 2)):
            return results
        offset, stored_ms = self._position(total, now_ms)
        stored, entries_of, keys = stamp_batches(
            given,
            self._group_rules,
            with_keys=self._found_keys.wanted,
            first_physical_offset=offset,
            store_timestamp_ms=stored_ms,
        )
        if not stored:
            return results
        self._log.write(offset, stored)
        self._record_written(offset, stored_ms, keys)
        start, stored_bytes = offset, len(stored)
        for (index, queue), entries in zip(queues, entries_of, strict=True):
            if entries is None:
                continue
            size, kept = batches[index].frames_bytes, b""
            end = offset + size
            if size <= TAIL_BYTES_MAX:
                # A copy: a view would keep the whole group in memory.
                is_whole = size == stored_bytes
                kept = bytes(stored if is_whole else stored[offset - start : end - start])
            results[index] = self._add_entries(queue, entries, offset, stored_ms, kept, end)
            offset = end
        return results

    def open_epoch(self, epoch: int, leader: str, now_ms: int, topics: LogTopics) -> Appended:
        """Append the record that begins an epoch; see `Store.open_epoch`."""
        mark, body = self._numbered(self._epochs.next_mark(epoch, leader, self._log.end, topics))
        frames, layout = self._encoded(body, EPOCH_PROPERTIES, now_ms)
        offset, stored_ms = self._position(layout.total_bytes, now_ms, is_mark=True)
        return self._write_mark(mark, frames, layout, offset, stored_ms)

    def change_topics(self, change: TopicChange, now_ms: int) -> Appended:
        """Append a record that changes the topics of the log; see `Store.change_topics`."""
        known = self._epochs.mark()._replace(topics=self._epochs.topics.after(change))
        table_bytes = len(encode_epoch_mark(known))
        if table_bytes > self._table_bytes_max:
            # Each file starts with the table, which must leave room for messages.
            raise BatchTooLarge(
                f"a table of topics with {table_bytes} bytes is larger than"
                f" {self._table_bytes_max:.0f} bytes"
            )
        body = encode_topic_change(change)
        frames, layout = self._encoded(body, TOPIC_PROPERTIES, now_ms)
        offset, stored_ms = self._position(layout.total_bytes, now_ms)
        appended = self._write_mark(change, frames, layout, offset, stored_ms)
        for topic in change.restarted:
            self._queues.restart_numbering(topic)
        return appended

    def _checked(self, batch: AppendBatch) -> tuple[bytes, BatchLayout]:
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

    def _position(self, batch_bytes: int, now_ms: int, *, is_mark: bool = False) -> tuple[int, int]:
        """Return physical offset and store time of the next batch.

        If the batch begins a file of a replicated log, the epoch mark of this file is written
        first.
        """
        stored_ms, begins_run = now_ms, False
        if now_ms < self._runs.newest_ms:
            begins_run = self._runs.is_behind(now_ms) and self._points.is_capped(now_ms)
            stored_ms = now_ms if begins_run else self._runs.newest_ms
        offset = self._log.place(batch_bytes, in_next_file=begins_run)
        # Retention may delete all files except the last. Each file must contain the starts of the
        # epochs, because without them a follower would treat the log as a different one.
        if offset % self._log.file_bytes == 0 and self._epochs.epoch and not is_mark:
            mark, body = self._numbered(self._epochs.mark())
            frames, layout = self._encoded(body, EPOCH_PROPERTIES, now_ms)
            # Before the mark is written: a refused batch must not write one.
            if not fits(layout.total_bytes + batch_bytes, self._log.file_bytes):
                raise BatchTooLarge(
                    f"a batch of {batch_bytes} bytes does not fit into a file of"
                    f" {self._log.file_bytes} bytes with its mark"
                )
            self._write_mark(mark, frames, layout, offset, stored_ms)
            offset = self._log.end
        return offset, stored_ms

    def _numbered(self, mark: EpochMark) -> tuple[EpochMark, bytes]:
        """Return a mark with the next offsets of all queues, and its encoded body.

        If the body would be too large for a file, the offsets are left out. With a hundred thousand
        queues the body has a megabyte, so it is encoded only once.
        """
        numbered = mark._replace(numbers=numbers_of(self._queues))
        body = encode_epoch_mark(numbered)
        fits_in = len(body) <= self._table_bytes_max
        return (numbered, body) if fits_in else (mark, encode_epoch_mark(mark))

    @property
    def _table_bytes_max(self) -> float:
        return min(self._log.file_bytes * TABLE_SHARE_MAX, TABLE_BYTES_MAX)

    def _encoded(self, body: bytes, properties: bytes, now_ms: int) -> tuple[bytes, BatchLayout]:
        """Return a record of the log itself, checked."""
        frames, lengths = encode_batch(
            LOG_TOPIC.encode(),
            LOG_QUEUE,
            [body],
            [properties],
            now_ms,
            self._store_host,
        )
        lengths_bytes = lengths.astype("<u4").tobytes()
        return self._checked(
            AppendBatch(LOG_TOPIC, LOG_QUEUE, frames, lengths_bytes, internal=True)
        )

    def _write_mark(
        self, mark: Mark, frames: bytes, layout: BatchLayout, offset: int, stored_ms: int
    ) -> Appended:
        queue = self._queues.find_or_create(LOG_TOPIC, LOG_QUEUE)
        restarted = mark.restarted if isinstance(mark, TopicChange) else ()
        appended = self._write(queue, frames, layout, offset, stored_ms, restarted)
        self._epochs.add(offset, mark)
        return appended

    def _write(
        self,
        queue: ConsumeQueue,
        frames: bytes,
        layout: BatchLayout,
        offset: int,
        stored_ms: int,
        restarted: tuple[str, ...] = (),
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
        self._record_written(offset, stored_ms, keys)
        if restarted:
            self._undispatched.add(Renewal(offset, self._log.end, restarted))
        kept = stored.tobytes() if len(stored) <= TAIL_BYTES_MAX else b""
        return self._add_entries(queue, entries.tobytes(), offset, stored_ms, kept)

    def _add_entries(
        self,
        queue: ConsumeQueue,
        entries: bytes,
        offset: int,
        stored_ms: int,
        kept: bytes,
        end: int | None = None,
    ) -> Appended:
        """Advance the queue's next offset after the write of a batch, and queue its entries.

        Called after the write, because a refused batch uses no offsets. Nothing may fail in
        between: the next batch would get the same offsets.

        Args:
            queue: the queue of the batch.
            entries: its queue entries, encoded.
            offset: its physical offset.
            stored_ms: its store time.
            kept: its bytes for the tail cache; empty if they are too many.
            end: physical offset after it; None: the end of the log.
        """
        end = self._log.end if end is None else end
        first, count = queue.next_offset, len(entries) // ENTRY_BYTES
        queue.next_offset = first + count
        fields = (queue, first, entries, end, stored_ms, kept)
        # `Undispatched(...)` would be another Python call.
        self._undispatched.add(tuple.__new__(Undispatched, fields))
        return Appended(first, offset, end, count, stored_ms)

    def _record_written(self, offset: int, stored_ms: int, keys: PackedKeys | None) -> None:
        """Record time and keys of batches that were written at a physical offset."""
        if stored_ms < self._runs.newest_ms:
            self._points.lift_cap(offset)
        self._runs.add(offset, stored_ms)
        if keys is not None:
            self._found_keys.add(offset, self._log.end, keys, stored_ms)
