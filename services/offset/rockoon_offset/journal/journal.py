"""The one durable truth of the service: records appended in order, made durable together.

    <generation>.journal    records since the snapshot of that generation
    <generation>.snapshot   everything up to the start of that journal; generation 1 has none

    reserve                 holds room on the disk, and nothing else

One thread writes. Records that arrive while it syncs share the next frame, and the next sync: the
more there are at once, the more share. Behind what was synced stands a mark (see frames.py).

When a journal has grown past its bound the next generation begins, and its snapshot is written
beside it by a second thread: to a temporary name, synced, renamed, directory synced. The generation
before stays until the next change, so that one damaged snapshot loses nothing.

A failed sync, or a write that failed for another reason than a shortage, ends the journal for
good: what the disk holds is then unknown, and asking it again is no remedy (the kernel may have
dropped the pages and call the next sync a success). The owner has to end the process. What memory
still shows of such pages the next start writes again, before anybody is told of it.

A disk without room ends nothing. The first write that finds none gives up the reserve, so that what
was taken already is stored; changes are refused from there on, until the reserve can be had again.
Should even that not suffice, what waits goes on waiting, and nobody is told of it meanwhile. A
generation that cannot be begun, or a snapshot that cannot be written, is tried again later.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rockoon_core.disk import SHORTAGES, Disk
from rockoon_core.errors import Busy, StoreFailed, StoreNotWritable
from rockoon_offset.journal import frames
from rockoon_offset.journal.generation_files import (
    Contents,
    SyncFailed,
    drop_clean,
    generations,
    journal_path,
    read_contents,
    snapshot_path,
    sync_directory,
    unfinished,
    write_snapshot,
)

log = logging.getLogger(__name__)

RESERVE_FILE = "reserve"
RESERVE_BYTES = 1 << 20
RETRY_SECONDS = 1.0
ROTATION_RETRY_SECONDS = 30.0


class GivenUp(Exception):
    """The journal was closed while there was no room: it ends before what found none."""


class Batch(NamedTuple):
    """Records of one caller; they reach the disk together or not at all."""

    records: Sequence[bytes]
    bytes: int


class Rotation(NamedTuple):
    """The wish for a new generation; `snapshot` holds what all records before it made."""

    snapshot: Iterator[bytes]


class JournalCounts(NamedTuple):
    """Of the journal being written, and of this process."""

    bytes: int
    syncs: int
    # Writing included.
    sync_seconds: float
    # Why changes are refused; empty while they are not.
    shortage: str


class Journal:
    """The journal of one directory. Call `start`, then `append`; `close` writes what waits.

    Args:
        directory: holds the files; must exist.
        on_synced: called by the writer thread with the number of batches that are durable.
        on_failed: called once by the writer thread when the disk failed.
        on_held: called by the writer thread when what waits cannot be written for now.
        disk: the file system.
        bytes_max: a journal larger than this asks for a new generation.
        waiting_bytes_max: `admit` refuses while more than this many bytes wait for the disk.

    Raises:
        StoreCorrupt: see `read_contents`.
    """

    def __init__(
        self,
        directory: Path,
        on_synced: Callable[[int], None],
        on_failed: Callable[[StoreFailed], None],
        *,
        on_held: Callable[[StoreNotWritable], None] = lambda _: None,
        disk: Disk | None = None,
        bytes_max: int = 64 << 20,
        waiting_bytes_max: int = 64 << 20,
    ) -> None:
        self._directory = directory
        self._on_held = on_held
        self._on_synced = on_synced
        self._on_failed = on_failed
        self._disk = disk or Disk()
        self._bytes_max = bytes_max
        self._waiting_bytes_max = waiting_bytes_max
        for leftover in directory.glob("*.new"):
            leftover.unlink()
        # Before reading: after a failed sync memory may show frames that never reached the disk.
        drop_clean(directory, self._disk)
        contents = read_contents(directory)
        self.torn_bytes, self.torn_at = contents.torn_bytes, contents.end
        self.torn_for_sure = contents.marked
        # Taken by the owner once, then let go: it is as large as the state.
        self.records: list[bytes] = contents.records
        # Written by the writer thread only.
        self._generation = contents.generation
        self._sequence = contents.next_sequence
        # What lies behind was promised to nobody; `_open_newest` cuts it off.
        self._end = contents.end or frames.FILE_HEADER_BYTES
        self._fd = self._open_newest(contents)
        self._synced_batches = 0
        self._syncs = 0
        self._sync_seconds = 0.0
        self._snapshot_thread: threading.Thread | None = None
        # Written by the writer thread, read by the caller's without the lock.
        self._shortage = ""
        # On the monotonic clock. Written by both threads that may fail at a generation.
        self._rotate_after = 0.0
        self._lacks_snapshot = False
        self._reserve()
        # Guarded by `_lock`: what waits for the writer, and whether it may go on.
        self._lock = threading.Condition()
        self._waiting: deque[Batch | Rotation] = deque()
        self._waiting_bytes = 0
        self._closing = False
        self._failure: StoreFailed | None = None
        # Written by the caller's thread only.
        self.appended_batches = 0
        self._closed = False
        # Set by the caller's thread at a rotation, cleared by the snapshot thread at its end.
        self._rotating = False
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def admit(self) -> None:
        """Whether a change may be made now.

        Raises:
            Busy: too much waits for the disk.
            StoreNotWritable: the disk has no room.
            StoreFailed: the disk failed before.
        """
        if self._failure is not None:
            raise self._failure
        if self._shortage:
            raise not_stored(self._shortage)
        if self._waiting_bytes > self._waiting_bytes_max:
            raise Busy(reason=f"{self._waiting_bytes} bytes of progress wait for the disk")

    def append(self, records: Sequence[bytes]) -> int:
        """Queue records that belong together; returns the count of batches to wait for.

        Never refuses: the change is made already. `admit` comes before the change.
        """
        size = sum(map(len, records))
        with self._lock:
            self._waiting.append(Batch(records, size))
            self._waiting_bytes += size
            self._lock.notify()
        self.appended_batches += 1
        return self.appended_batches

    def counts(self) -> JournalCounts:
        return JournalCounts(self._end, self._syncs, self._sync_seconds, self._shortage)

    @property
    def wants_rotation(self) -> bool:
        """Whether the journal is past its bound and no snapshot is under way."""
        return (
            (self._end > self._bytes_max or self._lacks_snapshot)
            and not (self._rotating or self._shortage)
            and time.monotonic() >= self._rotate_after
        )

    def rotate(self, snapshot: Iterator[bytes]) -> None:
        """Begin a new generation behind all records appended so far.

        Args:
            snapshot: records equal to all of those; consumed by another thread, later.
        """
        self._rotating = True
        with self._lock:
            self._waiting.append(Rotation(snapshot))
            self._lock.notify()

    def close(self) -> None:
        """Write and sync what waits, and stop the threads. Raises StoreFailed if the disk did.

        What a disk without room does not take is left out, with all behind it: nobody was told of
        it.
        """
        with self._lock:
            self._closing = True
            self._lock.notify()
        if self._thread.is_alive():
            self._thread.join()
        if self._snapshot_thread is not None:
            self._snapshot_thread.join()
        if not self._closed:
            self._closed = True
            self._sync_mark()
            self._disk.close(self._fd)
        if self._failure is not None:
            raise self._failure

    # The writer thread.

    def _run(self) -> None:
        while (work := self._next_work()) is not None:
            try:
                self._write(work)
                if self._shortage:
                    self._reserve()
            except GivenUp:
                # Nor is anything stored that came behind: it may make no sense without.
                return
            except OSError as failure:
                self._fail(f"{failure.strerror or failure} on {self._directory}")
                return

    def _next_work(self) -> list[Batch | Rotation] | None:
        """What waits, nothing where it is time to look for room again; None: it is over."""
        with self._lock:
            if not (self._waiting or self._closing):
                self._lock.wait(RETRY_SECONDS if self._shortage else None)
            if self._failure is not None or (self._closing and not self._waiting):
                return None
            # All that waits, in one frame and one sync: under load a sync carries hundreds of
            # commits.
            work = list(self._waiting)
            self._waiting.clear()
            self._waiting_bytes = 0
        return work

    def _write(self, work: list[Batch | Rotation]) -> None:
        batches: list[Batch] = []
        for item in work:
            if isinstance(item, Batch):
                batches.append(item)
                continue
            self._write_batches(batches)
            batches = []
            self._begin_generation(item.snapshot)
        self._write_batches(batches)

    def _write_batches(self, batches: list[Batch]) -> None:
        if not batches:
            return
        records = [record for batch in batches for record in batch.records]
        data = frames.frame(self._sequence, records)
        began = time.perf_counter()
        self._write_frame(data)
        self._sync(self._fd)
        self._sync_seconds += time.perf_counter() - began
        self._syncs += 1
        self._end += len(data)
        self._sequence += len(records)
        # After the sync, so that a mark never vouches for a frame that is not on the disk.
        self._mark(self._fd, self._end)
        self._synced_batches += len(batches)
        # Only now may anybody hear of the change.
        self._on_synced(self._synced_batches)

    def _write_frame(self, data: bytes) -> None:
        """Write at the end, as soon as there is room. Raises GivenUp when it ends before."""
        while True:
            try:
                self._disk.write_all(self._fd, data, self._end)
            except OSError as failure:
                if not is_shortage(failure):
                    raise
                self._fall_short(failure)
            else:
                return
            reserve = self._directory / RESERVE_FILE
            if reserve.exists():
                self._disk.unlink(reserve)
                continue
            self._on_held(not_stored(self._shortage))
            with self._lock:
                if self._closing:
                    log.error(
                        "%d bytes of progress, acknowledged to nobody, are not stored: %s",
                        len(data),
                        self._shortage,
                    )
                    raise GivenUp
                self._lock.wait(RETRY_SECONDS)

    def _reserve(self) -> None:
        """Take room aside; with that, changes are taken again."""
        path = self._directory / RESERVE_FILE
        try:
            fd = self._disk.open_or_create(path)
            try:
                self._disk.allocate(fd, RESERVE_BYTES)
            finally:
                self._disk.close(fd)
        except OSError as failure:
            with contextlib.suppress(OSError):
                self._disk.unlink(path)
            # Some file systems cannot reserve, which is no reason to refuse anything.
            if is_shortage(failure):
                self._fall_short(failure)
                return
        if self._shortage:
            log.warning("progress is stored again: %s has room", self._directory)
            self._shortage = ""

    def _fall_short(self, failure: OSError) -> None:
        if not self._shortage:
            log.error(
                "progress is not stored until there is room in %s: %s", self._directory, failure
            )
        self._shortage = f"{failure.strerror or failure} on {self._directory}"

    def _begin_generation(self, snapshot: Iterator[bytes]) -> None:
        generation = self._generation + 1
        try:
            # Of a journal that is not the newest any more, no end may be torn: its mark is whole,
            # where there was no room for it before, and no power cut takes it.
            if self._end > frames.FILE_HEADER_BYTES:
                self._disk.write_all(self._fd, frames.mark(self._sequence), self._end)
            self._sync(self._fd)
            fd = self._open_journal(generation, 0)
        except OSError as failure:
            if not is_shortage(failure):
                raise
            if (path := journal_path(self._directory, generation)).exists():
                # Durably gone before the old one goes on: it says at which record it begins.
                self._disk.unlink(path)
                self._sync_directory()
            self._rotation_failed(failure)
            return
        self._disk.close(self._fd)
        self._fd, self._end, self._generation = fd, frames.FILE_HEADER_BYTES, generation
        self._snapshot_thread = threading.Thread(
            target=self._write_snapshot,
            args=(generation, self._sequence, snapshot),
            name="journal-snapshot",
            daemon=True,
        )
        self._snapshot_thread.start()

    def _open_newest(self, contents: Contents) -> int:
        try:
            return self._open_journal(contents.generation, contents.end)
        except OSError as failure:
            if not is_shortage(failure):
                raise
            self._disk.unlink(self._directory / RESERVE_FILE)
            return self._open_journal(contents.generation, contents.end)

    def _open_journal(self, generation: int, end: int) -> int:
        """Open a journal for writing at `end`, cutting what lies behind; 0 makes a new one."""
        fd = self._disk.open_or_create(journal_path(self._directory, generation))
        try:
            self._disk.set_size(fd, end)
            if end == 0:
                header = frames.FileHeader(generation, self._sequence)
                self._disk.write_all(fd, frames.file_header(frames.JOURNAL_MAGIC, header), 0)
            else:
                self._disk.rewrite(fd, 0, end)
            self._sync(fd)
            self._sync_directory()
            if end > frames.FILE_HEADER_BYTES:
                self._mark(fd, end)
        except OSError:
            self._disk.close(fd)
            raise
        return fd

    def _mark(self, fd: int, end: int) -> None:
        """Say behind what was synced that it was; see frames.py. Without a sync of its own."""
        try:
            self._disk.write_all(fd, frames.mark(self._sequence), end)
        except OSError as failure:
            # Only the next change has to wait for room.
            if not is_shortage(failure):
                raise

    def _sync_mark(self) -> None:
        """At an orderly end: no power cut takes the mark any more."""
        if self._failure is not None or self._end == frames.FILE_HEADER_BYTES:
            return
        try:
            # Once more: a frame that found no room has been written over it.
            self._mark(self._fd, self._end)
            self._disk.fdatasync(self._fd)
        except OSError as failure:
            log.warning("the end of the journal of %s is not marked: %s", self._directory, failure)

    def _sync(self, fd: int) -> None:
        try:
            self._disk.fdatasync(fd)
        except OSError as failure:
            raise SyncFailed(*failure.args) from failure

    def _sync_directory(self) -> None:
        sync_directory(self._directory, self._disk)

    def _rotation_failed(self, failure: OSError) -> None:
        log.warning(
            "the journal of %s grows on, and is made again later: %s", self._directory, failure
        )
        self._rotate_after = time.monotonic() + ROTATION_RETRY_SECONDS
        self._rotating = False

    def _fail(self, reason: str) -> None:
        failure = StoreFailed(reason=reason)
        with self._lock:
            if self._failure is not None:
                return
            self._failure = failure
            self._closing = True
            self._lock.notify()
        self._on_failed(failure)

    # The snapshot thread.

    def _write_snapshot(self, generation: int, sequence: int, records: Iterator[bytes]) -> None:
        try:
            path = snapshot_path(self._directory, generation)
            write_snapshot(self._disk, path, generation, sequence, records)
            for kind, path_of in (("journal", journal_path), ("snapshot", snapshot_path)):
                for old in generations(self._directory, kind):
                    if old < generation - 1:
                        self._disk.unlink(path_of(self._directory, old))
        except OSError as failure:
            # The old generations are whole, and nothing was promised. A disk that fails is one
            # that the journal must not trust either.
            if not is_shortage(failure):
                self._fail(f"{failure.strerror or failure} while writing a snapshot")
                return
            with contextlib.suppress(OSError):
                self._disk.unlink(unfinished(path))
            self._lacks_snapshot = True
            self._rotation_failed(failure)
        else:
            self._lacks_snapshot = False
            self._rotating = False


def is_shortage(failure: OSError) -> bool:
    """Whether something was refused that may be asked for again, once there is room."""
    return failure.errno in SHORTAGES and not isinstance(failure, SyncFailed)


def not_stored(shortage: str) -> StoreNotWritable:
    return StoreNotWritable(f"progress is not stored now: {shortage}")
