"""Recovery points of an open store: requests for them, and counts of the newest ones."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rockoon_broker.store.log.syncer import PointRequest, Syncer, SyncRequest, sync_file, sync_names
from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_broker.store.queues.dropped_topics import PointState, QueueCounts
from rockoon_broker.store.recovery.checkpoint_files import MarkerFiles
from rockoon_core.disk import Disk
from rockoon_format.checkpoint import Checkpoint
from rockoon_format.recovery_point import RecoveryPoint


@dataclass(frozen=True, slots=True)
class _Cap:
    """Upper limit of the times that the checkpoint states."""

    time_ms: int
    end: int | None = None
    """Physical offset beyond which the log must be dispatched before the cap ends; None: not known
    yet."""


class RecoveryPoints:
    """Creates the recovery points of one store. Used by the store's owner.

    The checkpoint's times state that every message stored earlier is on disk. So before store times
    decrease, the checkpoint is capped durably: otherwise later messages would count as durable.

    Args:
        checkpoint: as the last broker left it; its index fields are kept.
        markers: writes points; on the Syncer's thread while the Syncer runs.
        syncer: receives requests.
    """

    def __init__(
        self,
        lineage: bytes,
        checkpoint: Checkpoint,
        queues: ConsumeQueues,
        markers: MarkerFiles,
        syncer: Syncer,
        disk: Disk,
    ) -> None:
        self._lineage = lineage
        self._checkpoint = checkpoint
        self._queues = queues
        self._markers = markers
        self._syncer = syncer
        self._disk = disk
        self.index_timestamp_ms = checkpoint.index_timestamp_ms
        """Store time up to which full index files are synced, for RocketMQ's index recovery."""
        # The point being written and the two on disk.
        self._newest: deque[PointState] = deque(maxlen=3)
        self._newest_first_count = -1
        self._cap: _Cap | None = None
        self.is_cap_new = False
        """True if a cap was set after the last recovery point was requested."""

    def keep_below(self, time_ms: int | None) -> None:
        """Set or withdraw an upper limit of the times in the checkpoint."""
        if self._cap is not None and self._cap.end is None:
            if time_ms is None:
                self._cap, self.is_cap_new = None, False
            elif time_ms >= self._cap.time_ms:
                return
        if time_ms is not None:
            # The former cap may still apply.
            self._cap = _Cap(min(time_ms, self._cap.time_ms if self._cap else time_ms))
            self.index_timestamp_ms = min(self.index_timestamp_ms, time_ms)
            self.is_cap_new = True

    def is_capped(self, time_ms: int) -> bool:
        """Return whether the cap is set and durable: no written or requested checkpoint reaches
        this time."""
        cap = self._cap
        is_set = cap is not None and cap.end is None and cap.time_ms <= time_ms
        return is_set and not self.is_cap_new and not self._syncer.point_pending

    def lift_cap(self, end: int) -> None:
        """Let the cap end once the log is dispatched beyond the offset where store times
        decreased."""
        if self._cap is not None:
            self._cap = _Cap(self._cap.time_ms, end)

    def write(self, log_end: int, store_timestamp_ms: int, *, clean: bool) -> None:
        """Sync the queues and write a point on this thread, while the Syncer is not running.

        Args:
            log_end: physical offset up to which the queues list the log; the log is durable.
            store_timestamp_ms: store time of the newest message before it.
            clean: the store is being closed.
        """
        files, directories = self._queues.pop_unsynced()
        if (left := self._syncer.pop_point()) is not None:
            files, directories = files + left.queue_files, directories + left.directories
        for path in files:
            sync_file(path, self._disk)
        for directory in directories:
            sync_names(directory, self._disk)
        self._markers.write(
            self._point(log_end, store_timestamp_ms, clean=clean),
            self._checkpoint_at(log_end, store_timestamp_ms),
        )
        self._newest.append(self._state(log_end))
        self._newest_first_count = self._queues.first_count

    def request(
        self,
        sync: SyncRequest,
        log_end: int,
        store_timestamp_ms: int,
        released: Sequence[Path] = (),
    ) -> None:
        """Request a recovery point from the Syncer, unless nothing has changed.

        Args:
            sync, log_end, store_timestamp_ms: state of the log.
            released: queue files to be deleted once the point is written.
        """
        if self.is_newest(log_end) and not released:
            return
        self.is_cap_new = False
        self._newest.append(self._state(log_end))
        self._newest_first_count = self._queues.first_count
        files, directories = self._queues.pop_unsynced()
        self._syncer.request_point(
            PointRequest(
                sync=sync,
                queue_files=files,
                directories=directories,
                point=self._point(log_end, store_timestamp_ms, clean=False),
                checkpoint=self._checkpoint_at(log_end, store_timestamp_ms),
                released=tuple(released),
            )
        )

    def is_newest(self, log_end: int) -> bool:
        """Return whether the newest point, written or requested, covers the current state."""
        is_counted = self._newest_first_count == self._queues.first_count
        is_capped = not self.is_cap_new
        return is_capped and is_counted and self._newest[-1] == self._state(log_end)

    def counted(self, topic: str) -> Mapping[PointState, QueueCounts]:
        """Return the counts of a topic's queues in each of the newest recovery points."""
        return {point: self._counts_of(topic, point.log_end) for point in self._newest}

    def _counts_of(self, topic: str, boundary: int) -> QueueCounts:
        queues = self._queues.of_topic(topic)
        stored = [self._queues.stored_below(queue, boundary) for queue in queues]
        return QueueCounts(sum(end > 0 for end in stored), sum(stored))

    def _state(self, log_end: int) -> PointState:
        return PointState(log_end, self._queues.stored_count, self._queues.entry_count)

    def _point(self, log_end: int, store_timestamp_ms: int, *, clean: bool) -> RecoveryPoint:
        return RecoveryPoint(
            lineage=self._lineage,
            log_end=log_end,
            queue_count=self._queues.stored_count,
            entry_count=self._queues.entry_count,
            store_timestamp_ms=store_timestamp_ms,
            checkpoint_crcs=(0, 0),
            clean=clean,
            first_count=self._queues.first_count,
        )

    def _checkpoint_at(self, log_end: int, store_timestamp_ms: int) -> Checkpoint:
        if self._cap is not None and self._cap.end is not None and log_end > self._cap.end:
            self._cap = None
        if self._cap is not None:
            store_timestamp_ms = min(store_timestamp_ms, self._cap.time_ms)
        return Checkpoint(
            log_timestamp_ms=store_timestamp_ms,
            queues_timestamp_ms=store_timestamp_ms,
            index_timestamp_ms=self.index_timestamp_ms,
            master_flushed_offset=self._checkpoint.master_flushed_offset,
            confirm_offset=log_end,
        )
