"""The CommitLog: fixed-size files that together are one sequence of records.

Invariants:
1. `end` is the physical offset after the last record. Bytes between it and the end of the last
   file are zero. Otherwise a later record could end directly before the remains of a crash or of
   a failed write, and recovery would read them as the next record.
2. A batch never crosses a file boundary, and at least 8 bytes stay free after it (record.fits). If
   it does not fit, a blank marks the rest of the file and the batch starts the next file.
3. `end` moves only when the operating system has accepted every byte before it.
4. Files are reserved in full before the first write, so that a write never runs out of
   space. A shortage is noticed when a file is created.

With `zeroes_ahead`, zeros follow a small batch. The first write to a reserved block changes the
metadata of the file, and the next sync waits for the file system's journal. One write of zeros does
this for the blocks of some hundred later batches.
"""

import contextlib
import errno
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rockoon_broker.store.errors import AppendFailed, BatchTooLarge
from rockoon_broker.store.log.directory import DoomedFile
from rockoon_broker.store.log.file_reads import pread
from rockoon_broker.store.log.syncer import SyncRequest, create_log_file
from rockoon_core.disk import Disk
from rockoon_format.file_names import offset_to_file_name
from rockoon_format.record import BLANK_BYTES_MIN, encode_blank, fits

PROBE_BYTES = 8
ZERO_AHEAD_BYTES = 64 << 10
# A longer batch is not followed by zeros: its own blocks are most of the next sync's work.
SMALL_BYTES_MAX = 8 << 10
_ZEROS = bytes(ZERO_AHEAD_BYTES)


@dataclass(frozen=True, slots=True)
class CommitLogFile:
    """One open CommitLog file."""

    start: int
    fd: int
    path: Path


class CommitLog:
    """The open log. Owned by one thread; the Syncer only borrows file descriptors.

    Args:
        starts: start offsets of the files to open, ascending without a gap.
        end: physical offset after the last record, as recovery found it.
        claim_reserved: returns the descriptor of a file reserved ahead, or None.
        zeroes_ahead: write zeros behind small batches, because each is synced.
    """

    def __init__(
        self,
        directory: Path,
        file_bytes: int,
        disk: Disk,
        *,
        starts: list[int],
        end: int,
        claim_reserved: Callable[[Path], int | None],
        zeroes_ahead: bool = False,
    ) -> None:
        self.directory = directory
        self._disk = disk
        self._claim_reserved = claim_reserved
        self.file_bytes = file_bytes
        self.end = end
        self.files: list[CommitLogFile] = []
        # Start of the last file for which the next one has been requested.
        self._reserved_after = -1
        # Bytes after `end` that a failed write may have left; zeroed before the next write.
        self._unclean: tuple[CommitLogFile, int, int] | None = None
        # Error of the last write or file creation that the disk refused; None if both succeeded.
        self.failure: OSError | None = None
        self._lacks_file = False
        # Bytes up to here have been written, as zeros or as batches; only with `zeroes_ahead`.
        self._zeros_end = -1 if zeroes_ahead else sys.maxsize
        for start in starts:
            path = self.path_of(start)
            self.files.append(CommitLogFile(start, disk.open(path), path))

    @property
    def min_offset(self) -> int:
        """Physical offset of the oldest byte that is kept."""
        return self.files[0].start if self.files else 0

    def path_of(self, start: int) -> Path:
        """Return the path of the file that starts at a physical offset."""
        return self.directory / offset_to_file_name(start)

    @property
    def next_path(self) -> Path:
        """Path of the file that will follow the last."""
        return self.path_of(self.files[-1].start + self.file_bytes if self.files else 0)

    def file_at(self, offset: int) -> CommitLogFile:
        """Return the file that contains the byte at a physical offset."""
        return self.files[(offset - self.files[0].start) // self.file_bytes]

    def same_file(self, offset: int, other: int) -> bool:
        """Return whether one file contains the bytes at both physical offsets."""
        return offset // self.file_bytes == other // self.file_bytes

    def place(self, batch_bytes: int, *, in_next_file: bool = False) -> int:
        """Return the physical offset at which a batch of this size will begin.

        Creates the next file if necessary. `end` does not move.

        Args:
            in_next_file: the batch must be the first of a file.

        Raises:
            BatchTooLarge: the batch does not fit into an empty file.
            AppendFailed: the next file cannot be created.
        """
        if self.files and not in_next_file:
            last = self.files[-1].start
            # The condition of `fits`, without a function call for each append.
            needed_end = self.end + batch_bytes + BLANK_BYTES_MIN
            if last <= self.end and needed_end <= last + self.file_bytes:
                return self.end
        if not fits(batch_bytes, self.file_bytes):
            raise BatchTooLarge(
                f"a batch of {batch_bytes} bytes does not fit into a file of {self.file_bytes}"
            )
        if self.files:
            # A failed write may already have created the next file while `end` stayed before it.
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
        """Write a batch with its final fields at the offset that `place` returned for its size.
        Raises AppendFailed: the disk refused the write; `end` has not moved."""
        try:
            if self._unclean is not None:
                self._clean_tail()
                self._unclean = None
            # If the batch goes to the next file, first write a blank to the rest of this file:
            # recovery stops at a file that neither is full nor ends with a blank.
            if offset != self.end:
                self._write_blank()
            last = self.files[-1]
            # Most batches go to the last file, which needs no function call.
            file = last if offset >= last.start else self.file_at(offset)
            position = offset - file.start
            # Set before the write, which may stop halfway.
            self._unclean = (file, position, position + len(batch))
            self._disk.write_all(file.fd, batch, position)
        except OSError as error:
            # Erase now if possible: after a crash, recovery would keep the refused record.
            with contextlib.suppress(OSError):
                self._clean_tail()
            self.failure = error
            raise AppendFailed(f"the CommitLog was not written: {error}", error.errno) from error
        self._unclean = None
        if not self._lacks_file:
            self.failure = None
        # Only after the whole write: readers read up to `end`.
        self.end = end = offset + len(batch)
        if end > self._zeros_end and len(batch) <= SMALL_BYTES_MAX:
            self._zero_ahead(file)

    def _zero_ahead(self, file: CommitLogFile) -> None:
        """Write zeros behind the end, in the same file."""
        count = min(ZERO_AHEAD_BYTES, file.start + self.file_bytes - self.end)
        self._zeros_end = self.end + count
        # The blocks contain zeros already, so that a failure changes nothing. A disk that refuses
        # this write refuses the next batch, too.
        with contextlib.suppress(OSError):
            self._disk.write_all(file.fd, _ZEROS[:count], self.end - file.start)

    def extend(self, data: bytes) -> None:
        """Append bytes at the end of the log; they must fit into the last file, or start the next
        one. Raises AppendFailed: the disk refused the write; `end` has not moved."""
        # If the last file is full or closed by a blank, the bytes begin the next file.
        if not self.files or self.end == self.files[-1].start + self.file_bytes:
            self._append_file()
        self.write(self.end, memoryview(data))

    def probe(self) -> None:
        """Test whether the disk accepts writes again, after it has refused one; set `failure` to
        the result.

        If the next file could not be created, this creates it. Otherwise this writes zeros after
        the end, where the file already holds zeros.
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
                    # The file is full up to the last bytes; the next append uses a new file.
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
        """Read up to `count` bytes from a physical offset, never beyond `end` or the end of the
        file.

        Empty if the offset is outside the log. Reads with pread instead of a mapping: a bad
        sector then raises OSError instead of a signal that kills the process, and the copy is
        needed anyway. Bytes that are missing because a file was truncated are returned as zeros,
        in which a reader finds no record.
        """
        # Bytes after `end` are zeros or remains of a failed write; never return them.
        if not self.min_offset <= offset < self.end:
            return b""
        file = self.file_at(offset)
        count = min(count, self.end - offset, file.start + self.file_bytes - offset)
        return pread(self._disk, file.fd, count, offset - file.start).ljust(count, b"\0")

    def rewrite(self, offset: int, data: bytes) -> Callable[[], None]:
        """Replace damaged bytes below `end` by the bytes of another copy.

        Args:
            offset: physical offset of the first byte.
            data: bytes of one file, all below the end.

        Returns:
            A function that makes the bytes durable and closes its descriptor; any thread may call
            it, once. The next read then returns the bytes on the disk instead of cached ones.

        Raises:
            ValueError: the range is not in the log.
            OSError: the disk.
        """
        end = offset + len(data)
        if not (data and self.min_offset <= offset < end <= self.end):
            raise ValueError(f"the log does not have {offset} to {end}")
        file, disk = self.file_at(offset), self._disk
        # The owner may truncate or close the log while `finish` waits for the disk.
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
        """Return the end of the file that contains a physical offset if the file on disk was
        truncated; None if it was not. Raises OSError."""
        file = self.file_at(offset)
        found = self._disk.size(file.fd)
        return file.start + found if found < self.file_bytes else None

    def wants_file(self) -> bool:
        """Return whether the last file is half full and the next one has not been requested."""
        if not self.files:
            return False
        last = self.files[-1].start
        return self.end - last > self.file_bytes // 2 and self._reserved_after != last

    def reserve_ahead(
        self, request_file: Callable[[Path], None], may_reserve: Callable[[], bool]
    ) -> None:
        """Request the next file; only if `wants_file` returns True.

        Args:
            request_file: called with the path of the file.
            may_reserve: returns whether the disk has room for the file; called just before.
        """
        if may_reserve():
            self._reserved_after = self.files[-1].start
            request_file(self.next_path)

    def sync_request(self, synced_end: int) -> SyncRequest:
        """Return the sync request that makes all written bytes durable."""
        fds: list[int] = []
        for file in reversed(self.files):
            if file.start + self.file_bytes <= synced_end:
                break
            if file.start < self.end:
                fds.insert(0, file.fd)
        return SyncRequest(self.end, tuple(fds))

    def remove_oldest(self) -> DoomedFile:
        """Remove the oldest file from the log and return it for deletion; never the last file."""
        # The last file holds the position of the next offset; without it offsets restart at 0.
        assert len(self.files) > 1
        file = self.files.pop(0)
        return DoomedFile(file.path, file.fd)

    def erase_refused(self) -> None:
        """Overwrite the remains of a refused write with zeros, durably; the next start would read
        them as a record."""
        if self._unclean is not None:
            self._clean_tail()
            self._disk.fdatasync(self._unclean[0].fd)

    def close(self) -> None:
        for file in self.files:
            self._disk.close(file.fd)
        self.files.clear()

    def _file_of_end(self) -> CommitLogFile:
        """Return the file that contains the last byte of the log."""
        # Not the file of the byte at `end`: after a full file that is the next one, which may not
        # exist.
        return self.file_at(max(self.end - 1, self.files[0].start))

    def _append_file(self) -> None:
        """Create the next file and append it to the log. Raises AppendFailed."""
        path = self.next_path
        start = self.files[-1].start + self.file_bytes if self.files else 0
        fd = self._claim_reserved(path)
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
        self.files.append(CommitLogFile(start, fd, path))

    def _write_blank(self) -> None:
        file = self._file_of_end()
        position = self.end - file.start
        remaining = self.file_bytes - position
        if remaining:
            self._unclean = (file, position, position + 8)
            self._disk.write_all(file.fd, encode_blank(remaining), position)
            # A blank after `end` is as harmless as zeros: the next write overwrites or follows it.
            self._unclean = None

    def _clean_tail(self) -> None:
        if self._unclean is not None:
            file, start, end = self._unclean
            self._disk.write_zeros(file.fd, start, end)
