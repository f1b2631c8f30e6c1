"""One queue's entries: 20 bytes each, of which each is of one record.

Entry N lies at byte 20 N of the queue's files, which are sparse and of fixed size. Queues are many
and mostly idle, so one costs a small object and no descriptor; open files are few and shared.

Invariants of a queue:
1. Entries [first of its files, `max_offset`) are valid, in the order of the log.
2. Everything behind them is zero, also in the files that follow.
3. Entry N is the record that says queue offset N. Numbers that no record bears (below the first
   one, when a queue begins in the middle) are fillers, which every reader skips.
4. The last `unsaved_count` of them are in memory alone. No recovery point counts such.
"""

from pathlib import Path

import numpy as np

from rockoon_broker.store.queues.queue_files import QueueFiles
from rockoon_broker.store.queues.unsaved import UnsavedEntries
from rockoon_format.consume_queue import ENTRY, ENTRY_BYTES, FILLER_SIZE, EntryArray

QueueKey = tuple[str, int]
"""Topic and queue id."""


class ConsumeQueue:
    """One queue's numbers. Written by the owner's thread through `ConsumeQueues` alone."""

    __slots__ = (
        "file_first",
        "file_last",
        "key",
        "max_offset",
        "min_known_for",
        "min_offset",
        "next_offset",
        "queue_id",
        "topic",
        "unsaved_count",
    )

    def __init__(self, topic: str, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.key: QueueKey = (topic, queue_id)
        self.file_first = 0
        """Number of the first file: its first entry is `file_first` times the entries per file."""
        self.file_last = -1
        """Number of the last file; -1 while there is none."""
        self.max_offset = 0
        """One past the last entry: what readers see."""
        self.next_offset = 0
        """The offset of the next message to be appended; ahead of `max_offset` until a sync."""
        self.min_offset = 0
        """Offset of the first entry whose record is kept, for the log's start `min_known_for`."""
        self.min_known_for = -1
        self.unsaved_count = 0
        """How many of the last entries are in no file yet."""

    @property
    def saved_offset(self) -> int:
        """One past the last entry in a file."""
        return self.max_offset - self.unsaved_count

    @property
    def has_files(self) -> bool:
        return self.file_last >= self.file_first


class QueueEntries:
    """Entries of queues as they are read and searched.

    Args:
        files: the queues'.
        unsaved: what is in none of them yet.
        file_entries: entries per file.
    """

    def __init__(self, files: QueueFiles, unsaved: UnsavedEntries, file_entries: int) -> None:
        self._files = files
        self.unsaved = unsaved
        self._file_entries = file_entries

    def place_of(self, queue: ConsumeQueue, offset: int) -> tuple[Path, int]:
        """The file of an entry and the byte in it."""
        number, index = divmod(offset, self._file_entries)
        return self._path(queue, number), index * ENTRY_BYTES

    def read(self, queue: ConsumeQueue, first_offset: int, count: int) -> EntryArray:
        """Up to `count` entries from `first_offset`, of one file and what is in none; none behind
        `max_offset`."""
        stored = self._read_file(queue, first_offset, count)
        at, end = first_offset + len(stored), min(first_offset + count, queue.max_offset)
        if not queue.saved_offset <= at < end:
            return stored
        first, last = at - queue.saved_offset, end - queue.saved_offset
        kept = self.unsaved.of(queue.key)[first * ENTRY_BYTES : last * ENTRY_BYTES]
        # By their bytes: joined as arrays they would no longer be in a file's byte order.
        return np.frombuffer(stored.tobytes() + kept, ENTRY)

    def _read_file(self, queue: ConsumeQueue, first_offset: int, count: int) -> EntryArray:
        number, index = divmod(first_offset, self._file_entries)
        count = min(count, queue.saved_offset - first_offset, self._file_entries - index)
        if count <= 0 or not queue.file_first <= number <= queue.file_last:
            return np.zeros(0, ENTRY)
        try:
            data = self._files.read((*queue.key, number), count * ENTRY_BYTES, index * ENTRY_BYTES)
        except FileNotFoundError:
            # Somebody else deleted it; readers are sent past it.
            return np.zeros(0, ENTRY)
        return np.frombuffer(data, ENTRY, count=len(data) // ENTRY_BYTES)

    def first_stored(self, queue: ConsumeQueue) -> int:
        """Offset of the first entry that the queue's files have room for."""
        return queue.file_first * self._file_entries if queue.has_files else queue.max_offset

    def next_file_offset(self, offset: int) -> int:
        """First offset of the file behind the one that `offset` belongs to."""
        return (offset // self._file_entries + 1) * self._file_entries

    def min_offset(self, queue: ConsumeQueue, log_min: int) -> int:
        """Offset of the first entry whose record lies at or behind `log_min`.

        The max offset when all records are gone: an emptied queue keeps its numbers.
        Source: ConsumeQueue#correctMinOffset.
        """
        if queue.max_offset == 0:
            return 0
        # A search of a file in the middle of a log costs reads; the beginning moves only when a
        # CommitLog file goes.
        if queue.min_known_for != log_min:
            low = max(queue.min_offset, self.first_stored(queue))
            if low < queue.max_offset and self._is_below(queue, low, log_min):
                low = self._search(queue, low + 1, queue.max_offset, log_min)
            queue.min_offset = low
            queue.min_known_for = log_min
        return queue.min_offset

    def stored_below(self, queue: ConsumeQueue, boundary: int) -> int:
        """What `load` would make of the queue: its max offset then, 0 if it would not stay."""
        first = self.first_stored(queue)
        offset = self._search(queue, first, queue.max_offset, boundary)
        return offset if offset > first else 0

    def first_at(self, queue: ConsumeQueue, low: int, boundary: int) -> int:
        """Offset of the first entry from `low` on whose record lies at or behind `boundary`."""
        return self._search(queue, low, queue.max_offset, boundary)

    def first_record(self, queue: ConsumeQueue) -> int:
        """Physical offset of the queue's first record, fillers passed over."""
        # No record lies below offset 0, so only fillers count as being below it.
        offset = self._search(queue, self.first_stored(queue), queue.max_offset, 0)
        entries = self.read(queue, offset, 1)
        return int(entries["offset"][0]) if len(entries) else 0

    def is_all_below(self, queue: ConsumeQueue, boundary: int) -> bool:
        """Whether the queue has entries, and none is of a record at or behind `boundary`."""
        return queue.max_offset > 0 and self._is_below(queue, queue.max_offset - 1, boundary)

    def _last_below(self, queue: ConsumeQueue, first: int, boundary: int) -> int:
        """The offset behind the last entry that is of a record below `boundary`.

        A power cut can leave an entry without the half that was on a page of its own, so that it
        seems to be older than those before it: such a find is no end.
        """
        end = self._search(queue, first, queue.max_offset, boundary)
        while end > first + 1:
            before, last = (self.read(queue, offset, 1)[0] for offset in (end - 2, end - 1))
            in_order = before["size"] > 0 and before["offset"] <= last["offset"]
            if in_order and self._is_below(queue, end - 2, boundary):
                break
            end = self._search(queue, first, end - 1, boundary)
        return end

    def _search(self, queue: ConsumeQueue, low: int, high: int, boundary: int) -> int:
        """First offset in [low, high) whose entry is not of a record below `boundary`."""
        while low < high:
            middle = (low + high) // 2
            if self._is_below(queue, middle, boundary):
                low = middle + 1
            else:
                high = middle
        return low

    def _is_below(self, queue: ConsumeQueue, offset: int, boundary: int) -> bool:
        entries = self.read(queue, offset, 1)
        if len(entries) == 0:
            return True
        size, position = int(entries["size"][0]), int(entries["offset"][0])
        if size == FILLER_SIZE and position == 0:
            return True
        return size > 0 and 0 <= position < boundary

    def _path(self, queue: ConsumeQueue, number: int) -> Path:
        return self._files.path((*queue.key, number))
