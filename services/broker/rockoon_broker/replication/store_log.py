"""The broker's store as a replicated log: implements `rockoon_replica.log.ReplicatedLog`.

All calls except `sync` are complete on return. `truncate` replaces the store object: no state
derived from cut records remains, because all derived state belongs to the former object.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from rockoon_broker import cold_reads
from rockoon_broker.clock import Clock, SteadyClock
from rockoon_broker.store.errors import AppendFailed, AppendRefused, StoreClosed, StoreDamaged
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.store import Store
from rockoon_core.replication_rules import Boundary
from rockoon_format.log_marks import NO_TOPICS, LogTopics
from rockoon_replica.log import Generation, LogFull, WriteCheck

OpenStore = Callable[[Callable[[int], None], Callable[[OSError], None]], Store]
"""Opens the store of one directory, `by_quorum`, with given `on_synced` and `on_failed`."""


class StoreLog:
    """The log of one replica, a `ReplicatedLog`. Used only by the event loop's thread.

    Args:
        replica: id of this replica, written into records that begin epochs.
        open_store: called once here and at each truncation.
        clock: for store times of these records; clock jumps are followed with a delay.
        topics: returns the topics with messages in a log that has no marks yet.
        advanced: called with the queues that have new visible messages.
        failed: called after a failed sync; the process must end.

    Attributes:
        store: the open store; replaced by each truncation.
    """

    def __init__(
        self,
        replica: str,
        open_store: OpenStore,
        clock: Clock,
        *,
        topics: Callable[[], LogTopics] = LogTopics,
        advanced: Callable[[Sequence[QueueKey]], None],
        failed: Callable[[OSError], None],
    ) -> None:
        self._replica = replica
        self._open_store = open_store
        self._store_clock = SteadyClock(clock, 0)
        self._topics = topics
        self._advanced = advanced
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        # Set when a sync has ended or the last one has failed.
        self._synced = asyncio.Event()
        self.store = self._open()

    @property
    def end(self) -> int:
        return self.store.appended_end

    @property
    def durable_end(self) -> int:
        return self.store.durable_end

    @property
    def min_offset(self) -> int:
        return self.store.log_min_offset

    @property
    def committed_end(self) -> int:
        return self.store.committed_end

    @property
    def dropped(self) -> Mapping[str, int]:
        """Topics deleted while the log had one copy."""
        return self.store.dropped_marks

    @property
    def generation(self) -> Generation:
        """The active generation of compacted topics."""
        compaction = self.store.compaction
        manifest = compaction.manifest
        made_to = 0 if manifest is None else manifest.log_end
        return Generation(compaction.identity, made_to, compaction.needed_end)

    def boundaries(self) -> Sequence[Boundary]:
        return self.store.boundaries()

    def tail_crc(self, end: int, size: int) -> int:
        return self.store.tail_crc(end, size)

    def blank_at(self, position: int) -> int | None:
        return self.store.blank_at(position)

    def damaged_at(self, offset: int, data: bytes) -> int | None:
        return self.store.damaged_at(offset, data)

    def record_before(self, position: int) -> int:
        return self.store.record_before(position)

    def file_begin(self, position: int) -> int:
        return max(self.min_offset, self.store.file_begin(position))

    async def repair(self, offset: int, data: bytes) -> None:
        await asyncio.to_thread(self.store.rewrite(offset, data))

    def read(self, offset: int, bytes_max: int) -> bytes:
        """Read records and blanks. A blank is as long as the batch that did not fit, at most."""
        return self.store.read_raw(offset, bytes_max)

    async def fetch(self, offset: int, bytes_max: int) -> bytes:
        """Like `read`, but a thread loads pages that are not cached."""
        try:
            reading = partial(self.store.read_raw, offset, bytes_max)
            return await cold_reads.read(reading, cold_reads.FOLLOWERS)
        except StoreClosed as failure:
            raise ValueError(f"the log was cut or closed during the read: {failure}") from failure

    def write(self, offset: int, data: bytes) -> None:
        """Append bytes from a leader; see `ReplicatedLog.write`. Also raises StorageError: a sync
        has failed, or the store is closed."""
        try:
            self.store.write_raw(offset, data)
        except (AppendRefused, AppendFailed) as failure:
            raise LogFull(str(failure)) from failure

    def check_writes(self, *, probe: bool = False) -> WriteCheck:
        """Report whether the store can be written; see `ReplicatedLog.check_writes`. The store's
        ticks retry a refused write."""
        if probe:
            self.store.probe_log()
        return WriteCheck(self.store.write_failure, self.store.space_refusal_reason)

    async def sync(self) -> None:
        """Wait until all written bytes are durable; raises StoreSyncFailed after a failed sync."""
        end = self.end
        while self.durable_end < end:
            # Cleared before the checks, so that a sync that ends after them is noticed.
            self._synced.clear()
            self.store.check_usable()
            await self._synced.wait()

    def truncate(self, offset: int) -> None:
        """Cut the log at `offset`, durably; see `Store.close_to_truncate` for refused offsets.
        Raises StoreDamaged: records below it are lost, as found when the store is opened again."""
        if offset == self.end:
            return
        retained = self.store.retain_from
        self.store.close_to_truncate(offset)
        self.store = self._open()
        if self.end != offset:
            directory = self.store.settings.root
            raise StoreDamaged(
                directory, self.end, f"after the cut the log does not end at {offset}"
            )
        self.store.retain_from = retained
        self._synced.set()

    def drop(self, dropped: Mapping[str, int]) -> None:
        """Drop topics below the positions at which the leader dropped them."""
        for topic, mark in dropped.items():
            # A mark below the end was applied before; retention may have discarded it since, and
            # the topic's queues contain later messages.
            if mark > self.end and mark > self.store.dropped_marks.get(topic, 0):
                self.store.drop_topics(topic, below=mark)

    def need_generation(self, end: int) -> None:
        """Record durably that compacted messages before the log are only in a generation."""
        self.store.compaction.need(end)

    def commit(self, offset: int) -> None:
        """Make records below an offset visible to readers."""
        self._advanced(self.store.confirm(offset))

    def open_epoch(self, epoch: int) -> None:
        # The first leader of several copies is the replica that was the only one before.
        topics = NO_TOPICS if self.store.epoch else self._topics()
        self._store_clock.lead_from(self.store.runs.newest_ms)
        try:
            self.store.open_epoch(epoch, self._replica, self._store_clock.now_ms(), topics)
        except (AppendRefused, AppendFailed) as failure:
            raise LogFull(str(failure)) from failure

    def close(self) -> None:
        """Close the store; see `Store.close`."""
        self.store.close()

    def _open(self) -> Store:
        # Both callbacks run on the Syncer's thread.
        def synced(_: int) -> None:
            self._loop.call_soon_threadsafe(self._synced.set)

        def failed(error: OSError) -> None:
            self._loop.call_soon_threadsafe(self._fail, error)

        return self._open_store(synced, failed)

    def _fail(self, error: OSError) -> None:
        self._synced.set()
        self._failed(error)
