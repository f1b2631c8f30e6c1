"""The one durable truth of the service: records appended in order, made durable together.

    <generation>.journal    records since the snapshot of that generation
    <generation>.snapshot   everything up to the start of that journal; generation 1 has none

One thread writes. Records that arrive while it syncs share the next frame, and the next sync: the
more there are at once, the more share. When a journal has grown past its bound the next generation
begins, and its snapshot is written beside it by a second thread: to a temporary name, synced,
renamed, directory synced. The generation before stays until the next change, so that one damaged
snapshot loses nothing.

A failed write or sync ends the journal for good: what the disk holds is then unknown, and asking
it again is no remedy (the kernel may have dropped the pages and call the next sync a success). The
owner has to end the process; the next start reads what is really there.
"""

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rockoon_offset import frames
from rockoon_offset.disk import Disk
from rockoon_proto.errors import Busy, StoreCorrupt, StoreFailed

log = logging.getLogger(__name__)

FILE_NAME = re.compile(r"(\d{12})\.(journal|snapshot)")
SNAPSHOT_FRAME_RECORDS = 1000
SNAPSHOT_END = b'["end"]'


class Batch(NamedTuple):
    """Records of one caller; they reach the disk together or not at all."""

    records: Sequence[bytes]
    bytes: int


class Rotation(NamedTuple):
    """The wish for a new generation; `snapshot` holds what all records before it made."""

    snapshot: Iterator[bytes]


class Contents(NamedTuple):
    """What opening a directory found."""

    generation: int
    # Snapshot first, then what came after it.
    records: list[bytes]
    next_sequence: int
    # Where the newest journal goes on; what lies behind was never finished.
    end: int
    torn_bytes: int


class JournalCounts(NamedTuple):
    """Of the journal being written, and of this process."""

    bytes: int
    syncs: int
    # Writing included.
    sync_seconds: float


def journal_path(directory: Path, generation: int) -> Path:
    return directory / f"{generation:012}.journal"


def snapshot_path(directory: Path, generation: int) -> Path:
    return directory / f"{generation:012}.snapshot"


def generations(directory: Path, kind: str) -> list[int]:
    """Generations of which a file of this kind exists, oldest first."""
    matches = (FILE_NAME.fullmatch(path.name) for path in directory.iterdir())
    return sorted(int(match[1]) for match in matches if match and match[2] == kind)


def read_snapshot(directory: Path, generation: int) -> tuple[list[bytes], int]:
    """Records of a snapshot and the sequence at which its journal begins.

    Raises:
        StoreCorrupt: it is damaged.
    """
    path = snapshot_path(directory, generation)
    data = path.read_bytes()
    header = frames.read_file_header(data, frames.SNAPSHOT_MAGIC)
    if header is None or header.generation != generation:
        raise StoreCorrupt(path=path, reason="its header is not valid")
    records: list[bytes] = []
    for item in frames.read_frames(data, 0):
        if isinstance(item, frames.Damage):
            raise StoreCorrupt(path=path, reason=f"{item.reason} at byte {item.position}")
        records += item.records
    if not records or records.pop() != SNAPSHOT_END:
        raise StoreCorrupt(path=path, reason="its end is missing")
    return records, header.first_sequence


def read_contents(directory: Path) -> Contents:
    """Read a directory without changing it.

    Raises:
        StoreCorrupt: something that was promised cannot be read; names the file and the position.
    """
    journals, snapshots = generations(directory, "journal"), generations(directory, "snapshot")
    records: list[bytes] = []
    sequence, generation, damaged = 0, 1, None
    for candidate in reversed(snapshots):
        try:
            records, sequence = read_snapshot(directory, candidate)
        except StoreCorrupt as failure:
            damaged = failure
            log.error("%s; going back to the generation before", failure)  # noqa: TRY400
            continue
        generation = candidate
        break
    else:
        # Without a snapshot only the very first journal starts from nothing.
        if damaged is not None and 1 not in journals:
            raise damaged
    if not journals and not snapshots:
        return Contents(1, [], 0, 0, 0)
    # A snapshot, also a damaged one, tells that the journal of its generation existed.
    wanted = range(generation, max([*journals, *snapshots]) + 1)
    end = torn = 0
    for number in wanted:
        newest = number == wanted[-1]
        records_of, sequence, end, torn = read_journal(directory, number, sequence, newest)
        records += records_of
    return Contents(wanted[-1], records, sequence, end, torn)


def read_journal(
    directory: Path, generation: int, sequence: int, newest: bool
) -> tuple[list[bytes], int, int, int]:
    """Records of one journal, the sequence behind it, its end, and how much behind that is torn."""
    path = journal_path(directory, generation)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        # A snapshot is renamed into place only after its journal exists.
        raise StoreCorrupt(path=path, reason="the file is missing") from None
    header = frames.read_file_header(data, frames.JOURNAL_MAGIC)
    if header is None:
        # A journal whose very first write did not finish holds nothing.
        if newest and len(data) <= frames.FILE_HEADER_BYTES:
            return [], sequence, 0, len(data)
        raise StoreCorrupt(path=path, reason="its header is not valid")
    if header != (generation, sequence):
        raise StoreCorrupt(
            path=path,
            reason=f"it begins at record {header.first_sequence} of generation "
            f"{header.generation}, expected {sequence} of {generation}",
        )
    records: list[bytes] = []
    end = frames.FILE_HEADER_BYTES
    for item in frames.read_frames(data, sequence):
        if isinstance(item, frames.Damage):
            if item.followed or not newest:
                raise StoreCorrupt(path=path, reason=f"{item.reason} at byte {item.position}")
            break
        records += item.records
        sequence, end = item.sequence + len(item.records), item.end
    return records, sequence, end, len(data) - end


class Journal:
    """The journal of one directory. Call `start`, then `append`; `close` writes what waits.

    Args:
        directory: holds the files; must exist.
        on_synced: called by the writer thread with the number of batches that are durable.
        on_failed: called once by the writer thread when the disk failed.
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
        disk: Disk | None = None,
        bytes_max: int = 64 << 20,
        waiting_bytes_max: int = 64 << 20,
    ) -> None:
        self._directory = directory
        self._on_synced = on_synced
        self._on_failed = on_failed
        self._disk = disk or Disk()
        self._bytes_max = bytes_max
        self._waiting_bytes_max = waiting_bytes_max
        for leftover in directory.glob("*.new"):
            leftover.unlink()
        contents = read_contents(directory)
        self.torn_bytes = contents.torn_bytes
        # Taken by the owner once, then let go: it is as large as the state.
        self.records: list[bytes] = contents.records
        # Written by the writer thread only.
        self._generation = contents.generation
        self._sequence = contents.next_sequence
        self._end = contents.end
        self._fd = self._open_journal(contents.generation, contents.end)
        self._synced_batches = 0
        self._syncs = 0
        self._sync_seconds = 0.0
        self._snapshot_thread: threading.Thread | None = None
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
            StoreFailed: the disk failed before.
        """
        if self._failure is not None:
            raise self._failure
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
        return JournalCounts(self._end, self._syncs, self._sync_seconds)

    @property
    def wants_rotation(self) -> bool:
        """Whether the journal is past its bound and no snapshot is under way."""
        return self._end > self._bytes_max and not self._rotating

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
        """Write and sync what waits, and stop the threads. Raises StoreFailed if the disk did."""
        with self._lock:
            self._closing = True
            self._lock.notify()
        if self._thread.is_alive():
            self._thread.join()
        if self._snapshot_thread is not None:
            self._snapshot_thread.join()
        if not self._closed:
            self._closed = True
            self._disk.close(self._fd)
        if self._failure is not None:
            raise self._failure

    # The writer thread.

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._waiting and not self._closing:
                    self._lock.wait()
                if not self._waiting or self._failure is not None:
                    return
                work = list(self._waiting)
                self._waiting.clear()
                self._waiting_bytes = 0
            try:
                self._write(work)
            except OSError as failure:
                self._fail(f"{failure.strerror or failure} on {self._directory}")
                return

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
        self._disk.write_all(self._fd, data, self._end)
        self._disk.fdatasync(self._fd)
        self._sync_seconds += time.perf_counter() - began
        self._syncs += 1
        self._end += len(data)
        self._sequence += len(records)
        self._synced_batches += len(batches)
        self._on_synced(self._synced_batches)

    def _begin_generation(self, snapshot: Iterator[bytes]) -> None:
        generation = self._generation + 1
        fd = self._open_journal(generation, 0)
        self._disk.close(self._fd)
        self._fd, self._end, self._generation = fd, frames.FILE_HEADER_BYTES, generation
        self._snapshot_thread = threading.Thread(
            target=self._write_snapshot,
            args=(generation, self._sequence, snapshot),
            name="journal-snapshot",
            daemon=True,
        )
        self._snapshot_thread.start()

    def _open_journal(self, generation: int, end: int) -> int:
        """Open a journal for writing at `end`, cutting what lies behind; 0 makes a new one."""
        fd = self._disk.open_appending(journal_path(self._directory, generation))
        try:
            self._disk.truncate(fd, end)
            if end == 0:
                header = frames.FileHeader(generation, self._sequence)
                self._disk.write_all(fd, frames.file_header(frames.JOURNAL_MAGIC, header), 0)
                self._end = frames.FILE_HEADER_BYTES
            self._disk.fdatasync(fd)
            self._disk.sync_directory(self._directory)
        except OSError:
            self._disk.close(fd)
            raise
        return fd

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
            # The old generations are whole, and nothing was promised; but a disk that refuses this
            # is one that the journal must not trust either, and would fill for ever.
            self._fail(f"{failure.strerror or failure} while writing a snapshot")
        else:
            self._rotating = False


def write_snapshot(
    disk: Disk, path: Path, generation: int, sequence: int, records: Iterable[bytes]
) -> None:
    """Write a snapshot file so that it is there whole or not at all."""
    new = path.with_name(path.name + ".new")
    fd = disk.open_appending(new)
    try:
        disk.truncate(fd, 0)
        header = frames.file_header(frames.SNAPSHOT_MAGIC, frames.FileHeader(generation, sequence))
        disk.write_all(fd, header, 0)
        position, written = len(header), 0
        part: list[bytes] = []

        def write_part() -> None:
            nonlocal position, written
            data = frames.frame(written, part)
            disk.write_all(fd, data, position)
            position, written = position + len(data), written + len(part)
            part.clear()

        for record in records:
            part.append(record)
            if len(part) == SNAPSHOT_FRAME_RECORDS:
                write_part()
        part.append(SNAPSHOT_END)
        write_part()
        disk.fdatasync(fd)
    finally:
        disk.close(fd)
    disk.rename(new, path)
    disk.sync_directory(path.parent)
