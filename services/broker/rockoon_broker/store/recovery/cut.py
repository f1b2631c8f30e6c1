"""Cut of a CommitLog: an end is made of the place up to which its records are kept.

What is cut off is copied to `lost` before, durably. A crash on the way leaves the log as it was or
a part of what was to be cut: the next start finds the same end, or is told it again
(truncation.py).
"""

import os
from contextlib import suppress
from pathlib import Path

from rockoon_broker.store.log.syncer import create_log_file
from rockoon_core.disk import Disk
from rockoon_format.file_names import offset_to_file_name
from rockoon_format.record import MAGIC_BLANK

LOST_DIRECTORY = "lost"
# Of `st_blocks`, whatever blocks the file system has.
_BLOCK_BYTES = 512

_BLANK = MAGIC_BLANK.to_bytes(4, signed=True)


def lost_bytes(root: Path) -> int:
    """What `lost` of a store occupies on the disk: nothing deletes it but people."""
    total = 0
    for folder, _, names in os.walk(root / LOST_DIRECTORY):
        for name in names:
            # Somebody may be deleting it.
            with suppress(FileNotFoundError):
                total += (Path(folder) / name).lstat().st_blocks * _BLOCK_BYTES
    return total


class LogCut:
    """Cuts the files of a log that nobody has open.

    Args:
        root: the store directory.
        directory: the CommitLog's in it.
        file_bytes: size of each file.

    Attributes:
        set_aside: files in `lost` that hold what was cut off.
    """

    def __init__(self, root: Path, directory: Path, file_bytes: int, disk: Disk) -> None:
        self._root = root
        self._log = directory
        self._file_bytes = file_bytes
        self._disk = disk
        self.set_aside: list[Path] = []

    def cut(
        self, starts: list[int], end: int, boundary: int, unwritten: int | None
    ) -> tuple[list[int], int]:
        """Remove everything behind `end`; returns the files that remain and the bytes cleared.

        What was read from `unwritten` on may be in memory alone; None: all is on the disk.
        """
        kept = [start for start in starts if start < end]
        if not kept and starts[0] > 0:
            # Offsets must not start at 0 again only because no record is left.
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
        # Records that were read are shown to readers, so they must be durable as well.
        for start in kept:
            if start + self._file_bytes > boundary:
                self._sync(start, end, unwritten)
        self._disk.sync_directory(self._log)
        return kept, cleared

    def begin_at(self, starts: list[int], offset: int) -> list[int]:
        """Have a log without records begin elsewhere; returns the files that remain, all zeros.

        Args:
            starts: of the files, which hold nothing.
            offset: a multiple of the files' size.
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
        """Unlink a file behind the end; one that holds anything is kept aside in `lost`."""
        path = self._log / offset_to_file_name(start)
        fd = self._disk.open_reading(path)
        try:
            empty = self._disk.is_zero(fd, 0, self._file_bytes)
        finally:
            self._disk.close(fd)
        if empty:
            self._disk.unlink(path)
            return 0
        target = self._place_in_lost(start)
        # Moved, not deleted: what follows damage may be somebody's only copy.
        self._disk.rename(path, target)
        self._disk.sync_directory(target.parent)
        self.set_aside.append(target)
        return self._file_bytes

    def _keep_tail(self, source: int, start: int, position: int) -> None:
        """Copy what a file holds from `position` on to `lost`, durably; a blank alone is nothing.

        Raises:
            OSError: there is no room for the copy: then it stays where it is.
        """
        ranges = list(self._disk.nonzero_ranges(source, position, self._file_bytes))
        if not ranges:
            return
        low, high = ranges[0]
        if len(ranges) == 1 and low == position:
            data = self._disk.pread(source, high - low, low)
            if data[4:8] == _BLANK and not data[8:].strip(b"\0"):
                return
        target = self._place_in_lost(start + position)
        copy = self._disk.open(target, create=True)
        try:
            for low, high in ranges:
                data = self._disk.pread(source, high - low, low)
                # Zeros behind the last byte say nothing.
                self._disk.write_all(copy, data.rstrip(b"\0"), low - position)
            # Before `cut` makes the original zero.
            self._disk.fdatasync(copy)
        finally:
            self._disk.close(copy)
        self._disk.sync_directory(target.parent)
        self.set_aside.append(target)

    def _place_in_lost(self, offset: int) -> Path:
        """A path in `lost` that is free, named after the physical offset of its first byte."""
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
                # A sync after a failed one reports success without the pages that failed. Writing
                # them once more makes them dirty, so that this sync has to write them.
                self._disk.rewrite(fd, max(unwritten - start, 0), used)
                self._disk.rewrite_zeros(fd, used, self._file_bytes)
            self._disk.fdatasync(fd)
        finally:
            self._disk.close(fd)
