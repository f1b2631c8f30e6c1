"""Cache of message keys that were found while records were checked, so that the index need not read
the log for them.

Pure. Keys that are not in the cache can be read from the log.

Keys are stored in columns, because a broker with a slow producer adds one key per batch: with an
object per batch, the event loop would need a quarter of a millisecond to collect 500 batches.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import deque

import numpy as np

from rockoon_format.index_entries import KeyEntries, PackedKeys

# 16 bytes per key: two seconds of 100,000 messages/s with two keys each.
KEPT_BYTES_MAX = 8 << 20
# Size of a batch in the columns, besides its keys.
BATCH_BYTES = 24
# Batches that wait until they are added to the columns together. An append to each column costs
# several times as much as one entry of a list.
RECENT_MAX = 64
# Batches with more bytes of hashes are added immediately.
RECENT_HASHES_BYTES_MAX = 512
# Bounds of a run: if an indexer removes a part of a run, the rest is moved in memory.
RUN_BATCHES_MAX = 4096
RUN_HASHES_BYTES_MAX = 64 << 10
_KEY_BYTES = 8


class KeyRun:
    """Keys of adjacent batches; a batch is a range of the log that was stored with one timestamp.

    Args:
        start: physical offset of the first batch.

    Attributes:
        start: physical offset of the first batch.
        next_offset: physical offset after the last batch.
        ends: physical offset after each batch.
        times_ms: store time of each batch.
        counts: number of keys of each batch.
        hashes, offsets: as in `PackedKeys`, of all batches.
    """

    __slots__ = ("counts", "ends", "hashes", "next_offset", "offsets", "start", "times_ms")

    def __init__(self, start: int) -> None:
        self.start = self.next_offset = start
        self.ends = array("q")
        self.times_ms = array("q")
        self.counts = array("q")
        self.hashes = bytearray()
        self.offsets = bytearray()

    @property
    def newest_ms(self) -> int:
        """Return the store time of the newest record, epoch milliseconds."""
        return self.times_ms[-1]

    @property
    def cached_bytes(self) -> int:
        return BATCH_BYTES * len(self.ends) + 2 * len(self.hashes)

    def cut(self, count: int) -> "KeyRun":
        """Remove the first batches, but not all, and return them."""
        head = KeyRun(self.start)
        key_bytes = sum(self.counts[:count]) * _KEY_BYTES
        for name, size in (
            ("ends", count),
            ("times_ms", count),
            ("counts", count),
            ("hashes", key_bytes),
            ("offsets", key_bytes),
        ):
            column = getattr(self, name)
            setattr(head, name, column[:size])
            del column[:size]
        self.start = head.next_offset = head.ends[-1]
        return head

    def entries(self) -> KeyEntries:
        """Return all keys as index entries."""
        return KeyEntries(
            np.frombuffer(self.hashes, np.int64),
            np.frombuffer(self.offsets, np.int64),
            np.repeat(np.frombuffer(self.times_ms, np.int64), np.frombuffer(self.counts, np.int64)),
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
        # Adjacent batches that are not in a run yet: start and end, store time, and keys of each.
        self._recent: list[tuple[int, int, int, bytes, bytes]] = []
        # Where a batch must begin to be added to `_recent`; -1: nowhere.
        self._recent_end = -1
        # Bytes of the keys in `_runs` and in `_recent`.
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
        total = self._bytes + BATCH_BYTES + 2 * len(hashes)
        if (
            start != self._recent_end
            or total > self._bytes_max
            or len(hashes) > RECENT_HASHES_BYTES_MAX
            or len(self._recent) >= RECENT_MAX
        ):
            self.collect()
            if not self._has_room(total):
                self._recent_end = -1
                return
        self._recent.append((start, end, stored_ms, hashes, offsets))
        self._recent_end = end
        self._bytes = total
        if len(hashes) > RECENT_HASHES_BYTES_MAX:
            self.collect()

    def _has_room(self, total: int) -> bool:
        if self._is_full:
            self._is_full = self._bytes > self._bytes_max // 2
        self._is_full = self._is_full or total > self._bytes_max
        return self.wanted and not self._is_full

    def collect(self) -> None:
        """Add the recent batches to the columns of a run."""
        if not self._recent:
            return
        starts, ends, times_ms, hashes, offsets = zip(*self._recent, strict=True)
        self._recent.clear()
        run = self._runs[-1] if self._runs else None
        if (
            run is None
            or run.next_offset != starts[0]
            or len(run.ends) >= RUN_BATCHES_MAX
            or len(run.hashes) >= RUN_HASHES_BYTES_MAX
        ):
            run = KeyRun(starts[0])
            self._runs.append(run)
        run.ends.extend(ends)
        run.times_ms.extend(times_ms)
        run.counts.frombytes((np.fromiter(map(len, hashes), np.int64) // _KEY_BYTES).tobytes())
        run.hashes += b"".join(hashes)
        run.offsets += b"".join(offsets)
        run.next_offset = ends[-1]

    def pop_run(self, position: int, end: int, bytes_max: int) -> KeyRun | None:
        """Remove and return adjacent batches from a physical offset on; None if there are none.

        The next batches may be adjacent, too: the result is a part of one run.

        Args:
            position: where the indexer continues; older batches are discarded.
            end: batches that end after it are left.
            bytes_max: range of the log that they may cover; the first batch may be longer.
        """
        self.collect()
        runs = self._runs
        while runs and runs[0].start < position:
            self._pop(bisect_left(runs[0].ends, position) + 1)
        if not runs or runs[0].start != position or runs[0].ends[0] > end:
            return None
        return self._pop(max(bisect_right(runs[0].ends, min(end, position + bytes_max)), 1))

    def _pop(self, count: int) -> KeyRun:
        """Remove the first batches of the first run, and return them."""
        first = self._runs[0]
        popped = self._runs.popleft() if count >= len(first.ends) else first.cut(count)
        self._bytes -= popped.cached_bytes
        return popped

    def stop_before(self, position: int, stop: int) -> int:
        """Return the offset up to which to read keys from the log: `stop`, or the start of the next
        cached batch."""
        self.collect()
        begins = self._runs[0].start if self._runs else stop
        # A batch at the position itself reaches past `end`; the log has to be read there.
        return begins if position < begins < stop else stop

    def clear(self) -> None:
        """Discard all keys; no indexer reads them."""
        self.wanted = False
        self._runs.clear()
        self._recent.clear()
        self._recent_end = -1
        self._bytes = 0
