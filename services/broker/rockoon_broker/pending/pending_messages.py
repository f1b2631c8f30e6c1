"""Pending messages of a broker, delayed and half ones, over one store and one snapshot.

Delayed messages wait for their time, half messages for their transaction's end. What they have in
common is in `pending_index`: the log says what is completed, and a snapshot, written here now and
then, spares a start the reading of it.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from rockoon_broker.append import Appends
from rockoon_broker.applying import apply_rest
from rockoon_broker.clock import Clock
from rockoon_broker.delays.delay_offsets import DelayOffsetFile, read_timer_checkpoint
from rockoon_broker.delays.delays import Delays
from rockoon_broker.pending.due_work import DueWork
from rockoon_broker.pending.pending_index import Captured, PendingIndex
from rockoon_broker.settings import BrokerSettings
from rockoon_broker.store.errors import StoreError
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.store import Store
from rockoon_broker.transactions.ends import CheckQueue
from rockoon_broker.transactions.half_queue import HALF_QUEUE, rocketmq_progress
from rockoon_broker.transactions.transactions import Transactions
from rockoon_core.disk import Disk
from rockoon_core.errors import RockoonError
from rockoon_runtime.waking import Bell

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
LAST_WORDS_SECONDS_MAX = 1.0


class PendingMessages:
    """Everything kept aside in one store. `begin`, apply the log, `lead`, then `run` it.

    Args:
        store: open.
        appends: the way into it.
        settings: the broker's.
        config: the store's config directory.
        clock, disk: the broker's.
        check_queue: raises when a client's message may not go to a queue now.
        knows: whether the broker has a queue, whoever may write to it.

    Attributes:
        pending_index: what is completed.
        delays: the delayed messages.
        transactions: the half messages.
    """

    def __init__(
        self,
        store: Store,
        appends: Appends,
        settings: BrokerSettings,
        config: Path,
        clock: Clock,
        disk: Disk,
        check_queue: CheckQueue,
        knows: Callable[[str, int], bool],
    ) -> None:
        self._store = store
        self._clock = clock
        self._config = config
        self.pending_index = PendingIndex(store, config, disk)
        self._delay_offsets = DelayOffsetFile(config, clock.now_ms)
        self.delays = Delays(
            store,
            appends,
            self.pending_index,
            clock,
            rules=settings.for_delays(),
            pending_max=settings.delayed_messages_max,
            reserved_ms=int(settings.retention_hours * 3_600_000),
            knows=knows,
        )
        self.pending_index.add_export(lambda: self._delay_offsets.content(self.delays.low_waters()))
        self.transactions = Transactions(
            store,
            appends,
            self.pending_index,
            clock,
            rules=settings.for_checks(),
            pending_max=settings.transactions_pending_max,
            check_queue=check_queue,
        )

        # By queue: what is to be rung when it has more for its readers.
        self._works: dict[QueueKey, DueWork] = {}

    def arrived(self, queue: QueueKey) -> None:
        """A queue has got messages that its readers see."""
        work = self._works.get(queue)
        if work is not None:
            work.ring()

    def log_shortened(self) -> None:
        """Retention has taken the oldest part of the log."""
        self.delays.delivery.work.ring()
        self.transactions.work.ring()

    def begin(self) -> None:
        """Find out what a snapshot says; what the log has behind it is to be applied.

        Raises:
            StoreLayoutError: a file that says what RocketMQ has seen to cannot be read.
            OSError: the disk.
        """
        self.pending_index.begin(self._delay_offsets.read() | rocketmq_progress(self._config))

    def follow(self) -> None:
        """All that readers see was applied; another broker has appended it. OSError: the disk."""
        self.delays.follow()
        self.transactions.follow()

    def find_levels(self) -> None:
        """Have all levels of delay that the log has, before the last of it is applied."""
        self.delays.find_levels()

    def lead(self) -> None:
        """See to what waits from now on; all that readers see was applied. Raises as `begin`."""
        self.pending_index.lead()
        self.delays.resume(read_timer_checkpoint(self._config))
        self.transactions.take_over()
        self._works = dict.fromkeys(self.delays.queues, self.delays.delivery.work)
        self._works[HALF_QUEUE] = self.transactions.work

    def load(self) -> None:
        """All of it, for whoever appends alone; may read the whole log."""
        self.begin()
        apply_rest(self._store, [self.pending_index])
        self.lead()

    async def run(self) -> None:
        """Do what is due, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.delays.delivery.work.run(), name="delays")
            tasks.create_task(self.transactions.work.run(), name="transactions")

    async def finish(self) -> None:
        """After the last call and the loops: append what has to be in the log when it is closed."""
        try:
            async with asyncio.timeout(LAST_WORDS_SECONDS_MAX):
                await self.transactions.close()
        except TimeoutError:
            log.info("the log has no room for the last op records")

    def write_last(self, captured: Captured) -> None:
        """The state of a store that was closed in order, captured before."""
        try:
            self.pending_index.write(captured)
        except OSError as failure:
            log.warning("the next start reads more of the log, no snapshot: %s", failure)

    async def write_snapshots(self, store_changed: Bell) -> None:
        """Write down what is completed, now and then, until cancelled.

        Args:
            store_changed: rung when more of the log is known here.
        """
        while True:
            if not self.pending_index.wants_capture:
                await store_changed.wait()
            await asyncio.sleep(LOOK_SECONDS)
            try:
                self.pending_index.capture_if_due(self._clock.monotonic_seconds())
                captured = self.pending_index.take_durable()
                if captured is not None:
                    await asyncio.to_thread(self.pending_index.write, captured)
            except (OSError, StoreError, RockoonError) as failure:
                log.warning("what is completed is not written down: %s", failure)
