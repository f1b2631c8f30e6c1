"""The file system as the journal uses it: one small object, so that tests can put a failing one in.

Errors are OSErrors, as the operating system gave them.
"""

import errno
import os
from pathlib import Path

# What passes without anybody doing anything to the disk: no room, or no descriptor.
SHORTAGES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
CHUNK_BYTES = 1 << 20


class Disk:
    """The real file system. What it creates is for its owner alone."""

    def open_appending(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        """Write some of `data` at `position`; returns how many bytes were taken."""
        return os.pwrite(fd, data, position)

    def pread(self, fd: int, count: int, position: int) -> bytes:
        return os.pread(fd, count, position)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def drop_clean(self, fd: int) -> None:
        """Have the next reads of a file see the disk and not what memory holds of it.

        Only a request: pages that are mapped, dirty or being written stay. See `rewrite`.
        """
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def allocate(self, fd: int, count: int) -> None:
        """Take blocks for the first `count` bytes."""
        os.posix_fallocate(fd, 0, count)

    def truncate(self, fd: int, count: int) -> None:
        os.ftruncate(fd, count)

    def rename(self, source: Path, target: Path) -> None:
        """Rename, replacing `target` in one step."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    # Made of the calls above, so that a fault hits it too.

    def write_all(self, fd: int, data: bytes, position: int) -> None:
        """Write all of `data`. On an OSError any prefix of it may have been written."""
        view = memoryview(data)
        while view:
            written = self.pwrite(fd, view, position)
            view, position = view[written:], position + written

    def rewrite(self, fd: int, end: int) -> None:
        """Write the first bytes of a file as they are, so that the next sync really writes them.

        After a sync that failed, Linux keeps what it could not write in memory and takes it for
        written: it is read as if it were there, and the next sync passes it over.
        """
        for position in range(0, end, CHUNK_BYTES):
            count = min(CHUNK_BYTES, end - position)
            self.write_all(fd, self.pread(fd, count, position), position)


def replace_file(disk: Disk, path: Path, content: bytes) -> None:
    """Durably give `path` a new content: a reader sees the old or the new, never a mixture."""
    new = path.with_name(path.name + ".new")
    # A file of its own at every try: one whose sync failed holds what only seems written.
    disk.unlink(new)
    fd = disk.open_appending(new)
    try:
        disk.write_all(fd, content, 0)
        disk.fdatasync(fd)
    finally:
        disk.close(fd)
    disk.rename(new, path)
    disk.sync_directory(path.parent)
