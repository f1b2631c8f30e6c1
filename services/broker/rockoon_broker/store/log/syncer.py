"""Syncer: a thread that syncs files, reserves CommitLog files ahead, and deletes unused files.

The owner's thread makes all decisions and posts requests; this thread only runs the slow
calls. docs/understand/threads.md lists all threads. Rules:

1. A new sync request replaces the pending one: each request lists every file with bytes that may
   be unsynced, so that the newest covers all. Appends made during a sync share the next sync.
   If no sync runs or waits and recent syncs were short, the owner itself runs a small sync.
2. A sync request waits for at most one other slow call: the thread serves the newest sync
   request between any two of them.
3. While this thread runs, only this thread closes the descriptors of deleted CommitLog files, and
   only after every earlier request that could name them.
4. Deletions run in the order of the requests. If the disk refuses one, it and all later ones
   wait for `retry_removals`.
5. The first failed sync ends the thread. It is never retried, because the kernel may have dropped
   the pages that it could not write, and a second fsync would succeed without them.
6. A recovery point that fails before any sync (a file cannot be opened, no space) is not a failed
   sync: it is retried once a second. Syncs of the log continue.
7. A recovery point states the first offset of the ConsumeQueue files (`first_count`). A file is
   deleted only after a point without it is written: a start that misses a file of its point
   rebuilds all ConsumeQueues from the whole log.

A handover to the thread costs about 100 µs of CPU. A sync by the owner saves it, but a slow one
delays the owner. `SyncPace` counts this delay, and each short sync reduces the count by
`REDUCTION_SECONDS`. Above `INLINE_DELAY_SECONDS_MAX` the thread syncs.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rockoon_broker.store.log.directory import (
    DoomedDirectory,
    DoomedFile,
    RemovalRefused,
    removal,
)
from rockoon_broker.store.recovery.checkpoint_files import MarkerFiles
from rockoon_core.disk import Disk, Shortage
from rockoon_format.checkpoint import Checkpoint
from rockoon_format.recovery_point import RecoveryPoint

SHORT_SECONDS_MAX = 0.001
"""Limit of a short sync in seconds. A longer sync on the owner's thread counts as its delay."""
IN_A_ROW = 4
"""Number of consecutive short syncs after which the next one is expected to be short."""
REDUCTION_SECONDS = 50e-6
"""Seconds by which each short sync reduces the counted delay."""
INLINE_DELAY_SECONDS_MAX = 0.01
"""Limit of the counted delay in seconds; above it, the syncer's thread syncs."""
COUNTED_SECONDS_MAX = 0.2
"""Upper bound of the counted delay: after a disk stall of a minute, 4,000 short syncs reset it."""


class SyncPace:
    """Counts the delay by slow syncs, and decides which thread runs the next sync."""

    def __init__(self) -> None:
        self._short = 0
        self._delay_seconds = 0.0

    @property
    def is_short(self) -> bool:
        """True if the next sync is expected to be short."""
        return self._short >= IN_A_ROW and self._delay_seconds <= INLINE_DELAY_SECONDS_MAX

    def record(self, seconds: float, *, inline: bool) -> None:
        """Record the duration of a sync in seconds; `inline`: it ran on the owner's thread."""
        if seconds <= SHORT_SECONDS_MAX:
            self._short += 1
            self._delay_seconds = max(self._delay_seconds - REDUCTION_SECONDS, 0.0)
            return
        self._short = 0
        if inline:
            self._delay_seconds = min(self._delay_seconds + seconds, COUNTED_SECONDS_MAX)


RETRY_SECONDS = 1.0


@dataclass(frozen=True)
class SyncRequest:
    """Request to make the CommitLog durable up to `end`."""

    end: int
    fds: tuple[int, ...]
    """Descriptors of all CommitLog files that may have unsynced bytes below `end`, oldest first."""


@dataclass(frozen=True)
class PointRequest:
    """Request to make the log and the ConsumeQueues durable up to a point, and then to write the
    recovery point."""

    sync: SyncRequest
    queue_files: tuple[Path, ...]
    """ConsumeQueue files with unsynced entries; a file that no longer exists was deleted with its
    queue."""
    directories: tuple[Path, ...]
    """Directories with new files or sub-directories, which must be synced."""
    point: RecoveryPoint
    checkpoint: Checkpoint
    released: tuple[Path, ...] = ()
    """ConsumeQueue files that the recovery point no longer counts; deleted after it is written."""


class Syncer:
    """The syncer's thread and the state that it shares with the owner.

    Args:
        markers: checkpoint and recovery point files; used only by this thread until `stop`.
        file_bytes: size of a CommitLog file.
        on_synced: called on this thread with the new durable end; must not block.
        on_failed: called on this thread, once, with the error that ended it.
    """

    def __init__(
        self,
        disk: Disk,
        markers: MarkerFiles,
        file_bytes: int,
        *,
        synced_end: int,
        on_synced: Callable[[int], None],
        on_failed: Callable[[OSError], None],
    ) -> None:
        self._disk = disk
        self._markers = markers
        self._file_bytes = file_bytes
        self._on_synced = on_synced
        self._on_failed = on_failed
        # Only grows; the owner reads it without the lock.
        self.synced_end = synced_end
        self.failure: OSError | None = None
        self.removal_failure: OSError | None = None
        self.point_failure: OSError | None = None
        # Everything below is guarded by `_changed`.
        self._changed = threading.Condition()
        self._sync: SyncRequest | None = None
        self._has_reported = False
        # Held while log files are synced: of two concurrent syncs only one sees an error.
        self._syncing = threading.Lock()
        self._pace = SyncPace()
        # Duration of the last sync of the log's files.
        self.last_seconds = 0.0
        self._wanted_file: Path | None = None
        self._reserving: Path | None = None
        self._reserved: tuple[Path, int] | None = None
        self._point: PointRequest | None = None
        self._writing: PointRequest | None = None
        # Monotonic time at which a recovery point is retried after a shortage.
        self._point_due = 0.0
        # Files deleted after the posted recovery point is written.
        self._released: list[Path] = []
        self._doomed: deque[DoomedFile | DoomedDirectory] = deque()
        self._removing: DoomedFile | DoomedDirectory | None = None
        self._removals_paused = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="store-syncer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current call; pending requests are left undone."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    # Requests of the owner.

    def request_sync(self, request: SyncRequest, *, inline_bytes_max: int = 0) -> None:
        """Request a sync of the log.

        Args:
            inline_bytes_max: if at most this many bytes are unsynced, the owner may sync them
                inline, which is cheaper than a handover. If the sync succeeds, `synced_end` is set
                and `on_synced` is not called.
        """
        if request.end - self.synced_end <= inline_bytes_max and self._sync_now(request):
            return
        with self._changed:
            self._sync = request
            self._changed.notify_all()

    def _sync_now(self, request: SyncRequest) -> bool:
        """Sync on the owner's thread, unless a sync is running or pending, or recent syncs were
        slow. Return False if the thread must sync, True after a sync or a failed sync."""
        if not self._syncing.acquire(blocking=False):
            return False
        try:
            if self._sync or self.failure or not self._pace.is_short:
                return False
            self._sync_files(request, inline=True)
        except OSError as error:
            self._fail(error)
        finally:
            self._syncing.release()
        return True

    def request_file(self, path: Path) -> None:
        """Reserve a CommitLog file ahead; an error is reported only when the file is needed."""
        with self._changed:
            if self._reserved is None and self._reserving is None:
                self._wanted_file = path
                self._changed.notify_all()

    def claim_file(self, path: Path) -> int | None:
        """Return the descriptor of a file reserved ahead; None: the caller must create the file.

        Waits while the thread reserves this file.
        """
        with self._changed:
            self._wanted_file = None
            while self._reserving == path and self.failure is None:
                self._changed.wait()
            if self._reserved is None or self._reserved[0] != path:
                return None
            _, fd = self._reserved
            self._reserved = None
            return fd

    def pop_reserved(self) -> DoomedFile | None:
        """Return the reserved file that was not used; call after `stop`."""
        if self._reserved is None:
            return None
        path, fd = self._reserved
        self._reserved = None
        return DoomedFile(path, fd)

    @property
    def point_pending(self) -> bool:
        """True if a recovery point has been requested and not been written yet."""
        with self._changed:
            return self._point is not None or self._writing is not None

    def request_point(self, request: PointRequest) -> None:
        """Post a recovery point; allowed only if none is pending."""
        with self._changed:
            # Replacing a pending point would lose its list of unsynced files, and their
            # entries would count as durable without a sync.
            assert self._point is None
            self._point = request
            self._released = [*request.released]
            self._changed.notify_all()

    @property
    def removals_pending(self) -> bool:
        with self._changed:
            return bool(self._doomed or self._released)

    @property
    def is_busy(self) -> bool:
        """True if the thread still has a recovery point to write or files to delete."""
        return self.point_pending or self.removals_pending

    def request_removal(self, doomed: DoomedFile | DoomedDirectory) -> None:
        with self._changed:
            self._doomed.append(doomed)
            self._changed.notify_all()

    def withdraw_removals(self, directory: Path) -> None:
        """Cancel the deletion of files below a directory that is about to be moved with them.

        Otherwise new files with the same names would be deleted. Waits while the thread
        deletes one of them.
        """

        def is_below(doomed: DoomedFile | DoomedDirectory | None) -> bool:
            return isinstance(doomed, DoomedFile) and directory in doomed.path.parents

        with self._changed:
            while is_below(self._removing) and self.failure is None:
                self._changed.wait()
            # Keep directories: no new topic reuses their names.
            self._doomed = deque(each for each in self._doomed if not is_below(each))
            self._released = [path for path in self._released if directory not in path.parents]

    def retry_removals(self) -> None:
        """Resume deletions that the disk refused."""
        with self._changed:
            self._removals_paused = False
            self._changed.notify_all()

    def pop_doomed(self) -> list[DoomedFile | DoomedDirectory]:
        """Return the pending deletions; call after `stop`."""
        doomed = list(self._doomed)
        self._doomed.clear()
        return doomed

    def pop_point(self) -> PointRequest | None:
        """Return the pending recovery point; call before `start` or after the thread has ended.

        The next point must include its files, because no other list of them exists."""
        left, self._point, self._writing = self._point or self._writing, None, None
        return left

    # The thread.

    def _run(self) -> None:
        steps: Iterator[None] = iter(())
        busy = False
        while True:
            with self._changed:
                while not (busy or self._stopping or self.failure or self._has_work()):
                    waits = self._point is not None
                    self._changed.wait(RETRY_SECONDS if waits else None)
                if self._stopping or self.failure:
                    return
            try:
                self._serve_sync()
                if not busy:
                    steps = self._next_steps()
                busy = next(steps, self) is not self
            except OSError as error:
                self._fail(error)
                return
            except Exception as error:
                # A bug, here or in a callback: fail, so that the owner does not wait forever.
                self._fail(OSError(f"the store-syncer thread ended with an error (bug): {error!r}"))
                raise

    def _has_work(self) -> bool:
        doomed = self._doomed and not self._removals_paused
        return bool(self._sync or self._wanted_file or self._is_point_due or doomed)

    @property
    def _is_point_due(self) -> bool:
        return self._point is not None and time.monotonic() >= self._point_due

    def _serve_sync(self) -> None:
        with self._changed:
            # Removed before it is served: a request posted during the sync must not be lost.
            request, self._sync = self._sync, None
        if request is not None:
            self._sync_log(request)

    def _sync_log(self, request: SyncRequest) -> None:
        # A recovery point may already have synced this far.
        if request.end <= self.synced_end:
            return
        with self._syncing:
            if self.failure is not None:
                raise self.failure
            self._sync_files(request, inline=False)
        self._on_synced(request.end)

    def _sync_files(self, request: SyncRequest, *, inline: bool) -> None:
        began = time.monotonic()
        try:
            for fd in request.fds:
                self._disk.fdatasync(fd)
        except OSError as error:
            # Set before the other thread syncs: its sync would succeed without the lost pages.
            self.failure = error
            raise
        self.last_seconds = time.monotonic() - began
        self._pace.record(self.last_seconds, inline=inline)
        # After all files, and no further than requested: bytes appended during the sync may not
        # be on the disk.
        self.synced_end = max(self.synced_end, request.end)

    def _next_steps(self) -> Iterator[None]:
        """Return the pending slow work as an iterator of steps; sync requests can be served between
        them."""
        with self._changed:
            path, self._wanted_file = self._wanted_file, None
            if path is not None:
                self._reserving = path
                return self._reserve(path)
            if self._point is not None and self._is_point_due:
                point, self._point = self._point, None
                self._writing = point
                return self._write_point(point)
            if self._doomed and not self._removals_paused:
                self._removing = self._doomed[0]
                return self._remove(self._removing)
        return iter(())

    def _reserve(self, path: Path) -> Iterator[None]:
        fd: int | None = None
        try:
            fd = create_log_file(path, self._file_bytes, self._disk)
        except OSError:
            # Ignored: the owner then finds no file, creates one itself and reports its own error.
            fd = None
        finally:
            with self._changed:
                self._reserving = None
                if fd is not None:
                    self._reserved = (path, fd)
                self._changed.notify_all()
        yield

    def _write_point(self, request: PointRequest) -> Iterator[None]:
        try:
            self._sync_log(request.sync)
            yield
            for path in request.queue_files:
                sync_file(path, self._disk)
                yield
            for directory in request.directories:
                sync_names(directory, self._disk)
                yield
            # Last: the next start trusts the point for everything above.
            self._markers.write(request.point, request.checkpoint)
        except Shortage as shortage:
            with self._changed:
                # Retry the same request: its lists of unsynced files exist only here.
                self._point, self._writing = request, None
                self._point_due = time.monotonic() + RETRY_SECONDS
                self.point_failure = shortage
            return
        with self._changed:
            self._writing = None
            self.point_failure = None
            self._doomed.extend(DoomedFile(path, None) for path in self._released)
            self._released.clear()

    def _remove(self, doomed: DoomedFile | DoomedDirectory) -> Iterator[None]:
        try:
            yield from removal(doomed, self._disk)
        except RemovalRefused as refusal:
            with self._changed:
                self.removal_failure = refusal
                # Keep it first in the queue: a ConsumeQueue file must not be deleted before the
                # log file to which its entries point.
                self._removals_paused = True
                self._removing = None
                self._changed.notify_all()
            return
        with self._changed:
            self.removal_failure = None
            self._doomed.popleft()
            self._removing = None
            self._changed.notify_all()
        yield

    def _fail(self, error: OSError) -> None:
        with self._changed:
            had_reported, self._has_reported = self._has_reported, True
            self.failure = error
            self._changed.notify_all()
        if not had_reported:
            self._on_failed(error)


def finish_removals(syncer: Syncer, disk: Disk) -> None:
    """Run the remaining deletions of a stopped Syncer, and delete its unused reserved file.

    Deletions that the disk refuses are left to the next start. Raises OSError if a sync failed.
    """
    left = deque(syncer.pop_doomed())
    reserved = syncer.pop_reserved()
    if reserved is not None:
        left.append(reserved)
    # After a refusal, later deletions must not run: order matters.
    with contextlib.suppress(RemovalRefused):
        while left:
            for _ in removal(left[0], disk):
                pass
            left.popleft()
    for doomed in left:
        if isinstance(doomed, DoomedFile) and doomed.fd is not None:
            disk.close(doomed.fd)


def create_log_file(path: Path, file_bytes: int, disk: Disk) -> int:
    """Create a CommitLog file, reserve all its blocks, and make its name durable.

    On OSError no file remains: a file of another size would stop the next start.
    """
    fd = disk.open(path, create=True)
    try:
        disk.allocate(fd, file_bytes)
        disk.sync_directory(path.parent)
    except OSError:
        disk.close(fd)
        disk.unlink(path)
        raise
    return fd


def sync_file(path: Path, disk: Disk) -> None:
    """Sync a file by its name; ignores a file that has been deleted."""
    try:
        fd = disk.open(path)
    except FileNotFoundError:
        return
    try:
        disk.fdatasync(fd)
    finally:
        disk.close(fd)


def sync_names(directory: Path, disk: Disk) -> None:
    """Sync a directory; ignores a directory that has been deleted."""
    with contextlib.suppress(FileNotFoundError):
        disk.sync_directory(directory)
