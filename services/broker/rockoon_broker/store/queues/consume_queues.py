"""ConsumeQueues: every queue of a store, and how its entries come into files."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np

from rockoon_broker.store.errors import UnstorableTopic
from rockoon_broker.store.log.directory import contiguous, list_files
from rockoon_broker.store.queues.codes import QueueCodes
from rockoon_broker.store.queues.consume_queue import ConsumeQueue, QueueEntries, QueueKey
from rockoon_broker.store.queues.queue_files import QueueFiles, queue_directories
from rockoon_broker.store.queues.unsaved import UnsavedEntries
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

# Of one queue: more are worth a write. They are 5 KiB, and up to 18 as they come.
UNSAVED_ENTRIES_MAX = 256
# A recovery point has a write for each, some ten milliseconds in which the loop does nothing else.
UNSAVED_QUEUES_MAX = 1024


class ConsumeQueues(QueueEntries):
    """Every queue of the store, and the files that hold them.

    Args:
        root: the `consumequeue` directory.
        file_entries: entries per file.
        open_files_max: descriptors kept.
    """

    def __init__(self, root: Path, file_entries: int, open_files_max: int, disk: Disk) -> None:
        self.file_bytes = file_entries * ENTRY_BYTES
        files = QueueFiles(root, self.file_bytes, open_files_max, disk)
        super().__init__(files, UnsavedEntries(), file_entries)
        self._root = root
        self._disk = disk
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
        self.unsaved.clear()
        self.entry_count = self.stored_count = self.first_count = 0
        for directory in queue_directories(self._root):
            self._load_queue(directory, boundary)

    def write(self, queue: ConsumeQueue, first_offset: int, entries: EntryArray) -> None:
        """Append entries; numbers that are skipped become fillers, repeated ones are ignored.

        On an OSError the queue is as before, except for bytes behind its end that the same entries
        will overwrite when the write is tried again.
        """
        count = len(entries)
        # A queue's first entry makes its file, and fillers before it.
        is_next = 0 < queue.max_offset == first_offset and queue.file_last >= queue.file_first
        if is_next and 0 < count <= UNSAVED_ENTRIES_MAX:
            self._keep(queue, entries.tobytes(), count)
            end = first_offset + count
        else:
            self._save(queue)
            first_offset, count = self._write_through(queue, first_offset, entries)
            end = first_offset + count
            self.stored_count += queue.max_offset == 0
        self.entry_count += end - queue.max_offset
        # Behind the write: readers go up to here, and a write that failed is made once more from
        # here.
        queue.max_offset = end
        if queue.next_offset < end and queue.topic not in self._renewals:
            queue.next_offset = end

    def _keep(self, queue: ConsumeQueue, data: bytes, count: int) -> None:
        """Keep entries that go on where the queue ends, with those of which no file has any yet."""
        if not queue.unsaved_count:
            if len(self.unsaved) >= UNSAVED_QUEUES_MAX:
                self._save(self._queues[next(iter(self.unsaved))])
        elif queue.unsaved_count + count > UNSAVED_ENTRIES_MAX:
            self._save(queue)
        self.unsaved.add(queue.key, data)
        queue.unsaved_count += count

    def save(self) -> None:
        """Have all entries in files; after an OSError call it again."""
        for key in list(self.unsaved):
            self._save(self._queues[key])

    def _save(self, queue: ConsumeQueue) -> None:
        if queue.unsaved_count:
            self._write_bytes(queue, queue.saved_offset, self.unsaved.of(queue.key))
            self._drop_unsaved(queue)

    def _drop_unsaved(self, queue: ConsumeQueue) -> None:
        if queue.unsaved_count:
            self.unsaved.forget(queue.key)
            queue.unsaved_count = 0

    def _write_through(
        self, queue: ConsumeQueue, first_offset: int, entries: EntryArray
    ) -> tuple[int, int]:
        """Write entries into files, with fillers for numbers that they skip.

        Returns:
            Offset and number of those that were not there.
        """
        if first_offset < queue.max_offset:
            # Another broker's log can hold two records of one number; the first one counts.
            entries = entries[queue.max_offset - first_offset :]
            first_offset = queue.max_offset
            if len(entries) == 0:
                return first_offset, 0
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
        return first_offset, len(entries)

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
        self._save(queue)
        self._write_bytes(queue, first_offset, entries.tobytes())
        self.codes.forget(queue.key, first_offset, len(entries))

    def release_leading_files(self, queue: ConsumeQueue, log_min: int) -> list[Path]:
        """Forget leading files whose records are all gone, never the last; the caller unlinks."""
        released: list[Path] = []
        keep = self.min_offset(queue, log_min) // self._file_entries
        if keep > queue.file_last:
            # What it has in memory makes the next file; if that is refused, the last one stays.
            with suppress(OSError):
                self._save(queue)
        while queue.file_first < min(keep, queue.file_last):
            self._files.close_file((*queue.key, queue.file_first))
            released.append(self._path(queue, queue.file_first))
            queue.file_first += 1
            self.first_count += self._file_entries
        return released

    def empty(self, queue: ConsumeQueue) -> None:
        """Delete a queue's files, and let its numbers begin with what is written next."""
        self._count(queue, -1)
        self._drop_unsaved(queue)
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
        """Files and directories changed since the last call, which the caller now has to sync.

        Raises OSError where entries cannot be written; nothing is taken then.
        """
        self.save()
        return self._files.take_unsynced()

    def close(self) -> None:
        self._files.close()

    def _add(self, queue: ConsumeQueue) -> None:
        self._queues[queue.key] = queue
        self._of_topic.setdefault(queue.topic, {})[queue.queue_id] = queue

    def _forget(self, queue: ConsumeQueue) -> None:
        self._drop_unsaved(queue)
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
