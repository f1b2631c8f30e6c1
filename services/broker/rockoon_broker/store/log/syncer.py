"""The one other thread: it syncs, reserves files ahead of need, and deletes what was given up.

The owner's thread decides everything and posts; this thread only makes the slow calls. Rules:

1. A sync request replaces the one before it: each lists every file with bytes that are not known
   to be synced, so the newest covers all. Appends made while a sync runs share the next one.
   While nothing is asked for and syncs are short, the owner makes small ones itself.
2. Whoever waits for a sync never waits for more than one other slow call: between any two of them
   the newest sync request is served.
3. Descriptors of CommitLog files are closed here, never by the owner, and only after every request
   that was posted earlier and could name them.
4. What was given up is deleted in the order in which it was. When the disk refuses to delete
   something, that and what follows it waits for `retry_removals`; nothing is lost by it.
5. The first failing sync ends all of it: no second try, because the kernel may have dropped the
   pages that it could not write and a second fsync would then succeed without them.
6. What could not even be opened, or found no room before any sync, is no failed sync: a recovery
   point that meets that is tried again, once a second; the syncs of the log go on meanwhile.
7. Files of queues that a recovery point counts no more are deleted behind that point, however late
   it comes, and stay if it never does: a start that finds fewer than its point counts reads the
   whole log to make them again.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rockoon_broker.store.log.removals import (
    DoomedDirectory,
    DoomedFile,
    RemovalRefused,
    removal,
)
from rockoon_broker.store.log.sync_pace import SyncPace
from rockoon_broker.store.recovery.checkpoint_files import MarkerFiles, RecoveryPoint
from rockoon_core.disk import Disk, Shortage
from rockoon_format.checkpoint import Checkpoint

RETRY_SECONDS = 1.0


@dataclass(frozen=True)
class SyncRequest:
    """Make the CommitLog durable up to `end`."""

    end: int
    fds: tuple[int, ...]
    """Every CommitLog file that may have unsynced bytes below `end`, oldest first."""


@dataclass(frozen=True)
class PointRequest:
    """Make the log and the ConsumeQueues durable up to a point, then write the point down."""

    sync: SyncRequest
    queue_files: tuple[Path, ...]
    """Files with unsynced entries; one that is gone meanwhile was deleted with its queue."""
    directories: tuple[Path, ...]
    """Directories in which files or directories were created."""
    point: RecoveryPoint
    checkpoint: Checkpoint
    released: tuple[Path, ...] = ()
    """Files that the point does not count any more."""


class Syncer:
    """The thread and what it shares with the owner.

    Args:
        disk: the file layer.
        markers: checkpoint and recovery point; used by this thread only until `stop`.
        log_directory: where CommitLog files are reserved.
        file_bytes: their size.
        on_synced: called on this thread with the new durable end; must only hand it over.
        on_failed: called on this thread, once, with the error that ended it.
    """

    def __init__(
        self,
        disk: Disk,
        markers: MarkerFiles,
        log_directory: Path,
        file_bytes: int,
        *,
        synced_end: int,
        on_synced: Callable[[int], None],
        on_failed: Callable[[OSError], None],
    ) -> None:
        self._disk = disk
        self._markers = markers
        self._log_directory = log_directory
        self._file_bytes = file_bytes
        self._on_synced = on_synced
        self._on_failed = on_failed
        # Grows; read by the owner without the lock.
        self.synced_end = synced_end
        self.failure: OSError | None = None
        self.removal_failure: OSError | None = None
        self.point_failure: OSError | None = None
        # Everything below is guarded by `_changed`.
        self._changed = threading.Condition()
        self._sync: SyncRequest | None = None
        self._has_told = False
        # Held while the log's files are synced: of two syncs at once one alone hears of an error.
        self._syncing = threading.Lock()
        self._pace = SyncPace()
        # What the last sync of the log's files took.
        self.last_seconds = 0.0
        self._wanted_file: Path | None = None
        self._reserving: Path | None = None
        self._reserved: tuple[Path, int] | None = None
        self._point: PointRequest | None = None
        self._writing: PointRequest | None = None
        # On the monotonic clock: when a point that met a shortage is tried again.
        self._point_due = 0.0
        # What is deleted once the point that was posted, or is being written, is there.
        self._released: list[Path] = []
        self._doomed: deque[DoomedFile | DoomedDirectory] = deque()
        self._removing: DoomedFile | DoomedDirectory | None = None
        self._removals_paused = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="store-syncer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the call it is in; what is still posted is left undone."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    # What the owner posts.

    def request_sync(self, request: SyncRequest, *, inline_bytes_max: int = 0) -> None:
        """Have the log synced.

        Args:
            request: how far.
            inline_bytes_max: the owner may be held up for a short sync of so many bytes, which
                costs less than handing it over. `synced_end` tells; `on_synced` is not called.
        """
        if request.end - self.synced_end <= inline_bytes_max and self._sync_now(request):
            return
        with self._changed:
            self._sync = request
            self._changed.notify_all()

    def _sync_now(self, request: SyncRequest) -> bool:
        """Sync on the owner's thread, unless others wait for a sync, or they take long."""
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
        """Reserve a CommitLog file ahead of need; an error is kept quiet until it is needed."""
        with self._changed:
            if self._reserved is None and self._reserving is None:
                self._wanted_file = path
                self._changed.notify_all()

    def take_file(self, path: Path) -> int | None:
        """The descriptor of a file reserved ahead; None if the caller has to reserve it itself.

        Waits while the thread is at this very file.
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

    def take_reserved(self) -> DoomedFile | None:
        """After `stop`: the file that was reserved and never used."""
        if self._reserved is None:
            return None
        path, fd = self._reserved
        self._reserved = None
        return DoomedFile(path, fd)

    @property
    def point_pending(self) -> bool:
        """Whether a recovery point is posted or being written."""
        with self._changed:
            return self._point is not None or self._writing is not None

    def request_point(self, request: PointRequest) -> None:
        """Post a recovery point. The owner posts the next one only when none is pending."""
        with self._changed:
            # A second one in its place would lose the files that the first took as unsynced: their
            # entries would count as durable, and nobody would have synced them.
            assert self._point is None
            self._point = request
            self._released = [*request.released]
            self._changed.notify_all()

    @property
    def removals_pending(self) -> bool:
        """Whether something is still to be deleted."""
        with self._changed:
            return bool(self._doomed or self._released)

    @property
    def is_busy(self) -> bool:
        """Whether a recovery point or something to delete is left to this thread."""
        return self.point_pending or self.removals_pending

    def request_removal(self, doomed: DoomedFile | DoomedDirectory) -> None:
        with self._changed:
            self._doomed.append(doomed)
            self._changed.notify_all()

    def withdraw_removals(self, directory: Path) -> None:
        """Forget the files below a directory that is about to be moved: they go with it.

        Otherwise files that take their names afterwards would be deleted. Waits while the thread
        is at one of them.
        """

        def is_below(doomed: DoomedFile | DoomedDirectory | None) -> bool:
            return isinstance(doomed, DoomedFile) and directory in doomed.path.parents

        with self._changed:
            while is_below(self._removing) and self.failure is None:
                self._changed.wait()
            # Directories stay: they have their own name, which no new topic takes.
            self._doomed = deque(each for each in self._doomed if not is_below(each))
            self._released = [path for path in self._released if directory not in path.parents]

    def retry_removals(self) -> None:
        """Go on deleting where the disk refused it."""
        with self._changed:
            self._removals_paused = False
            self._changed.notify_all()

    def take_doomed(self) -> list[DoomedFile | DoomedDirectory]:
        """After `stop`: what was still to be deleted."""
        doomed = list(self._doomed)
        self._doomed.clear()
        return doomed

    def take_point(self) -> PointRequest | None:
        """Where the thread has ended, or not begun: the point that was asked for and is not there.
        What it was to sync the next one counts, and nobody else knows."""
        left, self._point, self._writing = self._point or self._writing, None, None
        return left

    # What the thread does.

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
                # A bug, here or in a callback: the owner must not wait for syncs that never come.
                self._fail(OSError(f"the syncing thread ended: {error!r}"))
                raise

    def _has_work(self) -> bool:
        doomed = self._doomed and not self._removals_paused
        return bool(self._sync or self._wanted_file or self._is_point_due or doomed)

    @property
    def _is_point_due(self) -> bool:
        return self._point is not None and time.monotonic() >= self._point_due

    def _serve_sync(self) -> None:
        with self._changed:
            # Taken before it is served: what the owner posts meanwhile is a request of its own.
            request, self._sync = self._sync, None
        if request is not None:
            self._sync_log(request)

    def _sync_log(self, request: SyncRequest) -> None:
        # A recovery point may have synced as far already.
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
            # Before the other thread syncs: that would succeed without the pages that this lost.
            self.failure = error
            raise
        self.last_seconds = time.monotonic() - began
        self._pace.note(self.last_seconds, inline=inline)
        # After all of them, and no further than was asked: bytes that were appended during the sync
        # may or may not be on the disk.
        self.synced_end = max(self.synced_end, request.end)

    def _next_steps(self) -> Iterator[None]:
        """The background work that is due, cut where a sync request may be served in between."""
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
            # Not lost: the owner finds no file, tries by itself and reports what it gets.
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
            # Last: the next start takes the point's word for everything above.
            self._markers.write(request.point, request.checkpoint)
        except Shortage as shortage:
            with self._changed:
                # The same request, not a newer one: its lists of unsynced files exist nowhere else.
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
                # It stays at the head of the line: a ConsumeQueue file must not go before the log
                # file to which its entries point.
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
            has_told, self._has_told = self._has_told, True
            self.failure = error
            self._changed.notify_all()
        if not has_told:
            self._on_failed(error)


def finish_removals(syncer: Syncer, disk: Disk) -> None:
    """Delete what a stopped Syncer still had to, and the file that it reserved for nobody.

    What the disk refuses is left to the next start. Raises OSError when a sync failed.
    """
    left = deque(syncer.take_doomed())
    reserved = syncer.take_reserved()
    if reserved is not None:
        left.append(reserved)
    # What was given up later may not go before it.
    with contextlib.suppress(RemovalRefused):
        while left:
            for _ in removal(left[0], disk):
                pass
            left.popleft()
    for doomed in left:
        if isinstance(doomed, DoomedFile) and doomed.fd is not None:
            disk.close(doomed.fd)


def create_log_file(path: Path, file_bytes: int, disk: Disk) -> int:
    """Create a CommitLog file with all its blocks reserved and its name durable.

    Raises OSError with nothing left behind: a file of another size would stop the next start.
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
    """Sync a file by its name; one that was deleted meanwhile needs none."""
    try:
        fd = disk.open(path)
    except FileNotFoundError:
        return
    try:
        disk.fdatasync(fd)
    finally:
        disk.close(fd)


def sync_names(directory: Path, disk: Disk) -> None:
    """Sync a directory; one that was deleted meanwhile, even just now, needs it no more."""
    with contextlib.suppress(FileNotFoundError):
        disk.sync_directory(directory)
