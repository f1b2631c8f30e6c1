"""Proved tags codes: a filter skips ConsumeQueue entries only by codes that are as written.

An entry's place and size are held against the record that it leads to. Its code says that a record
need not be read, so a flipped bit in it would hide a message, and nobody would ever know.

Stretches of entries are *proved*: they came from memory, or their codes were compared with the tags
in the log. Of each, a CRC-32 is kept, which is compared each time a filter reads of it. Nothing of
this is on disk: RocketMQ's files have no place for it, and what is not proved yet, after a start,
is proved when a filter first reads it. That costs reading the records, once.

Invariant: a stretch lies within one block of BLOCK_ENTRIES, and its CRC is that of the bytes which
were proved, never of bytes that were only read.
"""

import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.store.log.commit_log import CommitLog
from rockoon_broker.store.log.gathering import gather
from rockoon_broker.store.queues.check import matching_count
from rockoon_format.batch import scan
from rockoon_format.consume_queue import ENTRY_BYTES, FILLER_SIZE, EntryArray

BLOCK_ENTRIES = 256
# Some hundred bytes each; what is forgotten is proved again.
STRETCHES_MAX = 65_536
# Records that one call reads for proofs, but for the last piece: the loop waits for it.
PROOF_BYTES_MAX = 4 << 20

QueueKey = tuple[str, int]
Read = Callable[[int, int], bytes]
"""Gives the bytes of up to so many entries from a queue offset on."""


class QueueCodes:
    """What is known of entries' codes, in all queues. Owned by the thread that owns these."""

    def __init__(self) -> None:
        # By queue and number of the block: offsets [begin, end) and CRC; least recently used first.
        self._proved: OrderedDict[tuple[QueueKey, int], tuple[int, int, int]] = OrderedDict()

    def written(self, key: QueueKey, offset: int, data: bytes | memoryview) -> None:
        """Entries came from memory, behind all others of the queue.

        Args:
            offset: of the first.
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
        self._note(key, block, first, end, zlib.crc32(part, crc))

    def forget(self, key: QueueKey, offset: int, count: int) -> None:
        """Entries are written again: what was known of them is of no use."""
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
        """How many leading entries have the codes of their records, as far as was looked.

        Args:
            key, offset: the queue, and of the first entry.
            entries: as read.
            read: reads other entries of the queue.
            prove: compares some with the log, and says how many leading ones are right.

        Returns:
            0 only if the first one is wrong.

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
                self._note(key, block, first, at + right, crc)
            if at + right < end:
                return at + right - offset
        return len(entries)

    def _known_end(self, key: QueueKey, block: int, begin: int, read: Read) -> int:
        """Up to where the entries of a block are right, from `begin` on, by their CRC."""
        first, end, crc = self._proved.get((key, block), (begin, begin, 0))
        if first <= begin <= end:
            stored = read(first, end - first)
            if len(stored) == (end - first) * ENTRY_BYTES and zlib.crc32(stored) == crc:
                return end
        self._proved.pop((key, block), None)
        return begin

    def _note(self, key: QueueKey, block: int, begin: int, end: int, crc: int) -> None:
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
    """How many leading entries are those of their records, code included; reads these.

    Args:
        log: open.
        key, offset: the queue, and of the first entry.
        entries: plausible ones.
        delay_levels_ms: as of `scan`.

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
    """Cut [begin, end) at the ends of blocks: the number of each with what lies in it."""
    return [
        (block, max(begin, block * BLOCK_ENTRIES), min(end, (block + 1) * BLOCK_ENTRIES))
        for block in range(begin // BLOCK_ENTRIES, -(-end // BLOCK_ENTRIES))
    ]
