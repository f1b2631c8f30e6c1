"""A model of Linux's page cache: pages that a failed sync did not write count as written.

The files that a test's services read and write are the cache. The model also keeps the content of
the disk. A sync writes the dirty pages. A failed sync leaves them in the cache, marked as clean
(fs/fs-writeback.c, mm/page-writeback.c: an error is reported once, and the pages are no longer
dirty). A restart of the process changes nothing; after a power cut the content of the disk remains.
"""

import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from support.store_directory import FailingDisk

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# Smaller than a real page, so that small files have many pages.
PAGE_BYTES = 512


class PageCache:
    """State of the pages of all files below a directory: on the disk, or only in the cache.

    Names, sizes and reserved space are on the disk immediately; PowerCutDisk simulates their loss.

    Args:
        drops_clean: whether the system obeys a request to drop clean pages.
    """

    def __init__(self, root: Path, *, drops_clean: bool = True) -> None:
        self._root = root
        self._drops_clean = drops_clean
        # Guards the other fields: services sync on their own threads.
        self._guard = threading.Lock()
        self._disk: dict[Path, bytearray] = {}
        self._dirty: defaultdict[Path, set[int]] = defaultdict(set)
        for path in root.rglob("*"):
            if path.is_file():
                self._disk[path] = bytearray(path.read_bytes())

    def wrote(self, path: Path, position: int, count: int) -> None:
        """Record a write to the cache."""
        with self._guard:
            last = max(position + count - 1, position)
            self._dirty[path].update(range(position // PAGE_BYTES, last // PAGE_BYTES + 1))

    def synced(self, path: Path, *, failed: bool) -> None:
        """Record the end of a sync of a file."""
        with self._guard, suppress(FileNotFoundError):
            content = path.read_bytes()
            disk = self._disk.setdefault(path, bytearray())
            disk[len(content) :] = b""
            disk.extend(bytes(len(content) - len(disk)))
            dirty, self._dirty[path] = self._dirty[path], set()
            for page in () if failed else dirty:
                at = slice(page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, len(content)))
                disk[at] = content[at]

    def dropped(self, path: Path) -> None:
        """Record a request to drop a file's clean pages: the next read returns the disk's
        content."""
        with self._guard:
            if not self._drops_clean:
                return
            disk = self._disk.get(path, bytearray())
            with path.open("r+b") as file:
                for page in range(-(-path.stat().st_size // PAGE_BYTES)):
                    if page not in self._dirty[path]:
                        file.seek(page * PAGE_BYTES)
                        held = disk[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]
                        left = path.stat().st_size - page * PAGE_BYTES
                        file.write(held.ljust(min(PAGE_BYTES, left), b"\0"))

    def cut_to(self, path: Path, count: int) -> None:
        """Record a truncation of a file to this size; the bytes after it are on no disk any
        more."""
        with self._guard:
            del self._disk.setdefault(path, bytearray())[count:]

    def moved(self, source: Path, target: Path) -> None:
        with self._guard:
            source.replace(target)
            for path in [path for path in self._disk if source in (path, *path.parents)]:
                self._disk[target / path.relative_to(source)] = self._disk.pop(path)
            for path in [path for path in self._dirty if source in (path, *path.parents)]:
                self._dirty[target / path.relative_to(source)] = self._dirty.pop(path)

    def removed(self, path: Path) -> None:
        with self._guard:
            path.unlink(missing_ok=True)
            self._disk.pop(path, None)
            self._dirty.pop(path, None)

    def cut(self, target: Path) -> Path:
        """Write the content of the disk, as after a power cut, to another directory."""
        with self._guard:
            for path in sorted(self._root.rglob("*")):
                copy = target / path.relative_to(self._root)
                copy.parent.mkdir(parents=True, exist_ok=True)
                if path.is_dir():
                    copy.mkdir(exist_ok=True)
                    continue
                size = path.stat().st_size
                copy.write_bytes(bytes(self._disk.get(path, b"")[:size]).ljust(size, b"\0"))
        return target


class CachedDisk(FailingDisk):
    """The file layer over this page cache; `fail_sync` makes syncs fail."""

    def __init__(self, cache: PageCache) -> None:
        super().__init__()
        self._cache = cache

    def pwrite(self, fd: int, data: "ReadableBuffer", position: int) -> int:
        count = super().pwrite(fd, data, position)
        self._cache.wrote(self.paths[fd], position, count)
        return count

    def fdatasync(self, fd: int) -> None:
        failed = True
        try:
            super().fdatasync(fd)
            failed = False
        finally:
            self._cache.synced(self.paths[fd], failed=failed)

    def set_size(self, fd: int, count: int) -> None:
        super().set_size(fd, count)
        self._cache.cut_to(self.paths[fd], count)

    def drop_clean(self, fd: int) -> None:
        self._cache.dropped(self.paths[fd])

    def open_reading(self, path: Path) -> int:
        fd = super().open_reading(path)
        self.paths[fd] = path
        return fd

    def unlink(self, path: Path) -> None:
        self._cache.removed(path)

    def rename(self, source: Path, target: Path) -> None:
        self._cache.moved(source, target)

    def move_directory(self, source: Path, target: Path) -> None:
        self._cache.moved(source, target)
