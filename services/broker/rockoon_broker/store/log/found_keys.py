"""Cache of message keys that were found while records were checked, so that the index need not read
the log for them.

Pure. Keys that are not in the cache can be read from the log.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from rockoon_core.light_dataclass import light_dataclass
from rockoon_format.index_entries import KeyEntries, PackedKeys

# 16 bytes per key: two seconds of 100,000 messages/s with two keys each.
KEPT_BYTES_MAX = 8 << 20
# Overhead of a stretch besides its keys.
STRETCH_BYTES = 256


@light_dataclass
class KeyStretch:
    """Keys of all records between two physical offsets, which were stored with one timestamp (a
    "stretch")."""

    start: int
    end: int
    keys: PackedKeys
    store_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class KeyRun:
    """One or more adjacent key stretches."""

    stretches: list[KeyStretch]

    @property
    def next_offset(self) -> int:
        """Physical offset after the last stretch."""
        return self.stretches[-1].end

    @property
    def newest_ms(self) -> int:
        """Store time of the newest record, epoch milliseconds."""
        return self.stretches[-1].store_timestamp_ms

    def entries(self) -> KeyEntries:
        """Return all keys of the run as index entries."""
        hashes = np.frombuffer(b"".join([each.keys.hashes for each in self.stretches]), np.int64)
        offsets = np.frombuffer(b"".join([each.keys.offsets for each in self.stretches]), np.int64)
        times = np.array([each.store_timestamp_ms for each in self.stretches], np.int64)
        counts = [len(each.keys.hashes) // hashes.itemsize for each in self.stretches]
        return KeyEntries(hashes, offsets, np.repeat(times, counts))


class FoundKeys:
    """Cache of message keys, as stretches of the log in log order, oldest first.

    Args:
        bytes_max: memory limit.

    Attributes:
        wanted: whether an indexer reads the keys.
    """

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self.wanted = False
        self._bytes_max = bytes_max
        # Each with its size in bytes.
        self._stretches: deque[tuple[int, KeyStretch]] = deque()
        self._bytes = 0
        self._is_full = False

    def add(self, stretch: KeyStretch) -> None:
        """Add keys of records written at the log's end, if there is room.

        A full cache keeps the oldest keys: a lagging indexer would never find newer ones, because
        they would be evicted before it reads up to them. After it was full, the cache
        accepts keys again when it is half empty; otherwise every append would leave a gap.
        """
        if self._bytes <= self._bytes_max // 2:
            self._is_full = False
        size = STRETCH_BYTES + len(stretch.keys.hashes) + len(stretch.keys.offsets)
        if self._is_full or self._bytes + size > self._bytes_max:
            self._is_full = True
        elif self.wanted:
            self._stretches.append((size, stretch))
            self._bytes += size

    def pop_run(self, position: int, end: int, bytes_max: int) -> KeyRun | None:
        """Remove and return adjacent stretches from a physical offset on; None if there are none.

        Args:
            position: where the indexer continues; older stretches are discarded.
            end: stretches that end after it are left.
            bytes_max: range of the log that they may cover; the first stretch may be longer.
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
        """Return the offset up to which to read keys from the log: `stop`, or the start of the next
        cached stretch."""
        begins = self._stretches[0][1].start if self._stretches else stop
        # A stretch at the position itself reaches past `end`; the log has to be read there.
        return begins if position < begins < stop else stop

    def clear(self) -> None:
        """Discard all keys; no indexer reads them."""
        self.wanted = False
        self._stretches.clear()
        self._bytes = 0
