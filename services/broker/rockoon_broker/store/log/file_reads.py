"""Reads of a store's open files that either wait for the disk or use only the page cache.

The event loop's thread owns the store. While it waits for a page that a lagging reader
needs, no message is stored. So it reads only cached pages, and a thread loads the missing ones
(`rockoon_broker.cold_reads`).
"""

import ctypes
import ctypes.util
import mmap
import sys
import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from rockoon_core.disk import CHUNK_BYTES, Disk

_PROT_READ = 1
_MAP_SHARED = 1
_MAP_FAILED = ctypes.c_void_p(-1).value


def _load() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    ]  # fmt: skip
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    return libc


_LIBC = _load()


def pages_resident(fd: int, position: int, count: int) -> bool | None:
    """Return whether every page under `count` bytes at `position` of a file is in memory.

    None if the system cannot determine it. The mapping is never read, so that it cannot raise
    SIGBUS and loads nothing into memory.
    """
    if _LIBC is None:
        return None
    start = position - position % mmap.PAGESIZE
    length = position + count - start
    address = _LIBC.mmap(None, length, _PROT_READ, _MAP_SHARED, fd, start)
    if address == _MAP_FAILED:
        return None
    try:
        pages = ctypes.create_string_buffer(-(-length // mmap.PAGESIZE))
        if _LIBC.mincore(address, length, pages) != 0:
            return None
        return all(page & 1 for page in pages.raw)
    finally:
        _LIBC.munmap(address, length)


Result = TypeVar("Result")


class FileRange(NamedTuple):
    """A range of bytes of an open file."""

    fd: int
    size: int
    position: int


class ColdRead(Exception):
    """Raised if the requested bytes are not in the page cache.

    The caller retries after `load` has returned for everything that is missing.
    """

    def __init__(self, disk: Disk, missing: list[FileRange]) -> None:
        super().__init__(missing)
        self.disk = disk
        self.missing = missing


def load(disk: Disk, missing: list[FileRange]) -> bool:
    """Load ranges into the page cache; waits for the disk. Any thread may call it.

    Returns:
        False if the disk failed; a blocking read then raises the error.
    """
    try:
        # Announce all reads first: a disk serves many parallel requests faster than one by one.
        for piece in missing:
            disk.will_read(*piece)
        for fd, size, position in missing:
            end = position + size
            for at in range(position, end, CHUNK_BYTES):
                disk.pread(fd, min(CHUNK_BYTES, end - at), at)
    except OSError:
        return False
    return True


class _Mode(threading.local):
    """Read mode of a thread; several threads may read one store while it is opened."""

    cached_only = False


mode = _Mode()
"""Read mode of the current thread. With `cached_only`, reads raise ColdRead instead of waiting."""


def pread(disk: Disk, fd: int, count: int, position: int) -> bytes:
    """Like `Disk.pread`; raises ColdRead in `cached_only` mode if the pages are not cached."""
    if not mode.cached_only:
        return disk.pread(fd, count, position)
    data = disk.pread_cached(fd, count, position)
    if data is None:
        raise ColdRead(disk, [FileRange(fd, count, position)])
    return data


def cached(reading: Callable[[], Result]) -> Result:
    """Call a function in `cached_only` mode; raises ColdRead where it would wait for the disk."""
    mode.cached_only = True
    try:
        return reading()
    finally:
        mode.cached_only = False
