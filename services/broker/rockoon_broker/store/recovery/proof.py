"""Proof of a store's beginning without a recovery point: how much needs no reading.

RocketMQ begins at the last file whose first record is older than the checkpoint by a margin
(CommitLog#recoverAbnormally), and trusts that every queue is whole below it. That is believed here
only after a proof: the queues' entries, put in order, tile the log. They cover every byte of each
file that is passed over, so no record of it can be missing from its queue. This reads 20 bytes for
each message instead of the message. Where the proof fails, reading begins; so it does where a
deleted topic's records are, which no queue lists.
"""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.store.log.directory import contiguous, list_files
from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_broker.store.queues.queue_files import queue_directories
from rockoon_core.disk import Disk
from rockoon_format.batch import Scan, scan
from rockoon_format.checkpoint import Checkpoint
from rockoon_format.consume_queue import (
    ENTRY,
    ENTRY_BYTES,
    EXT_ADDRESS_MAX,
    FILLER_SIZE,
    decode_entries,
)
from rockoon_format.delay_levels import DELAY_LEVELS_MS
from rockoon_format.file_names import offset_to_file_name
from rockoon_format.record import MAGIC_BLANK

# Entries of this much log are held in memory at a time.
WINDOW_BYTES = 64 << 20
_ENTRIES_PER_READ = 16_384
_SIZE_AND_MAGIC = struct.Struct(">ii")


class LogFiles:
    """Single records of a CommitLog that nobody writes.

    Args:
        directory: the CommitLog's directory.
        file_bytes: size of each file.
        starts: start offsets of the files, ascending.
        delay_levels_ms: delays of levels 1, 2, ... for the deliver times of delayed records.
        checksums: without, records are checked by their bodies alone.
    """

    def __init__(
        self,
        directory: Path,
        file_bytes: int,
        starts: list[int],
        disk: Disk,
        delay_levels_ms: Sequence[int] = DELAY_LEVELS_MS,
        *,
        checksums: bool = True,
    ) -> None:
        self.checksums = checksums
        self.directory = directory
        self._delay_levels_ms = delay_levels_ms
        self._disk = disk
        self.file_bytes = file_bytes
        self.starts = starts

    def path_of(self, start: int) -> Path:
        """Path of the file that starts at a physical offset."""
        return self.directory / offset_to_file_name(start)

    def record(self, offset: int, size: int = 0) -> Scan | None:
        """The record at a physical offset, None if there is no whole one of that size there.

        Args:
            offset: physical.
            size: of the record in bytes; 0 to take what it says itself.
        """
        # Padded: where no file is, nothing is read.
        wanted, _ = _SIZE_AND_MAGIC.unpack(self._read(offset, 8).ljust(8, b"\0"))
        left = self.file_bytes - offset % self.file_bytes
        if not 0 < wanted <= left or wanted != (size or wanted):
            return None
        data = self._read(offset, wanted)
        found = scan(
            data, 0, len(data), checksums=self.checksums, delay_levels_ms=self._delay_levels_ms
        )
        whole = found.count == 1 and found.position == wanted
        # One that says that it lies elsewhere is left of an older file, or is in a message's body.
        return found if whole and int(found.physical_offsets[0]) == offset else None

    def is_closed_at(self, offset: int) -> bool:
        """Whether a blank says that nothing follows in this file."""
        size, magic = _SIZE_AND_MAGIC.unpack(self._read(offset, 8).ljust(8, b"\0"))
        return bool(magic == MAGIC_BLANK and size == self.file_bytes - offset % self.file_bytes)

    def _read(self, offset: int, count: int) -> bytes:
        start = offset - offset % self.file_bytes
        if start not in self.starts:
            return b""
        fd = self._disk.open_reading(self.path_of(start))
        try:
            return self._disk.pread(fd, count, offset - start)
        finally:
            self._disk.close(fd)


def proven_end(
    log: LogFiles, queues: Path, queue_file_bytes: int, checkpoint: Checkpoint, disk: Disk
) -> int:
    """Start of the first CommitLog file that has to be read; changes nothing.

    Args:
        log: with at least one file.
        queues: the ConsumeQueues' directory.
        queue_file_bytes: size of each of their files.
        checkpoint: as the last broker left it.
    """
    durable_ms = checkpoint.dispatched_timestamp_ms()
    last = _last_file_older(log, durable_ms)
    cursors = [
        _Cursor(directory, queue_file_bytes, log.starts[0], disk)
        for directory in (queue_directories(queues) if last > log.starts[0] else ())
    ]
    for start in log.starts:
        if start >= last or not _is_tiled(log, start, cursors, durable_ms):
            return start
    return log.starts[0]


def ends_are_true(log: LogFiles, queues: ConsumeQueues) -> bool:
    """Whether the last entry of each loaded queue is of a record that says so itself.

    Entries that stand at wrong numbers do so up to the end.
    """
    for queue in queues:
        entries = queues.read(queue, queue.max_offset - 1, 1)
        if len(entries) == 0 or entries["size"][0] == FILLER_SIZE:
            return False
        offset = int(entries["offset"][0])
        if offset < log.starts[0]:
            continue
        found = log.record(offset, int(entries["size"][0]))
        if found is None:
            return False
        key = (found.topics[0], int(found.queue_ids[0]), int(found.queue_offsets[0]))
        if key != (queue.topic.encode(), queue.queue_id, queue.max_offset - 1):
            return False
        if int(found.tag_codes[0]) != int(entries["tags_code"][0]):
            return False
    return True


def _last_file_older(log: LogFiles, durable_ms: int) -> int:
    for start in reversed(log.starts):
        first = log.record(start)
        if first is not None and 0 < int(first.store_timestamps_ms[0]) <= durable_ms:
            return start
    return log.starts[0]


def _is_tiled(log: LogFiles, start: int, cursors: "list[_Cursor]", durable_ms: int) -> bool:
    """Whether entries cover a file, the last record of which is whole and was durable."""
    end = start + log.file_bytes
    at, last = start, (start, 0)
    for window in range(start, end, WINDOW_BYTES):
        limit = min(window + WINDOW_BYTES, end)
        taken = np.concatenate([cursor.take_below(limit) for cursor in cursors] or [_NONE])
        # The queues' entries, merged in the order of the log: without a gap they prove every
        # record.
        taken = taken[np.argsort(taken["offset"].astype(np.int64), kind="stable")]
        offsets, sizes = taken["offset"].astype(np.int64), taken["size"].astype(np.int64)
        expected: NDArray[np.int64] = np.cumsum(sizes) - sizes + at
        if not np.array_equal(offsets, expected):
            return False
        if (taken["tags_code"] <= EXT_ADDRESS_MAX).any():
            return False
        if len(taken):
            last = (int(offsets[-1]), int(sizes[-1]))
            at = sum(last)
    record = log.record(*last)
    if record is None or int(record.store_timestamps_ms[0]) > durable_ms:
        return False
    return at == end or (at <= end - 8 and log.is_closed_at(at))


_NONE = np.zeros(0, ENTRY)


class _Cursor:
    """Reads one queue's entries in order, up to the first that cannot be right."""

    def __init__(self, directory: Path, file_bytes: int, log_min: int, disk: Disk) -> None:
        starts = list_files(directory, file_bytes, disk)
        whole = contiguous(starts, file_bytes)
        self._paths = [directory / offset_to_file_name(start) for start in starts[:whole]]
        self._file_bytes = file_bytes
        self._disk = disk
        self._position = 0
        self._newest = -1
        self._ahead = _NONE
        self.take_below(log_min)

    def take_below(self, limit: int) -> NDArray[np.void]:
        """The next entries of records below a physical offset."""
        taken = [_NONE]
        while True:
            if len(self._ahead) == 0 and not self._read_ahead():
                break
            count = int(np.searchsorted(self._ahead["offset"].astype(np.int64), limit))
            taken.append(self._ahead[:count])
            self._ahead = self._ahead[count:]
            if len(self._ahead):
                break
        return np.concatenate(taken)

    def _read_ahead(self) -> bool:
        """Read more entries; False when there are none."""
        while len(self._ahead) == 0 and self._paths:
            count = min(_ENTRIES_PER_READ * ENTRY_BYTES, self._file_bytes - self._position)
            fd = self._disk.open_reading(self._paths[0])
            try:
                entries = decode_entries(self._disk.pread(fd, count, self._position))
            finally:
                self._disk.close(fd)
            self._position += count
            if self._position == self._file_bytes:
                del self._paths[0]
                self._position = 0
            entries = entries[entries["size"] != FILLER_SIZE]
            offsets = entries["offset"].astype(np.int64)
            before = np.concatenate(([self._newest], offsets[:-1]))
            wrong = (entries["size"] <= 0) | (offsets <= before)
            if wrong.any():
                entries = entries[: int(wrong.argmax())]
                self._paths.clear()
            if len(entries):
                self._newest = int(entries["offset"][-1])
            self._ahead = entries
        return len(self._ahead) > 0
