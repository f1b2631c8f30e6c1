"""Broker that is ready to lead: what it derives of the log follows what is committed.

So a replica that takes over reads what was committed last, however long its log is. Its snapshots
are those of a leader, and know of nothing that could be cut.

Invariants:
1. Nothing is applied before it is committed, so nothing has to be taken back; a cut opens the store
   anew, and with it another broker is made, of snapshots and the log.
2. Who copies, acknowledges and commits waits for no more than one piece.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

from rockoon_broker.broker import Broker
from rockoon_broker.replication.store_log import StoreLog
from rockoon_broker.store.errors import StoreError
from rockoon_broker.store.store import Store
from rockoon_runtime.waking import Bell

log = logging.getLogger(__name__)

# Some milliseconds of work.
PIECE_BYTES_MAX = 1 << 20
# What is committed close together is applied together.
GATHER_SECONDS = 0.2

Loops = Callable[[Broker], Iterable[tuple[str, Coroutine[Any, Any, None]]]]
"""What keeps in step with a broker's log until cancelled, by name."""


class WarmBroker:
    """The broker of one life of a replica. Used by the event loop's thread alone.

    Args:
        opened: the log; its store is another one after a cut.
        leads: set when this replica leads: all of its log is committed then, and is cut no more in
            this life. `wake` is to be called after it.
        make: makes a broker of a store.
        loops: run from then on, also while it leads.
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
        """More of the log is committed, or this replica leads."""
        self._news.ring()
        if self._broker is not None:
            self._broker.store_changed.ring()

    async def run(self, leading: Callable[[Broker], Awaitable[None]]) -> None:
        """Be ready until cancelled.

        Args:
            leading: called once, when this replica leads and all of its log was applied.

        Raises:
            StoreError, OSError: the store cannot be used.
        """
        while True:
            store = self._opened.store
            # Snapshots may know of what was committed before a start, which does not know it.
            while store.visible_end < store.recovery.log_end and not self._leads.is_set():
                await self._news.wait()
                store = self._opened.store
            try:
                broker = await self._make(store)
            except (StoreError, OSError, ValueError):
                if self._opened.store is store:
                    raise
                # It was closed meanwhile, for a cut.
                continue
            async with self._followed(broker):
                if await self._follow(broker):
                    await leading(broker)

    @asynccontextmanager
    async def _followed(self, broker: Broker) -> AsyncIterator[None]:
        """Meanwhile what keeps in step with a broker's log does."""
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
            # No snapshot is written: a leader's may know of what the next one cuts.
            self._broker = None
            broker.compaction.close()
            if broker.key_index is not None:
                broker.key_index.close()

    async def _follow(self, broker: Broker) -> bool:
        """Apply what is committed until this replica leads; returns whether it does, with all of
        that applied. Else the store is another one."""
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
                # Half of the time.
                await asyncio.sleep(loop.time() - began)
            else:
                await self._news.wait()
                with suppress(TimeoutError):
                    async with asyncio.timeout(GATHER_SECONDS):
                        await self._leads.wait()
        records += broker.lead()
        log.info("takes over: %d records of the log were to be applied", records)
        return True
