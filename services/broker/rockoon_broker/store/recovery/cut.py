"""Truncates a CommitLog, so that a physical offset becomes its end.

The removed bytes are first copied to `lost`, durably. After a crash in between, the log has its old
end or an end in the removed range. The next start finds the same end, or reads it
again.

A cut needs many writes, and a crash may leave any of them. So the end is first stored in one atomic
write, and a later start cuts the log, repeatedly if it crashes: either no cut was decided, or the
log ends at the decided offset. Format of `config/truncation`:

    offset 8 bytes, CRC-32 of the offset 4 bytes, big-endian
"""

import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path

from rockoon_broker.store.errors import StoreDamaged
from rockoon_broker.store.log.syncer import create_log_file
from rockoon_core.disk import Disk
from rockoon_format.file_names import offset_to_file_name
from rockoon_format.record import MAGIC_BLANK

FILE = "config/truncation"
_OFFSET = struct.Struct(">q")
_CRC = struct.Struct(">I")


class TruncationFile:
    """The truncation file of one store directory."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self._path = root / FILE
        self._disk = disk

    def read(self) -> int | None:
        """Return the physical offset at which the log must end; None if no cut was decided.

        Raises:
            StoreDamaged: the file is damaged. Without the cut the log may differ from its copies.
        """
        if not self._path.exists():
            return None
        content = self._path.read_bytes()
        offset = content[: _OFFSET.size]
        if content != offset + _CRC.pack(zlib.crc32(offset)) or len(offset) < _OFFSET.size:
            raise StoreDamaged(
                self._path,
                0,
                "the file with the decided end of the log is damaged; restore the store",
            )
        (found,) = _OFFSET.unpack(offset)
        return int(found)

    def write(self, offset: int) -> None:
        """Store the offset at which the next start must cut the log; durable on return."""
        packed = _OFFSET.pack(offset)
        for changed in self._disk.make_directory(self._path.parent):
            self._disk.sync_directory(changed)
        self._disk.replace_file(self._path, packed + _CRC.pack(zlib.crc32(packed)))

    def remove(self) -> None:
        """Remove the file, durably, after the log was cut."""
        self._disk.unlink(self._path)
        # Before any append, which another cut at this offset would remove.
        self._disk.sync_directory(self._path.parent)


LOST_DIRECTORY = "lost"
# Unit of `st_blocks`, regardless of the file system's block size.
_BLOCK_BYTES = 512

_BLANK = MAGIC_BLANK.to_bytes(4, signed=True)


def lost_bytes(root: Path) -> int:
    """Return the disk usage of a store's `lost` directory, which only the operator deletes."""
    total = 0
    for folder, _, names in os.walk(root / LOST_DIRECTORY):
        for name in names:
            # The operator may be deleting it.
            with suppress(FileNotFoundError):
                total += (Path(folder) / name).lstat().st_blocks * _BLOCK_BYTES
    return total


class LogCut:
    """Truncates the files of a log that is not open.

    Args:
        root: the store directory.

    Attributes:
        lost_files: files in `lost` with the removed bytes.
    """

    def __init__(self, root: Path, directory: Path, file_bytes: int, disk: Disk) -> None:
        self._root = root
        self._log = directory
        self._file_bytes = file_bytes
        self._disk = disk
        self.lost_files: list[Path] = []

    def cut(
        self, starts: list[int], end: int, boundary: int, unwritten: int | None
    ) -> tuple[list[int], int]:
        """Remove all records after `end`; return the remaining files and the number of zeroed
        bytes.

        Bytes from `unwritten` on may exist only in the page cache; None: all are on the disk.
        """
        kept = [start for start in starts if start < end]
        if not kept and starts[0] > 0:
            # Keep a file: otherwise offsets would restart at 0.
            kept = starts[:1]
        cleared = 0
        for start in reversed(starts[len(kept) :]):
            cleared += self._remove_file(start)
        if kept:
            fd = self._disk.open(self._log / offset_to_file_name(kept[-1]))
            try:
                self._keep_tail(fd, kept[-1], end - kept[-1])
                cleared += self._disk.write_zeros(fd, end - kept[-1], self._file_bytes)
            finally:
                self._disk.close(fd)
        # Readers will see these records, so they must be durable.
        for start in kept:
            if start + self._file_bytes > boundary:
                self._sync(start, end, unwritten)
        self._disk.sync_directory(self._log)
        return kept, cleared

    def move_beginning(self, starts: list[int], offset: int) -> list[int]:
        """Move the beginning of an empty log; return its files, which contain only zeros.

        Args:
            starts: start offsets of the existing, empty files.
            offset: the new beginning, a multiple of the file size.
        """
        for start in starts:
            if start != offset:
                self._disk.unlink(self._log / offset_to_file_name(start))
        if offset not in starts:
            self._disk.make_directory(self._log)
            path = self._log / offset_to_file_name(offset)
            self._disk.close(create_log_file(path, self._file_bytes, self._disk))
        self._disk.sync_directory(self._log)
        return [offset]

    def _remove_file(self, start: int) -> int:
        """Remove a file after the end; if it is not empty, move it to `lost`."""
        path = self._log / offset_to_file_name(start)
        fd = self._disk.open_reading(path)
        try:
            empty = self._disk.is_zero(fd, 0, self._file_bytes)
        finally:
            self._disk.close(fd)
        if empty:
            self._disk.unlink(path)
            return 0
        target = self._free_path_in_lost(start)
        # Not deleted: records after damage may be the only copy.
        self._disk.rename(path, target)
        self._disk.sync_directory(target.parent)
        self.lost_files.append(target)
        return self._file_bytes

    def _keep_tail(self, source: int, start: int, position: int) -> None:
        """Copy the content of a file from `position` on to `lost`, durably; a blank without records
        is not copied. Raises OSError: no space for the copy; the original is unchanged."""
        ranges = list(self._disk.nonzero_ranges(source, position, self._file_bytes))
        if not ranges:
            return
        low, high = ranges[0]
        if len(ranges) == 1 and low == position:
            data = self._disk.pread(source, high - low, low)
            if data[4:8] == _BLANK and not data[8:].strip(b"\0"):
                return
        target = self._free_path_in_lost(start + position)
        copy = self._disk.open(target, create=True)
        try:
            for low, high in ranges:
                data = self._disk.pread(source, high - low, low)
                # Trailing zeros are not needed.
                self._disk.write_all(copy, data.rstrip(b"\0"), low - position)
            # Before `cut` zeroes the original.
            self._disk.fdatasync(copy)
        finally:
            self._disk.close(copy)
        self._disk.sync_directory(target.parent)
        self.lost_files.append(target)

    def _free_path_in_lost(self, offset: int) -> Path:
        """Return an unused path in `lost`, named after the physical offset of its first byte."""
        lost = self._root / LOST_DIRECTORY
        for changed in self._disk.make_directory(lost):
            self._disk.sync_directory(changed)
        name = offset_to_file_name(offset)
        target = lost / name
        number = 0
        while target.exists():
            number += 1
            target = lost / f"{name}.{number}"
        return target

    def _sync(self, start: int, end: int, unwritten: int | None) -> None:
        fd = self._disk.open(self._log / offset_to_file_name(start))
        try:
            if unwritten is not None:
                used = min(end - start, self._file_bytes)
                # After a failed sync, another sync succeeds without writing the lost pages.
                # Rewriting makes the pages dirty, so that this sync writes them.
                self._disk.rewrite(fd, max(unwritten - start, 0), used)
                self._disk.rewrite_zeros(fd, used, self._file_bytes)
            self._disk.fdatasync(fd)
        finally:
            self._disk.close(fd)
