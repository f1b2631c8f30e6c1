"""Verified tag codes: a filter skips ConsumeQueue entries only by codes that match their records.

The offset and size of an entry are checked against its record whenever the record is read. By its
tag code, however, a filter skips a record unread, so that a flipped bit would hide a message.

Ranges of entries are *proved*: they were written from memory, or their codes were compared with the
tags in the log. Each range has a CRC-32 in memory, which is checked on each filtered read.
RocketMQ's file format has no field for it. After a start, a range is proved when a filter
first reads it, which costs one read of its records.

Invariant: a range is within one block of BLOCK_ENTRIES, and its CRC is computed from proved
bytes only.
"""

import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.store.log.commit_log import CommitLog
from rockoon_broker.store.log.file_reads import gather
from rockoon_broker.store.queues.consume_queue import matching_count
from rockoon_format.batch import scan
from rockoon_format.consume_queue import ENTRY_BYTES, FILLER_SIZE, EntryArray

BLOCK_ENTRIES = 256
# Some hundred bytes each; an evicted range is proved again.
STRETCHES_MAX = 65_536
# Records read per call for proofs, except the last range: the event loop waits for it.
PROOF_BYTES_MAX = 4 << 20

QueueKey = tuple[str, int]
Read = Callable[[int, int], bytes]
"""Returns the bytes of up to `count` entries from a queue offset on."""


class QueueCodes:
    """Ranges of ConsumeQueue entries with proved tag codes, of all queues. Owned by the queues'
    thread."""

    def __init__(self) -> None:
        # (queue, block number) to (begin, end, CRC); least recently used first.
        self._proved: OrderedDict[tuple[QueueKey, int], tuple[int, int, int]] = OrderedDict()

    def written(self, key: QueueKey, offset: int, data: bytes | memoryview) -> None:
        """Record that entries were appended to a queue from memory.

        Args:
            offset: queue offset of the first.
            data: their bytes.
        """
        count = len(data) // ENTRY_BYTES
        block = offset // BLOCK_ENTRIES
        if offset + count <= (block + 1) * BLOCK_ENTRIES:
            self._written(key, block, offset, offset + count, data)
            return
        for block, begin, end in _blocks(offset, offset + count):
            part = data[(begin - offset) * ENTRY_BYTES : (end - offset) * ENTRY_BYTES]
            self._written(key, block, begin, end, part)

    def _written(
        self, key: QueueKey, block: int, begin: int, end: int, part: bytes | memoryview
    ) -> None:
        known = self._proved.get((key, block))
        first, crc = (known[0], known[2]) if known and known[1] == begin else (begin, 0)
        self._set_proved(key, block, first, end, zlib.crc32(part, crc))

    def discard(self, key: QueueKey, offset: int, count: int) -> None:
        """Mark the ranges with these entries as not proved, because the entries are rewritten."""
        for block, _, _ in _blocks(offset, offset + count):
            self._proved.pop((key, block), None)

    def right_count(
        self,
        key: QueueKey,
        offset: int,
        entries: EntryArray,
        read: Read,
        prove: Callable[[int, EntryArray], int],
    ) -> int:
        """Return how many leading entries have correct codes, as far as the budget allows to check.

        Args:
            key, offset: the queue and the offset of the first entry.
            entries: the entries as read.
            read: reads other entries of the queue.
            prove: compares entries with the log; returns how many leading ones are correct.

        Returns:
            0 only if the first entry is wrong.

        Raises:
            OSError: the disk.
        """
        budget = PROOF_BYTES_MAX
        for block, begin, end in _blocks(offset, offset + len(entries)):
            part = entries[begin - offset : end - offset]
            known = self._known_end(key, block, begin, read)
            unknown = part[max(known - begin, 0) :]
            if len(unknown) == 0:
                continue
            if budget <= 0:
                return begin - offset
            sizes = unknown["size"].astype(np.int64)
            reach = np.cumsum(np.where(sizes == FILLER_SIZE, 0, sizes))
            at = end - len(unknown)
            unknown = unknown[: max(1, int(np.searchsorted(reach, budget, side="right")))]
            budget -= int(reach[len(unknown) - 1])
            right = prove(at, unknown)
            if right:
                first, _, crc = self._proved.get((key, block), (begin, begin, 0))
                crc = zlib.crc32(unknown[:right].tobytes(), crc)
                self._set_proved(key, block, first, at + right, crc)
            if at + right < end:
                return at + right - offset
        return len(entries)

    def _known_end(self, key: QueueKey, block: int, begin: int, read: Read) -> int:
        """Return up to which offset a block's entries from `begin` on are correct by their CRC."""
        first, end, crc = self._proved.get((key, block), (begin, begin, 0))
        if first <= begin <= end:
            stored = read(first, end - first)
            if len(stored) == (end - first) * ENTRY_BYTES and zlib.crc32(stored) == crc:
                return end
        self._proved.pop((key, block), None)
        return begin

    def _set_proved(self, key: QueueKey, block: int, begin: int, end: int, crc: int) -> None:
        self._proved[key, block] = (begin, end, crc)
        self._proved.move_to_end((key, block))
        if len(self._proved) > STRETCHES_MAX:
            self._proved.popitem(last=False)


def proved_count(
    log: CommitLog,
    key: QueueKey,
    offset: int,
    entries: EntryArray,
    delay_levels_ms: Sequence[int],
) -> int:
    """Return how many leading entries match their records, code included; reads the records.

    Args:
        key, offset: the queue and the offset of the first entry.
        entries: plausible entries.
        delay_levels_ms: see `scan`.

    Raises:
        OSError: the disk.
    """
    positions, sizes = entries["offset"].astype(np.int64), entries["size"].astype(np.int64)
    listed = np.flatnonzero((sizes != FILLER_SIZE) & (positions >= log.min_offset))
    if len(listed) == 0:
        return len(entries)
    lengths = sizes[listed]
    frames = gather(positions[listed], lengths, log.read, log.same_file)
    right = matching_count(frames, lengths, *key, offset + listed)
    found = scan(frames, 0, int(lengths[:right].sum()), check_crc=False,
                 records_max=max(right, 1), delay_levels_ms=delay_levels_ms)  # fmt: skip
    codes: NDArray[np.int64] = entries["tags_code"].astype(np.int64)[listed[: found.count]]
    wrong = np.flatnonzero(found.tag_codes != codes)
    right = int(wrong[0]) if len(wrong) else found.count
    return int(listed[right]) if right < len(listed) else len(entries)


def _blocks(begin: int, end: int) -> list[tuple[int, int, int]]:
    """Split [begin, end) at block boundaries; returns (block number, begin, end) of each part."""
    return [
        (block, max(begin, block * BLOCK_ENTRIES), min(end, (block + 1) * BLOCK_ENTRIES))
        for block in range(begin // BLOCK_ENTRIES, -(-end // BLOCK_ENTRIES))
    ]
