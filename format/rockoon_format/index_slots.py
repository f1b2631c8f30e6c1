"""Slots of an index file in memory: the newest unit of each chain, and the changed pages.

A changed page differs from the file. The compiled kernel stores the slots itself and adds keys one
by one; NumPy adds many together (`link_keys`), with the same result.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rockoon_format import kernel
from rockoon_format.index_entries import KeyEntries
from rockoon_format.index_file import (
    SLOT_BYTES,
    UNIT,
    IndexHeader,
    first_seconds,
    header_with,
    link_keys,
)

HASH_MAX = 2**31 - 1
SLOTS_PER_PAGE = 1024
"""A page has 4 KiB, like the blocks of file systems."""


@dataclass(frozen=True, slots=True)
class PutKeys:
    """Keys with their positions in the file."""

    first_unit: int
    """Number of the first of `units`."""
    units: NDArray[np.void]
    """UNIT[n], consecutive in the file."""
    header: IndexHeader
    """The new header."""


class Slots:
    """The slots of one file, initially empty; untouched slots need no memory.

    Only one thread at a time may change them.

    Args:
        count: number of slots, at least one.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._compiled: Any = None
        self._slots = np.zeros(0, ">i4")
        self._changed = np.zeros(0, np.bool_)
        if kernel.native is not None:
            self._compiled = kernel.native.IndexSlots(count)
        else:
            self._slots = np.zeros(count, ">i4")
            self._changed = np.zeros(-(-count // SLOTS_PER_PAGE), np.bool_)

    def put(self, header: IndexHeader, keys: KeyEntries) -> PutKeys:
        """Compute the positions of keys, as if they were added one by one, and update the slots.

        Args:
            header: the file's current header.
            keys: at least one; they must fit.

        Raises:
            ValueError: a hash is not from `hashes.index_key_hash`.
        """
        if self._compiled is None:
            if ((keys.hashes < 0) | (keys.hashes > HASH_MAX)).any():
                raise ValueError("a hash outside 0 to 2^31 - 1 is not an index hash")
            linked = link_keys(header, self._slots, keys.hashes, keys.offsets, keys.timestamps_ms)
            self._slots[linked.slot_numbers] = linked.slot_values
            self._changed[linked.slot_numbers // SLOTS_PER_PAGE] = True
            return PutKeys(linked.first_unit, linked.units, linked.header)
        times = keys.timestamps_ms
        begin_ms = int(times[0]) if header.next_unit <= 1 else header.begin_timestamp_ms
        units, used = self._compiled.link(
            header.next_unit,
            first_seconds(header, int(times[0])),
            begin_ms,
            keys.hashes.tobytes(),
            keys.offsets.tobytes(),
            times.tobytes(),
        )
        behind = header_with(header, keys.offsets, times, used)
        return PutKeys(header.next_unit, np.frombuffer(units, UNIT), behind)

    def newest(self, key_hash: int) -> int:
        """Number of the newest unit in a hash's chain, 0 if there is none."""
        slot = key_hash % self.count
        if self._compiled is not None:
            return int(self._compiled.newest(slot))
        return int(self._slots[slot])

    def stored(self, first: int, count: int) -> bytes:
        """Bytes of the file for the slots from `first`, at most `count` slots."""
        if self._compiled is not None:
            return bytes(self._compiled.stored(first, count))
        return self._slots[first : first + count].tobytes()

    def load(self, first: int, stored: bytes) -> None:
        """Replace slots by those of a file; their pages are not marked as changed."""
        if self._compiled is not None:
            self._compiled.load(first, stored)
        else:
            self._slots[first : first + len(stored) // SLOT_BYTES] = np.frombuffer(stored, ">i4")

    def compare(self, first: int, stored: bytes) -> None:
        """Mark pages as changed whose slots differ from those of a file."""
        if self._compiled is not None:
            self._compiled.compare(first, stored)
            return
        own = self._slots[first : first + len(stored) // SLOT_BYTES]
        differing = np.flatnonzero(np.frombuffer(stored, ">i4") != own)
        self._changed[(first + differing) // SLOTS_PER_PAGE] = True

    def mark_used(self) -> None:
        """Mark all pages as changed that have a unit."""
        if self._compiled is not None:
            self._compiled.mark_used()
        else:
            self._changed[np.flatnonzero(self._slots) // SLOTS_PER_PAGE] = True

    def changed_runs(self) -> list[tuple[int, int]]:
        """Ranges of changed pages as (first slot, number of slots), ascending."""
        changed = np.flatnonzero(self._marks())
        if not len(changed):
            return []
        runs = np.split(changed, np.flatnonzero(np.diff(changed) != 1) + 1)
        return [(int(run[0]) * SLOTS_PER_PAGE, len(run) * SLOTS_PER_PAGE) for run in runs]

    @property
    def is_changed(self) -> bool:
        """True if a page is marked as changed."""
        return bool(self._marks().any())

    def note_written(self) -> None:
        """Clear all marks after the slots were written to the file."""
        if self._compiled is not None:
            self._compiled.unmark()
        else:
            self._changed[:] = False

    def _marks(self) -> NDArray[np.bool_]:
        if self._compiled is not None:
            return np.frombuffer(self._compiled.marks(), np.bool_)
        return self._changed
