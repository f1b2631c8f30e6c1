"""Cache of the newest messages of queues, as they were written.

A consumer at the end of a queue reads each batch right after it was appended. The cache answers it
with a copy. Without the cache, entries and records are read from files and checked for damage.

A tail contains only visible messages, and these are revoked only with their topic (`drop_topics`).
"""

from collections import OrderedDict
from collections.abc import Container

import numpy as np

from rockoon_broker.store.queues.consume_queue import ConsumeQueue
from rockoon_format.consume_queue import ENTRY, ENTRY_BYTES, EntryArray

# Per queue. Larger batches are read from disk: many messages share the cost of a read.
TAIL_BYTES_MAX = 32 << 10
# Size to which a longer tail is shortened.
TAIL_BYTES_LEFT = 24 << 10


class CachedTail:
    """Neighbouring batches of one queue, the newest last."""

    __slots__ = ("batches", "bytes", "end", "first")

    def __init__(self, first: int) -> None:
        self.first = self.end = first
        """Queue offsets of the first message and after the last one."""
        self.bytes = 0
        self.batches: list[tuple[int, bytes, bytes]] = []
        """Each: queue offset of its first message, its entries, the records."""

    def shorten(self) -> int:
        """Remove the oldest batches of a tail that is too long; return the number of bytes."""
        # Not batch by batch, so that there is room for the next batches.
        gone = gone_bytes = 0
        while self.bytes - gone_bytes > TAIL_BYTES_LEFT and gone < len(self.batches) - 1:
            gone_bytes += len(self.batches[gone][2])
            gone += 1
        del self.batches[:gone]
        self.bytes -= gone_bytes
        self.first = self.batches[0][0]
        return gone_bytes


class QueueTailCache:
    """Tails of the newest queues, up to `bytes_max` together. Used by the store's thread."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        # Most recently written last. Keyed by object: a recreated queue of the same name is
        # another one.
        self._tails: OrderedDict[ConsumeQueue, CachedTail] = OrderedDict()

    def add(self, queue: ConsumeQueue, first: int, entries: bytes, frames: bytes) -> None:
        """Add a batch that has become visible in the queue.

        Args:
            first: queue offset of its first message.
            entries: its queue entries, encoded.
            frames: its records as stored; empty if they are too large to be kept.
        """
        tails = self._tails
        tail = tails.get(queue)
        if not frames or tail is None or tail.end != first:
            if tail is not None:
                self._bytes -= tails.pop(queue).bytes
            if not frames:
                return
            tail = tails[queue] = CachedTail(first)
        elif len(tails) > 1:
            tails.move_to_end(queue)
        size = len(frames)
        # Not a method of the tail: each append would need one more Python call.
        tail.batches.append((first, entries, frames))
        tail.end = first + len(entries) // ENTRY_BYTES
        tail.bytes += size
        self._bytes += size
        if tail.bytes > TAIL_BYTES_MAX:
            self._bytes -= tail.shorten()
        while self._bytes > self._bytes_max:
            self._bytes -= tails.popitem(last=False)[1].bytes

    def read(
        self, queue: ConsumeQueue, offset: int, entries_max: int
    ) -> tuple[EntryArray, bytes] | None:
        """Return entries and records from a queue offset to the tail's end; None if the offset is
        not in the tail or more than `entries_max` follow."""
        tail = self._tails.get(queue)
        if tail is None or not tail.first <= offset < tail.end or tail.end - offset > entries_max:
            return None
        all_entries: list[EntryArray] = []
        records: list[bytes] = []
        for first, encoded, frames in reversed(tail.batches):
            entries = np.frombuffer(encoded, ENTRY)
            if first >= offset:
                all_entries.append(entries)
                records.append(frames)
            else:
                skipped = entries["size"][: offset - first]
                all_entries.append(entries[offset - first :])
                records.append(frames[int(skipped.sum()) :])
            if first <= offset:
                break
        if len(records) == 1:
            return all_entries[0], records[0]
        return np.concatenate(all_entries[::-1]), b"".join(reversed(records))

    def newest(self, queue: ConsumeQueue, offset: int) -> tuple[bytes, bytes] | None:
        """Return encoded entries and records of the newest batch if it starts at a queue offset."""
        tail = self._tails.get(queue)
        if tail is None:
            return None
        first, entries, frames = tail.batches[-1]
        return (entries, frames) if first == offset else None

    def drop_topics(self, topics: Container[str]) -> None:
        """Remove the tails of deleted topics."""
        for queue in [queue for queue in self._tails if queue.topic in topics]:
            self._bytes -= self._tails.pop(queue).bytes
