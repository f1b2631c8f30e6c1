"""`ProgressStore` on a single-copy journal: a ledger, its journal, and its directory.

    store directory/
        lock              held by the one process that may write here
        store_id          created once; identifies a restarted service to the nameservers
        cluster_id        cluster that progress belongs to
        journal/          the durable records, see journal.py
        config/<broker>/consumerOffset.json    an export in RocketMQ's format, never read

The event loop's thread changes the ledger in memory and queues the records without an await in
between, so the journal has the order of the changes. Every reply, also one without a change, waits
until all records queued before it are on disk. So a crash never undoes a state that a reply has
reported.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from rockoon_core.disk import DirectoryLock, DirectoryLocked, Disk
from rockoon_core.errors import (
    RockoonError,
    StoreCorrupt,
    StoreFailed,
    StoreLocked,
    StoreNotWritable,
)
from rockoon_node.store_directory import StoreCluster, keep_private, read_or_make_store_id
from rockoon_offset.journal.journal import Journal, JournalCounts
from rockoon_offset.progress.ledger import Ledger
from rockoon_offset.progress.records import Record, decode, encode

log = logging.getLogger(__name__)


class JournalStore:
    """A locked, recovered store. Use from one event loop; `close` it.

    Args:
        root: the directory; created if missing.
        on_failed: called in the loop's thread when the disk failed; the process must then end.
        journal_bytes_max: see Journal.

    Raises:
        StoreLocked: another process has locked the directory.
        StoreCorrupt: see Journal.
    """

    def __init__(
        self,
        root: Path,
        on_failed: Callable[[StoreFailed], None],
        *,
        disk: Disk | None = None,
        journal_bytes_max: int = 64 << 20,
    ) -> None:
        disk = disk or Disk()
        self.root = root
        self._loop = asyncio.get_running_loop()
        self._on_failed = on_failed
        # Loop thread only: (batch to wait for, waiting future), ascending.
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._synced = 0
        self._failure: StoreFailed | None = None
        # Error for waiting callers while queued records cannot be written.
        self._held: StoreNotWritable | None = None
        self.ledger = Ledger()
        directory = root / "journal"
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        try:
            self._lock = DirectoryLock(root)
        except DirectoryLocked:
            raise StoreLocked(path=root) from None
        with contextlib.suppress(OSError):
            keep_private(root)
        try:
            replace = disk.replace_file
            self.store_id = read_or_make_store_id(root / "store_id", replace)
            self.cluster = StoreCluster(root / "cluster_id", replace)
            self._journal = Journal(
                directory,
                self._synced_from_thread,
                self._failed_from_thread,
                on_held=self._held_from_thread,
                disk=disk,
                bytes_max=journal_bytes_max,
            )
            self._replay(directory)
        except BaseException:
            self._lock.release()
            raise
        self._journal.start()

    def _replay(self, directory: Path) -> None:
        records, self._journal.records = self._journal.records, []
        if self._journal.torn_bytes:
            log.warning(
                "cut %d bytes off the journal in %s at byte %d: an unfinished write; %s",
                self._journal.torn_bytes,
                directory,
                self._journal.torn_at,
                "its changes were not acknowledged"
                if self._journal.torn_for_sure
                else "or the newest progress, damaged after a power cut: then the commits of the "
                "last write are lost, and groups get those messages again",
            )
        for number, data in enumerate(records):
            try:
                self.ledger.apply(decode(data))
            except (ValueError, TypeError, KeyError) as failure:
                raise StoreCorrupt(
                    path=directory, reason=f"record {number} is invalid: {failure!r}"
                ) from failure

    def admit(self) -> None:
        """Raise an error if no change may be made now: Busy, StoreNotWritable, StoreFailed. See
        `ProgressStore`.
        """
        self._journal.admit()

    def write(self, records: list[Record]) -> None:
        if not records:
            return
        self._journal.append([encode(record) for record in records])
        if self._journal.wants_rotation:
            # Immediately after the append: replay starts with the snapshot, so a change between the
            # two would be lost with the former journal, or applied twice.
            snapshot = self.ledger.snapshot()
            self._journal.rotate(encoded(snapshot))

    @property
    def is_held(self) -> bool:
        return self._held is not None

    @property
    def changes(self) -> int:
        return self._journal.appended_batches

    def journal_counts(self) -> JournalCounts:
        return self._journal.counts()

    async def durable(self) -> None:
        """Wait until all changes written so far are durable. Raises StoreNotWritable, StoreFailed.
        See `ProgressStore`.
        """
        if self._failure is not None:
            raise self._failure
        # All records, not only the caller's: the reply may depend on changes of other callers, and
        # a crash must not undo them after the reply.
        wanted = self._journal.appended_batches
        if self._synced >= wanted:
            return
        if self._held is not None:
            raise self._held
        future = self._loop.create_future()
        self._waiters.append((wanted, future))
        await future

    async def still_decides(self) -> None:
        """Return immediately, because no other process can lead a single-copy journal; see
        `ProgressStore`.
        """

    def close(self) -> None:
        """Write waiting records, and unlock the directory. Raises StoreFailed."""
        try:
            self._journal.close()
        finally:
            self._lock.release()

    # Called by the journal's threads.

    def _synced_from_thread(self, batches: int) -> None:
        self._loop.call_soon_threadsafe(self._wake, batches)

    def _held_from_thread(self, refusal: StoreNotWritable) -> None:
        self._loop.call_soon_threadsafe(self._hold, refusal)

    def _failed_from_thread(self, failure: StoreFailed) -> None:
        self._loop.call_soon_threadsafe(self._fail, failure)

    # Called in the loop's thread.

    def _wake(self, batches: int) -> None:
        self._synced, self._held = batches, None
        while self._waiters and self._waiters[0][0] <= batches:
            _, future = self._waiters.popleft()
            if not future.done():
                future.set_result(None)

    def _hold(self, refusal: StoreNotWritable) -> None:
        self._held = refusal
        self._refuse_waiters(refusal)

    def _fail(self, failure: StoreFailed) -> None:
        self._failure = failure
        self._refuse_waiters(failure)
        self._on_failed(failure)

    def _refuse_waiters(self, failure: RockoonError) -> None:
        for _, future in self._waiters:
            if not future.done():
                future.set_exception(failure)
        self._waiters.clear()


def encoded(records: Iterator[Record]) -> Iterator[bytes]:
    return map(encode, records)
