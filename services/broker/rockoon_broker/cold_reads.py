"""Reads of the store that do not block the event loop: if pages are not in the page cache (cold), a
thread loads them before the event loop reads them."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rockoon_broker.store.errors import StoreClosed
from rockoon_broker.store.log import file_reads
from rockoon_broker.store.log.file_reads import ColdRead, FileRange, cached
from rockoon_core.disk import Disk
from rockoon_core.errors import NotReady

Result = TypeVar("Result")

# Number of times that the pages of one read may be evicted between their load and the read. After
# that, the event loop reads them itself, and waits for the disk.
EVICTED_MAX = 3

# Four threads are enough: a read has a mebibyte or more, and the system reads ahead.
READERS = ThreadPoolExecutor(4, thread_name_prefix="cold-reads")
# Separate threads, because a follower that waited for reads of consumers would suspect its leader.
FOLLOWERS = ThreadPoolExecutor(2, thread_name_prefix="cold-copies")


class Loads:
    """Loads of one read: the ranges that threads have loaded into the page cache.

    Attributes:
        loop_waits: the event loop must read without a further load, because loaded pages were
            evicted too often, or because a load has failed (a failing disk costs seconds each
            time).
    """

    def __init__(self, threads: ThreadPoolExecutor = READERS) -> None:
        self.loop_waits = False
        self._threads = threads
        self._loaded: set[FileRange] = set()
        self._evicted = 0

    def load(self, disk: Disk, missing: list[FileRange]) -> "asyncio.Future[bool]":
        """Start to load missing ranges. Call it right after the read that reported them, while
        their files are open.

        Returns:
            A future, which completes after the load and after `loop_waits` was set. If it is
            cancelled before a thread begins the load, nothing is read.
        """
        self._evicted += not self._loaded.isdisjoint(missing)
        self._loaded.update(missing)
        loading = self._start(disk, missing) if self._evicted <= EVICTED_MAX else None
        if loading is None:
            self.loop_waits = True
            done = asyncio.get_running_loop().create_future()
            done.set_result(False)
            return done
        loading.add_done_callback(self._loaded_or_failed)
        return loading

    def _start(self, disk: Disk, missing: list[FileRange]) -> "asyncio.Future[bool] | None":
        """Start a load on a thread; None if no descriptor can be duplicated."""
        # Duplicates, because a file may be closed before the thread reads it. Its descriptor may
        # then belong to another file.
        duplicates: dict[int, int] = {}
        try:
            for piece in missing:
                if piece.fd not in duplicates:
                    duplicates[piece.fd] = disk.duplicate(piece.fd)
        except OSError:
            _close(disk, duplicates)
            return None
        pieces = [piece._replace(fd=duplicates[piece.fd]) for piece in missing]
        loading = self._threads.submit(file_reads.load, disk, pieces)
        loading.add_done_callback(lambda _: _close(disk, duplicates))
        return asyncio.wrap_future(loading)

    def _loaded_or_failed(self, loading: "asyncio.Future[bool]") -> None:
        if not loading.cancelled():
            self.loop_waits = loading.exception() is not None or not loading.result()


def _close(disk: Disk, duplicates: dict[int, int]) -> None:
    for fd in duplicates.values():
        disk.close(fd)


async def read(reading: Callable[[], Result], threads: ThreadPoolExecutor = READERS) -> Result:
    """Return the result of a read of the store, without blocking the event loop.

    Args:
        reading: reads the store, without side effects: it may be called several times, and the
            store may change between two calls.
        threads: load pages that are not cached.

    Raises: as `reading`.
    """
    loads: Loads | None = None
    while loads is None or not loads.loop_waits:
        try:
            return cached(reading)
        except ColdRead as cold:
            loads = loads or Loads(threads)
            loading = loads.load(cold.disk, cold.missing)
        # Outside of the `except`: the exception and the memory of its frames are released.
        await loading
    return reading()


async def answer(reading: Callable[[], Result]) -> Result:
    """Like `read`, for calls of clients. Raises NotReady if the store is closed during the read."""
    try:
        return await read(reading)
    except StoreClosed as failure:
        raise NotReady(
            service="the broker", reason="it is stopping, or no longer leads"
        ) from failure
