"""The store as its readers see it: what is visible, and how the store is."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.store.compacted.compaction import Compaction
from rockoon_broker.store.compacted.reading import CompactedReader
from rockoon_broker.store.dues import Dues
from rockoon_broker.store.errors import StoreClosed, UnknownOffset
from rockoon_broker.store.log import integrity
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
from rockoon_core.replication_rules import Boundary
from rockoon_format.consume_queue import FILLER_SIZE, EntryArray, decode_entries
from rockoon_format.file_names import OFFSET_MAX
from rockoon_format.log_marks import LogTopics


class VisibleStore(ABC):
    """Reads over an open store; `Store` makes the parts and is the rest of it.

    Attributes:
        _undispatched: `end` of it is how far readers see the log.
    """

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

    @abstractmethod
    def check_usable(self) -> None:
        """Raise StoreClosed or StoreFailed once nothing may be read any more."""

    def _check_open(self) -> None:
        # Who waited for a thread to read may come back to a store that was closed meanwhile.
        if self._closed:
            raise StoreClosed("the store is closed")

    @property
    def log_min_offset(self) -> int:
        """Physical offset of the oldest byte that is kept."""
        return self._log.min_offset

    @property
    def visible_end(self) -> int:
        """Physical offset behind the newest message that readers see."""
        return self._undispatched.end

    @property
    def committed_end(self) -> int:
        """Physical offset up to which nothing will ever be cut; readers see no more."""
        return self._committed_end

    @property
    def settled_end(self) -> int:
        """Physical offset up to which the log is committed and durable here: what is kept beside it
        may rely on that much after a crash."""
        return min(self._committed_end, self._syncer.synced_end)

    @property
    def appended_end(self) -> int:
        """Physical offset behind the newest message, seen or not."""
        return self._log.end

    @property
    def durable_end(self) -> int:
        """Physical offset up to which the Syncer has made the log durable."""
        return self._syncer.synced_end

    @property
    def last_sync_seconds(self) -> float:
        """What the last sync of the log's files took."""
        return self._syncer.last_seconds

    def idle_ms(self, now_ms: int) -> int:
        """How long `tick` finds nothing to do if nothing is asked of the store; 0 while it does."""
        is_behind = self._undispatched.pending or self._syncer.synced_end < self._log.end
        is_busy = self._syncer.is_busy or self._cleaner.is_sweeping or self._log.failure
        if is_behind or is_busy or not self.points.is_newest(self._undispatched.end):
            return 0
        return max(min(self._dues.disk_check_ms - now_ms, self.compaction.idle_ms(now_ms)), 0)

    @property
    def last_retention(self) -> RetentionDecision | None:
        """The newest clean pass's decision, None before the first."""
        return self._cleaner.last_decision

    @property
    def keeps_all_files(self) -> bool:
        """Whether retention deletes nothing: RocketMQ wrote the store, and `reserved_hours` is not
        set."""
        return self._cleaner.keeps_all_files

    @property
    def wanted_readings(self) -> tuple[int, ...]:
        """Ends of files that retention would delete, once it has the progress of consumer groups:
        for `Store.clean_with`."""
        decision = self._cleaner.last_decision
        return () if decision is None else decision.wanted_ends

    @property
    def deleted_files(self) -> Mapping[DeletionReason, int]:
        """How many CommitLog files were deleted since the start, by reason."""
        return self._cleaner.deleted_files

    @property
    def deleted_unread(self) -> int:
        """How many messages were deleted since the start that a known group had not read."""
        return self._cleaner.deleted_unread

    def pressure_ms(self, now_ms: int) -> int | None:
        """When the disk will be under pressure at the log's growth rate; see `Cleaner`."""
        return self._cleaner.pressure_ms(now_ms)

    def deletion_reason(self, topic: str, queue_id: int, offset: int) -> DeletionReason | None:
        """Why the message at a queue offset was deleted; None: it is kept, or never was.

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
        """Queue offsets of the oldest message in the log, and of the first one that does not begin
        below a physical offset; OSError for the disk."""
        found = self._queues.find(*queue)
        if found is None:
            return 0, 0
        low = self._queues.min_offset(found, self._log.min_offset)
        return low, self._queues.first_at(found, low, physical_offset)

    @property
    def retention_held_end(self) -> int:
        """Up to where retention would have deleted the log, had other copies not needed it; 0 where
        they did not."""
        return self._cleaner.held_end

    def queues(self) -> list[QueueKey]:
        """Every queue with a message, as (topic, queue id)."""
        return [queue.key for queue in self._queues if queue.max_offset]

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Offset of the oldest message kept; the max offset if none is, 0 for an unknown queue."""
        return self._reader.min_offset(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Offset that the next visible message gets; 0 for an unknown queue."""
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
            topic, queue_id: the queue.
            offset: of the first message wanted.
            messages_max: messages returned, at most.
            bytes_max: bytes returned, at most; the first message always fits.
            entries_max: queue entries examined, at most, wanted or not.
            tag_codes: tag hashes to select by, int64[n]; None selects everything.

        Returns:
            A status with the offset to go on from; records only with FOUND. Fewer than wanted
            come back where a ConsumeQueue file ends, and before a damaged place.

        Raises:
            StoreDamaged: the first message is damaged, or its entry is and cannot be made again.
            OSError: the disk.
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
        """The newest batch of a queue, if it begins at `offset` and is in memory.

        None: `get` reads the messages.
        """
        self._check_open()
        return self._reader.newest(topic, queue_id, offset)

    def read_at(self, physical_offset: int) -> bytes:
        """The record at a physical offset, checked in full, CRC included.

        Raises:
            UnknownOffset: no visible record starts there.
            OSError: the disk.
        """
        if physical_offset >= self._undispatched.end:
            raise UnknownOffset(f"no record starts at {physical_offset}")
        self._check_open()
        frame, topic = self._reader.read_at(physical_offset)
        if self.is_dropped(topic, physical_offset):
            raise UnknownOffset(f"the record at {physical_offset} went with its topic")
        return frame

    def read_raw(self, offset: int, bytes_max: int) -> bytes:
        """What the log has from a physical offset on, seen or not; see `RawLog.read`."""
        self.check_usable()
        return self._raw.read(offset, bytes_max)

    def tail_crc(self, end: int, size: int) -> int:
        """CRC-32 of the `size` bytes before a physical offset; see `RawLog.tail_crc`."""
        self.check_usable()
        return self._raw.tail_crc(end, size)

    def blank_at(self, position: int) -> int | None:
        """Where the blank begins that a byte belongs to, None; see `RawLog.blank_at`."""
        self.check_usable()
        return self._raw.blank_at(position)

    def damaged_at(self, offset: int, data: bytes) -> int | None:
        """The first damaged record among bytes of the log; see `integrity.damaged_at`."""
        return integrity.damaged_at(self._log.file_bytes, offset, data)

    def record_before(self, position: int) -> int:
        """Where a record begins at or before a position; see `integrity.record_before`."""
        self.check_usable()
        return integrity.record_before(self._log, position)

    def file_begin(self, position: int) -> int:
        """Physical offset at which the CommitLog file begins that has a position."""
        return position - position % self._log.file_bytes

    def rewrite(self, offset: int, data: bytes) -> Callable[[], None]:
        """Replace damaged bytes by another copy's; see `CommitLog.rewrite`."""
        self.check_usable()
        return self._log.rewrite(offset, data)

    def boundaries(self) -> list[Boundary]:
        """Epochs in their order, as the log's own records say; epoch 0 alone where none does."""
        return self._epochs.boundaries(self._log.min_offset, self._log.end)

    def read_log(
        self, physical_offset: int, bytes_max: int = 8 << 20, search_max: int | None = None
    ) -> LogChunk:
        """Records of all topics in the order of the log, as readers see it; see `read_chunk`.

        Deleted topics' are among them (see `is_dropped`), bodies are not checked. Read on at
        `next_offset`. Raises OSError for the disk, StoreFailed and StoreClosed.
        """
        self.check_usable()
        end = self._undispatched.end
        return read_chunk(self._log, physical_offset, end, bytes_max, search_max)

    def next_chunk(self, position: int, bytes_max: int) -> LogChunk:
        """As `read_log`, for who follows the log as it grows: what was copied a moment ago comes as
        it was checked then, all that was copied at once, until `forget_copied`."""
        self.check_usable()
        copied = self._raw.copied.at(position, self._undispatched.end)
        if copied is not None:
            return copied
        begins = self._raw.copied.next_start(position)
        return self.read_log(position, min(bytes_max, (begins or OFFSET_MAX) - position))

    def forget_copied(self, below: int) -> None:
        """All that follow the log have had what `next_chunk` gives below a physical offset."""
        self._raw.copied.discard_below(below)

    def find_record(self, physical_offset: int, bytes_max: int) -> Sought:
        """The first record at or behind any physical offset; see `log.reading.find_record`."""
        self.check_usable()
        end = self._undispatched.end
        return find_record(self._log, physical_offset, end, bytes_max)

    def entries(self, topic: str, queue_id: int, offset: int, count_max: int) -> EntryArray:
        """As `ConsumeQueues.read`, of a queue that there may be; OSError for the disk."""
        queue = self._queues.find(topic, queue_id)
        return decode_entries(b"") if queue is None else self._queues.read(queue, offset, count_max)

    def log_files(self) -> list[LogFileAge]:
        """Every CommitLog file, oldest first; OSError for the disk."""
        return self._cleaner.file_ages()

    @property
    def epoch(self) -> int:
        """The newest one that the log has begun; 0 for a log that never had another copy."""
        return self._epochs.epoch

    @property
    def log_topics(self) -> LogTopics:
        """Whose messages the log holds, by its own records; of epoch 0 nothing is known."""
        return self._epochs.topics

    @property
    def dropped_marks(self) -> Mapping[str, int]:
        """Topic to the physical offset below which its records went with it."""
        return self._dropped.marks

    def is_dropped(self, topic: str, physical_offset: int) -> bool:
        """Whether a record went with its topic: it is as if it had never been."""
        return physical_offset < self._dropped.marks.get(topic, 0)

    def search_offset(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: int,
        boundary: TimeBoundary = TimeBoundary.LOWER,
    ) -> int:
        """The queue offset for a store time.

        Args:
            topic, queue_id: the queue.
            timestamp_ms: epoch milliseconds.
            boundary: LOWER gives the first message at or after it, the max offset if there is
                none; UPPER the last at or before it, the min offset if there is none.

        Returns:
            An offset in [min, max]; 0 for an unknown or empty queue.
        """
        self._check_open()
        return self._reader.search_offset(topic, queue_id, timestamp_ms, boundary)

    def queue_status(
        self, topic: str, queue_id: int, *, with_residency: bool = False
    ) -> QueueStatus:
        """A queue's offsets, times, and whether its oldest message is in memory.

        Args:
            topic, queue_id: the queue.
            with_residency: also ask the system for the message's pages, which is slow.
        """
        self._check_open()
        return self._reader.status(topic, queue_id, self._undispatched.end, with_residency)

    def stored_at(self, topic: str, queue_id: int, offset: int) -> StoredAt | None:
        """Where and when the message at a queue offset, or else the oldest one kept behind it, was
        stored; None when there is none, or its record is not what it should be.

        Raises:
            OSError: the disk.
        """
        self._check_open()
        return self._reader.stored_at(topic, queue_id, offset)

    def loss_forecast(self, now_ms: int) -> ExpiryForecast:
        """When messages can be deleted, as the disk is now. Raises OSError."""
        return self._cleaner.loss_forecast(now_ms)

    # How it goes.

    @property
    def point_pending(self) -> bool:
        """Whether a recovery point is being written."""
        return self._syncer.point_pending

    @property
    def removals_pending(self) -> bool:
        """Whether files that were given up are still being deleted."""
        return self._syncer.removals_pending

    @property
    def removal_failure(self) -> OSError | None:
        """Why the disk does not delete what was given up; tried again at every clean pass."""
        return self._syncer.removal_failure

    @property
    def point_failure(self) -> OSError | None:
        """Why no recovery point is written, for now; tried again every second."""
        return self._syncer.point_failure

    @property
    def failure(self) -> OSError | None:
        """The error that ended the store, if one did."""
        return self._syncer.failure

    @property
    def writable(self) -> bool:
        """Whether clients' messages are accepted, unless the disk refuses the write itself."""
        return not (self._closed or self.client_refusal_reason)

    @property
    def not_writable_reason(self) -> str:
        """Why every append is refused before the disk is asked, also the broker's own; empty while
        none is."""
        if self._syncer.failure is not None:
            return f"a sync failed: {self._syncer.failure}"
        if self._undispatched.failure is not None:
            return f"ConsumeQueues cannot be written: {self._undispatched.failure}"
        return self.full_reason

    @property
    def full_reason(self) -> str:
        """Why all records but those that open an epoch are refused for lack of space: the reserve
        is used up. Empty while there is space."""
        return self._cleaner.full_reason

    @property
    def space_refusal_reason(self) -> str:
        """Why clients' messages are refused for lack of space; empty while they are not."""
        return self._cleaner.full_reason or self._cleaner.refusal_reason

    @property
    def client_refusal_reason(self) -> str:
        """Why clients' messages are refused before the disk is asked; empty while they are not."""
        return self.not_writable_reason or self.space_refusal_reason

    @property
    def is_under_pressure(self) -> bool:
        """Whether clients' messages are refused only until retention has deleted more."""
        return bool(self._cleaner.refusal_reason) and not self.not_writable_reason

    @property
    def write_failure(self) -> str:
        """Why the disk refuses writes to the CommitLog or to ConsumeQueues; empty while it accepts
        them."""
        if self._syncer.failure is not None or self._undispatched.failure is not None:
            return self.not_writable_reason
        failure = self._log.failure
        return "" if failure is None else f"the CommitLog cannot be written: {failure}"

    @property
    def refusal_reason(self) -> str:
        """Why an append of a client would be refused, by the store or by the disk; empty if it
        would not."""
        return self.client_refusal_reason or self.write_failure
