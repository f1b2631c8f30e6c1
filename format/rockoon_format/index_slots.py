"""Slots of an index file in memory: the newest unit of each chain, and the changed pages.

A changed page differs from the file. The kernel stores the slots (`IndexSlots`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rockoon_format import kernel
from rockoon_format.index_entries import KeyEntries
from rockoon_format.index_file import SLOTS_PER_PAGE, UNIT, IndexHeader, first_place, header_with


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
        self._stored = kernel.native.IndexSlots(count)

    def put(self, header: IndexHeader, keys: KeyEntries) -> PutKeys:
        """Compute the positions of keys, as if they were added one by one, and update the slots.

        Args:
            header: the file's current header.
            keys: at least one; they must fit.

        Raises:
            ValueError: a hash is not from `hashes.index_key_hash`.
        """
        times = keys.timestamps_ms
        units, used = self._stored.link(
            *first_place(header, int(times[0])),
            keys.hashes.tobytes(),
            keys.offsets.tobytes(),
            times.tobytes(),
        )
        after = header_with(header, keys.offsets, times, used)
        return PutKeys(header.next_unit, np.frombuffer(units, UNIT), after)

    def newest(self, key_hash: int) -> int:
        """Number of the newest unit in a hash's chain, 0 if there is none."""
        return int(self._stored.newest(key_hash % self.count))

    def stored(self, first: int, count: int) -> bytes:
        """Bytes of the file for the slots from `first`, at most `count` slots."""
        return bytes(self._stored.stored(first, count))

    def load(self, first: int, stored: bytes) -> None:
        """Replace slots by those of a file; their pages are not marked as changed."""
        self._stored.load(first, stored)

    def compare(self, first: int, stored: bytes) -> None:
        """Mark pages as changed whose slots differ from those of a file."""
        self._stored.compare(first, stored)

    def mark_used(self) -> None:
        """Mark all pages as changed that have a unit."""
        self._stored.mark_used()

    def changed_runs(self) -> list[tuple[int, int]]:
        """Ranges of changed pages as (first slot, number of slots), ascending."""
        changed = np.flatnonzero(np.frombuffer(self._stored.marks(), np.bool_))
        if not len(changed):
            return []
        runs = np.split(changed, np.flatnonzero(np.diff(changed) != 1) + 1)
        return [(int(run[0]) * SLOTS_PER_PAGE, len(run) * SLOTS_PER_PAGE) for run in runs]

    @property
    def is_changed(self) -> bool:
        """True if a page is marked as changed."""
        return 1 in self._stored.marks()

    def note_written(self) -> None:
        """Clear all marks after the slots were written to the file."""
        self._stored.unmark()
