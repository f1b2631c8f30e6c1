"""ConsumeQueues: for each message queue a sequence of 20-byte entries, each of one record.

Entry N lies at byte 20 N of the queue's files, which are sparse and of fixed size. Queues are many
and mostly idle, so one costs a small object and no descriptor; open files are few and shared.

Invariants of a queue:
1. Entries [first of its files, `max_offset`) are valid, in the order of the log.
2. Everything behind them is zero, also in the files that follow.
3. Entry N is the record that says queue offset N. Numbers that no record bears (below the first
   one, when a queue begins in the middle) are fillers, which every reader skips.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from rockoon_broker.store.errors import UnstorableTopic
from rockoon_broker.store.log.directory import contiguous, list_files
from rockoon_broker.store.queues.codes import QueueCodes
from rockoon_broker.store.queues.queue_files import QueueFiles, queue_directories
from rockoon_core.disk import Disk
from rockoon_format.consume_queue import (
    ENTRY,
    ENTRY_BYTES,
    FILLER_SIZE,
    EntryArray,
    filler_entries,
)
from rockoon_format.file_names import offset_to_file_name
from rockoon_format.names import topic_fault

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

    @property
    def has_files(self) -> bool:
        return self.file_last >= self.file_first


class ConsumeQueues:
    """Every queue of the store, and the files that hold them.

    Args:
        root: the `consumequeue` directory.
        file_entries: entries per file.
        open_files_max: descriptors kept.
    """

    def __init__(self, root: Path, file_entries: int, open_files_max: int, disk: Disk) -> None:
        self._root = root
        self._file_entries = file_entries
        self.file_bytes = file_entries * ENTRY_BYTES
        self._disk = disk
        self._files = QueueFiles(root, self.file_bytes, open_files_max, disk)
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        # The same by topic: what is done to one topic must not look at every other one.
        self._of_topic: dict[str, dict[int, ConsumeQueue]] = {}
        # How often a topic begins anew behind what is listed. Its queues' numbers are counted from
        # there, while what lies before it is still to be listed.
        self._renewals: Counter[str] = Counter()
        # Those whose numbers are known, and in no file yet: see `go_on_at`.
        self._unwritten: dict[QueueKey, ConsumeQueue] = {}
        self.codes = QueueCodes()
        """Which entries' codes are known to be right."""
        self.entry_count = 0
        """Sum of all max offsets."""
        self.stored_count = 0
        """How many queues have entries, and so files."""
        self.first_count = 0
        """Sum of the offsets at which queues' first files begin."""

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues.values())

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get((topic, queue_id))

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        return list(self._of_topic.get(topic, {}).values())

    def find_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue; a new one has no files until its first entry.

        Raises:
            UnstorableTopic: the topic cannot be a directory's name, or the queue id is negative.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            if fault := topic_fault(topic):
                raise UnstorableTopic(fault)
            if queue_id < 0:
                raise UnstorableTopic(f"queue id {queue_id} of topic {topic} is negative")
            queue = ConsumeQueue(topic, queue_id)
            self._add(queue)
        return queue

    def load(self, boundary: int) -> None:
        """Register the queues on disk, keeping only entries of records below `boundary`.

        Everything behind the last such entry becomes zero or is unlinked, whatever it is: what the
        log holds from `boundary` on has to be dispatched again.

        Raises:
            StoreLayoutError: a file of another size or with a foreign name.
        """
        self._queues.clear()
        self._of_topic.clear()
        self._unwritten.clear()
        self.entry_count = self.stored_count = self.first_count = 0
        for directory in queue_directories(self._root):
            self._load_queue(directory, boundary)

    def write(self, queue: ConsumeQueue, first_offset: int, entries: EntryArray) -> None:
        """Append entries; numbers that are skipped become fillers, repeated ones are ignored.

        On an OSError the queue is as before, except for bytes behind its end that the same entries
        will overwrite when the write is tried again.
        """
        if first_offset < queue.max_offset:
            # Another broker's log can hold two records of one number; the first one counts.
            entries = entries[queue.max_offset - first_offset :]
            first_offset = queue.max_offset
            if len(entries) == 0:
                return
        if queue.key in self._unwritten:
            self._write_number(queue)
        if queue.max_offset == 0:
            number, skipped = divmod(first_offset, self._file_entries)
            if not queue.has_files:
                self._files.create((*queue.key, number))
                queue.file_first = queue.file_last = number
                self.first_count += number * self._file_entries
            self._write_bytes(queue, first_offset - skipped, filler_entries(skipped))
        elif first_offset > queue.max_offset:
            gap = np.frombuffer(filler_entries(first_offset - queue.max_offset), ENTRY).copy()
            # Keeps the offsets of a queue ascending, which binary searches rely on.
            gap["offset"] = entries["offset"][0]
            self._write_bytes(queue, queue.max_offset, gap.tobytes())
        self._write_bytes(queue, first_offset, entries.tobytes())
        end = first_offset + len(entries)
        self.entry_count += end - queue.max_offset
        self.stored_count += queue.max_offset == 0
        # Behind the write: readers go up to here, and a write that failed is made once more from
        # here.
        queue.max_offset = end
        if queue.topic not in self._renewals:
            queue.next_offset = max(queue.next_offset, end)

    def skip_to(self, queue: ConsumeQueue, offset: int, log_end: int) -> None:
        """Let a queue's numbers go on from an offset, although no record bears those before it.

        Args:
            offset: the max offset to be; a queue that is there already stays as it is.
            log_end: physical offset behind all records that had these numbers.
        """
        # Records that are not listed yet tell their numbers themselves.
        if offset <= max(queue.max_offset, queue.next_offset):
            return
        # A new queue gets as many as one has that begins in the middle of a file.
        first = queue.max_offset or (offset - 1) // self._file_entries * self._file_entries
        skipped = np.frombuffer(filler_entries(offset - first), ENTRY).copy()
        if queue.max_offset:
            # Not below what stands before them, and below every record to come.
            skipped["offset"] = log_end - 1
        self.write(queue, first, skipped)

    def go_on_at(self, queue: ConsumeQueue, offset: int, log_end: int) -> None:
        """As `skip_to`, of a queue without entries in memory alone: `write_numbers` makes its file,
        some queues at a time. What the number is known from is to tell it again until then."""
        if queue.max_offset or queue.next_offset:
            self.skip_to(queue, offset, log_end)
        elif offset:
            queue.max_offset = queue.next_offset = queue.min_offset = offset
            self._unwritten[queue.key] = queue

    @property
    def unwritten(self) -> int:
        """How many queues have a number that is in no file yet."""
        return len(self._unwritten)

    def write_numbers(self, count_max: int) -> None:
        """Write so many numbers of `go_on_at`; after an OSError call it again."""
        for queue in list(islice(self._unwritten.values(), count_max)):
            self._write_number(queue)

    def _write_number(self, queue: ConsumeQueue) -> None:
        """Fillers for the numbers of a queue, as one has that begins in the middle of a file."""
        number = (queue.max_offset - 1) // self._file_entries
        first = number * self._file_entries
        self._files.create((*queue.key, number))
        queue.file_first = queue.file_last = number
        try:
            self._write_bytes(queue, first, filler_entries(queue.max_offset - first))
        except OSError:
            self._files.delete((*queue.key, number))
            queue.file_first, queue.file_last = 0, -1
            raise
        del self._unwritten[queue.key]
        self._count(queue, 1)

    def _count(self, queue: ConsumeQueue, sign: int) -> None:
        """Count what a queue's files hold, or take it back."""
        if self._unwritten.pop(queue.key, None) is None:
            self.entry_count += sign * queue.max_offset
            self.stored_count += sign * (queue.max_offset > 0)
            self.first_count += sign * queue.file_first * self._file_entries

    def rewrite(self, queue: ConsumeQueue, first_offset: int, entries: EntryArray) -> None:
        """Write entries again that stand below the queue's max offset."""
        assert first_offset + len(entries) <= queue.max_offset
        self._write_bytes(queue, first_offset, entries.tobytes())
        self.codes.forget(queue.key, first_offset, len(entries))

    def place_of(self, queue: ConsumeQueue, offset: int) -> tuple[Path, int]:
        """The file of an entry and the byte in it."""
        number, index = divmod(offset, self._file_entries)
        return self._path(queue, number), index * ENTRY_BYTES

    def read(self, queue: ConsumeQueue, first_offset: int, count: int) -> EntryArray:
        """Up to `count` entries from `first_offset`, of one file; none behind `max_offset`."""
        number, index = divmod(first_offset, self._file_entries)
        count = min(count, queue.max_offset - first_offset, self._file_entries - index)
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

    def release_leading_files(self, queue: ConsumeQueue, log_min: int) -> list[Path]:
        """Forget leading files whose records are all gone, never the last; the caller unlinks."""
        released: list[Path] = []
        keep = self.min_offset(queue, log_min) // self._file_entries
        while queue.file_first < min(keep, queue.file_last):
            self._files.close_file((*queue.key, queue.file_first))
            released.append(self._path(queue, queue.file_first))
            queue.file_first += 1
            self.first_count += self._file_entries
        return released

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

    def empty(self, queue: ConsumeQueue) -> None:
        """Delete a queue's files, and let its numbers begin with what is written next."""
        self._count(queue, -1)
        self._delete_files(queue)
        queue.max_offset = queue.next_offset = queue.min_offset = 0
        queue.min_known_for = -1

    def last_record(self) -> tuple[int, int]:
        """Physical offset and size of the newest record that any queue lists; (0, 0) if none."""
        newest = (0, 0)
        for queue in self._queues.values():
            entries = self.read(queue, queue.max_offset - 1, 1)
            if len(entries) and entries["size"][0] != FILLER_SIZE:
                newest = max(newest, (int(entries["offset"][0]), int(entries["size"][0])))
        return newest

    def topic_directory(self, topic: str) -> Path:
        """Where the files of a topic's queues are."""
        return self._root / topic

    def set_aside(self, topic: str) -> Path | None:
        """Forget every queue of a topic and move its files to where nothing looks for queues.

        One rename however many there are, and a new topic of the name meets none of them.

        Returns:
            The directory to be deleted; None if there were no files.

        Raises:
            OSError: nothing is changed.
        """
        queues = self.of_topic(topic)
        for queue in queues:
            for number in range(queue.file_first, queue.file_last + 1):
                self._files.close_file((*queue.key, number))
        aside = self._files.set_aside(self.topic_directory(topic))
        for queue in queues:
            self._count(queue, -1)
            self._forget(queue)
        return aside

    def count_anew(self, topic: str) -> None:
        """Number what comes of a topic from 0 on; when the log is listed up to here, `renewed`."""
        self._renewals[topic] += 1
        for queue in self.of_topic(topic):
            queue.next_offset = 0

    def renew(self, topic: str) -> Path | None:
        """As `set_aside`, with the numbers kept that were counted since `count_anew`."""
        again = self._renewals[topic] > 1
        counted = [queue for queue in self.of_topic(topic) if queue.next_offset or again]
        aside = self.set_aside(topic)
        for queue in counted:
            # The same objects: batches that wait to be listed refer to them.
            queue.file_first, queue.file_last = 0, -1
            queue.max_offset = queue.min_offset = 0
            queue.min_known_for = -1
            self._add(queue)
        return aside

    def renewed(self, topic: str) -> None:
        """What was listed of a topic when `count_anew` was called is gone."""
        self._renewals -= Counter((topic,))

    def left_aside(self) -> list[Path]:
        """What was set aside and is not deleted yet."""
        return self._files.left_aside()

    def take_unsynced(self) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        """Files and directories changed since the last call, which the caller now has to sync."""
        return self._files.take_unsynced()

    def close(self) -> None:
        self._files.close()

    def _add(self, queue: ConsumeQueue) -> None:
        self._queues[queue.key] = queue
        self._of_topic.setdefault(queue.topic, {})[queue.queue_id] = queue

    def _forget(self, queue: ConsumeQueue) -> None:
        del self._queues[queue.key]
        of_topic = self._of_topic[queue.topic]
        del of_topic[queue.queue_id]
        if not of_topic:
            del self._of_topic[queue.topic]

    def _load_queue(self, directory: Path, boundary: int) -> None:
        starts = list_files(directory, self.file_bytes, self._disk)
        if not starts:
            return
        queue = self.find_or_create(directory.parent.name, int(directory.name))
        # A power cut can lose a new file and keep the one behind it.
        whole = contiguous(starts, self.file_bytes)
        for start in reversed(starts[whole:]):
            self._disk.unlink(directory / offset_to_file_name(start))
            self._files.directory_changed(directory)
        queue.file_first = starts[0] // self.file_bytes
        queue.file_last = starts[whole - 1] // self.file_bytes
        first = self.first_stored(queue)
        # Reads stop at max_offset, so it has to reach as far as the files while they are searched.
        queue.max_offset = (queue.file_last + 1) * self._file_entries
        queue.max_offset = self._last_below(queue, first, boundary)
        if queue.max_offset == first:
            self._delete_files(queue)
            self._forget(queue)
            return
        last = (queue.max_offset - 1) // self._file_entries
        while queue.file_last > last:
            self._files.delete((*queue.key, queue.file_last))
            queue.file_last -= 1
        used = (queue.max_offset - last * self._file_entries) * ENTRY_BYTES
        # What is left of a former end would be read as entries once the queue grows up to it.
        self._files.clear_behind((*queue.key, last), used)
        queue.next_offset = queue.max_offset
        self._count(queue, 1)

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

    def _write_bytes(self, queue: ConsumeQueue, first_offset: int, data: bytes) -> None:
        """Write whole entries, into as many files as they need."""
        at, end = 0, len(data)
        while at < end:
            number, index = divmod(first_offset, self._file_entries)
            key = (queue.topic, queue.queue_id, number)
            if number > queue.file_last:
                self._files.create(key)
                queue.file_last = number
            size = min(end - at, (self._file_entries - index) * ENTRY_BYTES)
            part = data if size == end else memoryview(data)[at : at + size]
            self._files.write(key, part, index * ENTRY_BYTES)
            self.codes.written(queue.key, first_offset, part)
            at += size
            first_offset += size // ENTRY_BYTES

    def _delete_files(self, queue: ConsumeQueue) -> None:
        # Newest first: what a crash leaves is then a queue that lags, which recovery repairs.
        for number in range(queue.file_last, queue.file_first - 1, -1):
            self._files.delete((*queue.key, number))
        queue.file_first, queue.file_last = 0, -1

    def _path(self, queue: ConsumeQueue, number: int) -> Path:
        return self._files.path((*queue.key, number))
