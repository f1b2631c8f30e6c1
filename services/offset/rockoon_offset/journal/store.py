"""`ProgressStore` of an offset service with one copy: a ledger, its journal, and its directory.

    store directory/
        lock              held by the one process that may write here
        store_id          created once; identifies a restarted service to the nameservers
        cluster_id        cluster that progress belongs to
        journal/          the durable records, see journal_files.py
        acknowledged      position up to which the journal was synced
        config/<broker>/consumerOffset.json    an export in RocketMQ's format, never read

The store is the leader of a journal without followers: records are committed as soon as they are
synced. It needs no election, and no nameserver.

The ledger changes in memory, and the records are queued without an await in between, so the journal
has the order of the changes. A reply to a change, or with offsets, waits until all records queued
before it are on disk. So a crash never undoes a change or an offset that a reply has reported.
Lists of members and owners, and replies to heartbeats that change nothing, do not wait.

Records that arrive during a sync share the next write and its sync, so the number of syncs does not
grow with the number of concurrent changes.

A failed sync, or a write that failed for another reason than a full disk, ends the store: the
contents of the disk are then unknown, and a retry does not help (the kernel may have dropped the
pages and report success for the next sync). The owner must end the process. The next start drops
cached pages, reads the journal from the disk, and writes and syncs its valid frames again.

A full disk does not end the store. The first write without room deletes the reserve file, so that
accepted changes can be stored. Changes are refused until the reserve can be allocated again. If the
reserve is too small as well, the store keeps accepted changes and writes them when the disk has
room; their callers get StoreNotWritable. A new file that finds no room is retried later.
"""

import asyncio
import errno
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

from rockoon_core.disk import DirectoryLock, DirectoryLocked, Disk, Shortage
from rockoon_core.errors import (
    Busy,
    RockoonError,
    StoreFailed,
    StoreLocked,
    StoreNotWritable,
)
from rockoon_node.store_directory import StoreCluster, keep_private, read_or_make_store_id
from rockoon_offset.journal import frames
from rockoon_offset.journal.journal_log import JournalLog, not_stored
from rockoon_offset.progress.ledger import Ledger
from rockoon_offset.progress.progress_store import JournalCounts
from rockoon_offset.progress.records import Record
from rockoon_replica.log import LogFull
from rockoon_replica.replica_file import AcknowledgedEnd

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
WAITING_BYTES_MAX = 64 << 20
# Beyond any position: no follower needs a file.
NO_FOLLOWER = 1 << 62


class JournalStore:
    """A locked, recovered store. Use from one event loop; `close` it.

    Args:
        root: the directory; created if missing.
        on_failed: called when the disk failed; the process must then end.
        journal_bytes_max: see JournalLog.
        epoch: first epoch in which this store is the only copy; 0 if the journal always had one
            copy.

    Raises:
        StoreLocked: another process has locked the directory.
        StoreCorrupt: see JournalLog.
        OSError: the disk failed.
    """

    def __init__(
        self,
        root: Path,
        on_failed: Callable[[StoreFailed], None],
        *,
        disk: Disk | None = None,
        journal_bytes_max: int = 64 << 20,
        epoch: int = 0,
    ) -> None:
        disk = disk or Disk()
        self.root = root
        self.changes = 0
        self._loop = asyncio.get_running_loop()
        self._on_failed = on_failed
        # (number of changes, waiting future), ascending.
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        # Encoded records for the next write, and parts of the running write, each for one frame.
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._parts: deque[Sequence[bytes]] = deque()
        # Number of changes up to the end of the running write, and number of durable changes.
        self._writing = self._synced = 0
        # True while a part of a new file's state is not written yet.
        self._is_writing_state = False
        self._is_scheduled = False
        self._is_syncing = False
        # Syncs for the journal thread, and their results. A thread pool costs more for each commit.
        self._syncs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._results: SimpleQueue[OSError | None] = SimpleQueue()
        self._retry: asyncio.TimerHandle | None = None
        # Error for callers while changes cannot be written.
        self._refusal: StoreNotWritable | None = None
        self._is_short = False
        self._is_closing = self._is_closed = False
        self._failure: StoreFailed | None = None
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._lock = DirectoryLock(root)
        except DirectoryLocked:
            raise StoreLocked(path=root) from None
        with suppress(OSError):
            keep_private(root)
        try:
            replace = disk.replace_file
            self.store_id = read_or_make_store_id(root / "store_id", replace)
            self.cluster = StoreCluster(root / "cluster_id", replace)
            self._acknowledged = AcknowledgedEnd(root, disk)
            self._open(root / "journal", disk, journal_bytes_max, epoch)
        except BaseException:
            self._lock.release()
            raise
        self._thread = threading.Thread(target=self._run_syncs, name="journal", daemon=True)
        self._thread.start()
        self._report_room()

    def _open(self, directory: Path, disk: Disk, bytes_max: int, epoch: int) -> None:
        for changed in disk.make_directory(directory):
            disk.sync_directory(changed)
        self._journal = journal = JournalLog(
            directory,
            self.store_id,
            failed=lambda failure: self._fail(failure.strerror or str(failure)),
            lost=None,
            synced=self._acknowledged.end,
            disk=disk,
            bytes_max=bytes_max,
        )
        try:
            journal.retain_from = NO_FOLLOWER
            journal.commit(journal.end)
            boundaries = journal.boundaries()
            if not boundaries or boundaries[-1].epoch < epoch:
                journal.open_epoch(epoch)
                journal.sync_nowait()
                journal.commit(journal.end)
            self._acknowledged.raise_to(journal.end)
        except LogFull as failure:
            journal.close()
            raise OSError(errno.ENOSPC, str(failure)) from failure
        except BaseException:
            journal.close()
            raise

    @property
    def ledger(self) -> Ledger:
        return self._journal.ledger

    @property
    def is_stalled(self) -> bool:
        return self._refusal is not None

    def raise_level(self, level: int) -> None:
        self._journal.raise_level(level)

    def journal_counts(self) -> JournalCounts:
        return self._journal.counts()

    def require_writable(self) -> None:
        """Raise Busy, StoreNotWritable or StoreFailed if no change may be made now."""
        if (refusal := self._failure or self._refusal) is not None:
            raise refusal
        if self._waiting_bytes > WAITING_BYTES_MAX:
            raise Busy(reason=f"{self._waiting_bytes} bytes of progress wait for the disk")
        self._journal.require_writable()

    def write(self, records: list[Record]) -> None:
        if not records:
            return
        encoded = self._journal.encoded(records)
        self._waiting += encoded
        self._waiting_bytes += sum(map(len, encoded))
        self.changes += 1
        if not self._is_scheduled and not self._is_syncing:
            # All changes of this loop iteration share one write.
            self._is_scheduled = True
            self._loop.call_soon(self._write_waiting)

    async def durable(self) -> None:
        """Wait until all queued changes are durable. Raises StoreNotWritable, StoreFailed."""
        if self._failure is not None:
            raise self._failure
        # All records, not only the caller's: the reply may depend on changes of other callers, and
        # a crash must not undo them after the reply.
        wanted = self.changes
        if self._synced >= wanted:
            return
        if self._refusal is not None:
            raise self._refusal
        future = self._loop.create_future()
        self._waiters.append((wanted, future))
        await future

    async def wait_leadership_confirmed(self) -> None:
        """Do nothing: this process always leads, because the journal has one copy. See
        `ProgressStore`."""

    def close(self) -> None:
        """Write waiting records, and unlock the directory; also after the end of the event loop.
        Raises StoreFailed.

        On a full disk, changes without room and all later changes are dropped. They were not
        acknowledged.
        """
        self._is_closing = True
        if self._loop.is_closed():
            # Its tasks cannot be resumed.
            self._waiters.clear()
        try:
            while self._failure is None and (self._is_syncing or self._waiting or self._parts):
                if self._is_syncing:
                    self._sync_done()
                    continue
                self._write_waiting()
                if self._refusal is not None:
                    log.error(
                        "dropped changes of progress that were not acknowledged: %s", self._refusal
                    )
                    break
            if self._failure is None:
                # After a power cut the next start then knows that the newest changes were synced,
                # and does not cut them as an unfinished write.
                with suppress(OSError):
                    self._acknowledged.sync()
        finally:
            self._is_closed = True
            self._syncs.put(None)
            self._thread.join()
            if self._retry is not None:
                self._retry.cancel()
            self._acknowledged.close()
            self._journal.close()
            self._lock.release()
        if self._failure is not None:
            raise self._failure

    # Writing.

    def _write_waiting(self) -> None:
        """Write all waiting records, and the next part of a new file's state; sync them."""
        self._is_scheduled = False
        if self._is_syncing or self._failure is not None or self._is_closed:
            return
        if self._waiting:
            self._parts.extend(frames.parts(self._waiting))
            self._waiting, self._waiting_bytes, self._writing = [], 0, self.changes
        journal = self._journal
        try:
            while self._parts:
                journal.append(self._parts[0])
                self._parts.popleft()
            if not self._is_closing:
                if not self._is_writing_state and journal.wants_generation:
                    # Now: the journal has all changes of the ledger, so the state may follow.
                    journal.start_generation()
                self._is_writing_state = journal.append_state()
        except LogFull:
            self._hold(not_stored(journal.shortage))
            return
        except OSError:
            # The journal has called `failed`.
            return
        sync, self._record_sync = journal.begin_sync()
        self._is_syncing = True
        self._syncs.put(sync)

    def _run_syncs(self) -> None:
        """Sync files in the journal thread until `close`."""
        while (sync := self._syncs.get()) is not None:
            failure = None
            try:
                sync()
            except OSError as error:
                failure = error
            self._results.put(failure)
            # If the loop is closed, `close` reads the result.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._sync_done)

    def _sync_done(self) -> None:
        """Process the result of the running sync; wait for it if it has not ended."""
        if not self._is_syncing or self._is_closed:
            # `close` has processed it.
            return
        failure = self._results.get()
        self._is_syncing = False
        journal = self._journal
        try:
            if failure is not None:
                raise failure
            self._record_sync()
            # Before callers are notified: if the frame is damaged later, the next start must
            # report it, and must not cut it as an unfinished write.
            self._acknowledged.raise_to(journal.durable_end)
            journal.commit(journal.durable_end)
        except Shortage as failure:
            # The directory was not synced, for lack of a descriptor.
            self._hold(not_stored(str(failure)))
            return
        except OSError as failure:
            self._fail(failure.strerror or str(failure))
            return
        self._synced, self._refusal = self._writing, None
        while self._waiters and self._waiters[0][0] <= self._synced:
            _, future = self._waiters.popleft()
            if not future.done():
                future.set_result(None)
        if journal.shortage or self._is_short:
            self._report_room()
        if (self._waiting or self._is_writing_state) and not self._is_closing:
            self._write_waiting()

    def _hold(self, refusal: StoreNotWritable) -> None:
        """Refuse waiting callers, and try to write again later."""
        self._refusal = refusal
        self._refuse_waiters(refusal)
        self._report_room()

    def _report_room(self) -> None:
        """Log when changes are refused for lack of room; check again until there is room."""
        shortage = self._journal.shortage
        if bool(shortage) != self._is_short:
            self._is_short = bool(shortage)
            if shortage:
                log.error("progress is not stored until there is room: %s", shortage)
            else:
                log.warning("progress is stored again: %s has room", self.root)
        if (shortage or self._refusal) and self._retry is None and not self._is_closing:
            self._retry = self._loop.call_later(RETRY_SECONDS, self._check_room)

    def _check_room(self) -> None:
        self._retry = None
        if self._refusal is not None:
            self._write_waiting()
        else:
            self._journal.check_writes()
        self._report_room()

    def _fail(self, reason: str) -> None:
        if self._failure is None:
            self._failure = StoreFailed(reason=f"{reason} on {self.root}")
            self._refuse_waiters(self._failure)
            self._on_failed(self._failure)

    def _refuse_waiters(self, refusal: RockoonError) -> None:
        for _, future in self._waiters:
            if not future.done():
                future.set_exception(refusal)
        self._waiters.clear()
