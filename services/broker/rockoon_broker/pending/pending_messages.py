"""Pending messages of a broker, delayed and half ones, with one index and one snapshot.

Delayed messages wait for their due time, half messages for their transaction's end. `pending_index`
is their common part: it derives completions from the log. The snapshot, written here periodically,
saves a start from reading it.
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
from rockoon_broker.pending.pending_index import CapturedState, PendingIndex
from rockoon_broker.pending.pending_records import DueWork
from rockoon_broker.settings import BrokerSettings
from rockoon_broker.store.errors import StorageError
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
FINISH_SECONDS_MAX = 1.0


def reserved_ms_of(settings: BrokerSettings) -> int:
    """Age at which retention deletes a CommitLog file, milliseconds."""
    return int(settings.retention_hours * 3_600_000)


class PendingMessages:
    """All pending messages of one store. Call `begin`, apply the log, `lead`, then `run`.

    Args:
        check_queue: raises if a client's message may not be sent to a queue now.
        knows: returns whether the broker has a queue, regardless of permissions.

    Attributes:
        pending_index: completed messages.
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
            reserved_ms=reserved_ms_of(settings),
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

        # By queue: the work to ring when it has more messages.
        self._works: dict[QueueKey, DueWork] = {}

    def use_settings(self, settings: BrokerSettings) -> None:
        """Use other limits and intervals."""
        self.delays.use_rules(settings.for_delays())
        self.delays.pending_max = settings.delayed_messages_max
        self.delays.delivery.use_retention(reserved_ms_of(settings))
        self.transactions.use_rules(settings.for_checks())
        self.transactions.pending_max = settings.transactions_pending_max

    def arrived(self, queue: QueueKey) -> None:
        """Wake the work of a queue that has new visible messages."""
        work = self._works.get(queue)
        if work is not None:
            work.ring()

    def log_shortened(self) -> None:
        """Wake all work after retention has deleted the oldest part of the log."""
        self.delays.delivery.work.ring()
        self.transactions.work.ring()

    def begin(self) -> None:
        """Load the snapshot; then the log after it must be applied.

        Raises:
            StoreLayoutError: a file with RocketMQ's progress cannot be read.
            OSError: the disk.
        """
        self.pending_index.begin(self._delay_offsets.read() | rocketmq_progress(self._config))

    def follow(self) -> None:
        """Update after another broker's visible records were applied. Raises OSError for the
        disk."""
        self.delays.follow()
        self.transactions.follow()

    def find_levels(self) -> None:
        """Add all delay levels that the log has, before the end of it is applied."""
        self.delays.find_levels()

    def lead(self) -> None:
        """Start handling pending messages; all visible records were applied. Raises as `begin`."""
        self.pending_index.lead()
        self.delays.resume(read_timer_checkpoint(self._config))
        self.transactions.resume()
        self._works = dict.fromkeys(self.delays.queues, self.delays.delivery.work)
        self._works[HALF_QUEUE] = self.transactions.work

    def load(self) -> None:
        """Run `begin`, apply the log, and `lead`, for a single copy; may read the whole log."""
        self.begin()
        apply_rest(self._store, [self.pending_index])
        self.lead()

    async def run(self) -> None:
        """Run due work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.delays.delivery.work.run(), name="delays")
            tasks.create_task(self.transactions.work.run(), name="transactions")

    async def finish(self) -> None:
        """Append the op records by which RocketMQ sees the ends of transactions, at most for a
        second. Call it after the loops have ended and before the store is closed."""
        try:
            async with asyncio.timeout(FINISH_SECONDS_MAX):
                await self.transactions.close()
        except TimeoutError:
            log.info(
                "the log has no room for the last op records of transactions; they are skipped"
            )

    def write_last(self, captured: CapturedState) -> None:
        """Write the state captured before a clean close of the store."""
        try:
            self.pending_index.write(captured)
        except OSError as failure:
            log.warning(
                "cannot write a snapshot, the next start reads more of the log: %s", failure
            )

    async def write_snapshots(self, store_changed: Bell) -> None:
        """Write snapshots periodically, until cancelled.

        Args:
            store_changed: rung when more of the log is known here.
        """
        while True:
            if not self.pending_index.wants_capture:
                await store_changed.wait()
            await asyncio.sleep(LOOK_SECONDS)
            try:
                self.pending_index.capture_if_due(self._clock.monotonic_seconds())
                captured = self.pending_index.pop_durable()
                if captured is not None:
                    await asyncio.to_thread(self.pending_index.write, captured)
            except (OSError, StorageError, RockoonError) as failure:
                log.warning("cannot write a snapshot of pending messages, retrying: %s", failure)
