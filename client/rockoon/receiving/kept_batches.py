"""Kept batches: messages read from queues, kept in memory for other receivers.

Each kept batch covers a range of offsets of a queue. If an offset in the range has no message, the
queue has no message at that offset.

The messages of FIFO groups have hashes of their message groups; the offset service keeps the order
per hash. Do not change the hash function: all receivers of a group must use the same one. The
message group of a message is its ordering key (`__SHARDINGKEY`, RocketMQ's message group). The
messages of a queue without a key are one message group and are ordered. Messages of a retry topic
are not ordered: each is a separate message group.
"""

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from rockoon.consumer.pull import Pulled
from rockoon.message import Batch
from rockoon_core.message_queue import MessageQueue
from rockoon_format.properties import PROPERTY_SHARDING_KEY, find_value

CANDIDATES_MAX = 1024


def message_group_hash(message_group: str | None) -> int:
    """Return 64 bits: BLAKE2b of the text in UTF-8, little-endian; 0 for None."""
    if message_group is None:
        return 0
    digest = blake2b(message_group.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def hashes(batch: Batch) -> list[int]:
    groups = [find_value(raw, PROPERTY_SHARDING_KEY) for raw in batch.columns.properties_bytes]
    known = {group: message_group_hash(group) for group in set(groups)}
    return [known[group] for group in groups]


def separate_group_hash(offset: int) -> int:
    """Return the hash of an offset that is a separate message group: it has no message, an
    unreadable message, or a message of a retry topic."""
    return message_group_hash(f"\x00{offset}")


BYTES_MAX = 64 << 20
BATCHES_MAX = 16_384


@dataclass(slots=True)
class KeptBatch:
    """A range of offsets of a queue, and its messages."""

    first: int
    next_offset: int
    batch: Batch | None
    offsets: Sequence[int]
    """Queue offsets of the messages of the batch, ascending."""
    size_bytes: int
    kept_at: float
    _groups: list[int] | None = None

    def holds_all(self, offsets: Sequence[int]) -> bool:
        """True if it has a message at each offset; `offsets` is ascending."""
        return (
            isinstance(self.offsets, range)
            and len(self.offsets) == self.next_offset - self.first
            and self.first <= offsets[0]
            and offsets[-1] < self.next_offset
        )

    def message_groups(self, offset: int, end_offset: int) -> list[int]:
        """Return the hashes of the message groups from `offset` on; see `message_group_hash`."""
        if self._groups is None:
            own = dict(zip(self.offsets, hashes(self.batch), strict=True)) if self.batch else {}
            for index in self.batch.columns.damaged if self.batch else ():
                # Its message group cannot be known.
                del own[self.offsets[index]]
            places = range(self.first, self.next_offset)
            self._groups = [own[at] if at in own else separate_group_hash(at) for at in places]
        return self._groups[offset - self.first : end_offset - self.first]

    def index(self, offset: int) -> int | None:
        """Return the index in the batch of the message at an offset; None if there is none."""
        offsets = self.offsets
        if isinstance(offsets, range):
            return offset - offsets.start if offset in offsets else None
        at = bisect_right(offsets, offset) - 1
        return at if at >= 0 and offsets[at] == offset else None


class KeptBatches:
    """Cache of the newest batches.

    Args:
        bytes_max: bytes of stored records.
        batches_max: number of batches; small ones need memory for objects.
    """

    def __init__(self, bytes_max: int = BYTES_MAX, batches_max: int = BATCHES_MAX) -> None:
        self._bytes_max = bytes_max
        self._batches_max = batches_max
        self._bytes = 0
        # Queue and first offset → batch, oldest first.
        self._all: OrderedDict[tuple[MessageQueue, int], KeptBatch] = OrderedDict()
        # Queue → first offsets of its batches, sorted.
        self._firsts: dict[MessageQueue, list[int]] = {}

    def put(self, queue: MessageQueue, first: int, pulled: Pulled, now: float) -> KeptBatch:
        """Keep the result of a pull from `first`; drop the oldest batches beyond the limits."""
        kept = KeptBatch(
            first, pulled.next_offset, pulled.batch, pulled.offsets, pulled.size_bytes, now
        )
        if kept.next_offset <= first:
            return kept
        self._drop((queue, first))
        self._all[queue, first] = kept
        insort(self._firsts.setdefault(queue, []), first)
        self._bytes += kept.size_bytes
        while self._bytes > self._bytes_max or len(self._all) > self._batches_max:
            self._drop(next(iter(self._all)))
        return kept

    def find(self, queue: MessageQueue, offset: int) -> KeptBatch | None:
        firsts = self._firsts.get(queue)
        at = bisect_right(firsts, offset) if firsts else 0
        if firsts is None or at == 0:
            return None
        kept = self._all[queue, firsts[at - 1]]
        return kept if offset < kept.next_offset else None

    def drop_older(self, kept_before: float) -> None:
        """Drop batches that were kept before a loop time."""
        while self._all:
            oldest = next(iter(self._all))
            if self._all[oldest].kept_at >= kept_before:
                return
            self._drop(oldest)

    def drop_queue(self, queue: MessageQueue) -> None:
        for first in list(self._firsts.get(queue, ())):
            self._drop((queue, first))

    def _drop(self, key: tuple[MessageQueue, int]) -> None:
        kept = self._all.pop(key, None)
        if kept is None:
            return
        queue, first = key
        self._bytes -= kept.size_bytes
        firsts = self._firsts[queue]
        del firsts[bisect_right(firsts, first) - 1]
        if not firsts:
            del self._firsts[queue]
