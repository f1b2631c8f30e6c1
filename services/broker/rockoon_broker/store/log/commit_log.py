"""The CommitLog: fixed-size files that together are one sequence of records.

Invariants:
1. `end` is the physical offset behind the last record. Bytes from there to the end of the last
   file are zero, so that nothing a crash or a failed write left behind can be read as a record
   once newer records reach up to it.
2. A batch lies in one file, and 8 bytes stay free behind it (record.fits): what is left is marked
   with a blank, and the batch goes to the next file.
3. `end` moves only when every byte before it was accepted by the operating system.
4. Files are reserved in full before the first byte is written, so a write into them cannot run
   out of space; running out is met when a file is created.
"""

import contextlib
import errno
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rockoon_broker.store.errors import AppendFailed, BatchTooLarge
from rockoon_broker.store.log.file_reads import pread
from rockoon_broker.store.log.removals import DoomedFile
from rockoon_broker.store.log.syncer import SyncRequest, create_log_file
from rockoon_core.disk import Disk
from rockoon_format.file_names import offset_to_file_name
from rockoon_format.record import BLANK_BYTES_MIN, encode_blank, fits

PROBE_BYTES = 8


@dataclass(frozen=True, slots=True)
class LogFile:
    """One open CommitLog file."""

    start: int
    fd: int
    path: Path


class CommitLog:
    """The open log. Owned by one thread; only descriptors are lent to the Syncer.

    Args:
        directory: where the files are.
        file_bytes: size of each.
        starts: start offsets of the files to open, ascending without a gap.
        end: physical offset behind the last record, as recovery found it.
        take_reserved: gives the descriptor of a file reserved ahead, or None.
    """

    def __init__(
        self,
        directory: Path,
        file_bytes: int,
        disk: Disk,
        *,
        starts: list[int],
        end: int,
        take_reserved: Callable[[Path], int | None],
    ) -> None:
        self.directory = directory
        self._disk = disk
        self._take_reserved = take_reserved
        self.file_bytes = file_bytes
        self.end = end
        self.files: list[LogFile] = []
        # Behind which file the next one has been asked for.
        self._reserved_behind = -1
        # Bytes behind `end` that a failed write may have left; zeroed before the next write.
        self._unclean: tuple[LogFile, int, int] | None = None
        # Why the disk refused the last write, or another file; None if it accepted both.
        self.failure: OSError | None = None
        self._lacks_file = False
        for start in starts:
            path = self.path_of(start)
            self.files.append(LogFile(start, disk.open(path), path))

    @property
    def min_offset(self) -> int:
        """Physical offset of the oldest byte that is kept."""
        return self.files[0].start if self.files else 0

    def path_of(self, start: int) -> Path:
        """Path of the file that starts at a physical offset."""
        return self.directory / offset_to_file_name(start)

    @property
    def next_path(self) -> Path:
        """Path of the file that will follow the last."""
        return self.path_of(self.files[-1].start + self.file_bytes if self.files else 0)

    def file_at(self, offset: int) -> LogFile:
        """The file that holds the byte at a physical offset."""
        return self.files[(offset - self.files[0].start) // self.file_bytes]

    def same_file(self, offset: int, other: int) -> bool:
        """Whether one file holds the bytes at both physical offsets."""
        return offset // self.file_bytes == other // self.file_bytes

    def place(self, batch_bytes: int, *, in_next_file: bool = False) -> int:
        """Physical offset at which a batch of this size will begin.

        Creates the next file where it is needed, but moves nothing.

        Args:
            batch_bytes: its size.
            in_next_file: it may not follow another one in its file.

        Raises:
            BatchTooLarge: it fits into no file.
            AppendFailed: the next file cannot be created.
        """
        if self.files and not in_next_file:
            last = self.files[-1].start
            # As `fits`, which would be a call for each append.
            behind = self.end + batch_bytes + BLANK_BYTES_MIN
            if last <= self.end and behind <= last + self.file_bytes:
                return self.end
        if not fits(batch_bytes, self.file_bytes):
            raise BatchTooLarge(
                f"a batch of {batch_bytes} bytes does not fit into a file of {self.file_bytes}"
            )
        if self.files:
            # A failed write may have created the next file already, with `end` still before it.
            file = self._file_of_end()
            may_follow = not in_next_file or self.end == file.start
            if may_follow and fits(batch_bytes, file.start + self.file_bytes - self.end):
                return self.end
            following = file.start + self.file_bytes
            if following == self.files[-1].start:
                return following
        self._append_file()
        return self.files[-1].start

    def write(self, offset: int, batch: memoryview | bytes) -> None:
        """Write a patched batch, bytes, at the offset that `place` gave for its size.

        Raises:
            AppendFailed: the disk refused; `end` is where it was.
        """
        try:
            if self._unclean is not None:
                self._clean_tail()
                self._unclean = None
            # `place` went on to the next file, so this one is closed first: recovery stops at a
            # file that neither is full nor says by a blank that the log goes on.
            if offset != self.end:
                self._write_blank()
            last = self.files[-1]
            # Most batches: without a call.
            file = last if offset >= last.start else self.file_at(offset)
            position = offset - file.start
            # Before the write, which may stop halfway.
            self._unclean = (file, position, position + len(batch))
            self._disk.write_all(file.fd, batch, position)
        except OSError as error:
            # At once if possible: after a crash a record that was refused would be found and kept.
            with contextlib.suppress(OSError):
                self._clean_tail()
            self.failure = error
            raise AppendFailed(f"the CommitLog was not written: {error}", error.errno) from error
        self._unclean = None
        if not self._lacks_file:
            self.failure = None
        # Behind the write, and only if all of it was taken: readers go up to here.
        self.end = offset + len(batch)

    def extend(self, data: bytes) -> None:
        """Write what follows the end in its file, or begins the next one.

        Raises:
            AppendFailed: the disk refused; `end` is where it was.
        """
        # A file that is full, or was closed by a blank: no batch that went on would say so.
        if not self.files or self.end == self.files[-1].start + self.file_bytes:
            self._append_file()
        self.write(self.end, memoryview(data))

    def probe(self) -> None:
        """Repeat a refused write without a record; `failure` has the result.

        If the next file could not be created, it is created now. Otherwise zeros are written behind
        the end, where zeros are.
        """
        try:
            if self._lacks_file:
                self._append_file()
            elif self.files:
                file = self._file_of_end()
                if self._unclean is not None:
                    self._clean_tail()
                    file = self._unclean[0]
                position = max(self.end - file.start, 0)
                if position + PROBE_BYTES > self.file_bytes:
                    # The file is full to the last bytes: the next append creates another one.
                    following = file.start + self.file_bytes
                    if following != self.files[-1].start:
                        self._append_file()
                    file, position = self.files[-1], 0
                self._disk.write_all(file.fd, bytes(PROBE_BYTES), position)
        except AppendFailed:
            return
        except OSError as error:
            self.failure = error
            return
        self.failure = None

    def read(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes from a physical offset, never beyond `end` or the file's end.

        Empty if the offset is outside the log. Read with pread, not through a mapping: a bad
        sector is then an OSError and not a signal that kills the process, and the copy is needed
        anyway. What a file lacks that was cut short is zeros, as if it were a hole: whoever reads
        it finds no record there.
        """
        # Bytes behind `end` are zeros or what a failed write left: nobody may take them for a
        # record.
        if not self.min_offset <= offset < self.end:
            return b""
        file = self.file_at(offset)
        count = min(count, self.end - offset, file.start + self.file_bytes - offset)
        return pread(self._disk, file.fd, count, offset - file.start).ljust(count, b"\0")

    def rewrite(self, offset: int, data: bytes) -> Callable[[], None]:
        """Replace damaged bytes below the end by those of another copy.

        Args:
            offset: physical offset of the first byte.
            data: bytes of one file, all below the end.

        Returns:
            A function that makes the bytes durable and closes its descriptor; any thread may call
            it, once. The next read returns the bytes of the disk, not those in memory.

        Raises:
            ValueError: the log does not have this range.
            OSError: the disk.
        """
        end = offset + len(data)
        if not (data and self.min_offset <= offset < end <= self.end):
            raise ValueError(f"the log does not have {offset} to {end}")
        file, disk = self.file_at(offset), self._disk
        # The log may be cut or closed while this waits for the disk.
        fd = disk.duplicate(file.fd)
        try:
            disk.write_all(fd, data, offset - file.start)
        except OSError:
            disk.close(fd)
            raise

        def finish() -> None:
            try:
                disk.fdatasync(fd)
                disk.drop_clean(fd)
            finally:
                disk.close(fd)

        return finish

    def cut_end(self, offset: int) -> int | None:
        """Where the file that holds the byte at a physical offset ends, if somebody cut it short.

        Raises:
            OSError: the disk.
        """
        file = self.file_at(offset)
        found = self._disk.size(file.fd)
        return file.start + found if found < self.file_bytes else None

    @property
    def wants_file(self) -> bool:
        """Whether the last file is half full, and the next one was not requested."""
        if not self.files:
            return False
        last = self.files[-1].start
        return self.end - last > self.file_bytes // 2 and self._reserved_behind != last

    def reserve_ahead(
        self, request_file: Callable[[Path], None], may_reserve: Callable[[], bool]
    ) -> None:
        """Request the next file, once, when the last is half full.

        Args:
            request_file: called with the path of the file.
            may_reserve: whether the disk has room for it; asked right before.
        """
        if self.wants_file and may_reserve():
            self._reserved_behind = self.files[-1].start
            request_file(self.next_path)

    def sync_request(self, synced_end: int) -> SyncRequest:
        """What the Syncer has to do to make everything durable that was written."""
        fds: list[int] = []
        for file in reversed(self.files):
            if file.start + self.file_bytes <= synced_end:
                break
            if file.start < self.end:
                fds.insert(0, file.fd)
        return SyncRequest(self.end, tuple(fds))

    def remove_oldest(self) -> DoomedFile:
        """Give up the oldest file; the last is never given up."""
        # The last file tells where offsets go on; without it they would begin at 0 again.
        assert len(self.files) > 1
        file = self.files.pop(0)
        return DoomedFile(file.path, file.fd)

    def erase_refused(self) -> None:
        """Durably remove what a refused write may have left, or the next start would find it."""
        if self._unclean is not None:
            self._clean_tail()
            self._disk.fdatasync(self._unclean[0].fd)

    def close(self) -> None:
        for file in self.files:
            self._disk.close(file.fd)
        self.files.clear()

    def _file_of_end(self) -> LogFile:
        """The file that the next small record goes to: the one that holds the last byte."""
        # Not the byte at `end`: where a file is full, that belongs to the next one, if there is
        # one.
        return self.file_at(max(self.end - 1, self.files[0].start))

    def _append_file(self) -> None:
        """Raises AppendFailed."""
        path = self.next_path
        start = self.files[-1].start + self.file_bytes if self.files else 0
        fd = self._take_reserved(path)
        try:
            if fd is None:
                fd = create_log_file(path, self.file_bytes, self._disk)
        except OSError as error:
            if isinstance(error, FileExistsError):
                error = OSError(errno.EEXIST, f"a stray file is in the way: {path}")
            self._lacks_file, self.failure = True, error
            reason = f"no room for another CommitLog file: {error}"
            raise AppendFailed(reason, error.errno) from error
        self._lacks_file = False
        self.files.append(LogFile(start, fd, path))

    def _write_blank(self) -> None:
        file = self._file_of_end()
        position = self.end - file.start
        remaining = self.file_bytes - position
        if remaining:
            self._unclean = (file, position, position + 8)
            self._disk.write_all(file.fd, encode_blank(remaining), position)
            # A blank behind `end` is as good as zeros: the next write covers it or follows it.
            self._unclean = None

    def _clean_tail(self) -> None:
        if self._unclean is not None:
            file, start, end = self._unclean
            self._disk.write_zeros(file.fd, start, end)
