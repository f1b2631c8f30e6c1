"""The newest messages of queues, in memory as they were written.

Who follows a queue reads each batch right after it was appended. From here that is a copy; from the
log it is two reads, and every check of entries and records that may have been damaged since.

A tail holds what readers see, and nothing takes that back but the end of its topic (`forget`).
"""

from collections import OrderedDict
from collections.abc import Container

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.store.queues.consume_queue import ConsumeQueue

# Of one queue. Larger batches are worth a read: what it costs is shared by more messages.
TAIL_BYTES_MAX = 32 << 10


class QueueTail:
    """Neighbouring batches of one queue, the newest last."""

    __slots__ = ("batches", "bytes", "end", "first")

    def __init__(self, first: int) -> None:
        self.first = self.end = first
        """Queue offsets of the first message and behind the last one."""
        self.bytes = 0
        self.batches: list[tuple[int, NDArray[np.uint32], bytes]] = []
        """Each: queue offset of its first message, sizes of its records in bytes, the records."""

    def add(self, lengths: NDArray[np.uint32], frames: bytes) -> None:
        self.batches.append((self.end, lengths, frames))
        self.end += len(lengths)
        self.bytes += len(frames)
        while self.bytes > TAIL_BYTES_MAX:
            first, gone, frames = self.batches.pop(0)
            self.first = first + len(gone)
            self.bytes -= len(frames)


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

    def note(
        self, queue: ConsumeQueue, first: int, lengths: NDArray[np.uint32], frames: bytes
    ) -> None:
        """A batch is in the queue, and readers see it.

        Args:
            first: queue offset of its first message.
            lengths: size of each record in bytes, uint32[n].
            frames: the records as they are in the log; empty when they are too many to be kept.
        """
        tail = self._tails.pop(queue, None)
        if tail is not None:
            self._bytes -= tail.bytes
        if not frames:
            return
        if tail is None or tail.end != first:
            tail = QueueTail(first)
        tail.add(lengths, frames)
        self._tails[queue] = tail
        self._bytes += tail.bytes
        while self._bytes > self._bytes_max:
            self._bytes -= self._tails.popitem(last=False)[1].bytes

    def read(
        self, queue: ConsumeQueue, offset: int, messages_max: int, bytes_max: int
    ) -> tuple[NDArray[np.uint32], bytes] | None:
        """Sizes and records from a queue offset to the tail's end; None when they are not all here,
        or more than wanted."""
        tail = self._tails.get(queue)
        if tail is None or not tail.first <= offset < tail.end or tail.end - offset > messages_max:
            return None
        sizes: list[NDArray[np.uint32]] = []
        pieces: list[bytes] = []
        for first, lengths, frames in reversed(tail.batches):
            if first >= offset:
                sizes.append(lengths)
                pieces.append(frames)
            else:
                skipped = lengths[: offset - first]
                sizes.append(lengths[offset - first :])
                pieces.append(frames[int(skipped.sum()) :])
            if first <= offset:
                break
        if len(pieces) == 1:
            found = sizes[0], pieces[0]
        else:
            found = np.concatenate(sizes[::-1]), b"".join(reversed(pieces))
        return found if len(found[1]) <= bytes_max else None

    def forget(self, topics: Container[str]) -> None:
        """What readers have seen of these topics is gone."""
        for queue in [queue for queue in self._tails if queue.topic in topics]:
            self._bytes -= self._tails.pop(queue).bytes
