"""Reads of a store for which the event loop does not wait: a thread reads before what is cold."""

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

# Of one read: how often what a thread has brought may be evicted before it is used. Then the loop
# waits after all.
EVICTED_MAX = 3

# Each read is a mebibyte and more, and the system reads ahead by itself.
READERS = ThreadPoolExecutor(4, thread_name_prefix="cold-reads")
# A follower that waits for consumers' reads would take its leader for gone.
FOLLOWERS = ThreadPoolExecutor(2, thread_name_prefix="cold-copies")


class Loads:
    """What threads have brought into the page cache for one read.

    Attributes:
        loop_waits: the read is to be made as if all were cached: what was brought is evicted at
            once, or the disk refuses, which takes seconds each time.
    """

    def __init__(self, threads: ThreadPoolExecutor = READERS) -> None:
        self.loop_waits = False
        self._threads = threads
        self._loaded: set[FileRange] = set()
        self._evicted = 0

    def load(self, disk: Disk, missing: list[FileRange]) -> "asyncio.Future[bool]":
        """Begin to bring what is missing, right when it is: files are open. Cancelled before a
        thread has time for it, it is not read. `loop_waits` is known when it is done."""
        self._evicted += not self._loaded.isdisjoint(missing)
        self._loaded.update(missing)
        loading = self._begun(disk, missing) if self._evicted <= EVICTED_MAX else None
        if loading is None:
            self.loop_waits = True
            done = asyncio.get_running_loop().create_future()
            done.set_result(False)
            return done
        loading.add_done_callback(self._note)
        return loading

    def _begun(self, disk: Disk, missing: list[FileRange]) -> "asyncio.Future[bool] | None":
        # A file may be closed before its turn comes, and its descriptor be another file's.
        lent: dict[int, int] = {}
        try:
            for piece in missing:
                if piece.fd not in lent:
                    lent[piece.fd] = disk.duplicate(piece.fd)
        except OSError:
            _close(disk, lent)
            return None
        pieces = [piece._replace(fd=lent[piece.fd]) for piece in missing]
        loading = self._threads.submit(file_reads.load, disk, pieces)
        loading.add_done_callback(lambda _: _close(disk, lent))
        return asyncio.wrap_future(loading)

    def _note(self, loading: "asyncio.Future[bool]") -> None:
        if not loading.cancelled():
            self.loop_waits = loading.exception() is not None or not loading.result()


def _close(disk: Disk, lent: dict[int, int]) -> None:
    for fd in lent.values():
        disk.close(fd)


async def read(reading: Callable[[], Result], threads: ThreadPoolExecutor = READERS) -> Result:
    """What a read of a store gives, without having the loop wait for the disk.

    Args:
        reading: reads it, and does nothing else: it may be called several times. Between two calls
            others may do anything with the store.
        threads: which read what is cold.

    Raises: as `reading`.
    """
    loads: Loads | None = None
    while loads is None or not loads.loop_waits:
        try:
            return cached(reading)
        except ColdRead as cold:
            loads = loads or Loads(threads)
            loading = loads.load(cold.disk, cold.missing)
        # Here the exception is gone, and with it all that its frames have read.
        await loading
    return reading()


async def answer(reading: Callable[[], Result]) -> Result:
    """As `read`, for a caller; raises NotReady when the store is closed meanwhile."""
    try:
        return await read(reading)
    except StoreClosed as failure:
        raise NotReady(service="the broker", reason="it is stopping, or leads no more") from failure
