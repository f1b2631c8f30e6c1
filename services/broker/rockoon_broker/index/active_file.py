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

import numpy as np
from numpy.typing import NDArray

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
    link_keys,
    unit_position,
)

# Changed slots are written in pieces of so many: a page of the file system.
_SLOTS_PER_PAGE = 1024
_SLOTS_PER_STEP = 256 * _SLOTS_PER_PAGE

Slots = NDArray[np.int32]


def no_slots(shape: IndexShape) -> Slots:
    """The slots of an empty file; untouched pages of it take no memory."""
    return np.zeros(shape.slots, ">i4")


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
        self._changed = np.zeros(-(-shape.slots // _SLOTS_PER_PAGE), np.bool_)
        self._fd = disk.open(path)

    @classmethod
    def create(cls, directory: IndexDirectory, now_ms: int, previous: IndexHeader | None) -> Self:
        """Make a file for the keys behind those of `previous`, the last full one."""
        return cls.behind(directory.create(now_ms), directory, previous)

    @classmethod
    def behind(cls, path: Path, directory: IndexDirectory, previous: IndexHeader | None) -> Self:
        """Open a file that has just been made."""
        header = IndexHeader() if previous is None else header_behind(previous)
        return cls(path, directory.shape, directory.disk, header, no_slots(directory.shape))

    @property
    def remaining(self) -> int:
        """How many keys still fit."""
        return self._shape.units - self.header.next_unit

    @property
    def checkpointed(self) -> bool:
        """Whether everything that was added is on disk."""
        return self._written == self.header and not self._changed.any()

    def add(self, entries: KeyEntries) -> int:
        """Add keys as long as they fit, and are not older than those before; return how many were.

        Raises:
            OSError: the disk; nothing was added.
        """
        count = min(self.remaining, keys_in_order(self.header, entries.timestamps_ms))
        if count == 0:
            return 0
        linked = link_keys(
            self.header,
            self._slots,
            entries.hashes[:count],
            entries.offsets[:count],
            entries.timestamps_ms[:count],
        )
        position = unit_position(self._shape.slots, linked.first_unit)
        self._disk.write_all(self._fd, linked.units.tobytes(), position)
        self._slots[linked.slot_numbers] = linked.slot_values
        self._changed[linked.slot_numbers // _SLOTS_PER_PAGE] = True
        self.header = linked.header
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
        self._changed[np.flatnonzero(self._slots) // _SLOTS_PER_PAGE] = True

    def compare_slots(self) -> Iterator[int]:
        """Find the slots that are not on disk as they are here; the next checkpoint writes them.

        Yields now and then, so that others may work in between.
        """
        for first in range(0, self._shape.slots, _SLOTS_PER_STEP):
            slots = self._slots[first : first + _SLOTS_PER_STEP]
            at = HEADER_BYTES + first * SLOT_BYTES
            stored = np.frombuffer(read_whole(self._disk, self._fd, slots.nbytes, at), ">i4")
            self._changed[(first + np.flatnonzero(stored != slots)) // _SLOTS_PER_PAGE] = True
            yield first

    def newest_unit(self, key_hash: int) -> int:
        """Number of the newest unit in a hash's chain, 0 if there is none."""
        return int(self._slots[key_hash % self._shape.slots])

    def read_unit(self, unit: int) -> bytes:
        at = unit_position(self._shape.slots, unit)
        return read_whole(self._disk, self._fd, UNIT_BYTES, at)

    def close(self) -> None:
        """Let go of the file; what no checkpoint covered is indexed again at the next start."""
        self._disk.close(self._fd)

    def _write_slots(self) -> None:
        changed = np.flatnonzero(self._changed)
        if len(changed) == 0:
            return
        breaks = np.flatnonzero(np.diff(changed) != 1) + 1
        for run in np.split(changed, breaks):
            first, last = int(run[0]) * _SLOTS_PER_PAGE, (int(run[-1]) + 1) * _SLOTS_PER_PAGE
            slots = self._slots[first:last]
            self._disk.write_all(self._fd, slots.tobytes(), HEADER_BYTES + first * SLOT_BYTES)
        self._changed[:] = False

    def _sync(self) -> None:
        try:
            self._disk.fdatasync(self._fd)
        except OSError:
            self.sync_failed = True
            raise
