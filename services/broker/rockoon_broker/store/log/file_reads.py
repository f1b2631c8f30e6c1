"""Reads of a store's open files: waiting for the disk, or only what the page cache has.

The store's owner is the event loop's thread. While that waits for a page that a reader far behind
wants, nobody's message is stored, so it reads what is cached and leaves the rest to a thread
(`rockoon_broker.cold_reads`).
"""

import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from rockoon_core.disk import CHUNK_BYTES, Disk

Result = TypeVar("Result")


class Piece(NamedTuple):
    """Bytes of an open file."""

    fd: int
    size: int
    position: int


class ColdRead(Exception):
    """What a reader wants is not in the page cache.

    It can be asked for again once `load` has returned for all that is missing.
    """

    def __init__(self, disk: Disk, missing: list[Piece]) -> None:
        super().__init__(missing)
        self.disk = disk
        self.missing = missing


def load(disk: Disk, missing: list[Piece]) -> bool:
    """Bring pieces into the page cache; waits for the disk. In any thread.

    Returns:
        False when the disk refuses: who reads once more, and waits, hears why.
    """
    try:
        # All of them first: a disk serves many requests faster than one after the other.
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
    """How a thread reads: each has its own, since several may read one store while it begins."""

    cached_only = False


mode = _Mode()
"""While its `cached_only` is set, reads of this thread raise ColdRead instead of waiting."""


def pread(disk: Disk, fd: int, count: int, position: int) -> bytes:
    """As `Disk.pread`, of a file that readers wait for; raises ColdRead, too."""
    if not mode.cached_only:
        return disk.pread(fd, count, position)
    data = disk.pread_cached(fd, count, position)
    if data is None:
        raise ColdRead(disk, [Piece(fd, count, position)])
    return data


def cached(reading: Callable[[], Result]) -> Result:
    """What a function gives without waiting for the disk; raises ColdRead where it would."""
    mode.cached_only = True
    try:
        return reading()
    finally:
        mode.cached_only = False
