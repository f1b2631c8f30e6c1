"""Reader: messages by queue offset, by physical offset and by time, and the status of queues.

The checks of `get`, their order and the next offset of each result are those of
DefaultMessageStore#getMessage. The search by time is that of
ConsumeQueue#binarySearchInQueueByTime, within one time run and independent of file boundaries.
"""

import struct
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.store.errors import StoreDamaged, UnknownOffset
from rockoon_broker.store.log.commit_log import CommitLog
from rockoon_broker.store.log.file_reads import gather, gather_runs, pages_resident
from rockoon_broker.store.log.time_runs import STORE_TIME_HEAD_BYTES, TimeRuns, store_time_ms
from rockoon_broker.store.queues.codes import proved_count
from rockoon_broker.store.queues.consume_queue import (
    ConsumeQueue,
    matching_count,
    plausible_count,
    records_to_read,
)
from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_broker.store.queues.repair import QueueRepair
from rockoon_broker.store.queues.tails import QueueTailCache
from rockoon_broker.store.retention.retention import DeletionReason
from rockoon_broker.store.settings import StoreSettings
from rockoon_core.light_dataclass import light_dataclass
from rockoon_format.consume_queue import ENTRY, ENTRY_BYTES, FILLER_SIZE, EntryArray
from rockoon_format.frames import slices
from rockoon_format.record import (
    AT_MAGIC,
    MAGIC_V1,
    MAGIC_V2,
    RecordError,
    decode_record,
)

_MAGIC = struct.Struct(">i")
_MAGICS = (MAGIC_V1, MAGIC_V2)
# Damaged entries that one read repairs; after more it fails.
_REPAIRS_PER_GET = 3


class GetStatus(Enum):
    """Result of a read by queue offset, in the order of the checks."""

    # Enum's own `__hash__` is a Python function, which would run three times for each answer.
    __hash__ = object.__hash__

    NO_MATCHED_LOGIC_QUEUE = "no such queue"
    NO_MESSAGE_IN_QUEUE = "nothing was ever stored in the queue"
    OFFSET_TOO_SMALL = "below the queue's min offset"
    OFFSET_OVERFLOW_ONE = "at the queue's end: wait for the next message"
    OFFSET_OVERFLOW_BADLY = "beyond the queue's end"
    OFFSET_FOUND_NULL = "the queue's file for this offset is gone"
    MESSAGE_WAS_REMOVING = "the records are deleted"
    NO_MATCHED_MESSAGE = "no examined message matches the filter"
    FOUND = "found"


class TimeBoundary(Enum):
    """The message that a search by time returns."""

    LOWER = "the first at or after the time"
    UPPER = "the last at or before the time"


@light_dataclass
class GetResult:
    """Messages of one queue."""

    status: GetStatus
    next_offset: int
    """Offset of the next read."""
    min_offset: int
    max_offset: int
    frames: bytes = b""
    """The records as they are stored, concatenated."""
    lengths: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    """Size of each record in bytes, uint32[count]."""
    deletion: DeletionReason | None = None
    """With OFFSET_TOO_SMALL: why the requested message was deleted."""

    @property
    def count(self) -> int:
        return len(self.lengths)


class NewestBatch(NamedTuple):
    """The newest batch of a queue."""

    lengths: bytes
    """Size of each record, packed little-endian u32."""
    frames: bytes
    """The records as they are stored, concatenated."""
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """Status of a queue. Offsets are queue offsets, except those marked as physical."""

    min_offset: int
    max_offset: int
    first_store_timestamp_ms: int | None
    """Store time of the oldest message; None for an empty queue."""
    last_store_timestamp_ms: int | None
    first_entry_in_memory_by_distance: bool | None
    """True if the oldest message is close enough to the log's end to count as in memory
    (DefaultMessageStore#estimateInMemByCommitOffset); None for an empty queue."""
    first_entry_pages_resident: bool | None
    """True if its pages are in memory; None if this was not requested, for an empty queue, or if
    the system cannot report it."""
    log_min_offset: int
    """Physical offset."""
    visible_end: int
    """Physical offset."""
    next_offset: int
    """Offset that the next appended message gets; above `max_offset` while some are not visible."""


@dataclass(frozen=True, slots=True)
class StoredAt:
    """Position and time of a stored message."""

    physical_offset: int
    store_timestamp_ms: int
    lasting: bool = False
    """True in a compacted topic: retention does not delete the message."""


class _WrongEntry(Exception):
    """A queue entry does not match its record; `offset`: its queue offset."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        super().__init__(offset)


class Reader:
    """Reads of an open log and its queues; owned by the thread that owns the store.

    Args:
        runs: time runs of the log; searches by time are binary within a run.
        settings: distance from the end that counts as in memory, and the delays of levels.
        tails: cache of the newest messages.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        runs: TimeRuns,
        repair: QueueRepair,
        settings: StoreSettings,
        tails: QueueTailCache,
    ) -> None:
        self._tails = tails
        self._delay_levels_ms = settings.delay_levels_ms
        self._in_memory_bytes = settings.in_memory_bytes
        self._log = log
        self._runs = runs
        self._repair = repair
        self._queues = queues

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queues.find(topic, queue_id)
        return 0 if queue is None else self._queues.min_offset(queue, self._log.min_offset)

    def max_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queues.find(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        messages_max: int,
        bytes_max: int,
        entries_max: int,
        tag_codes: NDArray[np.int64] | None,
    ) -> GetResult:
        """Read messages of a queue; see `Store.get`."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        low, high = self._queues.min_offset(queue, self._log.min_offset), queue.max_offset
        if high == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset == high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
        newest = self._tails.read(queue, offset, entries_max)
        if newest is not None:
            found = _of_tail(*newest, tag_codes)
            if len(found[0]) <= messages_max and len(found[1]) <= bytes_max:
                status = GetStatus.FOUND if len(found[0]) else GetStatus.NO_MATCHED_MESSAGE
                next_offset = offset + len(newest[0])
                return GetResult(status, next_offset, low, high, found[1], found[0])
        for _ in range(_REPAIRS_PER_GET):
            try:
                return self._found(
                    queue, offset, low, messages_max, bytes_max, entries_max, tag_codes
                )
            except _WrongEntry as wrong:
                self._repair.repair(queue, wrong.offset)
        path, position = self._queues.place_of(queue, offset)
        raise StoreDamaged(
            path, position, "entries were damaged and some are repaired: retry the read"
        )

    def newest(self, topic: str, queue_id: int, offset: int) -> NewestBatch | None:
        """Return the queue's newest batch if it starts at `offset` and is in memory.

        Enough for a reader at the end of the queue; `get` returns the same at three times the cost.
        """
        queue = self._queues.find(topic, queue_id)
        found = None if queue is None else self._tails.newest(queue, offset)
        if queue is None or found is None:
            return None
        low = self._queues.min_offset(queue, self._log.min_offset)
        if offset < low:
            return None
        entries, frames = found
        if len(entries) == ENTRY_BYTES:
            lengths = len(frames).to_bytes(4, "little")
        else:
            lengths = np.frombuffer(entries, ENTRY)["size"].astype("<u4").tobytes()
        return tuple.__new__(NewestBatch, (lengths, frames, low, queue.max_offset))

    def _found(
        self,
        queue: ConsumeQueue,
        offset: int,
        low: int,
        messages_max: int,
        bytes_max: int,
        entries_max: int,
        tag_codes: NDArray[np.int64] | None,
    ) -> GetResult:
        """Return the records of the entries from `offset`, up to the first wrong entry. Raises
        _WrongEntry: the first selected entry is wrong."""
        high = queue.max_offset
        entries = self._queues.read(queue, offset, max(1, entries_max))
        if len(entries) == 0:
            following = self._queues.next_file_offset(offset)
            return GetResult(GetStatus.OFFSET_FOUND_NULL, following, low, high)
        log_bounds = self._log.min_offset, self._log.end, self._log.file_bytes
        if tag_codes is None:
            found = records_to_read(entries, *log_bounds, max(1, messages_max), bytes_max)
            if found is not None:
                sizes, runs = found
                frames = gather_runs(runs, self._log.read, self._log.same_file)
                indices = np.arange(len(sizes))
                return self._matching(queue, offset, low, indices, len(sizes), frames, sizes)
        positions = entries["offset"].astype(np.int64)
        sizes = entries["size"].astype(np.int64)
        plausible = plausible_count(positions, sizes, *log_bounds)
        if plausible == 0:
            raise _WrongEntry(offset)
        if tag_codes is not None:
            plausible = self._right_codes(queue, offset, entries[:plausible])
        entries, positions, sizes = entries[:plausible], positions[:plausible], sizes[:plausible]
        present = (sizes != FILLER_SIZE) & (positions >= self._log.min_offset)
        wanted = np.flatnonzero(present & _has_tag(entries, tag_codes))
        examined = len(entries)
        if len(wanted) == 0:
            status = GetStatus.NO_MATCHED_MESSAGE
            if not present.any():
                status = GetStatus.MESSAGE_WAS_REMOVING
            return GetResult(status, offset + examined, low, high)
        fitting = int(np.searchsorted(np.cumsum(sizes[wanted]), bytes_max, side="right"))
        count = max(1, min(fitting, messages_max))
        if count < len(wanted):
            examined = int(wanted[count])
            wanted = wanted[:count]
        frames = gather(positions[wanted], sizes[wanted], self._log.read, self._log.same_file)
        return self._matching(queue, offset, low, wanted, examined, frames, sizes[wanted])

    def _matching(
        self,
        queue: ConsumeQueue,
        offset: int,
        low: int,
        wanted: NDArray[np.int64],
        examined: int,
        frames: bytes,
        lengths: NDArray[np.int64],
    ) -> GetResult:
        """Return records, up to the first one that does not match its entry.

        Args:
            queue, offset, low: the queue, the first offset examined, the min offset.
            wanted: indices, from `offset`, of the selected entries.
            examined: number of examined entries.
            frames, lengths: the records of the selected entries.

        Raises:
            _WrongEntry: the first record does not match.
        """
        matching = matching_count(frames, lengths, queue.topic, queue.queue_id, wanted + offset)
        if matching < len(wanted):
            examined = int(wanted[matching])
            if matching == 0:
                raise _WrongEntry(offset + examined)
            lengths = lengths[:matching]
            frames = frames[: int(lengths.sum())]
        sizes, next_offset = lengths.astype(np.uint32), offset + examined
        return GetResult(GetStatus.FOUND, next_offset, low, queue.max_offset, frames, sizes)

    def _right_codes(self, queue: ConsumeQueue, offset: int, entries: EntryArray) -> int:
        """Return how many leading entries have proven tag codes, so that a filter may use them.
        Raises _WrongEntry: the first code is wrong."""

        def read(first: int, count: int) -> bytes:
            parts = []
            while count and len(part := self._queues.read(queue, first, count)):
                parts.append(part.tobytes())
                first, count = first + len(part), count - len(part)
            return b"".join(parts)

        def prove(first: int, some: EntryArray) -> int:
            return proved_count(self._log, queue.key, first, some, self._delay_levels_ms)

        # Later entries are not saved yet: they come from memory and need no proof.
        stored = entries[: max(queue.saved_offset - offset, 0)]
        right = self._queues.codes.right_count(queue.key, offset, stored, read, prove)
        if right == 0 < len(stored):
            raise _WrongEntry(offset)
        return len(entries) if right == len(stored) else right

    def read_at(self, physical_offset: int) -> tuple[bytes, str]:
        """Return the record at a physical offset and its topic; see `Store.read_at`."""
        head = self._log.read(physical_offset, 8)
        if int.from_bytes(head[4:], signed=True) not in (MAGIC_V1, MAGIC_V2):
            raise UnknownOffset(f"no record starts at {physical_offset}")
        frame = self._log.read(physical_offset, max(8, int.from_bytes(head[:4], signed=True)))
        try:
            record = decode_record(frame)
        except RecordError as error:
            raise UnknownOffset(f"no record starts at {physical_offset}: {error}") from error
        if record.physical_offset != physical_offset:
            raise UnknownOffset(f"bytes at {physical_offset} only look like a record")
        return frame, record.topic.decode(errors="replace")

    def search_offset(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: TimeBoundary, lowest: int = 0
    ) -> int:
        """Find a queue offset by store time; see `Store.search_offset`. Messages below the offset
        `lowest` are ignored."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return 0
        low, high = self._queues.min_offset(queue, self._log.min_offset), queue.max_offset
        first = low = max(low, lowest)
        # Messages with this or an earlier time are too early.
        early_ms = timestamp_ms - (boundary is TimeBoundary.LOWER)
        for run in self._runs.runs_after(self._log.min_offset):
            begin = self._queues.first_at(queue, first, run.start)
            if begin < high and self._store_time_ms(queue, begin) <= early_ms:
                low = begin
                break
            # All messages of this run are late enough. Messages of earlier runs can have any time.
            high = min(high, begin)
        while low < high:
            middle = (low + high) // 2
            if self._store_time_ms(queue, middle) <= early_ms:
                low = middle + 1
            else:
                high = middle
        return low if boundary is TimeBoundary.LOWER else max(low - 1, first)

    def status(
        self,
        topic: str,
        queue_id: int,
        visible_end: int,
        *,
        with_residency: bool,
        with_times: bool,
        lowest: int = 0,
    ) -> QueueStatus:
        """Return the status of a queue; see `Store.queue_status`. Messages below the offset
        `lowest` are ignored."""
        log_min = self._log.min_offset
        queue = self._queues.find(topic, queue_id)
        low = max(self.min_offset(topic, queue_id), lowest)
        if queue is None:
            return QueueStatus(low, 0, None, None, None, None, log_min, visible_end, 0)
        high, following = queue.max_offset, queue.next_offset
        if low >= high:
            return QueueStatus(low, high, None, None, None, None, log_min, visible_end, following)
        first = self._queues.read(queue, low, 1)[0]
        position, size = int(first["offset"]), int(first["size"])
        return QueueStatus(
            min_offset=low,
            max_offset=high,
            first_store_timestamp_ms=self._store_time_ms(queue, low) if with_times else None,
            last_store_timestamp_ms=self._store_time_ms(queue, high - 1) if with_times else None,
            first_entry_in_memory_by_distance=visible_end - position <= self._in_memory_bytes,
            first_entry_pages_resident=(
                self._pages_resident(position, size) if with_residency else None
            ),
            log_min_offset=log_min,
            visible_end=visible_end,
            next_offset=following,
        )

    def stored_at(self, topic: str, queue_id: int, offset: int) -> StoredAt | None:
        """Return position and time of a message; see `Store.stored_at`."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return None
        entries = self._queues.read(queue, max(offset, self.min_offset(topic, queue_id)), 1)
        if len(entries) == 0 or int(entries[0]["size"]) == FILLER_SIZE:
            return None
        position = int(entries[0]["offset"])
        if not self._log.min_offset <= position < self._log.end:
            return None
        head = self._log.read(position, STORE_TIME_HEAD_BYTES)
        if (
            len(head) < STORE_TIME_HEAD_BYTES
            or _MAGIC.unpack_from(head, AT_MAGIC)[0] not in _MAGICS
        ):
            return None
        return StoredAt(position, store_time_ms(head))

    def _store_time_ms(self, queue: ConsumeQueue, offset: int) -> int:
        """Return the store time of an entry's record; -1 for a filler entry."""
        entry = self._queues.read(queue, offset, 1)[0]
        if int(entry["size"]) == FILLER_SIZE:
            return -1
        return store_time_ms(self._log.read(int(entry["offset"]), STORE_TIME_HEAD_BYTES))

    def _pages_resident(self, physical_offset: int, size: int) -> bool | None:
        file = self._log.file_at(physical_offset)
        return pages_resident(file.fd, physical_offset - file.start, size)


def _of_tail(
    entries: EntryArray, frames: bytes, tag_codes: NDArray[np.int64] | None
) -> tuple[NDArray[np.uint32], bytes]:
    """Return sizes and records of the selected messages of a tail.

    The tag codes need no proof, because they were computed from these records.
    """
    sizes = entries["size"].astype(np.uint32)
    if tag_codes is None:
        return sizes, frames
    wanted = _has_tag(entries, tag_codes)
    if wanted.all():
        return sizes, frames
    ends = np.cumsum(sizes, dtype=np.int64)
    chosen = sizes[wanted]
    return chosen, b"".join(slices(frames, (ends - sizes)[wanted], chosen.astype(np.int64)))


def _has_tag(entries: EntryArray, tag_codes: NDArray[np.int64] | None) -> NDArray[np.bool_]:
    if tag_codes is None:
        return np.ones(len(entries), np.bool_)
    codes = entries["tags_code"].astype(np.int64)
    if len(tag_codes) == 1:
        single: NDArray[np.bool_] = codes == tag_codes[0]
        return single
    return np.isin(codes, tag_codes)
