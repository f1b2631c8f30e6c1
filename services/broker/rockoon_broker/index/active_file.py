"""The index file that keys are added to.

Slots are kept in memory (4 bytes each: 20 MB once a default file is well filled); units go to the
file at once, with pwrite; changed slots and the header follow at every checkpoint. Not through a
mapping: a full disk would then be a signal that kills the broker, instead of an error.

Invariant: the header on disk never counts a unit that was not synced before. So after a crash the
units it counts are whole; slots may be ahead of it or behind, and are worked out again.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Self

from rockoon_broker.index.directory import IndexDirectory, IndexShape, read_whole
from rockoon_core.disk import Disk
from rockoon_format.index_entries import KeyEntries
from rockoon_format.index_file import (
    HEADER_BYTES,
    SLOT_BYTES,
    UNIT_BYTES,
    IndexHeader,
    encode_header,
    header_behind,
    keys_in_order,
    unit_position,
)
from rockoon_format.index_slots import SLOTS_PER_PAGE, Slots

_SLOTS_PER_STEP = 256 * SLOTS_PER_PAGE
# Syncs of the log wait for those of the index, on one disk: a whole table of slots, and the units
# of ten seconds, would hold them up for a tenth of a second and more.
WRITTEN_BYTES_MAX = _SLOTS_PER_STEP * SLOT_BYTES


class ActiveFile:
    """An open index file. Used by one thread at a time.

    Attributes:
        path: where it is.
        header: what it holds, synced or not.
        sync_failed: what the disk holds is unknown from there on: delete the file.
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
        # Up to where units are on their way to the disk.
        self._begun = unit_position(shape.slots, header.next_unit)

    @classmethod
    def create(cls, directory: IndexDirectory, now_ms: int, previous: IndexHeader | None) -> Self:
        """Make a file for the keys behind those of `previous`, the last full one."""
        return cls.behind(directory.create(now_ms), directory, previous)

    @classmethod
    def behind(cls, path: Path, directory: IndexDirectory, previous: IndexHeader | None) -> Self:
        """Open a file that has just been made."""
        header = IndexHeader() if previous is None else header_behind(previous)
        return cls(path, directory.shape, directory.disk, header, Slots(directory.shape.slots))

    @property
    def remaining(self) -> int:
        """How many keys still fit."""
        return self._shape.units - self.header.next_unit

    @property
    def checkpointed(self) -> bool:
        """Whether everything that was added is on disk."""
        return self._written == self.header and not self._slots.is_changed

    def add(self, entries: KeyEntries) -> int:
        """Add keys as long as they fit, and are not older than those before; return how many were.

        Raises:
            OSError: the disk. The slots lead to units that the file has not: only `close` it.
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
        """Make what was added durable, and count it.

        Raises:
            OSError: the disk. If `sync_failed`, the file is of no use any more.
        """
        if self.checkpointed:
            return
        self._write_slots()
        self._sync()
        self._disk.write_all(self._fd, encode_header(self.header), 0)
        self._sync()
        self._written = self.header

    def mark_unwritten(self) -> None:
        """Have the next checkpoint write header and slots, also where the file seems to have them.

        Not the units that the header counts: it was written after a sync of these.
        """
        self._written = IndexHeader()
        self._slots.mark_used()

    def compare_slots(self) -> Iterator[int]:
        """Find the slots that are not on disk as they are here; the next checkpoint writes them.

        Yields now and then, so that others may work in between.
        """
        for first in range(0, self._shape.slots, _SLOTS_PER_STEP):
            count = min(_SLOTS_PER_STEP, self._shape.slots - first)
            at = HEADER_BYTES + first * SLOT_BYTES
            stored = read_whole(self._disk, self._fd, count * SLOT_BYTES, at)
            self._slots.compare(first, stored)
            yield first

    def newest_unit(self, key_hash: int) -> int:
        """Number of the newest unit in a hash's chain, 0 if there is none."""
        return self._slots.newest(key_hash)

    def read_unit(self, unit: int) -> bytes:
        at = unit_position(self._shape.slots, unit)
        return read_whole(self._disk, self._fd, UNIT_BYTES, at)

    def close(self) -> None:
        """Let go of the file; what no checkpoint covered is indexed again at the next start."""
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
