"""The storage engine of one broker: RocketMQ's store directory, owned by one thread.

The owner calls everything here from one thread and passes the time in. One other thread, the
Syncer, makes the slow calls; it tells the owner of a finished sync through `on_synced`, and the
owner answers with `confirm`. Nothing else crosses threads.

Invariants:
1. A message gets its queue offset and physical offset at `append`; a refused append uses neither.
2. A message is shown to readers, and listed in its ConsumeQueue, only when it is committed
   (RocketMQ's confirm offset): with one copy when a sync covers it, with `flush=async` at once;
   with several (`by_quorum`) when the owner says so. Nothing else shows it, a restart neither.
3. Entries are listed in the order of the log, and each second come into files. If they cannot,
   appends are refused, and `abort` stays.
4. After one failed sync the store refuses everything: what the disk holds is unknown from there.
5. Store times go back only where a CommitLog file begins (`TimeRuns`); searches rely on it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Self

from rockoon_broker.store.appender import Appended, Appender
from rockoon_broker.store.clock import SystemWallClock, WallClock
from rockoon_broker.store.compacted.compaction import Compaction
from rockoon_broker.store.compacted.reading import CompactedReader
from rockoon_broker.store.dues import Dues
from rockoon_broker.store.errors import (
    StoreBusy,
    StoreClosed,
    StoreFailed,
    StoreLocked,
    StoreNotWritable,
)
from rockoon_broker.store.log.batch import Batch
from rockoon_broker.store.log.found_keys import FoundKeys
from rockoon_broker.store.log.removals import DoomedDirectory
from rockoon_broker.store.log.syncer import finish_removals
from rockoon_broker.store.log.time_runs import TimeRuns
from rockoon_broker.store.opening import open_log
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_broker.store.queues.dispatch_queue import DispatchQueue
from rockoon_broker.store.queues.dropped_topics import DroppedTopics
from rockoon_broker.store.queues.repair import QueueRepair
from rockoon_broker.store.queues.tails import QueueTails
from rockoon_broker.store.raw_log import RawLog
from rockoon_broker.store.reading.reader import Reader
from rockoon_broker.store.reading.visible_store import VisibleStore
from rockoon_broker.store.recovery.checkpoint_files import AbortFile, read_checkpoint
from rockoon_broker.store.recovery.epochs_found import find_epochs
from rockoon_broker.store.recovery.recovery import LOG_DIRECTORY, QUEUES_DIRECTORY, Recoverer
from rockoon_broker.store.recovery.recovery_points import RecoveryPoints
from rockoon_broker.store.recovery.truncation import TruncationFile
from rockoon_broker.store.retention.cleaner import Cleaner
from rockoon_broker.store.retention.foreign_store import is_foreign, mark_foreign
from rockoon_broker.store.retention.retention import FileReading, RetentionDecision
from rockoon_broker.store.settings import Flush, StoreSettings
from rockoon_broker.store.stored_sizes import with_stored_sizes
from rockoon_broker.store.topic_deletion import TopicDeletion
from rockoon_core.directory_lock import DirectoryLock, DirectoryLocked
from rockoon_core.disk import Disk, Shortage
from rockoon_format.file_names import OFFSET_MAX
from rockoon_format.log_marks import NO_TOPICS, LogTopics, TopicChange

# How often the disk is looked at while it is under pressure, unless the setting says more often.
PRESSED_CHECK_MS_MAX = 5000
# Between two attempts to write a CommitLog that the disk refused.
PROBE_INTERVAL_MS = 1000


def _ignore(_: object) -> None:
    """For owners that poll `durable_end`, and meet StoreFailed at their next call."""


class Store(VisibleStore):
    """An open store directory. Make one with `Store.open`.

    Attributes:
        recovery: what the start found and did.
        points: what the next start will rely on.
        runs: over which parts of the log store times ascend.
        compaction: what is left of compacted topics, and what the log keeps for them.
        is_foreign: RocketMQ wrote the store's first files.
        found_keys: of what was appended lately.
        inline_bytes_max: so many bytes an append may sync by itself, and hold its caller up for
            it; `durable_end` tells whether it has.
        retain_from: physical offset from which on the log stays, whatever its age and the disk's
            fill. `by_quorum` everything, until the owner says otherwise: another copy that needed
            it would have to be made anew, and a follower's clock alone may be wrong.
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
        tails = QueueTails(settings.tails_bytes_max)
        log_reader = Reader(self._log, self._queues, self.runs, repair, settings, tails)
        self._reader = CompactedReader(log_reader, self.compaction)
        written = (self._queues, self._markers, self._syncer, disk)
        self.points = RecoveryPoints(self.recovery.lineage, read_checkpoint(root), *written)
        listed = self.recovery.dispatched_end
        self._committed_end = listed if by_quorum else self.recovery.log_end
        self._epochs = find_epochs(self._log, self._queues, self.recovery.own_records)
        self._undispatched = DispatchQueue(
            self._queues,
            self._log,
            self._dropped,
            settings.delay_levels_ms,
            listed,
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
        self._begin()

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

    def _make_writers(self) -> tuple[Appender, RawLog]:
        log, queues, settings = self._log, self._queues, self.settings
        rest = (self.runs, self.points, self._undispatched, self._epochs)
        raw = RawLog(log, queues, self._dropped, *rest, settings.delay_levels_ms)
        return Appender(settings, log, queues, *rest, self.found_keys), raw

    def _begin(self) -> None:
        self._undispatched.add_unread(self._log.end, self.recovery.renewals)
        # What recovery repaired becomes durable, and a clean stop's point stops being the last.
        self.points.write(
            self._undispatched.end, self._undispatched.store_timestamp_ms, clean=False
        )
        self._undispatched.dispatch(self._committed_end)
        self._undispatched.save()
        for aside in self._queues.left_aside():
            self._syncer.request_removal(DoomedDirectory(aside))
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
            settings: the layout and the limits.
            disk: the file layer; the real one by default.
            clock: for `open` and `close`; every other call gets the time as an argument.
            on_synced: called on the Syncer's thread with the physical offset up to which the log is
                durable. It must hand that to the owner's thread, which calls `confirm`.
            on_failed: called there, once, when a sync failed. The owner must end the process.
            on_loss: called by `open`, with the reason, before it cuts what may have been durable.
            by_quorum: the log has other copies, and the owner says by `confirm` what is committed;
                what a start finds behind the last recovery point is not, before that.

        Raises:
            StoreLocked: somebody else has it open.
            StoreLayoutError: the files do not fit the settings; nothing was changed.
            OSError: the disk.
        """
        disk = disk or Disk()
        disk.make_directory(settings.root)
        try:
            lock = DirectoryLock(settings.root)
        except DirectoryLocked as failure:
            raise StoreLocked(str(failure)) from None
        try:
            settings = with_stored_sizes(settings, disk)
            told = (on_synced, on_failed, on_loss)
            return cls(settings, disk, clock or SystemWallClock(), lock, *told, by_quorum)
        except BaseException:
            lock.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Writing.

    def append(self, batch: Batch, now_ms: int) -> Appended:
        """Store a batch of one queue.

        Args:
            batch: records that name its topic and queue; of its sequence numbers the owner has
                made sure.
            now_ms: epoch milliseconds; earlier than the last, that one's, unless a run ends.

        Returns:
            Where it went. It is not visible before `confirm` of its `end_offset`, but with
            `flush=async` and one copy, where it need not be durable.

        Raises:
            BatchError: the records are not what they should be.
            BatchTooLarge, UnstorableTopic: the batch can never be stored.
            StoreNotWritable: the disk is too full, or ConsumeQueues cannot be written. Records
                that the broker made are refused later than those of clients: they have a reserve.
            StoreBusy: too many bytes wait to be committed.
            AppendFailed: the disk refused.
            StoreFailed, StoreClosed: the store takes nothing any more.
        """
        self._check_room(for_client=not batch.internal)
        appended = self._appender.append(batch, now_ms)
        self._written()
        return appended

    def append_group(self, batches: Sequence[Batch], now_ms: int) -> list[Appended | None]:
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
        if for_client and cleaner.refusal_reason:
            raise StoreNotWritable(cleaner.refusal_reason)
        waiting_bytes = self._log.end - self._committed_end
        if waiting_bytes >= self.settings.unsynced_bytes_max:
            raise StoreBusy(f"{waiting_bytes} bytes wait for a sync, or for other copies")

    def open_epoch(
        self, epoch: int, leader: str, now_ms: int, topics: LogTopics = NO_TOPICS
    ) -> Appended:
        """Append the record that an epoch begins with; every CommitLog file begins with one then.

        Args:
            epoch: greater than any before.
            leader: id of the replica that leads it.
            now_ms: epoch milliseconds.
            topics: whose messages a log without epochs holds.

        A disk that is too full for clients' messages accepts it: without it, a log whose copies are
        all so full could not be read after an election.

        Raises: as `append`; ValueError if the log has a record of this epoch or of a later one.
        """
        self._check_queues()
        appended = self._appender.open_epoch(epoch, leader, now_ms, topics)
        self._written()
        return appended

    def change_topics(self, change: TopicChange, now_ms: int) -> Appended:
        """Append a record of whose messages the log holds from there on; the log has epochs.

        What is before it of topics that begin anew goes, as by `drop_topics`, when it is committed
        and durable here, before `visible_end` is behind it. Nothing may be appended to them before.

        Raises: as `append`.
        """
        self._check_writable()
        appended = self._appender.change_topics(change, now_ms)
        self._written()
        return appended

    def write_raw(self, offset: int, data: bytes) -> None:
        """Append what another copy of this log has there; see `RawLog.write`.

        Raises:
            ValueError: it does not go on where the log ends, or is damaged; nothing was written.
            StoreNotWritable, AppendFailed, StoreFailed, StoreClosed: as for `append`.
        """
        self._check_queues()
        self._raw.write(offset, data, self.full_reason)
        self._written()

    def _written(self) -> None:
        """What follows every write to the log."""
        if self.settings.flush is Flush.SYNC:
            request = self._log.sync_request(self._syncer.synced_end)
            self._syncer.request_sync(request, inline_bytes_max=self.inline_bytes_max)
        elif not self._by_quorum:
            self._committed_end = self._log.end
            self._undispatched.dispatch(self._log.end)
        self._log.reserve_ahead(self._syncer.request_file, self._cleaner.may_reserve)

    def confirm(self, end_offset: int) -> list[QueueKey]:
        """Take note that the log is committed up to a physical offset: it will never be cut there.

        Args:
            end_offset: with one copy what `on_synced` was called with; with several what a quorum
                of them has, which this one need not have synced. An older one is ignored.

        Returns:
            The queues whose max offset moved: readers that wait there can be woken.

        Raises: StoreFailed, StoreClosed.
        """
        self.check_usable()
        if end_offset > (known := self._log.end if self._by_quorum else self._syncer.synced_end):
            raise ValueError(f"{end_offset} cannot be committed, the store has {known}")
        self._committed_end = max(self._committed_end, end_offset)
        return self._undispatched.dispatch(self._committed_end)

    def drop_topics(self, *topics: str, below: int | None = None) -> None:
        """Delete topics' queues; their messages in the log are as if they had never been.

        Durable on return, by one write for all, although the Syncer deletes the files only then. A
        topic created again under the name starts at offset 0.

        Args:
            topics: with or without queues here.
            below: physical offset at which another copy did so, not before the end; None: the end.

        Raises:
            OSError: the disk; queues are still there. Call it again. StoreFailed, StoreClosed.
        """
        self.check_usable()
        self._deletion.drop(topics, self._log.end if below is None else below)

    def tick(self, now_ms: int) -> list[QueueKey]:
        """Do what is due. Call it several times a second, unless `idle_ms` says otherwise.

        Returns:
            Queues whose max offset moved because entries could be written that could not before.

        Raises: StoreFailed, StoreClosed.
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
        self.points.keep_below(self.runs.least_to_come_ms(now_ms))
        point_due = now_ms >= dues.point_ms or self._cleaner.has_swept or self.points.is_cap_new
        if point_due and not self._syncer.point_pending and self._undispatched.save():
            dues.point_ms = now_ms + settings.recovery_point_interval_ms
            # It syncs all of the log first: what is committed may not be durable here.
            sync = self._log.sync_request(self._syncer.synced_end)
            end, newest_ms = self._undispatched.end, self._undispatched.store_timestamp_ms
            self.points.request(sync, end, newest_ms, self._cleaner.take_swept())
        if now_ms >= dues.disk_check_ms:
            dues.disk_check_ms = now_ms + settings.disk_check_interval_ms
            self._cleaner.clean_if_possible(now_ms, self._recoverable_end, self.retain_from)
            self._expect_pass(now_ms)
        self.compaction.tick(now_ms, min(self._syncer.synced_end, self._undispatched.end))
        return advanced

    def clean(self, now_ms: int) -> RetentionDecision:
        """Look at the disk, delete what has to go, and decide whether appends are accepted.

        Args:
            now_ms: epoch milliseconds.

        Raises:
            OSError: the disk cannot be looked at.
        """
        self.check_usable()
        decision = self._cleaner.clean(now_ms, self._recoverable_end, self.retain_from)
        self._expect_pass(now_ms)
        return decision

    def clean_with(self, readings: Mapping[int, FileReading], now_ms: int) -> RetentionDecision:
        """As `clean`, with what consumer groups have not read of files.

        Args:
            readings: by the physical offset at which a file ends.
            now_ms: epoch milliseconds.
        """
        self._cleaner.readings = dict(readings)
        return self.clean(now_ms)

    def ask_groups(self) -> None:
        """From now on delete a file only when `clean_with` gives its unread messages."""
        self._cleaner.readings = {}

    def _expect_pass(self, now_ms: int) -> None:
        decision, dues = self._cleaner.last_decision, self._dues
        if self._cleaner.wants_pass:
            dues.disk_check_ms = now_ms
        elif decision is not None and decision.is_pressed:
            wait_ms = min(self.settings.disk_check_interval_ms, PRESSED_CHECK_MS_MAX)
            dues.disk_check_ms = min(dues.disk_check_ms, now_ms + wait_ms)

    @property
    def _recoverable_end(self) -> int:
        # A recovery point before the log's beginning would be of no use to the next start.
        return min(self._syncer.synced_end, self._markers.point_end)

    def set_compacted_topics(self, names: Collection[str]) -> None:
        """Say which topics are to be compacted; no generation is taken over before that."""
        self.compaction.set_topics(names)

    # Ending.

    def close(self) -> None:
        """Stop cleanly: sync, finish dispatch, say so on disk, let the next owner in.

        After a failure, or when queue entries or the recovery point cannot be written, `abort`
        stays and the next start recovers. Calling it again does nothing.

        Raises:
            StoreFailed: the last syncs failed; everything is released nevertheless.
        """
        if self._closed:
            return
        self._closed = True
        self._syncer.stop()
        try:
            if self._syncer.failure is None:
                self._finish()
        except OSError as error:
            raise StoreFailed(f"the store could not be closed cleanly: {error}") from error
        finally:
            self._release()

    def close_to_truncate(self, offset: int) -> None:
        """Close, and have the log end at a physical offset when it is opened next.

        Nothing is undone in memory: what was made of the log there goes with this object. What is
        cut is copied to `lost` by that `open`, durably, before it goes.

        Args:
            offset: where a record ends. A log without records takes any multiple of its files'
                size, and begins there.

        Raises:
            ValueError: no record ends there, it is behind the log's end, or below what is committed
                or kept; the store is open as before.
            StoreFailed, StoreClosed: nothing was decided.
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
        # What it keeps open it may need to sync.
        self._queues.close()
        try:
            end, newest_ms = self._undispatched.end, self._undispatched.store_timestamp_ms
            self.points.write(end, newest_ms, clean=True)
        except Shortage:
            return
        # The very last: without it the next start believes all this and reads nothing again.
        self._abort.remove()

    def _release(self) -> None:
        if (reserved := self._syncer.take_reserved()) is not None and reserved.fd is not None:
            self._disk.close(reserved.fd)
        self.compaction.close()
        self._log.close()
        self._queues.close()
        self._markers.close()
        self._lock.release()

    def probe_log(self) -> None:
        """Write to the CommitLog without a message; `write_failure` has the result."""
        self._log.probe()

    # Inside.

    def _check_writable(self) -> None:
        self._check_queues()
        if self.full_reason:
            raise StoreNotWritable(self.full_reason)

    def _check_queues(self) -> None:
        """Refuse even the log's own records if ConsumeQueues cannot be written."""
        if self._closed or self._syncer.failure is not None:
            self.check_usable()
        if self._undispatched.failure is not None:
            raise StoreNotWritable(self.not_writable_reason)

    def check_usable(self) -> None:
        """Raise StoreClosed or StoreFailed once the store takes nothing any more."""
        if self._closed:
            raise StoreClosed(f"{self.settings.root} is closed")
        if (failure := self._syncer.failure) is not None:
            raise StoreFailed(f"a sync of {self.settings.root} failed: {failure}") from failure
