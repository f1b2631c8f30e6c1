"""ConsumeQueues: every queue of a store, and how its entries are written to files."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np

from rockoon_broker.store.errors import UnstorableTopic
from rockoon_broker.store.log.directory import contiguous, list_files
from rockoon_broker.store.queues.codes import QueueCodes
from rockoon_broker.store.queues.consume_queue import ConsumeQueue, QueueKey
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

# Per queue; more entries justify a write. They need 5 KiB, or up to 18 KiB as single parts.
UNSAVED_ENTRIES_MAX = 256
# A recovery point writes each of them, which blocks the event loop for some ten milliseconds.
UNSAVED_QUEUES_MAX = 1024


class UnsavedEntries:
    """Visible entries that are in no file yet, by queue; they follow the entries in its files.

    Writing one entry costs as much as appending its message. So a queue's entries are written
    together: at the next recovery point, which counts them, or when there are enough. A crash loses
    them like all data after the last point, and the next start rebuilds them from the log.
    """

    def __init__(self) -> None:
        self.parts: dict[QueueKey, list[bytes]] = {}
        """Consecutive entries of each queue, oldest first. The queue with the oldest unsaved
        entries comes first."""

    def __len__(self) -> int:
        """Number of queues with unsaved entries."""
        return len(self.parts)

    def __iter__(self) -> Iterator[QueueKey]:
        return iter(self.parts)

    def of(self, key: QueueKey) -> bytes:
        parts = self.parts.get(key)
        if parts is None:
            return b""
        if len(parts) > 1:
            # Join once, because a search reads entry by entry.
            parts[:] = [b"".join(parts)]
        return parts[0]

    def remove(self, key: QueueKey) -> None:
        """Remove a queue's entries, which are in a file or deleted with their queue."""
        self.parts.pop(key, None)

    def clear(self) -> None:
        """Remove the entries of all queues."""
        self.parts.clear()


class ConsumeQueues:
    """Every queue of the store and its files.

    Args:
        root: the `consumequeue` directory.
        open_files_max: maximum number of open descriptors.
    """

    def __init__(self, root: Path, file_entries: int, open_files_max: int, disk: Disk) -> None:
        self.file_bytes = file_entries * ENTRY_BYTES
        self._file_entries = file_entries
        self._files = QueueFiles(root, self.file_bytes, open_files_max, disk)
        self.unsaved = UnsavedEntries()
        self._root = root
        self._disk = disk
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        self.get = self._queues.get
        """As `find`, without a Python call for each append; the argument is the queue's key."""
        # Index by topic, so that an operation on one topic does not iterate over all queues.
        self._of_topic: dict[str, dict[int, ConsumeQueue]] = {}
        # Pending restarts per topic: how many renewals of it are not dispatched yet. Its queues
        # number new messages from the last restart, while older messages are still to be listed.
        self._renewals: Counter[str] = Counter()
        # Queues with a known max offset but no file yet: see `set_next_offset`.
        self._unwritten: dict[QueueKey, ConsumeQueue] = {}
        self.codes = QueueCodes()
        """Ranges of entries whose tag codes have been verified."""
        self.entry_count = 0
        """Sum of all max offsets."""
        self.stored_count = 0
        """Number of queues that have entries and therefore files."""
        self.first_count = 0
        """Sum of the first offsets of all queues' first files."""

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues.values())

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get((topic, queue_id))

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        return list(self._of_topic.get(topic, {}).values())

    def find_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue; a new one has no files until its first entry. Raises UnstorableTopic:
        the topic is not a valid directory name, or the queue id is negative."""
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

        All bytes after the last of these entries are zeroed or unlinked: the records from
        `boundary` on are dispatched again.

        Raises:
            StoreLayoutError: a file has a wrong size or a foreign name.
        """
        self._queues.clear()
        self._of_topic.clear()
        self._unwritten.clear()
        self.unsaved.clear()
        self.entry_count = self.stored_count = self.first_count = 0
        for directory in queue_directories(self._root):
            self._load_queue(directory, boundary)

    def write(self, queue: ConsumeQueue, first_offset: int, entries: bytes) -> None:
        """Append encoded entries; skipped offsets get fillers, repeated ones are ignored.

        On an OSError the queue is unchanged, except for bytes after its end that a retry
        overwrites.
        """
        count = len(entries) // ENTRY_BYTES
        # The first entry of a queue creates its file, with fillers before the entry.
        is_next = 0 < queue.max_offset == first_offset and queue.file_last >= queue.file_first
        if is_next and 0 < count <= UNSAVED_ENTRIES_MAX:
            unsaved_count = queue.unsaved_count + count
            if count < unsaved_count <= UNSAVED_ENTRIES_MAX:
                # The common case, without two more calls.
                self.unsaved.parts[queue.key].append(entries)
                queue.unsaved_count = unsaved_count
            else:
                self._keep(queue, entries, count)
            end = first_offset + count
        else:
            self._save(queue)
            found = np.frombuffer(entries, ENTRY)
            first_offset, count = self._write_through(queue, first_offset, found)
            end = first_offset + count
            self.stored_count += queue.max_offset == 0
        self.entry_count += end - queue.max_offset
        # After the write: readers read up to here, and a failed write is retried from here.
        queue.max_offset = end
        if queue.next_offset < end and queue.topic not in self._renewals:
            queue.next_offset = end

    def _keep(self, queue: ConsumeQueue, data: bytes, count: int) -> None:
        """Keep appended entries in memory, as the only unsaved ones of their queue."""
        if queue.unsaved_count:
            self._save(queue)
        elif len(self.unsaved) >= UNSAVED_QUEUES_MAX:
            self._save(self._queues[next(iter(self.unsaved))])
        self.unsaved.parts[queue.key] = [data]
        queue.unsaved_count = count

    def save(self) -> None:
        """Write all unsaved entries to files; after an OSError call it again."""
        for key in list(self.unsaved):
            self._save(self._queues[key])

    def _save(self, queue: ConsumeQueue) -> None:
        if queue.unsaved_count:
            self._write_bytes(queue, queue.saved_offset, self.unsaved.of(queue.key))
            self._drop_unsaved(queue)

    def _drop_unsaved(self, queue: ConsumeQueue) -> None:
        if queue.unsaved_count:
            self.unsaved.remove(queue.key)
            queue.unsaved_count = 0

    def _write_through(
        self, queue: ConsumeQueue, first_offset: int, entries: EntryArray
    ) -> tuple[int, int]:
        """Write entries to files, with fillers for skipped offsets.

        Returns:
            Offset and number of the entries that were new.
        """
        if first_offset < queue.max_offset:
            # Another broker's log may contain two records with one offset; the first one counts.
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
            # Keeps physical offsets in a queue ascending, as binary searches require.
            gap["offset"] = entries["offset"][0]
            self._write_bytes(queue, queue.max_offset, gap.tobytes())
        self._write_bytes(queue, first_offset, entries.tobytes())
        return first_offset, len(entries)

    def skip_to(self, queue: ConsumeQueue, offset: int, log_end: int) -> None:
        """Advance a queue to an offset without records before it.

        Args:
            offset: the new max offset; a queue that has reached it is unchanged.
            log_end: physical offset after all records that had the skipped offsets.
        """
        # Records that are not listed yet determine the offsets themselves.
        if offset <= max(queue.max_offset, queue.next_offset):
            return
        # In a new queue, fillers go back to the beginning of the file that contains the offset.
        first = queue.max_offset or (offset - 1) // self._file_entries * self._file_entries
        skipped = np.frombuffer(filler_entries(offset - first), ENTRY).copy()
        if queue.max_offset:
            # Not below the physical offsets before them, and below those of all later records.
            skipped["offset"] = log_end - 1
        self.write(queue, first, skipped.tobytes())

    def set_next_offset(self, queue: ConsumeQueue, offset: int, log_end: int) -> None:
        """Like `skip_to`, but for a queue without entries only in memory.

        `write_numbers` creates the files later, some queues at a time. Until then, the source of
        the offset must provide it again after a restart.
        """
        if queue.max_offset or queue.next_offset:
            self.skip_to(queue, offset, log_end)
        elif offset:
            queue.max_offset = queue.next_offset = queue.min_offset = offset
            self._unwritten[queue.key] = queue

    @property
    def unwritten(self) -> int:
        """Number of queues whose max offset is in no file yet."""
        return len(self._unwritten)

    def write_numbers(self, count_max: int) -> None:
        """Write up to `count_max` files for `set_next_offset`; call again after an OSError."""
        for queue in list(islice(self._unwritten.values(), count_max)):
            self._write_number(queue)

    def _write_number(self, queue: ConsumeQueue) -> None:
        """Create the file of a queue with fillers up to its max offset."""
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
        """Add (`sign` 1) or subtract (-1) a queue's files in the totals."""
        if self._unwritten.pop(queue.key, None) is None:
            self.entry_count += sign * queue.max_offset
            self.stored_count += sign * (queue.max_offset > 0)
            self.first_count += sign * queue.file_first * self._file_entries

    def rewrite(self, queue: ConsumeQueue, first_offset: int, entries: EntryArray) -> None:
        """Overwrite entries below the queue's max offset."""
        assert first_offset + len(entries) <= queue.max_offset
        self._save(queue)
        self._write_bytes(queue, first_offset, entries.tobytes())
        self.codes.discard(queue.key, first_offset, len(entries))

    def release_leading_files(self, queue: ConsumeQueue, log_min: int) -> list[Path]:
        """Drop leading files whose records are all deleted, never the last; the caller unlinks
        them."""
        released: list[Path] = []
        keep = self.min_offset(queue, log_min) // self._file_entries
        if keep > queue.file_last:
            # Unsaved entries create the next file; if that fails, the last file stays.
            with suppress(OSError):
                self._save(queue)
        while queue.file_first < min(keep, queue.file_last):
            self._files.close_file((*queue.key, queue.file_first))
            released.append(self._path(queue, queue.file_first))
            queue.file_first += 1
            self.first_count += self._file_entries
        return released

    def empty(self, queue: ConsumeQueue) -> None:
        """Delete a queue's files; its next entry determines its first offset."""
        self._count(queue, -1)
        self._drop_unsaved(queue)
        self._delete_files(queue)
        queue.max_offset = queue.next_offset = queue.min_offset = 0
        queue.min_known_for = -1

    def last_record(self) -> tuple[int, int]:
        """Return physical offset and size of the newest listed record; (0, 0) if there is none."""
        newest = (0, 0)
        for queue in self._queues.values():
            entries = self.read(queue, queue.max_offset - 1, 1)
            if len(entries) and entries["size"][0] != FILLER_SIZE:
                newest = max(newest, (int(entries["offset"][0]), int(entries["size"][0])))
        return newest

    def topic_directory(self, topic: str) -> Path:
        return self._root / topic

    def detach(self, topic: str) -> Path | None:
        """Remove every queue of a topic and rename its directory, so that its files are not found.

        One rename regardless of the number of files; a new topic with the name meets none of them.

        Returns:
            The renamed directory, to be deleted; None if there were no files.

        Raises:
            OSError: the disk; nothing is changed.
        """
        queues = self.of_topic(topic)
        for queue in queues:
            for number in range(queue.file_first, queue.file_last + 1):
                self._files.close_file((*queue.key, number))
        detached = self._files.detach(self.topic_directory(topic))
        for queue in queues:
            self._count(queue, -1)
            self._remove(queue)
        return detached

    def restart_numbering(self, topic: str) -> None:
        """Number new messages of a topic from 0; `renewed` follows when older ones are
        dispatched."""
        self._renewals[topic] += 1
        for queue in self.of_topic(topic):
            queue.next_offset = 0

    def renew(self, topic: str) -> Path | None:
        """Like `detach`, but keeps offsets that were assigned since `restart_numbering`."""
        again = self._renewals[topic] > 1
        counted = [queue for queue in self.of_topic(topic) if queue.next_offset or again]
        detached = self.detach(topic)
        for queue in counted:
            # Keep the same objects: batches that wait for dispatch refer to them.
            queue.file_first, queue.file_last = 0, -1
            queue.max_offset = queue.min_offset = 0
            queue.min_known_for = -1
            self._add(queue)
        return detached

    def renewed(self, topic: str) -> None:
        """End a `restart_numbering`: the topic's entries from before it are removed."""
        self._renewals -= Counter((topic,))

    def left_detached(self) -> list[Path]:
        """Return directories of `detach` that are not deleted yet."""
        return self._files.left_detached()

    def pop_unsynced(self) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        """Return and reset the files and directories changed since the last call; the caller syncs
        them.

        Raises OSError if entries cannot be written; then nothing is reset.
        """
        self.save()
        return self._files.pop_unsynced()

    # Reads and searches.

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

    def close(self) -> None:
        self._files.close()

    def _add(self, queue: ConsumeQueue) -> None:
        self._queues[queue.key] = queue
        self._of_topic.setdefault(queue.topic, {})[queue.queue_id] = queue

    def _remove(self, queue: ConsumeQueue) -> None:
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
        # A power failure can lose a new file but keep the one after it.
        whole = contiguous(starts, self.file_bytes)
        for start in reversed(starts[whole:]):
            self._disk.unlink(directory / offset_to_file_name(start))
            self._files.directory_changed(directory)
        queue.file_first = starts[0] // self.file_bytes
        queue.file_last = starts[whole - 1] // self.file_bytes
        first = self.first_stored(queue)
        # Reads stop at max_offset; during the search it must cover all files.
        queue.max_offset = (queue.file_last + 1) * self._file_entries
        queue.max_offset = self._last_below(queue, first, boundary)
        if queue.max_offset == first:
            self._delete_files(queue)
            self._remove(queue)
            return
        last = (queue.max_offset - 1) // self._file_entries
        while queue.file_last > last:
            self._files.delete((*queue.key, queue.file_last))
            queue.file_last -= 1
        used = (queue.max_offset - last * self._file_entries) * ENTRY_BYTES
        # Remains of an earlier end would become entries when the queue grows up to them.
        self._files.clear_after((*queue.key, last), used)
        queue.next_offset = queue.max_offset
        self._count(queue, 1)

    def _write_bytes(self, queue: ConsumeQueue, first_offset: int, data: bytes) -> None:
        """Write whole entries to as many files as necessary."""
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
        # Newest first: after a crash the queue then lags, which recovery repairs.
        for number in range(queue.file_last, queue.file_first - 1, -1):
            self._files.delete((*queue.key, number))
        queue.file_first, queue.file_last = 0, -1
