"""Single-copy journal: appends records in order and syncs them in groups.

    <generation>.journal    records since the snapshot of that generation
    <generation>.snapshot   state at the start of that journal; generation 1 has none

    reserve                 reserves room on the disk; has no content

One thread writes. Changes that arrive during a sync share the next frame and its sync, so the
number of syncs does not grow with the number of concurrent changes. A mark follows the synced
frames (see frames.py).

When a journal exceeds its bound, the next generation starts, and a second thread writes its
snapshot: to a temporary name, sync, rename, sync of the directory. The former generation stays
until the next change of generation, so that one damaged snapshot loses no records.

A failed sync, or a write that failed for another reason than a full disk, ends the journal: the
contents of the disk are then unknown, and a retry does not help (the kernel may have dropped the
pages and report success for the next sync). The owner must end the process. The next start drops
cached pages, reads the newest journal from the disk, and writes and syncs its valid frames again.

A full disk does not end the journal. The first write without room deletes the reserve file, so that
accepted changes can be stored. Changes are refused until the reserve can be allocated again. If
the reserve is too small as well, the journal keeps accepted changes and writes them when the disk
has room; their callers get StoreNotWritable. A new generation or a snapshot that finds no room is
retried later.
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
from rockoon_offset.journal import former_frames as frames
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


class WriteAbandoned(Exception):
    """The journal was closed while the disk was full: the records were not written."""


class JournalBatch(NamedTuple):
    """Records of one change; they reach the disk together or not at all."""

    records: Sequence[bytes]
    bytes: int


class Rotation(NamedTuple):
    """A request for a new generation of files; `snapshot` is the state after all records before
    it.
    """

    snapshot: Iterator[bytes]


class JournalCounts(NamedTuple):
    """Size of the journal, and counts since the start of the process."""

    bytes: int
    syncs: int
    # Including the writes.
    sync_seconds: float
    # Reason why changes are refused; empty: they are accepted.
    shortage: str


class Journal:
    """The journal of one directory: writes and syncs records in its own threads. Call `start`, then
    `append`; `close` writes waiting batches.

    Args:
        directory: directory of the files; must exist.
        on_synced: called by the writer thread with the number of durable batches.
        on_failed: called once by the writer thread when the disk failed.
        on_held: called by the writer thread, at each attempt, while waiting batches find no room.
        bytes_max: above this size a new generation is requested.
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
        # Before reading: after a failed sync, cached frames may never have reached the disk.
        drop_clean(directory, self._disk)
        contents = read_contents(directory)
        self.torn_bytes, self.torn_at = contents.torn_bytes, contents.end
        self.torn_for_sure = contents.marked
        # The owner reads and then clears it: it is as large as the state.
        self.records: list[bytes] = contents.records
        # Written by the writer thread only.
        self._generation = contents.generation
        self._sequence = contents.next_sequence
        # Later bytes were not acknowledged; `_open_newest` cuts them.
        self._end = contents.end or frames.FILE_HEADER_BYTES
        self._fd = self._open_newest(contents)
        self._synced_batches = 0
        self._syncs = 0
        self._sync_seconds = 0.0
        self._snapshot_thread: threading.Thread | None = None
        # Written by the writer thread; the caller's thread reads it without the lock.
        self._shortage = ""
        # Monotonic time of the next attempt. Written by the writer and the snapshot thread.
        self._rotate_after = 0.0
        # The last snapshot found no room. Written by the snapshot thread only.
        self._lacks_snapshot = False
        self._reserve()
        # Guards the next four attributes.
        self._lock = threading.Condition()
        self._waiting: deque[JournalBatch | Rotation] = deque()
        self._waiting_bytes = 0
        self._closing = False
        self._failure: StoreFailed | None = None
        # Written by the caller's thread only.
        self.appended_batches = 0
        self._closed = False
        # Set by the caller's thread at a rotation; cleared by the writer or the snapshot thread at
        # the end of the rotation.
        self._rotating = False
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def admit(self) -> None:
        """Raise an error if the journal cannot accept records now.

        Raises:
            Busy: too many bytes wait for the disk.
            StoreNotWritable: the disk has no room.
            StoreFailed: the disk failed.
        """
        if self._failure is not None:
            raise self._failure
        if self._shortage:
            raise not_stored(self._shortage)
        if self._waiting_bytes > self._waiting_bytes_max:
            raise Busy(reason=f"{self._waiting_bytes} bytes of progress wait for the disk")

    def append(self, records: Sequence[bytes]) -> int:
        """Queue the records of a change. Returns the number of batches queued since the start, to
        wait for.

        Never refuses, because the change is already applied: call `admit` before the change.
        """
        size = sum(map(len, records))
        with self._lock:
            self._waiting.append(JournalBatch(records, size))
            self._waiting_bytes += size
            self._lock.notify()
        self.appended_batches += 1
        return self.appended_batches

    def counts(self) -> JournalCounts:
        return JournalCounts(self._end, self._syncs, self._sync_seconds, self._shortage)

    @property
    def wants_rotation(self) -> bool:
        """True if the journal exceeds its maximum size and no snapshot is being written."""
        return (
            (self._end > self._bytes_max or self._lacks_snapshot)
            and not (self._rotating or self._shortage)
            and time.monotonic() >= self._rotate_after
        )

    def rotate(self, snapshot: Iterator[bytes]) -> None:
        """Start a new generation after all records appended so far.

        Args:
            snapshot: records of the state after them; another thread consumes it later.
        """
        self._rotating = True
        with self._lock:
            self._waiting.append(Rotation(snapshot))
            self._lock.notify()

    def close(self) -> None:
        """Write and sync waiting batches, and stop the threads. Raises StoreFailed.

        On a full disk, a batch without room and all later batches are dropped. They were not
        acknowledged.
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
            except WriteAbandoned:
                # Later batches are dropped too: they may depend on the abandoned one.
                return
            except OSError as failure:
                self._fail(f"{failure.strerror or failure} on {self._directory}")
                return

    def _next_work(self) -> list[JournalBatch | Rotation] | None:
        """Return all waiting batches; empty: check again for free disk space; None: the journal is
        closed.
        """
        with self._lock:
            if not (self._waiting or self._closing):
                self._lock.wait(RETRY_SECONDS if self._shortage else None)
            if self._failure is not None or (self._closing and not self._waiting):
                return None
            # All waiting batches share a frame and a sync: under load hundreds of commits.
            work = list(self._waiting)
            self._waiting.clear()
            self._waiting_bytes = 0
        return work

    def _write(self, work: list[JournalBatch | Rotation]) -> None:
        batches: list[JournalBatch] = []
        for item in work:
            if isinstance(item, JournalBatch):
                batches.append(item)
                continue
            self._write_batches(batches)
            batches = []
            self._start_generation(item.snapshot)
        self._write_batches(batches)

    def _write_batches(self, batches: list[JournalBatch]) -> None:
        if not batches:
            return
        records = [record for batch in batches for record in batch.records]
        data = frames.frame(self._sequence, records)
        start_seconds = time.perf_counter()
        self._write_frame(data)
        self._sync(self._fd)
        self._sync_seconds += time.perf_counter() - start_seconds
        self._syncs += 1
        self._end += len(data)
        self._sequence += len(records)
        # After the sync: a mark must never follow a frame that is not on the disk.
        self._mark(self._fd, self._end)
        self._synced_batches += len(batches)
        # Callers are notified only after the sync.
        self._on_synced(self._synced_batches)

    def _write_frame(self, data: bytes) -> None:
        """Write at the end of the file, as soon as the disk has room. Raises WriteAbandoned if
        closed before.
        """
        while True:
            try:
                self._disk.write_all(self._fd, data, self._end)
            except OSError as failure:
                if not is_shortage(failure):
                    raise
                self._set_shortage(failure)
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
                        "dropped %d bytes of progress that were not acknowledged: %s",
                        len(data),
                        self._shortage,
                    )
                    raise WriteAbandoned
                self._lock.wait(RETRY_SECONDS)

    def _reserve(self) -> None:
        """Allocate the reserve file. If it exists, the journal accepts changes again."""
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
            # Other errors: some file systems cannot allocate, and changes are still accepted.
            if is_shortage(failure):
                self._set_shortage(failure)
                return
        if self._shortage:
            log.warning("progress is stored again: %s has room", self._directory)
            self._shortage = ""

    def _set_shortage(self, failure: OSError) -> None:
        if not self._shortage:
            log.error(
                "progress is not stored until there is room in %s: %s", self._directory, failure
            )
        self._shortage = f"{failure.strerror or failure} on {self._directory}"

    def _start_generation(self, snapshot: Iterator[bytes]) -> None:
        generation = self._generation + 1
        try:
            # Only the newest journal may end with an unfinished write. So the last mark must be in
            # the file: it is written again, because its first write may have found no room.
            if self._end > frames.FILE_HEADER_BYTES:
                self._disk.write_all(self._fd, frames.mark(self._sequence), self._end)
            self._sync(self._fd)
            fd = self._open_journal(generation, 0)
        except OSError as failure:
            if not is_shortage(failure):
                raise
            if (path := journal_path(self._directory, generation)).exists():
                # Deleted durably before the old journal grows: the header of the new file contains
                # the sequence of its first record, and the old journal would reuse that sequence.
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
        """Open a journal file for writing at `end`, and cut it there; 0 creates a new one."""
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
        """Write a mark after the synced frames, without a sync; see frames.py."""
        try:
            self._disk.write_all(fd, frames.mark(self._sequence), end)
        except OSError as failure:
            # Without room only the next change must wait; the frames are safe.
            if not is_shortage(failure):
                raise

    def _sync_mark(self) -> None:
        """Sync the mark when the journal is closed, so that a power cut cannot lose it."""
        if self._failure is not None or self._end == frames.FILE_HEADER_BYTES:
            return
        try:
            # Written again: a frame without room may have overwritten it.
            self._mark(self._fd, self._end)
            self._disk.fdatasync(self._fd)
        except OSError as failure:
            log.warning("could not mark the end of the journal in %s: %s", self._directory, failure)

    def _sync(self, fd: int) -> None:
        try:
            self._disk.fdatasync(fd)
        except OSError as failure:
            raise SyncFailed(*failure.args) from failure

    def _sync_directory(self) -> None:
        sync_directory(self._directory, self._disk)

    def _rotation_failed(self, failure: OSError) -> None:
        log.warning(
            "could not start a new generation of the journal in %s: %s; it grows until a retry",
            self._directory,
            failure,
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
            # The old generations are complete, so no record is lost. But after a failure other than
            # a full disk, the journal must not use the disk either.
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
    """True if an operation failed because the disk is full; it may be retried."""
    return failure.errno in SHORTAGES and not isinstance(failure, SyncFailed)


def not_stored(shortage: str) -> StoreNotWritable:
    return StoreNotWritable(f"progress cannot be stored now: {shortage}")
