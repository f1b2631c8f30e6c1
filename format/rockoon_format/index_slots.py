"""Slots of an index file in memory: which unit is the newest of each chain.

They know besides which pages of them a file does not have as they are here. The compiled kernel
keeps them itself and puts keys one after the other; NumPy does it for many at once (`link_keys`),
and leaves the same.
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
"""Of 4 KiB, as file systems have them."""


@dataclass(frozen=True, slots=True)
class PutKeys:
    """Keys that have their places."""

    first_unit: int
    """Number of the first of `units`."""
    units: NDArray[np.void]
    """UNIT[n], neighbours in the file."""
    header: IndexHeader
    """What the header becomes."""


class Slots:
    """The slots of one file, empty at first; untouched ones take no memory.

    One thread at a time may change them.

    Args:
        count: how many, at least one.
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
        """Give keys the places that adding one after another would give them.

        Args:
            header: the file's, as it is.
            keys: at least one; they must fit.

        Raises:
            ValueError: a hash is none of `hashes.index_key_hash`.
        """
        if self._compiled is None:
            if ((keys.hashes < 0) | (keys.hashes > HASH_MAX)).any():
                raise ValueError("keys that no index file takes")
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
        """Slots from `first` on as the file is to have them; fewer where there are no more."""
        if self._compiled is not None:
            return bytes(self._compiled.stored(first, count))
        return self._slots[first : first + count].tobytes()

    def load(self, first: int, stored: bytes) -> None:
        """Take over slots of a file; their pages do not count as changed."""
        if self._compiled is not None:
            self._compiled.load(first, stored)
        else:
            self._slots[first : first + len(stored) // SLOT_BYTES] = np.frombuffer(stored, ">i4")

    def compare(self, first: int, stored: bytes) -> None:
        """Have the pages count as changed whose slots a file has otherwise."""
        if self._compiled is not None:
            self._compiled.compare(first, stored)
            return
        own = self._slots[first : first + len(stored) // SLOT_BYTES]
        differing = np.flatnonzero(np.frombuffer(stored, ">i4") != own)
        self._changed[(first + differing) // SLOTS_PER_PAGE] = True

    def mark_used(self) -> None:
        """Have all pages count as changed that have a unit."""
        if self._compiled is not None:
            self._compiled.mark_used()
        else:
            self._changed[np.flatnonzero(self._slots) // SLOTS_PER_PAGE] = True

    def changed_runs(self) -> list[tuple[int, int]]:
        """First slot and how many, of neighbouring pages that changed; ascending."""
        changed = np.flatnonzero(self._marks())
        if not len(changed):
            return []
        runs = np.split(changed, np.flatnonzero(np.diff(changed) != 1) + 1)
        return [(int(run[0]) * SLOTS_PER_PAGE, len(run) * SLOTS_PER_PAGE) for run in runs]

    @property
    def is_changed(self) -> bool:
        """Whether any page counts as changed."""
        return bool(self._marks().any())

    def note_written(self) -> None:
        """A file has them as they are here."""
        if self._compiled is not None:
            self._compiled.unmark()
        else:
            self._changed[:] = False

    def _marks(self) -> NDArray[np.bool_]:
        if self._compiled is not None:
            return np.frombuffer(self._compiled.marks(), np.bool_)
        return self._changed
