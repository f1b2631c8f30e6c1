"""One queue's entries: 20 bytes each, one entry per record.

Entry N is at byte 20 N of the queue's files, which are sparse and of fixed size. There are many,
mostly idle queues: a queue costs a small object and no descriptor; open files are few and shared.

Invariants of a queue:
1. Entries [first of its files, `max_offset`) are valid and in log order.
2. All bytes after them are zero, including those in later files.
3. Entry N points to the record with queue offset N. Offsets without a record (below the first
   one, if a queue begins in the middle) have filler entries, which every reader skips.
4. The last `unsaved_count` entries are only in memory. No recovery point counts them.
"""

from pathlib import Path

import numpy as np

from rockoon_broker.store.queues.queue_files import QueueFiles
from rockoon_broker.store.queues.unsaved import UnsavedEntries
from rockoon_format.consume_queue import ENTRY, ENTRY_BYTES, FILLER_SIZE, EntryArray

QueueKey = tuple[str, int]
"""Topic and queue id."""


class ConsumeQueue:
    """State of one queue. Only the owner's thread writes it, through `ConsumeQueues`."""

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
        """Offset after the last entry that readers see."""
        self.next_offset = 0
        """Offset of the next message to be appended; ahead of `max_offset` until a sync."""
        self.min_offset = 0
        """Offset of the first entry whose record still exists, if the log begins at
        `min_known_for`."""
        self.min_known_for = -1
        self.unsaved_count = 0
        """Number of trailing entries that are in no file yet."""

    @property
    def saved_offset(self) -> int:
        """Offset after the last entry that is in a file."""
        return self.max_offset - self.unsaved_count

    @property
    def has_files(self) -> bool:
        return self.file_last >= self.file_first


class QueueEntries:
    """Reads and searches of queue entries.

    Args:
        files: files of all queues.
        unsaved: entries that are in no file yet.
        file_entries: entries per file.
    """

    def __init__(self, files: QueueFiles, unsaved: UnsavedEntries, file_entries: int) -> None:
        self._files = files
        self.unsaved = unsaved
        self._file_entries = file_entries

    def place_of(self, queue: ConsumeQueue, offset: int) -> tuple[Path, int]:
        """Return the file of an entry and the entry's byte position in it."""
        number, index = divmod(offset, self._file_entries)
        return self._path(queue, number), index * ENTRY_BYTES

    def read(self, queue: ConsumeQueue, first_offset: int, count: int) -> EntryArray:
        """Return up to `count` entries from `first_offset`: those of one file, then unsaved ones.
        Ends at `max_offset`."""
        stored = self._read_file(queue, first_offset, count)
        at, end = first_offset + len(stored), min(first_offset + count, queue.max_offset)
        if not queue.saved_offset <= at < end:
            return stored
        first, last = at - queue.saved_offset, end - queue.saved_offset
        kept = self.unsaved.of(queue.key)[first * ENTRY_BYTES : last * ENTRY_BYTES]
        # Joined as bytes: joined arrays would lose the byte order of the file.
        return np.frombuffer(stored.tobytes() + kept, ENTRY)

    def _read_file(self, queue: ConsumeQueue, first_offset: int, count: int) -> EntryArray:
        number, index = divmod(first_offset, self._file_entries)
        count = min(count, queue.saved_offset - first_offset, self._file_entries - index)
        if count <= 0 or not queue.file_first <= number <= queue.file_last:
            return np.zeros(0, ENTRY)
        try:
            data = self._files.read((*queue.key, number), count * ENTRY_BYTES, index * ENTRY_BYTES)
        except FileNotFoundError:
            # Another program deleted the file; readers skip its range.
            return np.zeros(0, ENTRY)
        return np.frombuffer(data, ENTRY, count=len(data) // ENTRY_BYTES)

    def first_stored(self, queue: ConsumeQueue) -> int:
        """Return the offset of the first entry in the queue's files."""
        return queue.file_first * self._file_entries if queue.has_files else queue.max_offset

    def next_file_offset(self, offset: int) -> int:
        """Return the first offset of the file after the one that contains `offset`."""
        return (offset // self._file_entries + 1) * self._file_entries

    def min_offset(self, queue: ConsumeQueue, log_min: int) -> int:
        """Return the offset of the first entry whose record is at or after `log_min`.

        Returns the max offset if all records are deleted: an emptied queue keeps its numbering.
        Source: ConsumeQueue#correctMinOffset.
        """
        if queue.max_offset == 0:
            return 0
        # A search costs file reads; the minimum changes only when a CommitLog file is deleted.
        if queue.min_known_for != log_min:
            low = max(queue.min_offset, self.first_stored(queue))
            if low < queue.max_offset and self._is_below(queue, low, log_min):
                low = self._search(queue, low + 1, queue.max_offset, log_min)
            queue.min_offset = low
            queue.min_known_for = log_min
        return queue.min_offset

    def stored_below(self, queue: ConsumeQueue, boundary: int) -> int:
        """Return the max offset that `load` would give the queue; 0 if it would remove the
        queue."""
        first = self.first_stored(queue)
        offset = self._search(queue, first, queue.max_offset, boundary)
        return offset if offset > first else 0

    def first_at(self, queue: ConsumeQueue, low: int, boundary: int) -> int:
        """Return the offset of the first entry from `low` on whose record is at or after
        `boundary`."""
        return self._search(queue, low, queue.max_offset, boundary)

    def first_record(self, queue: ConsumeQueue) -> int:
        """Return the physical offset of the queue's first record, ignoring fillers."""
        # No record is below offset 0, so only fillers count as being below it.
        offset = self._search(queue, self.first_stored(queue), queue.max_offset, 0)
        entries = self.read(queue, offset, 1)
        return int(entries["offset"][0]) if len(entries) else 0

    def is_all_below(self, queue: ConsumeQueue, boundary: int) -> bool:
        """Return whether the queue has entries and all records are below `boundary`."""
        return queue.max_offset > 0 and self._is_below(queue, queue.max_offset - 1, boundary)

    def _last_below(self, queue: ConsumeQueue, first: int, boundary: int) -> int:
        """Return the offset after the last entry whose record is below `boundary`.

        After a power failure, an entry may lack the half that was on another page, so that it seems
        to point before earlier entries. The search continues before such an entry.
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
        """Return the first offset in [low, high) whose entry's record is not below `boundary`."""
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
