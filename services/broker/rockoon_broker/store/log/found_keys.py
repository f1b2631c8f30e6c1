"""Keys that were found while records were checked: who indexes the log need not read it for them.

Pure. What is not kept here is in the log.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from rockoon_core.light_dataclass import light_dataclass
from rockoon_format.index_entries import KeyEntries, PackedKeys

# Sixteen a key: of 100,000 messages a second with two keys each, what comes in two seconds.
KEPT_BYTES_MAX = 8 << 20
# What a stretch takes besides its keys.
STRETCH_BYTES = 256


@light_dataclass
class KeyStretch:
    """The keys of all records between two physical offsets, which were stored at one time."""

    start: int
    end: int
    keys: PackedKeys
    store_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class KeyRun:
    """Stretches that follow one another, at least one."""

    stretches: list[KeyStretch]

    @property
    def next_offset(self) -> int:
        """Physical offset behind the last."""
        return self.stretches[-1].end

    @property
    def newest_ms(self) -> int:
        """Store time of the last record, epoch milliseconds."""
        return self.stretches[-1].store_timestamp_ms

    def entries(self) -> KeyEntries:
        """All the keys."""
        hashes = np.frombuffer(b"".join([each.keys.hashes for each in self.stretches]), np.int64)
        offsets = np.frombuffer(b"".join([each.keys.offsets for each in self.stretches]), np.int64)
        times = np.array([each.store_timestamp_ms for each in self.stretches], np.int64)
        counts = [len(each.keys.hashes) // hashes.itemsize for each in self.stretches]
        return KeyEntries(hashes, offsets, np.repeat(times, counts))


class FoundKeys:
    """Stretches in the log's order, the oldest first.

    Args:
        bytes_max: how much is kept.

    Attributes:
        wanted: whether anybody indexes the log.
    """

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self.wanted = False
        self._bytes_max = bytes_max
        # Each behind what it takes.
        self._stretches: deque[tuple[int, KeyStretch]] = deque()
        self._bytes = 0
        self._is_full = False

    def add(self, stretch: KeyStretch) -> None:
        """Keep what was written at the log's end, if there is room.

        Not in the place of older ones: who is behind would find none of them, however long it reads
        the log to reach them. Nor before half of it is free: there would be a gap at each step.
        """
        if self._bytes <= self._bytes_max // 2:
            self._is_full = False
        size = STRETCH_BYTES + len(stretch.keys.hashes) + len(stretch.keys.offsets)
        if self._is_full or self._bytes + size > self._bytes_max:
            self._is_full = True
        elif self.wanted:
            self._stretches.append((size, stretch))
            self._bytes += size

    def take(self, position: int, end: int, bytes_max: int) -> KeyRun | None:
        """What is kept from a physical offset on, and then no more; None if that is to be read.

        Args:
            position: below it, all who wanted keys have had them.
            end: a stretch that reaches beyond is left.
            bytes_max: how much of the log they may cover; the first may be longer.
        """
        stretches = self._stretches
        while stretches and stretches[0][1].start < position:
            self._bytes -= stretches.popleft()[0]
        taken: list[KeyStretch] = []
        at = position
        while stretches:
            size, stretch = stretches[0]
            is_far = taken and stretch.end > position + bytes_max
            if stretch.start != at or stretch.end > end or is_far:
                break
            taken.append(stretch)
            at = stretch.end
            stretches.popleft()
            self._bytes -= size
        return KeyRun(taken) if taken else None

    def stop_before(self, position: int, stop: int) -> int:
        """Up to where to read from `position` on: `stop`, or where something begins before."""
        begins = self._stretches[0][1].start if self._stretches else stop
        # What begins at the position is seen in part.
        return begins if position < begins < stop else stop

    def forget(self) -> None:
        """Nobody wants any for now."""
        self.wanted = False
        self._stretches.clear()
        self._bytes = 0
