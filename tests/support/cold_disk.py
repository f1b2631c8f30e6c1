"""A disk with a simulated page cache; the test decides how long its reads take."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from rockoon_core.disk import Disk
from support.store_directory import FailingDisk
from support.waiting import DEADLINE_SECONDS

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PAGE_BYTES = 4096


class ColdDisk(FailingDisk):
    """Pages that were written or read since `evict` are in the page cache, if `keeps` is True.

    Attributes:
        moves: if it is cleared, reads of other threads wait until it is set.
        keeps: whether a read adds its pages to the page cache.
        waited: number of reads of the thread that called `evict`, which is the event loop's.
        loaded: number of reads of other threads since `evict`.
        lent: open descriptors that are duplicates.
    """

    def __init__(self) -> None:
        super().__init__()
        self.moves = threading.Event()
        self.moves.set()
        self.keeps = True
        self.waited = self.loaded = 0
        self.lent: set[int] = set()
        self._cached: set[tuple[Path, int]] = set()
        self._loop_thread = 0

    def evict(self) -> None:
        self._cached.clear()
        self._loop_thread = threading.get_ident()
        self.waited = self.loaded = 0

    def duplicate(self, fd: int) -> int:
        copy = super().duplicate(fd)
        self.lent.add(copy)
        return copy

    def close(self, fd: int) -> None:
        self.lent.discard(fd)
        super().close(fd)

    def pread(self, fd: int, count: int, position: int) -> bytes:
        if threading.get_ident() == self._loop_thread:
            self.waited += 1
        else:
            self.loaded += 1
            assert self.moves.wait(DEADLINE_SECONDS)
        data = super().pread(fd, count, position)
        if self.keeps:
            self._cached.update(self._pages(fd, count, position))
        return data

    def pread_cached(self, fd: int, count: int, position: int) -> bytes | None:
        if not self._cached.issuperset(self._pages(fd, count, position)):
            return None
        return Disk.pread(self, fd, count, position)

    def pwrite(self, fd: int, data: "ReadableBuffer", position: int) -> int:
        count = super().pwrite(fd, data, position)
        self._cached.update(self._pages(fd, count, position))
        return count

    def _pages(self, fd: int, count: int, position: int) -> list[tuple[Path, int]]:
        # By path: a file may be closed and opened again.
        path = self.paths.get(fd, Path())
        last = (position + count - 1) // PAGE_BYTES
        return [(path, page) for page in range(position // PAGE_BYTES, last + 1)]
