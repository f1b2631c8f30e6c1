"""Reads of a store's open files that either wait for the disk or use only the page cache.

The event loop's thread owns the store. While it waits for a page that a lagging reader
needs, no message is stored. So it reads only cached pages, and a thread loads the missing ones
(`rockoon_broker.cold_reads`).

`gather` reads many records with few calls. Page-cache residency is that of mincore(2).
"""

import ctypes
import ctypes.util
import mmap
import sys
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

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


# A gap of at most this many unwanted bytes is cheaper to read than a second call.
_GAP_BYTES_MAX = 4096


def gather(
    positions: NDArray[np.int64],
    sizes: NDArray[np.int64],
    read: Callable[[int, int], bytes],
    same_file: Callable[[int, int], bool] = lambda _, __: True,
) -> bytes:
    """Return the records' bytes in order.

    Args:
        positions: start of each of n >= 1 records, ascending, int64[n].
        sizes: size of each record, bytes, int64[n].
        read, same_file: see `gather_runs`.

    Raises:
        OSError: the disk.
    """
    ends = positions + sizes
    # Indices at which a new run of adjacent records begins.
    apart = np.flatnonzero(ends[:-1] != positions[1:]) + 1
    starts = positions[np.concatenate(([0], apart))].tolist()
    run_ends = ends[np.concatenate((apart - 1, [-1]))].tolist()
    return gather_runs(list(zip(starts, run_ends, strict=True)), read, same_file)


def gather_runs(
    runs: Sequence[tuple[int, int]],
    read: Callable[[int, int], bytes],
    same_file: Callable[[int, int], bool] = lambda _, __: True,
) -> bytes:
    """Return the bytes of runs in order, with one read per group of close runs.

    Args:
        runs: one or more (start, end) positions, ascending.
        read: returns `count` bytes from a position.
        same_file: returns whether one read can cover both positions.

    Raises:
        OSError: the disk.
        ColdRead: raised by `read`; combined with all missing ranges.
    """
    pieces: list[bytes | memoryview] = []
    missing: list[FileRange] = []
    disk: Disk | None = None
    index = 0
    while index < len(runs):
        last = index
        base, end = runs[index]
        while (
            last + 1 < len(runs)
            and 0 <= runs[last + 1][0] - end <= _GAP_BYTES_MAX
            and same_file(base, runs[last + 1][0])
        ):
            last += 1
            end = runs[last][1]
        try:
            data = read(base, end - base)
        except ColdRead as cold:
            # Ask for the remaining runs too, so that one load covers all missing ranges.
            disk = cold.disk
            missing += cold.missing
            pieces.clear()
            index = last + 1
            continue
        assert len(data) == end - base
        if last == index:
            pieces.append(data)
        else:
            view = memoryview(data)
            pieces += (view[start - base : stop - base] for start, stop in runs[index : last + 1])
        index = last + 1
    if disk is not None:
        raise ColdRead(disk, missing)
    return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
