"""Storage engine of one broker: RocketMQ's store directory, owned by one thread.

All calls are made from the owner's thread, with the time as an argument. The Syncer's thread runs
the slow calls. When a sync has finished, it calls `on_synced`, and the owner then calls `confirm`.
A small sync may run in the owner's thread (`inline_bytes_max`). Another thread verifies compacted
generations (`compacted/takeover.py`); `tick` fetches its results.
docs/understand/threads.md lists all threads.

Invariants:
1. A message gets its queue offset and physical offset at `append`; a refused append uses neither.
2. A message is listed in its ConsumeQueue and visible to readers only when it is committed
   (RocketMQ's confirm offset): with one copy after a sync, with `flush=async` immediately;
   with several copies (`by_quorum`) when the owner confirms it. This holds after a restart too.
3. Entries are listed in log order and written to files each second. If a write fails,
   appends are refused, and `abort` stays.
4. After one failed sync the store refuses all calls: the content of the disk is unknown.
5. Store times decrease only where a CommitLog file begins (`TimeRuns`); searches rely on it.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from rockoon_broker.store.appender import Appended, Appender
from rockoon_broker.store.clock import SystemWallClock, WallClock
from rockoon_broker.store.compacted.compaction import Compaction
from rockoon_broker.store.compacted.reading import CompactedReader
from rockoon_broker.store.errors import (
    AppendRefused,
    StoreBusy,
    StoreInUse,
    StoreSyncFailed,
)
from rockoon_broker.store.log.batch import AppendBatch
from rockoon_broker.store.log.commit_log import CommitLog
from rockoon_broker.store.log.directory import DoomedDirectory
from rockoon_broker.store.log.epochs import find_epochs
from rockoon_broker.store.log.found_keys import FoundKeys
from rockoon_broker.store.log.syncer import Syncer, finish_removals
from rockoon_broker.store.log.time_runs import TimeRuns
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_broker.store.queues.dispatch_queue import DispatchQueue
from rockoon_broker.store.queues.dropped_topics import DroppedTopics
from rockoon_broker.store.queues.queue_files import queue_directories
from rockoon_broker.store.queues.repair import QueueRepair
from rockoon_broker.store.queues.tails import QueueTailCache
from rockoon_broker.store.raw_log import RawLog
from rockoon_broker.store.reading.reader import Reader
from rockoon_broker.store.reading.visible_store import Dues, VisibleStore
from rockoon_broker.store.recovery.checkpoint_files import AbortFile, MarkerFiles, read_checkpoint
from rockoon_broker.store.recovery.cut import TruncationFile
from rockoon_broker.store.recovery.recovery import (
    LOG_DIRECTORY,
    QUEUES_DIRECTORY,
    Recoverer,
    Recovery,
)
from rockoon_broker.store.recovery.recovery_points import RecoveryPoints
from rockoon_broker.store.retention.cleaner import Cleaner
from rockoon_broker.store.retention.foreign_store import is_foreign, mark_foreign
from rockoon_broker.store.retention.retention import FileReading, RetentionDecision
from rockoon_broker.store.settings import Flush, StoreSettings
from rockoon_broker.store.topic_deletion import TopicDeletion
from rockoon_core.disk import DirectoryLock, DirectoryLocked, Disk, Shortage
from rockoon_format.consume_queue import ENTRY_BYTES
from rockoon_format.file_names import OFFSET_MAX
from rockoon_format.log_marks import NO_TOPICS, LogTopics, TopicChange

# Interval of disk checks under pressure, unless the setting is smaller.
PRESSED_CHECK_MS_MAX = 5000
# Interval of attempts to write to a CommitLog after the disk refused.
PROBE_INTERVAL_MS = 1000


def _ignore(_: object) -> None:
    """Default callback, for owners that poll `durable_end` and get StoreSyncFailed from the next
    call."""


class Store(VisibleStore):
    """An open store directory. Make one with `Store.open`.

    Attributes:
        recovery: result of the start.
        points: recovery points for the next start.
        runs: parts of the log over which store times ascend.
        compaction: generations of compacted topics, and the log range that they need.
        is_foreign: RocketMQ wrote the store's first files.
        found_keys: keys of recent appends.
        inline_bytes_max: maximum number of bytes that an append may sync inline, which blocks its
            caller; then `durable_end` includes the append.
        retain_from: retention deletes no bytes at or after this physical offset, whatever their age
            and the disk's fill. With `by_quorum` it is 0, which keeps all bytes, until the owner
            sets it: another copy may need the log, and a follower's clock alone may be wrong.
    """

    inline_bytes_max = 0

    def __init__(
        self,
        settings: StoreSettings,
        disk: Disk,
        clock: WallClock,
        lock: DirectoryLock,
        on_synced: Callable[[int], None],
        on_failed: Callable[[OSError], None],
        on_loss: Callable[[str], object],
        by_quorum: bool,
    ) -> None:
        self.settings = settings
        self._by_quorum = by_quorum
        self.retain_from = 0 if by_quorum else OFFSET_MAX
        self._disk = disk
        self._clock = clock
        self._lock = lock
        root = settings.root
        self._abort = AbortFile(root, disk)
        self._dropped = DroppedTopics(root, disk)
        self.is_foreign = is_foreign(root)
        self.compaction = Compaction(root, disk, self._dropped, by_quorum=by_quorum)
        self._queues = ConsumeQueues(
            root / QUEUES_DIRECTORY,
            settings.consume_queue_file_entries,
            settings.open_queue_files_max,
            disk,
        )
        found_by = (settings, disk, self._queues, self._dropped, self._abort, on_loss)
        self.recovery = Recoverer(*found_by, by_quorum=by_quorum).run()
        if self.is_foreign:
            mark_foreign(root, disk, clock.now_ms())
        self._markers, self._syncer, self._log = open_log(
            settings, disk, self.recovery, on_synced, on_failed
        )
        repair = QueueRepair(self._log, self._queues, self._dropped, disk, settings.delay_levels_ms)
        self.compaction.open(self._log, self._queues)
        self.runs = TimeRuns(self._log, disk, self.recovery.store_timestamp_ms)
        tails = QueueTailCache(settings.tails_bytes_max)
        log_reader = Reader(self._log, self._queues, self.runs, repair, settings, tails)
        self._reader = CompactedReader(log_reader, self.compaction)
        written = (self._queues, self._markers, self._syncer, disk)
        self.points = RecoveryPoints(self.recovery.lineage, read_checkpoint(root), *written)
        dispatched_end = self.recovery.dispatched_end
        self._committed_end = dispatched_end if by_quorum else self.recovery.log_end
        self._epochs = find_epochs(self._log, self._queues, self.recovery.own_records)
        self._undispatched = DispatchQueue(
            self._queues,
            self._log,
            self._dropped,
            settings.delay_levels_ms,
            dispatched_end,
            self.recovery.dispatched_ms,
            lambda renewal: self._deletion.renew(renewal),
            tails,
        )
        self.found_keys = FoundKeys()
        self._appender, self._raw = self._make_writers()
        self._closed = False
        self._cleaner = self._make_cleaner()
        forgetting = (self._undispatched, self._queues, self.compaction)
        files = (self._syncer, self._cleaner)
        self._deletion = TopicDeletion(self._dropped, self.points, *forgetting, *files)
        self._dues = Dues(settings, clock.now_ms())
        self._start()

    def _make_cleaner(self) -> Cleaner:
        return Cleaner(
            self.settings,
            self._disk,
            self._clock,
            self._log,
            self.runs,
            self._queues,
            self._dropped,
            self._syncer,
            self.compaction,
            by_quorum=self._by_quorum,
            keeps_all=self.is_foreign,
        )

    def use_settings(self, settings: StoreSettings, now_ms: int) -> None:
        """Use other rules of retention, limits and intervals. The layout and `flush` must be the
        same.

        The next tick checks the disk by the new rules, and deletes expired files. But if files
        expire earlier by the new rules, this check is `disk_check_delay_ms` later: until then, the
        broker copies pending delayed messages of these files to the end of the log.
        """
        if settings == self.settings:
            return
        self.settings = self._dues.settings = settings
        expires_earlier = self._cleaner.use_settings(settings, keeps_all=self.is_foreign)
        self._appender.use_limits(settings)
        if expires_earlier:
            self._dues.disk_check_ms = now_ms + settings.disk_check_delay_ms
        else:
            self._dues.disk_check_ms = min(self._dues.disk_check_ms, now_ms)

    def _make_writers(self) -> tuple[Appender, RawLog]:
        log, queues, settings = self._log, self._queues, self.settings
        rest = (self.runs, self.points, self._undispatched, self._epochs)
        raw = RawLog(log, queues, self._dropped, *rest, settings.delay_levels_ms)
        return Appender(settings, log, queues, *rest, self.found_keys), raw

    def _start(self) -> None:
        self._undispatched.add_unread(self._log.end, self.recovery.renewals)
        # Make repairs durable, and replace a clean stop's point by one of a running store.
        self.points.write(
            self._undispatched.end, self._undispatched.store_timestamp_ms, clean=False
        )
        self._undispatched.dispatch(self._committed_end)
        self._undispatched.save()
        for detached in self._queues.left_detached():
            self._syncer.request_removal(DoomedDirectory(detached))
        self._syncer.start()

    @classmethod
    def open(
        cls,
        settings: StoreSettings,
        *,
        disk: Disk | None = None,
        clock: WallClock | None = None,
        on_synced: Callable[[int], None] = _ignore,
        on_failed: Callable[[OSError], None] = _ignore,
        on_loss: Callable[[str], object] = _ignore,
        by_quorum: bool = False,
    ) -> Self:
        """Lock the directory, recover it, and start the Syncer.

        Args:
            disk: the file layer; the real one by default.
            clock: for `open` and `close`; all other calls get the time as an argument.
            on_synced: called on the Syncer's thread with the physical offset up to which the log is
                durable. It must pass that to the owner's thread, which calls `confirm`.
            on_failed: called on that thread, once, when a sync failed. The owner must end the
                process.
            on_loss: called by `open` with the reason, before it cuts records that may have been
                durable.
            by_quorum: the log has other copies, and the owner reports the committed end by
                `confirm`; until then, records after the last recovery point are uncommitted.

        Raises:
            StoreInUse: another process, or this one, has it open.
            StoreLayoutError: the files do not fit the settings; nothing was changed.
            OSError: the disk.
        """
        disk = disk or Disk()
        disk.make_directory(settings.root)
        try:
            lock = DirectoryLock(settings.root)
        except DirectoryLocked as failure:
            raise StoreInUse(str(failure)) from None
        try:
            settings = with_stored_sizes(settings, disk)
            return cls(
                settings,
                disk,
                clock or SystemWallClock(),
                lock,
                on_synced,
                on_failed,
                on_loss,
                by_quorum,
            )
        except BaseException:
            lock.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Writing.

    def append(self, batch: AppendBatch, now_ms: int) -> Appended:
        """Store a batch of one queue.

        Args:
            batch: records that contain its topic and queue. The store does not check sequence
                numbers; the caller has checked them.
            now_ms: store time, epoch milliseconds. If it is earlier than the last store time, the
                last store time is used, unless a new run of store times begins (`TimeRuns`).

        Returns:
            Offsets of the batch. Readers see it after `confirm` of its `end_offset`; with
            `flush=async` and one copy they see it immediately, before it is durable.

        Raises:
            BatchError: a record is invalid, or exceeds a limit.
            BatchTooLarge, UnstorableTopic: the batch can never be stored.
            AppendRefused: the disk is too full, or ConsumeQueues cannot be written. Records
                that the broker made have a reserve: they are accepted even if the disk is too full
                for records of clients.
            StoreBusy: too many bytes wait to be committed.
            AppendFailed: the disk refused.
            StoreSyncFailed, StoreClosed: the store accepts no calls any more.
        """
        self._check_room(for_client=not batch.internal)
        appended = self._appender.append(batch, now_ms)
        self._written()
        return appended

    def append_group(self, batches: Sequence[AppendBatch], now_ms: int) -> list[Appended | None]:
        """Store batches of clients by one write.

        Returns:
            One result per batch. None: not written; call `append`, which raises the reason.

        Raises: as `append`, for all of them.
        """
        self._check_room(for_client=True)
        appended = self._appender.append_group(batches, now_ms)
        if any(appended):
            self._written()
        return appended

    def _check_room(self, *, for_client: bool) -> None:
        cleaner, syncer = self._cleaner, self._syncer
        if self._closed or syncer.failure or self._undispatched.failure or cleaner.full_reason:
            self._check_writable()
        if for_client and (cleaner.refusal_reason or self.closed_reason):
            raise AppendRefused(cleaner.refusal_reason or self.closed_reason)
        waiting_bytes = self._log.end - self._committed_end
        if waiting_bytes >= self.settings.unsynced_bytes_max:
            raise StoreBusy(f"{waiting_bytes} bytes wait for a sync, or for other copies")

    def open_epoch(
        self, epoch: int, leader: str, now_ms: int, topics: LogTopics = NO_TOPICS
    ) -> Appended:
        """Append the record that begins an epoch; from then on every CommitLog file begins with
        one.

        Args:
            epoch: greater than all earlier ones.
            leader: id of the replica that leads the epoch.
            now_ms: epoch milliseconds.
            topics: topics with messages in a log without epochs.

        A disk that is too full for clients' messages accepts it. Otherwise a log whose copies are
        all full could not be read after an election.

        Raises: as `append`; ValueError if the log has a record of this epoch or of a later one.
        """
        self._check_queues()
        appended = self._appender.open_epoch(epoch, leader, now_ms, topics)
        self._written()
        return appended

    def change_topics(self, change: TopicChange, now_ms: int) -> Appended:
        """Append a record that changes the topics of the log; the log has epochs.

        If a topic restarts, its earlier messages are deleted as by `drop_topics` when the record is
        committed and durable here, before `visible_end` passes it. Nothing may be appended to the
        topic before.

        Raises: as `append`.
        """
        self._check_writable()
        appended = self._appender.change_topics(change, now_ms)
        self._written()
        return appended

    def write_raw(self, offset: int, data: bytes) -> None:
        """Append bytes of another copy of this log; see `RawLog.write`.

        Raises:
            ValueError: the bytes do not continue the log, or are damaged; nothing was written.
            AppendRefused, AppendFailed, StoreSyncFailed, StoreClosed: as for `append`.
        """
        self._check_queues()
        self._raw.write(offset, data, self.full_reason)
        self._written()

    def _written(self) -> None:
        """Sync or commit after a write to the log, and reserve the next file."""
        if self.settings.flush is Flush.SYNC:
            request = self._log.sync_request(self._syncer.synced_end)
            self._syncer.request_sync(request, inline_bytes_max=self.inline_bytes_max)
        elif not self._by_quorum:
            self._committed_end = self._log.end
            self._undispatched.dispatch(self._log.end)
        if self._log.wants_file():
            self._log.reserve_ahead(self._syncer.request_file, self._cleaner.may_reserve)

    def confirm(self, end_offset: int) -> list[QueueKey]:
        """Mark the log as committed up to a physical offset; it is never cut below it.

        Args:
            end_offset: with one copy the argument of `on_synced`; with several the offset that a
                quorum has, which this copy need not have synced. A smaller one is ignored.

        Returns:
            The queues whose max offset moved, so that waiting readers can be woken.

        Raises: StoreSyncFailed, StoreClosed.
        """
        self.check_usable()
        if end_offset > (known := self._log.end if self._by_quorum else self._syncer.synced_end):
            raise ValueError(f"{end_offset} cannot be committed, the store has {known}")
        self._committed_end = max(self._committed_end, end_offset)
        return self._undispatched.dispatch(self._committed_end)

    def drop_topics(self, *topics: str, below: int | None = None) -> None:
        """Delete topics' queues; their messages in the log are ignored from now on.

        Durable on return, by one write for all topics; the Syncer deletes the files later. A
        topic that is recreated under the name starts at offset 0.

        Args:
            topics: with or without queues here.
            below: earlier messages of the topics are ignored: the physical offset of the deletion
                on another copy, at least the end of this log; None: the end of this log.

        Raises:
            OSError: the disk; queues still exist. Call it again. StoreSyncFailed, StoreClosed.
        """
        self.check_usable()
        self._deletion.drop(topics, self._log.end if below is None else below)

    def tick(self, now_ms: int) -> list[QueueKey]:
        """Do all due work. Call it several times a second, unless `idle_ms` allows a longer pause.

        Returns:
            Queues whose max offset moved because a failed write of entries has succeeded.

        Raises: StoreSyncFailed, StoreClosed.
        """
        self.check_usable()
        advanced = self._undispatched.tick(self._committed_end)
        settings, dues = self.settings, self._dues
        dues.correct_for(now_ms)
        if settings.flush is Flush.ASYNC and now_ms >= dues.sync_ms:
            dues.sync_ms = now_ms + settings.flush_interval_ms
            if self._log.end > self._syncer.synced_end:
                self._syncer.request_sync(self._log.sync_request(self._syncer.synced_end))
        if self._log.failure is not None and now_ms >= dues.probe_ms:
            dues.probe_ms = now_ms + PROBE_INTERVAL_MS
            self.probe_log()
        self._cleaner.sweep()
        dues.save(now_ms, self._undispatched.save)
        self.points.keep_below(self.runs.future_min_ms(now_ms))
        end, newest_ms = self._undispatched.end, self._undispatched.store_timestamp_ms
        is_due = dues.is_point_due(now_ms, end - self._markers.point_end, end)
        is_due = is_due or self._cleaner.has_swept or self.points.is_cap_new
        if is_due and not self._syncer.point_pending and self._undispatched.save():
            dues.point_requested(now_ms)
            # It syncs the whole log first, because committed records may not be durable here.
            sync = self._log.sync_request(self._syncer.synced_end)
            self.points.request(sync, end, newest_ms, self._cleaner.pop_swept())
        if now_ms >= dues.disk_check_ms:
            dues.disk_check_ms = now_ms + settings.disk_check_interval_ms
            self._cleaner.clean_if_possible(now_ms, self._recoverable_end, self.retain_from)
            self._schedule_disk_check(now_ms)
        self.compaction.tick(now_ms, min(self._syncer.synced_end, self._undispatched.end))
        return advanced

    def clean(self, now_ms: int) -> RetentionDecision:
        """Read the disk's fill, delete due files, and decide whether appends are accepted.

        Args:
            now_ms: epoch milliseconds.

        Raises:
            OSError: the disk's fill cannot be read.
        """
        self.check_usable()
        decision = self._cleaner.clean(now_ms, self._recoverable_end, self.retain_from)
        self._schedule_disk_check(now_ms)
        return decision

    def clean_with(self, readings: Mapping[int, FileReading], now_ms: int) -> RetentionDecision:
        """Like `clean`, with unread messages of consumer groups.

        Args:
            readings: unread messages by the end offset of a file.
            now_ms: epoch milliseconds.
        """
        self._cleaner.readings = dict(readings)
        return self.clean(now_ms)

    def require_readings(self) -> None:
        """From now on delete a file only when `clean_with` provides its unread messages."""
        self._cleaner.readings = {}

    def _schedule_disk_check(self, now_ms: int) -> None:
        """Advance the next disk check if the last one found work or a disk that is nearly full."""
        decision, dues = self._cleaner.last_decision, self._dues
        if self._cleaner.wants_pass:
            dues.disk_check_ms = now_ms
        elif decision is not None and decision.is_pressed:
            wait_ms = min(self.settings.disk_check_interval_ms, PRESSED_CHECK_MS_MAX)
            dues.disk_check_ms = min(dues.disk_check_ms, now_ms + wait_ms)

    @property
    def _recoverable_end(self) -> int:
        # The next start cannot use a recovery point before the log's beginning.
        return min(self._syncer.synced_end, self._markers.point_end)

    def set_compacted_topics(self, names: Collection[str]) -> None:
        """Set the compacted topics; no generation is adopted before this call."""
        self.compaction.set_topics(names)

    # Ending.

    def restore_queue_ends(self, ends: Mapping[str, Mapping[int, int]]) -> None:
        """Set the next offset of queues whose messages were all deleted, from a backup.

        Args:
            ends: topic → queue id → offset after the last message.

        Raises:
            OSError: the disk.
        """
        log_min = self._log.min_offset
        for topic, queues in ends.items():
            for queue_id, end in queues.items():
                queue = self._queues.find_or_create(topic, queue_id)
                if queue.max_offset == 0 or self._queues.is_all_below(queue, log_min):
                    self._queues.skip_to(queue, end, max(log_min, 1))

    def close(self) -> None:
        """Stop cleanly: sync, finish dispatch, remove `abort`, and release the directory.

        After a failure, or if queue entries or the recovery point cannot be written, `abort`
        stays and the next start recovers. A second call has no effect.

        Raises:
            StoreSyncFailed: the last syncs failed; all resources are released.
        """
        if self._closed:
            return
        self._closed = True
        self._syncer.stop()
        try:
            if self._syncer.failure is None:
                self._finish()
        except OSError as error:
            raise StoreSyncFailed(f"the store could not be closed cleanly: {error}") from error
        finally:
            self._release()

    def close_to_truncate(self, offset: int) -> None:
        """Close, and cut the log at a physical offset when it is opened next.

        State in memory is not corrected, as this object is discarded. The next `open` durably
        copies the removed bytes to `lost` before it cuts them.

        Args:
            offset: where a record ends. In a log without records, any multiple of the file
                size, at which it then begins.

        Raises:
            ValueError: no record ends there, or it is after the log's end or below the committed
                or kept range; the store stays open.
            StoreSyncFailed, StoreClosed: nothing was decided.
            OSError: the disk; nothing was decided, and the store is closed.
        """
        self.check_usable()
        self._raw.check_end(offset, self._committed_end)
        self.close()
        TruncationFile(self.settings.root, self._disk).write(offset)

    def _finish(self) -> None:
        finish_removals(self._syncer, self._disk)
        self._log.erase_refused()
        for fd in self._log.sync_request(self._syncer.synced_end).fds:
            self._disk.fdatasync(fd)
        self._deletion.synced(self._log.end)
        if not self._by_quorum:
            self._committed_end = self._log.end
        self._undispatched.dispatch(self._committed_end)
        if self._undispatched.is_behind(self._committed_end) or not self._undispatched.save():
            return
        self._disk.sync_directory(self.settings.root / LOG_DIRECTORY)
        # Closed before the point is written, because open queue files may need a sync.
        self._queues.close()
        try:
            end, newest_ms = self._undispatched.end, self._undispatched.store_timestamp_ms
            self.points.write(end, newest_ms, clean=True)
        except Shortage:
            return
        # Last: without `abort` the next start trusts everything above and scans nothing.
        self._abort.remove()

    def _release(self) -> None:
        if (reserved := self._syncer.pop_reserved()) is not None and reserved.fd is not None:
            self._disk.close(reserved.fd)
        self.compaction.close()
        self._log.close()
        self._queues.close()
        self._markers.close()
        self._lock.release()

    def probe_log(self) -> None:
        """Retry a write to the CommitLog without a message; `write_failure` has the result."""
        self._log.probe()

    # Checks.

    def _check_writable(self) -> None:
        self._check_queues()
        if self.full_reason:
            raise AppendRefused(self.full_reason)

    def _check_queues(self) -> None:
        """Refuse even the log's own records if queue entries cannot be written."""
        if self._closed or self._syncer.failure is not None:
            self.check_usable()
        if self._undispatched.failure is not None:
            raise AppendRefused(self.not_writable_reason)


def open_log(
    settings: StoreSettings,
    disk: Disk,
    recovery: Recovery,
    on_synced: Callable[[int], None],
    on_failed: Callable[[OSError], None],
) -> tuple[MarkerFiles, Syncer, CommitLog]:
    """Return the marker files, the Syncer (not started), and the open log. Raises OSError."""
    root, directory = settings.root, settings.root / LOG_DIRECTORY
    file_bytes = settings.commit_log_file_bytes
    disk.make_directory(directory)
    markers = MarkerFiles(root, disk)
    syncer = Syncer(
        disk,
        markers,
        file_bytes,
        synced_end=recovery.log_end,
        on_synced=on_synced,
        on_failed=on_failed,
    )
    log = CommitLog(
        directory,
        file_bytes,
        disk,
        starts=list(recovery.starts),
        end=recovery.log_end,
        claim_reserved=syncer.claim_file,
        zeroes_ahead=settings.flush is Flush.SYNC,
    )
    return markers, syncer, log


log = logging.getLogger(__name__)


def with_stored_sizes(settings: StoreSettings, disk: Disk) -> StoreSettings:
    """Return the settings with the file sizes of an existing store.

    Only unambiguous sizes are used: of two files or more, all equal except the last log file,
    whose creation may have been interrupted. The start checks all other cases.

    Raises:
        OSError: the disk.
    """
    log_bytes = _size_of(_files(settings.root / LOG_DIRECTORY)[:-1], disk)
    queues = settings.root / QUEUES_DIRECTORY
    queue_files = [path for each in queue_directories(queues) for path in _files(each)]
    queue_bytes = _size_of(queue_files, disk) if len(queue_files) > 1 else 0
    if log_bytes:
        settings = _changed(settings, "commit_log_file_bytes", log_bytes)
    if queue_bytes and queue_bytes % ENTRY_BYTES == 0:
        settings = _changed(settings, "consume_queue_file_entries", queue_bytes // ENTRY_BYTES)
    return settings


def _files(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if not path.is_dir())


def _size_of(files: list[Path], disk: Disk) -> int:
    """Return the common size of all files; 0 if there are none or sizes differ."""
    sizes = Counter(disk.facts(path).bytes for path in files)
    return next(iter(sizes)) if len(sizes) == 1 else 0


def _changed(settings: StoreSettings, name: str, value: int) -> StoreSettings:
    configured = getattr(settings, name)
    if configured == value:
        return settings
    try:
        changed = replace(settings, **{name: value})  # type: ignore[arg-type]
    except ValueError:
        # Neither Rockoon nor RocketMQ creates files of this size; the start reports them.
        return settings
    log.warning(
        "%s is %s in this store and cannot change: the setting, %s, applies to new stores",
        name,
        value,
        configured,
    )
    return changed
