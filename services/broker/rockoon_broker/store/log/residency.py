"""Page-cache residency of file ranges, by mincore(2)."""

import ctypes
import ctypes.util
import mmap
import sys

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
