"""Warm broker of a follower: derived state follows the committed log, so that it can lead at once.

A replica that starts to lead reads only the last committed records, however long its log is. Its
snapshots are those of a leader, and contain nothing that could be cut.

Invariants:
1. Nothing is applied before it is committed, so nothing has to be undone. A cut reopens the store,
   and another broker is made from snapshots and the log.
2. Applying works in small pieces, so that copying, acknowledging and committing wait for one at
most.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

from rockoon_broker.broker import Broker
from rockoon_broker.replication.store_log import StoreLog
from rockoon_broker.store.errors import StorageError
from rockoon_broker.store.store import Store
from rockoon_runtime.waking import Bell

log = logging.getLogger(__name__)

# Some milliseconds of work.
PIECE_BYTES_MAX = 1 << 20
# Records committed within this time are applied together.
GATHER_SECONDS = 0.2

Loops = Callable[[Broker], Iterable[tuple[str, Coroutine[Any, Any, None]]]]
"""Returns named tasks that follow a broker's log until cancelled."""


class WarmBroker:
    """The broker of one term of a replica. Used only by the event loop's thread.

    Args:
        opened: the log; a cut replaces its store.
        leads: set when this replica leads: then all of its log is committed, and not cut in
            this term. Call `wake` after setting it.
        make: makes a broker from a store.
        loops: tasks to run from then on, also while it leads.
    """

    def __init__(
        self,
        opened: StoreLog,
        leads: asyncio.Event,
        make: Callable[[Store], Awaitable[Broker]],
        loops: Loops,
    ) -> None:
        self._opened = opened
        self._make = make
        self._loops = loops
        self._leads = leads
        self._news = Bell()
        self._broker: Broker | None = None

    def wake(self) -> None:
        """Notify that more of the log is committed, or that this replica leads."""
        self._news.ring()
        if self._broker is not None:
            self._broker.store_changed.ring()

    async def run(self, leading: Callable[[Broker], Awaitable[None]]) -> None:
        """Keep a broker up to date until cancelled.

        Args:
            leading: called once, when this replica leads and its whole log is applied.

        Raises:
            StorageError, OSError: the store cannot be used.
        """
        while True:
            store = self._opened.store
            # Snapshots may contain committed records that the store counts as uncommitted after a
            # start.
            while store.visible_end < store.recovery.log_end and not self._leads.is_set():
                await self._news.wait()
                store = self._opened.store
            try:
                broker = await self._make(store)
            except (StorageError, OSError, ValueError):
                if self._opened.store is store:
                    raise
                # It was closed for a cut.
                continue
            async with self._followed(broker):
                if await self._follow(broker):
                    await leading(broker)

    @asynccontextmanager
    async def _followed(self, broker: Broker) -> AsyncIterator[None]:
        """Run the tasks that follow a broker's log."""
        self._broker = broker
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(loop, name=name) for name, loop in self._loops(broker)]
                try:
                    yield
                finally:
                    for task in running:
                        task.cancel()
        finally:
            # Write no snapshot: a leader's state may contain records that the next leader cuts.
            self._broker = None
            broker.compaction.close()
            if broker.key_index is not None:
                broker.key_index.close()

    async def _follow(self, broker: Broker) -> bool:
        """Apply the committed log until this replica leads; return True when all of it is applied,
        False when the store was replaced."""
        loop = asyncio.get_running_loop()
        records = 0
        while True:
            if broker.store is not self._opened.store:
                return False
            began = loop.time()
            read = broker.follow(PIECE_BYTES_MAX)
            if self._leads.is_set():
                records += read or 0
                if read is None:
                    break
                await asyncio.sleep(0)
            elif read is not None:
                # Use half of the time.
                await asyncio.sleep(loop.time() - began)
            else:
                await self._news.wait()
                with suppress(TimeoutError):
                    async with asyncio.timeout(GATHER_SECONDS):
                        await self._leads.wait()
        records += broker.lead()
        log.info("starting to lead: applied %d records of the log", records)
        return True
