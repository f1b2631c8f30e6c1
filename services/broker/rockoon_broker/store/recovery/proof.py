"""Determines which part of a log needs no scan if there is no recovery point.

RocketMQ begins at the last file whose first record is older than the checkpoint by a margin
(CommitLog#recoverAbnormally), and trusts that every queue is complete below it. Here that is
proved: the entries of all queues, sorted by physical offset, must cover every byte of each skipped
file, so that no record is missing from its queue. This reads 20 bytes per message instead of the
message. The scan begins at the first file that is not proved, for example because it contains
a deleted topic's records, which no queue lists.
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

# The entries of this range of the log are held in memory at a time.
WINDOW_BYTES = 64 << 20
_ENTRIES_PER_READ = 16_384
_SIZE_AND_MAGIC = struct.Struct(">ii")


class LogFiles:
    """Reads single records of a CommitLog that no process is writing.

    Args:
        starts: start offsets of the files, ascending.
        delay_levels_ms: delays of levels 1, 2, ... for the deliver times of delayed records.
        checksums: False: check records only by their bodies.
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
        """Return the path of the file that starts at a physical offset."""
        return self.directory / offset_to_file_name(start)

    def record(self, offset: int, size: int = 0) -> Scan | None:
        """Return the record at a physical offset; None if there is no whole one of that size.

        Args:
            size: record size in bytes; 0: as the record states.
        """
        # Padded, because outside of all files the result is empty.
        wanted, _ = _SIZE_AND_MAGIC.unpack(self._read(offset, 8).ljust(8, b"\0"))
        left = self.file_bytes - offset % self.file_bytes
        if not 0 < wanted <= left or wanted != (size or wanted):
            return None
        data = self._read(offset, wanted)
        found = scan(
            data, 0, len(data), checksums=self.checksums, delay_levels_ms=self._delay_levels_ms
        )
        whole = found.count == 1 and found.position == wanted
        # A record that states another offset is a remain of an older file or part of a body.
        return found if whole and int(found.physical_offsets[0]) == offset else None

    def is_closed_at(self, offset: int) -> bool:
        """Return whether a blank closes the file at this offset."""
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
    """Return the start of the first CommitLog file that must be scanned; changes nothing.

    Args:
        log: has at least one file.
        queues: the ConsumeQueues' directory.
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
    """Return whether the last entry of each loaded queue points to a record with the entry's queue
    offset.

    If entries are shifted, the last one is shifted too.
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
    """Return whether queue entries cover all bytes of a file, whose last record is intact and was
    durable."""
    end = start + log.file_bytes
    at, last = start, (start, 0)
    for window in range(start, end, WINDOW_BYTES):
        limit = min(window + WINDOW_BYTES, end)
        taken = np.concatenate([cursor.read_below(limit) for cursor in cursors] or [_NONE])
        # All queues' entries sorted by physical offset: without a gap, they prove every record.
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
    """Reads one queue's entries in order, up to the first implausible one."""

    def __init__(self, directory: Path, file_bytes: int, log_min: int, disk: Disk) -> None:
        starts = list_files(directory, file_bytes, disk)
        whole = contiguous(starts, file_bytes)
        self._paths = [directory / offset_to_file_name(start) for start in starts[:whole]]
        self._file_bytes = file_bytes
        self._disk = disk
        self._position = 0
        self._newest = -1
        self._ahead = _NONE
        self.read_below(log_min)

    def read_below(self, limit: int) -> NDArray[np.void]:
        """Return the next entries of records below a physical offset."""
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
        """Read more entries; return False at the end."""
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
