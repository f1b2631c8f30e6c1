"""Cache of message keys that were found while records were checked, so that the index need not read
the log for them.

Pure. Keys that are not in the cache can be read from the log.

Keys are stored in bytes, because a broker with a slow producer adds one key per batch: with an
object per batch, the event loop would need a quarter of a millisecond to collect 500 batches. Each
append adds its own keys: if 64 batches were added together, one send in 64 would be slower, which
is more than one percent.
"""

import struct
from collections import deque

import numpy as np

from rockoon_format.index_entries import KeyEntries, PackedKeys

# 16 bytes per key: two seconds of 100,000 messages/s with two keys each.
KEPT_BYTES_MAX = 8 << 20
# A batch: physical offset after it, store time, bytes of the hashes of its keys.
_BATCH = np.dtype([("end", np.int64), ("stored_ms", np.int64), ("key_bytes", np.int64)])
_pack_batch = struct.Struct("qqq").pack
# Size of a batch besides its keys.
BATCH_BYTES = _BATCH.itemsize
# Size of a run: if an indexer removes a part of a run, the rest is moved in memory.
RUN_BYTES_MAX = 128 << 10
_KEY_BYTES = 8


class KeyRun:
    """Keys of adjacent batches; a batch is a range of the log that was stored with one timestamp.

    Args:
        start: physical offset of the first batch.

    Attributes:
        start: physical offset of the first batch.
        next_offset: physical offset after the last batch.
        batches: an item of `_BATCH` for each batch.
        hashes, offsets: as in `PackedKeys`, of all batches.
    """

    __slots__ = ("batches", "hashes", "next_offset", "offsets", "start")

    def __init__(self, start: int) -> None:
        self.start = self.next_offset = start
        self.batches = bytearray()
        self.hashes = bytearray()
        self.offsets = bytearray()

    def column(self, name: str) -> np.ndarray:
        """Return a field of all batches. While the array exists, no batch can be added."""
        column: np.ndarray = np.frombuffer(self.batches, _BATCH)[name]
        return column

    @property
    def newest_ms(self) -> int:
        """Return the store time of the newest record, epoch milliseconds."""
        return int(self.column("stored_ms")[-1])

    @property
    def cached_bytes(self) -> int:
        return len(self.batches) + 2 * len(self.hashes)

    def count_before(self, position: int) -> int:
        """Return the number of batches that end at or before a physical offset."""
        return int(self.column("end").searchsorted(position, "right"))

    def cut(self, count: int) -> "KeyRun":
        """Remove the first batches, but not all, and return them."""
        head = KeyRun(self.start)
        key_bytes = int(self.column("key_bytes")[:count].sum())
        for name, size in (
            ("batches", count * BATCH_BYTES),
            ("hashes", key_bytes),
            ("offsets", key_bytes),
        ):
            column = getattr(self, name)
            setattr(head, name, column[:size])
            del column[:size]
        self.start = head.next_offset = int(head.column("end")[-1])
        return head

    def entries(self) -> KeyEntries:
        """Return all keys as index entries."""
        return KeyEntries(
            np.frombuffer(self.hashes, np.int64),
            np.frombuffer(self.offsets, np.int64),
            np.repeat(self.column("stored_ms"), self.column("key_bytes") // _KEY_BYTES),
        )


class FoundKeys:
    """Cache of message keys, in log order, oldest first.

    Args:
        bytes_max: memory limit.

    Attributes:
        wanted: whether an indexer reads the keys.
    """

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self.wanted = False
        self._bytes_max = bytes_max
        self._runs: deque[KeyRun] = deque()
        # The newest run, to which adjacent batches are added; None: no batch was added.
        self._newest: KeyRun | None = None
        self._bytes = 0
        self._is_full = False

    def add(self, start: int, end: int, keys: PackedKeys, stored_ms: int) -> None:
        """Add keys of records written at the log's end, if there is room.

        A full cache keeps the oldest keys: a lagging indexer would never find newer ones, because
        they would be evicted before it reads up to them. After it was full, the cache
        accepts keys again when it is half empty; otherwise every append would leave a gap.

        Args:
            start, end: physical offsets of the records, which were stored with one timestamp.
            keys: their keys.
            stored_ms: their store time, epoch milliseconds.
        """
        hashes, offsets = keys
        run, total = self._newest, self._bytes + BATCH_BYTES + 2 * len(hashes)
        if (
            run is None
            or run.next_offset != start
            or total > self._bytes_max
            or len(run.batches) + len(run.hashes) >= RUN_BYTES_MAX
        ):
            self._newest = run = KeyRun(start) if self._has_room(total) else None
            if run is None:
                return
            self._runs.append(run)
        run.batches += _pack_batch(end, stored_ms, len(hashes))
        run.hashes += hashes
        run.offsets += offsets
        run.next_offset = end
        self._bytes = total

    def _has_room(self, total: int) -> bool:
        if self._is_full:
            self._is_full = self._bytes > self._bytes_max // 2
        self._is_full = self._is_full or total > self._bytes_max
        return self.wanted and not self._is_full

    def pop_run(self, position: int, end: int, bytes_max: int) -> KeyRun | None:
        """Remove and return adjacent batches from a physical offset on; None if there are none.

        The next batches may be adjacent, too: the result is a part of one run.

        Args:
            position: where the indexer continues; older batches are discarded.
            end: batches that end after it are left.
            bytes_max: range of the log that they may cover; the first batch may be longer.
        """
        runs = self._runs
        while runs and runs[0].start < position:
            # A batch that reaches past the position is discarded too.
            self._pop(runs[0].count_before(position - 1) + 1)
        if not runs or runs[0].start != position or not runs[0].count_before(end):
            return None
        return self._pop(max(runs[0].count_before(min(end, position + bytes_max)), 1))

    def _pop(self, count: int) -> KeyRun:
        """Remove the first batches of the first run, and return them."""
        popped = self._runs[0]
        if count * BATCH_BYTES < len(popped.batches):
            popped = popped.cut(count)
        else:
            self._runs.popleft()
            if not self._runs:
                self._newest = None
        self._bytes -= popped.cached_bytes
        return popped

    def stop_before(self, position: int, stop: int) -> int:
        """Return the offset up to which to read keys from the log: `stop`, or the start of the next
        cached batch."""
        begins = self._runs[0].start if self._runs else stop
        # A batch at the position itself reaches past `end`; the log has to be read there.
        return begins if position < begins < stop else stop

    def clear(self) -> None:
        """Discard all keys; no indexer reads them."""
        self.wanted = False
        self._runs.clear()
        self._newest = None
        self._bytes = 0
