"""The index file to which keys are added.

Slots are kept in memory (4 bytes each, 20 MB for a filled default file). Units are written
immediately with pwrite, the header at each checkpoint, and slots when the file is full or the
broker stops. A mapping is not used, because with a full disk a write to it raises a signal that
kills the broker.

Invariant: the header on disk never counts an unsynced unit. So after a crash all counted units are
valid; slots are computed again from them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Self

from rockoon_broker.index.directory import IndexDirectory, IndexShape, read_whole
from rockoon_core.disk import Disk
from rockoon_format.index_entries import KeyEntries, Slots
from rockoon_format.index_file import (
    HEADER_BYTES,
    SLOT_BYTES,
    SLOTS_PER_PAGE,
    UNIT_BYTES,
    IndexHeader,
    encode_header,
    header_behind,
    keys_in_order,
    unit_position,
)

_SLOTS_PER_STEP = 256 * SLOTS_PER_PAGE
# On one disk, syncs of the log wait for those of the index. Syncing a whole table of slots and the
# units of ten seconds at once would delay them for a tenth of a second or more.
WRITTEN_BYTES_MAX = _SLOTS_PER_STEP * SLOT_BYTES


class ActiveFile:
    """An open index file. Used by one thread at a time.

    Attributes:
        header: state of the file, synced or not.
        sync_failed: a sync failed, so the content on disk is unknown: delete the file.
    """

    def __init__(
        self, path: Path, shape: IndexShape, disk: Disk, header: IndexHeader, slots: Slots
    ) -> None:
        self.path = path
        self.header = header
        self.sync_failed = False
        self._shape = shape
        self._disk = disk
        self._slots = slots
        self._written = header
        self._fd = disk.open(path)
        # Position up to which writing of units to the disk has been started.
        self._begun = unit_position(shape.slots, header.next_unit)

    @classmethod
    def create(cls, directory: IndexDirectory, now_ms: int, previous: IndexHeader | None) -> Self:
        """Create the file for the keys after those of the full file `previous`."""
        return cls.after(directory.create(now_ms), directory, previous)

    @classmethod
    def after(cls, path: Path, directory: IndexDirectory, previous: IndexHeader | None) -> Self:
        """Return the newly created file at `path`, open for additions."""
        header = IndexHeader() if previous is None else header_behind(previous)
        return cls(path, directory.shape, directory.disk, header, Slots(directory.shape.slots))

    @property
    def remaining(self) -> int:
        """Number of keys for which the file has room."""
        return self._shape.units - self.header.next_unit

    def add(self, entries: KeyEntries) -> int:
        """Add keys until the file is full or a key is older than the last one; return how many were
        added.

        Raises:
            OSError: the disk. Slots then refer to units that are not in the file: only `close` it.
        """
        count = min(self.remaining, keys_in_order(self.header, entries.timestamps_ms))
        if count == 0:
            return 0
        put = self._slots.put(self.header, entries.first(count))
        position = unit_position(self._shape.slots, put.first_unit)
        units = put.units.tobytes()
        self._disk.write_all(self._fd, units, position)
        end = position + len(units)
        if end - self._begun >= WRITTEN_BYTES_MAX:
            self._disk.begin_writing(self._fd, self._begun, end)
            self._begun = end
        self.header = put.header
        return count

    def checkpoint(self) -> None:
        """Make added keys durable, and count them in the header.

        Does not write slots: they are scattered, so that a few thousand keys change nearly all of
        the 20 MB.

        Raises:
            OSError: the disk. If `sync_failed`, delete the file.
        """
        if self._written == self.header:
            return
        self._sync()
        self._disk.write_all(self._fd, encode_header(self.header), 0)
        self._sync()
        self._written = self.header

    def complete(self) -> None:
        """Checkpoint, and write changed slots, so that the file can be searched on disk.

        Raises:
            OSError: the disk. If `sync_failed`, delete the file.
        """
        if self._slots.is_changed:
            self._write_slots()
            self._written = IndexHeader()
        self.checkpoint()

    def mark_unwritten(self) -> None:
        """Mark header and slots as not written, so that `complete` writes them again.

        Units need no rewrite: the header that counts them was written after their sync.
        """
        self._written = IndexHeader()
        self._slots.mark_used()

    def compare_slots(self) -> Iterator[int]:
        """Find slots that differ from the file on disk; `complete` writes them.

        Yields between steps, so that other work can run.
        """
        for first in range(0, self._shape.slots, _SLOTS_PER_STEP):
            count = min(_SLOTS_PER_STEP, self._shape.slots - first)
            at = HEADER_BYTES + first * SLOT_BYTES
            stored = read_whole(self._disk, self._fd, count * SLOT_BYTES, at)
            self._slots.compare(first, stored)
            yield first

    def newest_unit(self, key_hash: int) -> int:
        """Return the number of the newest unit with this hash; 0 if there is none."""
        return self._slots.newest(key_hash)

    def read_unit(self, unit: int) -> bytes:
        at = unit_position(self._shape.slots, unit)
        return read_whole(self._disk, self._fd, UNIT_BYTES, at)

    def close(self) -> None:
        """Close the file; keys added after the last checkpoint are indexed again at the next
        start."""
        self._disk.close(self._fd)

    def _write_slots(self) -> None:
        unsynced = 0
        for first, count in self._slots.changed_runs():
            for at in range(first, first + count, _SLOTS_PER_STEP):
                stored = self._slots.stored(at, min(_SLOTS_PER_STEP, first + count - at))
                self._disk.write_all(self._fd, stored, HEADER_BYTES + at * SLOT_BYTES)
                unsynced += len(stored)
                if unsynced >= WRITTEN_BYTES_MAX:
                    self._sync()
                    unsynced = 0
        self._slots.note_written()

    def _sync(self) -> None:
        try:
            self._disk.fdatasync(self._fd)
        except OSError:
            self.sync_failed = True
            raise
