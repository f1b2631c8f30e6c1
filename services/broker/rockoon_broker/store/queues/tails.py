"""The newest messages of queues, in memory as they were written.

Who follows a queue reads each batch right after it was appended. From here that is a copy; from the
log it is two reads, and every check of entries and records that may have been damaged since.

A tail holds what readers see, and nothing takes that back but the end of its topic (`forget`).
"""

from collections import OrderedDict
from collections.abc import Container

import numpy as np

from rockoon_broker.store.queues.consume_queue import ConsumeQueue
from rockoon_format.consume_queue import EntryArray

# Of one queue. Larger batches are worth a read: what it costs is shared by more messages.
TAIL_BYTES_MAX = 32 << 10
# What is kept when it is more.
TAIL_BYTES_LEFT = 24 << 10


class QueueTail:
    """Neighbouring batches of one queue, the newest last."""

    __slots__ = ("batches", "bytes", "end", "first")

    def __init__(self, first: int) -> None:
        self.first = self.end = first
        """Queue offsets of the first message and behind the last one."""
        self.bytes = 0
        self.batches: list[tuple[int, EntryArray, bytes]] = []
        """Each: queue offset of its first message, its entries, the records."""

    def add(self, entries: EntryArray, frames: bytes) -> None:
        self.batches.append((self.end, entries, frames))
        self.end += len(entries)
        self.bytes += len(frames)
        if self.bytes > TAIL_BYTES_MAX:
            self._shorten()

    def _shorten(self) -> None:
        # Not batch by batch: what comes next finds room.
        gone = 0
        while self.bytes > TAIL_BYTES_LEFT and gone < len(self.batches) - 1:
            self.bytes -= len(self.batches[gone][2])
            gone += 1
        del self.batches[:gone]
        self.first = self.batches[0][0]


class QueueTails:
    """The tails of the queues that were written last. Used by the thread that owns the store.

    Args:
        bytes_max: of all of them together.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        # The one that was written last comes last. By the object: a queue that is made anew under
        # the same name is another.
        self._tails: OrderedDict[ConsumeQueue, QueueTail] = OrderedDict()

    def note(self, queue: ConsumeQueue, first: int, entries: EntryArray, frames: bytes) -> None:
        """A batch is in the queue, and readers see it.

        Args:
            first: queue offset of its first message.
            entries: the queue's.
            frames: the records as they are in the log; empty when they are too many to be kept.
        """
        tail = self._tails.pop(queue, None)
        if tail is not None:
            self._bytes -= tail.bytes
        if not frames:
            return
        if tail is None or tail.end != first:
            tail = QueueTail(first)
        tail.add(entries, frames)
        self._tails[queue] = tail
        self._bytes += tail.bytes
        while self._bytes > self._bytes_max:
            self._bytes -= self._tails.popitem(last=False)[1].bytes

    def read(
        self, queue: ConsumeQueue, offset: int, entries_max: int
    ) -> tuple[EntryArray, bytes] | None:
        """Entries and records from a queue offset to the tail's end; None when they are not all
        here, or more than wanted."""
        tail = self._tails.get(queue)
        if tail is None or not tail.first <= offset < tail.end or tail.end - offset > entries_max:
            return None
        listed: list[EntryArray] = []
        pieces: list[bytes] = []
        for first, entries, frames in reversed(tail.batches):
            if first >= offset:
                listed.append(entries)
                pieces.append(frames)
            else:
                skipped = entries["size"][: offset - first]
                listed.append(entries[offset - first :])
                pieces.append(frames[int(skipped.sum()) :])
            if first <= offset:
                break
        if len(pieces) == 1:
            return listed[0], pieces[0]
        return np.concatenate(listed[::-1]), b"".join(reversed(pieces))

    def newest(self, queue: ConsumeQueue, offset: int) -> tuple[EntryArray, bytes] | None:
        """Entries and records from a queue offset on, if the newest batch begins there."""
        tail = self._tails.get(queue)
        if tail is None:
            return None
        first, entries, frames = tail.batches[-1]
        return (entries, frames) if first == offset else None

    def forget(self, topics: Container[str]) -> None:
        """What readers have seen of these topics is gone."""
        for queue in [queue for queue in self._tails if queue.topic in topics]:
            self._bytes -= self._tails.pop(queue).bytes
