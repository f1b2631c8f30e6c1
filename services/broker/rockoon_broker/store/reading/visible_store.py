"""Read access to a store: visible messages, and the state of the store."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.store.compacted.compaction import Compaction
from rockoon_broker.store.compacted.reading import CompactedReader
from rockoon_broker.store.errors import StoreClosed, StoreSyncFailed, UnknownOffset
from rockoon_broker.store.log import reading
from rockoon_broker.store.log.commit_log import CommitLog
from rockoon_broker.store.log.epochs import Epochs
from rockoon_broker.store.log.reading import LogChunk, Sought, find_record, read_chunk
from rockoon_broker.store.log.syncer import Syncer
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_broker.store.queues.dispatch_queue import DispatchQueue
from rockoon_broker.store.queues.dropped_topics import DroppedTopics
from rockoon_broker.store.raw_log import RawLog
from rockoon_broker.store.reading.reader import (
    GetResult,
    GetStatus,
    NewestBatch,
    QueueStatus,
    StoredAt,
    TimeBoundary,
)
from rockoon_broker.store.recovery.recovery_points import RecoveryPoints
from rockoon_broker.store.retention.cleaner import Cleaner, ExpiryForecast
from rockoon_broker.store.retention.retention import (
    DeletionReason,
    LogFileAge,
    RetentionDecision,
)
from rockoon_broker.store.settings import StoreSettings
from rockoon_core.replication_rules import Boundary
from rockoon_format.consume_queue import FILLER_SIZE, EntryArray, decode_entries
from rockoon_format.file_names import OFFSET_MAX
from rockoon_format.log_marks import LogTopics


class Dues:
    """Epoch milliseconds; the code that does the work sets the next due time.

    The syncs of a recovery point delay appends. So while the log grows slowly, points are postponed
    up to `recovery_point_interval_ms_max`.

    Args:
        settings: the intervals; may be replaced.
        now_ms: epoch milliseconds.
    """

    def __init__(self, settings: StoreSettings, now_ms: int) -> None:
        self.settings = settings
        self.sync_ms = self.save_ms = self.probe_ms = now_ms
        self._point_ms = self._point_ms_max = now_ms
        self._seen_end = 0
        self.disk_check_ms = now_ms + settings.disk_check_delay_ms

    def is_point_due(self, now_ms: int, grown_bytes: int, end: int) -> bool:
        """Return whether to write a recovery point.

        Args:
            now_ms: epoch milliseconds.
            grown_bytes: bytes of the log after the last recovery point.
            end: physical offset up to which the log is dispatched.
        """
        if now_ms < self._point_ms:
            return False
        if (
            now_ms >= self._point_ms_max
            or grown_bytes >= self.settings.recovery_point_bytes
            or end == self._seen_end
        ):
            return True
        self._point_ms, self._seen_end = now_ms + self.settings.recovery_point_interval_ms, end
        return False

    def point_requested(self, now_ms: int) -> None:
        """Set the time of the next recovery point."""
        self._point_ms = now_ms + self.settings.recovery_point_interval_ms
        self._point_ms_max = now_ms + self.settings.recovery_point_interval_ms_max

    def save(self, now_ms: int, save: Callable[[], bool]) -> None:
        """Run `save` if it is due. After a failure it is due immediately, so that a full disk is
        noticed even while a recovery point waits for space."""
        if now_ms >= self.save_ms and save():
            self.save_ms = now_ms + self.settings.recovery_point_interval_ms

    def correct_for(self, now_ms: int) -> None:
        """Reduce due times that are too far in the future because the clock was set back."""
        settings = self.settings
        disk_check_wait_ms_max = max(settings.disk_check_delay_ms, settings.disk_check_interval_ms)
        self.sync_ms = min(self.sync_ms, now_ms + settings.flush_interval_ms)
        self.save_ms = min(self.save_ms, now_ms + settings.recovery_point_interval_ms)
        self.probe_ms = min(self.probe_ms, now_ms + settings.recovery_point_interval_ms)
        self._point_ms = min(self._point_ms, now_ms + settings.recovery_point_interval_ms)
        point_ms_max = now_ms + settings.recovery_point_interval_ms_max
        self._point_ms_max = min(self._point_ms_max, point_ms_max)
        self.disk_check_ms = min(self.disk_check_ms, now_ms + disk_check_wait_ms_max)


class VisibleStore:
    """Reads of an open store. `Store` creates the attributes and adds appends and lifecycle.

    Readers see the log up to `_undispatched.end`.

    Attributes:
        closed_reason: why an operator has clients' messages refused; empty if they are accepted.
    """

    closed_reason = ""

    settings: StoreSettings
    _log: CommitLog
    _queues: ConsumeQueues
    _dropped: DroppedTopics
    _undispatched: DispatchQueue
    _reader: CompactedReader
    _raw: RawLog
    _epochs: Epochs
    _committed_end: int
    _closed: bool
    _syncer: Syncer
    _cleaner: Cleaner
    _dues: Dues
    points: RecoveryPoints
    compaction: Compaction

    def check_usable(self) -> None:
        """Raise StoreClosed or StoreSyncFailed if the store no longer accepts calls."""
        if self._closed:
            raise StoreClosed(f"{self.settings.root} is closed")
        if (failure := self._syncer.failure) is not None:
            raise StoreSyncFailed(f"a sync of {self.settings.root} failed: {failure}") from failure

    def _check_open(self) -> None:
        # The store may have been closed while a reader waited for a thread to load pages.
        if self._closed:
            raise StoreClosed("the store is closed")

    @property
    def log_min_offset(self) -> int:
        """Physical offset of the oldest byte in the log."""
        return self._log.min_offset

    @property
    def visible_end(self) -> int:
        """Physical offset after the newest visible message."""
        return self._undispatched.end

    @property
    def committed_end(self) -> int:
        """Physical offset up to which the log will never be cut; later messages are not visible."""
        return self._committed_end

    @property
    def settled_end(self) -> int:
        """Physical offset up to which the log is committed and durable on this disk.

        Other files of the broker may refer to the log up to here: it is there after a crash.
        """
        return min(self._committed_end, self._syncer.synced_end)

    @property
    def appended_end(self) -> int:
        """Physical offset after the newest message, visible or not."""
        return self._log.end

    @property
    def durable_end(self) -> int:
        """Physical offset up to which the Syncer has made the log durable."""
        return self._syncer.synced_end

    @property
    def last_sync_seconds(self) -> float:
        """Duration of the last sync of the log's files."""
        return self._syncer.last_seconds

    def idle_ms(self, now_ms: int) -> int:
        """Return for how long an unused store needs no `tick`; 0: it needs one now."""
        is_behind = self._undispatched.pending or self._syncer.synced_end < self._log.end
        is_busy = self._syncer.is_busy or self._cleaner.is_sweeping or self._log.failure
        if is_behind or is_busy or not self.points.is_newest(self._undispatched.end):
            return 0
        return max(min(self._dues.disk_check_ms - now_ms, self.compaction.idle_ms(now_ms)), 0)

    @property
    def last_retention(self) -> RetentionDecision | None:
        """Decision of the newest clean pass, None before the first pass."""
        return self._cleaner.last_decision

    @property
    def keeps_all_files(self) -> bool:
        """True if retention deletes nothing: a RocketMQ store, and `reserved_hours` is not set."""
        return self._cleaner.keeps_all_files

    @property
    def wanted_readings(self) -> tuple[int, ...]:
        """Ends of the files that retention can delete once it knows the progress of consumer
        groups; see `Store.clean_with`."""
        decision = self._cleaner.last_decision
        return () if decision is None else decision.wanted_ends

    @property
    def deleted_files(self) -> Mapping[DeletionReason, int]:
        """Number of CommitLog files deleted since the start, by reason."""
        return self._cleaner.deleted_files

    @property
    def deleted_unread(self) -> int:
        """Number of messages deleted since the start that a known group had not read."""
        return self._cleaner.deleted_unread

    def pressure_ms(self, now_ms: int) -> int | None:
        """Return when the disk will be under pressure at the log's growth rate; see `Cleaner`."""
        return self._cleaner.pressure_ms(now_ms)

    def deletion_reason(self, topic: str, queue_id: int, offset: int) -> DeletionReason | None:
        """Return why the message at a queue offset was deleted; None: it exists, or never did.

        If the ConsumeQueue file with the message's entry is deleted as well, the message's position
        in the log is unknown. Then the newest reason other than age counts.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None or not 0 <= offset < self.min_offset(topic, queue_id):
            return None
        deletions = self._cleaner.deletions
        entries = self._queues.read(queue, offset, 1)
        if len(entries) and int(entries[0]["size"]) != FILLER_SIZE:
            return deletions.reason_at(int(entries[0]["offset"]))
        first = self._queues.read(queue, self._queues.first_stored(queue), 1)
        return deletions.reason_below(int(first[0]["offset"]) if len(first) else self._log.end)

    def first_at(self, queue: QueueKey, physical_offset: int) -> tuple[int, int]:
        """Return two queue offsets: of the oldest message in the log, and of the first message that
        starts at or after a physical offset. Raises OSError."""
        found = self._queues.find(*queue)
        if found is None:
            return 0, 0
        low = self._queues.min_offset(found, self._log.min_offset)
        return low, self._queues.first_at(found, low, physical_offset)

    @property
    def retention_held_end(self) -> int:
        """Physical offset up to which retention would delete the log if no other copy needed it; 0
        if no copy needs it."""
        return self._cleaner.held_end

    def queues(self) -> list[QueueKey]:
        """Return every queue with a message, as (topic, queue id)."""
        return [queue.key for queue in self._queues if queue.max_offset]

    @property
    def queue_entries(self) -> int:
        """Number of entries in the files of all queues."""
        return self._queues.entry_count - self._queues.first_count

    def queue_ends(self) -> dict[str, dict[int, int]]:
        """Return the max offset of each queue that has or had messages, by topic and queue id."""
        ends: dict[str, dict[int, int]] = {}
        for queue in self._queues:
            if queue.max_offset:
                ends.setdefault(queue.topic, {})[queue.queue_id] = queue.max_offset
        return ends

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the oldest message's offset; without messages the max offset; 0: unknown queue."""
        return self._reader.min_offset(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of the next visible message; 0 for an unknown queue."""
        return self._reader.max_offset(topic, queue_id)

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        messages_max: int = 1024,
        bytes_max: int = 1 << 20,
        entries_max: int = 4096,
        tag_codes: NDArray[np.int64] | None = None,
    ) -> GetResult:
        """Read messages of one queue.

        Args:
            offset: offset of the first message.
            messages_max: maximum of messages returned.
            bytes_max: maximum of bytes returned; the first message is returned whatever its size.
            entries_max: maximum of queue entries examined, selected or not.
            tag_codes: tag hashes to select by, int64[n]; None selects every message.

        Returns:
            A status with the offset of the next read; records only with FOUND. A read ends early
            at the end of a ConsumeQueue file, and before damage.

        Raises:
            StoreDamaged: the first message is damaged, or its entry is damaged and not repairable.
            OSError: the disk failed.
        """
        self._check_open()
        found = self._reader.get(
            topic,
            queue_id,
            offset,
            messages_max=messages_max,
            bytes_max=bytes_max,
            entries_max=entries_max,
            tag_codes=tag_codes,
        )
        if found.status is not GetStatus.OFFSET_TOO_SMALL:
            return found
        return replace(found, deletion=self.deletion_reason(topic, queue_id, offset))

    def newest(self, topic: str, queue_id: int, offset: int) -> NewestBatch | None:
        """Return the newest batch of a queue if it starts at `offset` and is in memory.

        None: call `get` for the messages.
        """
        self._check_open()
        return self._reader.newest(topic, queue_id, offset)

    def read_at(self, physical_offset: int) -> bytes:
        """Return the record at a physical offset, checked completely, with its CRC.

        Raises:
            UnknownOffset: no visible record starts there.
            OSError: the disk failed.
        """
        if physical_offset >= self._undispatched.end:
            raise UnknownOffset(f"no record starts at {physical_offset}")
        self._check_open()
        frame, topic = self._reader.read_at(physical_offset)
        if self.is_dropped(topic, physical_offset):
            raise UnknownOffset(f"the record at {physical_offset} was deleted with its topic")
        return frame

    def read_raw(self, offset: int, bytes_max: int) -> bytes:
        """Return bytes of the log from a physical offset, visible or not; see `RawLog.read`."""
        self.check_usable()
        return self._raw.read(offset, bytes_max)

    def tail_crc(self, end: int, size: int) -> int:
        """Return the CRC-32 of the `size` bytes before a physical offset; see `RawLog.tail_crc`."""
        self.check_usable()
        return self._raw.tail_crc(end, size)

    def blank_at(self, position: int) -> int | None:
        """Return the start of the blank with a position, or None; see `RawLog.blank_at`."""
        self.check_usable()
        return self._raw.blank_at(position)

    def damaged_at(self, offset: int, data: bytes) -> int | None:
        """Return the first damaged record among bytes of the log; see `reading.damaged_at`."""
        return reading.damaged_at(self._log.file_bytes, offset, data)

    def record_before(self, position: int) -> int:
        """Return the start of a record at or before a position; see `reading.record_before`."""
        self.check_usable()
        return reading.record_before(self._log, position)

    def file_begin(self, position: int) -> int:
        """Return the physical offset of the start of the CommitLog file with a position."""
        return position - position % self._log.file_bytes

    def rewrite(self, offset: int, data: bytes) -> Callable[[], None]:
        """Replace damaged bytes by those of another copy; see `CommitLog.rewrite`."""
        self.check_usable()
        return self._log.rewrite(offset, data)

    def boundaries(self) -> list[Boundary]:
        """Return the epochs in the log's records, in order; without records, epoch 0 only."""
        return self._epochs.boundaries(self._log.min_offset, self._log.end)

    def read_log(
        self, physical_offset: int, bytes_max: int = 8 << 20, search_max: int | None = None
    ) -> LogChunk:
        """Return visible records of all topics in the order of the log; see `read_chunk`.

        Records of deleted topics are included (see `is_dropped`); bodies are not checked. The next
        read starts at `next_offset`. Raises OSError, StoreSyncFailed and StoreClosed.
        """
        self.check_usable()
        end = self._undispatched.end
        return read_chunk(self._log, physical_offset, end, bytes_max, search_max)

    def next_chunk(self, position: int, bytes_max: int) -> LogChunk:
        """As `read_log`, for components that follow the log as it grows.

        A chunk that was just copied from the leader is returned as a whole, with the results of its
        checks, until `forget_copied`.
        """
        self.check_usable()
        copied = self._raw.copied.at(position, self._undispatched.end)
        if copied is not None:
            return copied
        begins = self._raw.copied.next_start(position)
        return self.read_log(position, min(bytes_max, (begins or OFFSET_MAX) - position))

    def forget_copied(self, below: int) -> None:
        """Release copied chunks below a physical offset: all users of `next_chunk` have them."""
        self._raw.copied.discard_below(below)

    def find_record(self, physical_offset: int, bytes_max: int) -> Sought:
        """Return the first record at or after a physical offset; see `log.reading.find_record`."""
        self.check_usable()
        end = self._undispatched.end
        return find_record(self._log, physical_offset, end, bytes_max)

    def entries(self, topic: str, queue_id: int, offset: int, count_max: int) -> EntryArray:
        """Read entries of a queue, as `ConsumeQueues.read`; none for an unknown queue. Raises
        OSError."""
        queue = self._queues.find(topic, queue_id)
        return decode_entries(b"") if queue is None else self._queues.read(queue, offset, count_max)

    def log_files(self) -> list[LogFileAge]:
        """Return every CommitLog file, oldest first. Raises OSError."""
        return self._cleaner.file_ages()

    @property
    def epoch(self) -> int:
        """The newest epoch of the log; 0 for a log that never had another copy."""
        return self._epochs.epoch

    @property
    def log_topics(self) -> LogTopics:
        """Topics with messages in the log, by its own records; unknown in epoch 0."""
        return self._epochs.topics

    @property
    def dropped_marks(self) -> Mapping[str, int]:
        """By topic: the physical offset below which its records were deleted with it."""
        return self._dropped.marks

    def is_dropped(self, topic: str, physical_offset: int) -> bool:
        """Return whether a record was deleted with its topic, and must not be returned."""
        return physical_offset < self._dropped.marks.get(topic, 0)

    def search_offset(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: int,
        boundary: TimeBoundary = TimeBoundary.LOWER,
    ) -> int:
        """Return the queue offset for a store time.

        Args:
            timestamp_ms: epoch milliseconds.
            boundary: LOWER: the first message at or after the time, or the max offset; UPPER: the
                last message at or before the time, or the min offset.

        Returns:
            An offset in [min, max]; 0 for an unknown or empty queue.
        """
        self._check_open()
        return self._reader.search_offset(topic, queue_id, timestamp_ms, boundary)

    def queue_status(
        self,
        topic: str,
        queue_id: int,
        *,
        with_residency: bool = False,
        with_times: bool = True,
    ) -> QueueStatus:
        """Return the status of a queue.

        Args:
            with_residency: also ask the system whether the oldest message is in memory, which is
                slow.
            with_times: also read the store times of the oldest and the newest message.
        """
        self._check_open()
        return self._reader.status(
            topic,
            queue_id,
            self._undispatched.end,
            with_residency=with_residency,
            with_times=with_times,
        )

    def stored_at(self, topic: str, queue_id: int, offset: int) -> StoredAt | None:
        """Return position and time of the message at a queue offset; if deleted, of the oldest one.

        None: the queue has no message from there on, or its record is not valid.

        Raises:
            OSError: the disk failed.
        """
        self._check_open()
        return self._reader.stored_at(topic, queue_id, offset)

    def loss_forecast(self, now_ms: int) -> ExpiryForecast:
        """Return when messages can be deleted, by the current use of the disk. Raises OSError."""
        return self._cleaner.loss_forecast(now_ms)

    # State of the store

    @property
    def point_pending(self) -> bool:
        """True while a recovery point is being written."""
        return self._syncer.point_pending

    @property
    def removals_pending(self) -> bool:
        """True while removed files are still being deleted from the disk."""
        return self._syncer.removals_pending

    @property
    def removal_failure(self) -> OSError | None:
        """The error of the last deletion of removed files; retried at every clean pass."""
        return self._syncer.removal_failure

    @property
    def point_failure(self) -> OSError | None:
        """The error of the last write of a recovery point; retried every second."""
        return self._syncer.point_failure

    @property
    def failure(self) -> OSError | None:
        """The failure of a sync that has ended the store, or None."""
        return self._syncer.failure

    @property
    def writable(self) -> bool:
        """True if clients' messages are accepted; the disk may still refuse the write."""
        return not (self._closed or self.client_refusal_reason)

    @property
    def not_writable_reason(self) -> str:
        """Why every append, also of the broker itself, is refused without a write; empty if not."""
        if self._syncer.failure is not None:
            return f"a sync failed: {self._syncer.failure}"
        if self._undispatched.failure is not None:
            return f"ConsumeQueues cannot be written: {self._undispatched.failure}"
        return self.full_reason

    @property
    def full_reason(self) -> str:
        """Why the store refuses all records except those that open an epoch: the reserved space is
        used up. Empty if it is not."""
        return self._cleaner.full_reason

    @property
    def space_refusal_reason(self) -> str:
        """Why clients' messages are refused for lack of space; empty if they are not."""
        return self._cleaner.full_reason or self._cleaner.refusal_reason

    @property
    def client_refusal_reason(self) -> str:
        """Why clients' messages are refused without a write; empty if they are not."""
        return self.not_writable_reason or self.space_refusal_reason or self.closed_reason

    @property
    def is_under_pressure(self) -> bool:
        """True if clients' messages are refused only until retention has deleted more files."""
        return bool(self._cleaner.refusal_reason) and not self.not_writable_reason

    @property
    def write_failure(self) -> str:
        """Why the disk refuses writes to CommitLog or ConsumeQueues; empty if it does not."""
        if self._syncer.failure is not None or self._undispatched.failure is not None:
            return self.not_writable_reason
        failure = self._log.failure
        return "" if failure is None else f"the CommitLog cannot be written: {failure}"

    @property
    def refusal_reason(self) -> str:
        """Why the store or the disk would refuse a client's append; empty if they would not."""
        return self.not_writable_reason or self.space_refusal_reason or self.write_failure
