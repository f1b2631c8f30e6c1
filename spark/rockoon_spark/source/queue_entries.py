"""The records of named topics in a store directory, by the entries of its ConsumeQueues.

The entries are complete up to the store's recovery point. If it is missing or may be out of date,
if files are missing, or if the topics are much of the log, the log is read instead.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rockoon_format.checkpoint import checkpoint_crc, decode_checkpoint
from rockoon_format.consume_queue import ENTRY, ENTRY_BYTES, FILLER_SIZE, EntryArray
from rockoon_format.frames import IntArray
from rockoon_format.recovery_point import RECOVERY_POINT_FILE, RecoveryPoint, decode_newest_point
from rockoon_spark.files import LogFile, list_queues, read_small, reading
from rockoon_spark.object_stores import child
from rockoon_spark.records.columns import LogRecords, are_whole
from rockoon_spark.records.selection import Selection

# A read of at least this part of a log's messages reads the log: one record in so many.
LOG_FRACTION = 4
# Distance of the entries among which the end of a queue's file is searched.
_PROBE_ENTRIES = 64
# Position and length of an entry's size, which is 0 if the entry is not written.
_AT_SIZE, _SIZE_BYTES = 8, 4

QueueFiles = Mapping[tuple[str, int], Sequence[LogFile]]
"""Files of each queue (topic, queue id), in order; `start` is the position in the queue."""


@dataclass(frozen=True, slots=True, eq=False)
class ListedRecords:
    """Records in the order of the log, as ConsumeQueues list them."""

    topics: frozenset[str]
    starts: IntArray
    """Physical offset of each record, ascending, int64[n]."""
    sizes: IntArray
    queue_ids: IntArray
    queue_offsets: IntArray

    def __len__(self) -> int:
        return len(self.starts)

    def within(self, first: int, stop: int) -> "ListedRecords":
        """Return the records with the given indices."""
        columns = (self.starts, self.sizes, self.queue_ids, self.queue_offsets)
        return ListedRecords(self.topics, *(column[first:stop] for column in columns))

    def matches(self, records: LogRecords) -> NDArray[np.bool_]:
        """Return which records, as found at these offsets, are the listed ones, bool[n]."""
        good = are_whole(records, self.starts)
        good &= records.prefix("queue_id") == self.queue_ids
        good &= records.prefix("queue_offset") == self.queue_offsets
        of_topics = Selection().among("topic", self.topics)
        good[good] = of_topics.mask(records.chosen(good))
        return good


def listed_records(
    path: str, broker: str, selection: Selection, log_start: int, point: RecoveryPoint | None
) -> tuple[ListedRecords, int] | None:
    """Return the records of the named topics, and the physical offset up to which they are all.

    Args:
        path: the store directory, a local path or a URI.
        broker: name of the store's broker.
        selection: of the read; its topics and offsets narrow the result.
        log_start: physical offset below which no record is wanted.
        point: see `recovery_point`; it must be read before this call.

    Returns:
        None if the log must be read instead.

    Raises:
        FileNotFoundError: a file was deleted during this call.
        StoreReadError: the directory cannot be read.
    """
    topics = selection.one_of.get("topic")
    if not topics or point is None:
        return None
    queues = list_queues(path)
    own = {key: files for key, files in queues.items() if key[0] in topics}
    is_complete = len(queues) >= point.queue_count and {topic for topic, _ in own} == topics
    if not is_complete or not all(map(_is_contiguous, own.values())):
        return None
    found: list[_Entries] = []
    left = max(point.entry_count - point.first_count, 0) // LOG_FRACTION
    for (topic, queue_id), files in own.items():
        bounds = selection.offsets_of(topic, broker, queue_id)
        for file in files:
            found.append(_entries(file, queue_id, *bounds))
            left -= len(found[-1].entries)
            if left < 0:
                return None
    entries = np.concatenate([each.entries for each in found])
    starts, sizes = (entries[name].astype(np.int64) for name in ("offset", "size"))
    lengths = [len(each.entries) for each in found]
    firsts = np.cumsum([0, *lengths[:-1]])
    # An entry out of order is not the one of its message.
    is_disordered = starts[1:] < starts[:-1]
    is_disordered[firsts[(firsts > 0) & (firsts < len(starts))] - 1] = False
    if is_disordered.any() or (sizes <= 0).any() or (starts < 0).any():
        return None
    queue_ids = np.repeat([each.queue_id for each in found], lengths)
    queue_offsets = np.arange(len(starts)) + np.repeat(
        [each.first - first for each, first in zip(found, firsts.tolist(), strict=True)], lengths
    )
    kept = (starts >= log_start) & (starts < point.log_end) & (sizes != FILLER_SIZE)
    order = np.flatnonzero(kept)
    order = order[np.argsort(starts[order], kind="stable")]
    columns = (starts, sizes, queue_ids, queue_offsets)
    return ListedRecords(topics, *(column[order] for column in columns)), point.log_end


def recovery_point(path: str) -> RecoveryPoint | None:
    """Return the recovery point of a store if no other broker wrote to the store after it; the
    same rule as at a broker's start.
    """
    point = decode_newest_point(read_small(child(path, RECOVERY_POINT_FILE)) or b"")
    checkpoint = read_small(child(path, "checkpoint"))
    if point is None or checkpoint is None or point.first_count < 0:
        return None
    abort = read_small(child(path, "abort"))
    own_abort = f"lineage {point.lineage.hex()}".encode()
    is_own = point.clean if abort is None else own_abort in abort.splitlines()
    try:
        crc = checkpoint_crc(decode_checkpoint(checkpoint))
    except ValueError:
        return None
    return point if is_own and crc in point.checkpoint_crcs else None


def _is_contiguous(files: Sequence[LogFile]) -> bool:
    return all(file.start + file.bytes == after.start for file, after in pairwise(files))


@dataclass(frozen=True, slots=True, eq=False)
class _Entries:
    """Consecutive entries of a queue."""

    queue_id: int
    first: int
    """Queue offset of the first entry."""
    entries: EntryArray


def _entries(file: LogFile, queue_id: int, least: int, end: int) -> _Entries:
    """Return the written entries of a queue's file between two queue offsets."""
    base, count = file.start // ENTRY_BYTES, file.bytes // ENTRY_BYTES
    first, stop = max(least - base, 0), min(end - base, count)
    if first >= stop:
        return _Entries(queue_id, base, np.zeros(0, ENTRY))
    with reading(file) as read:

        def is_unwritten(at: int) -> bool:
            return not any(read(_SIZE_BYTES, at * ENTRY_BYTES + _AT_SIZE))

        if is_unwritten(stop - 1):
            probes = range(first, stop, _PROBE_ENTRIES)
            # The first probe without a message is after the last one.
            stop = min(stop, first + bisect_left(probes, True, key=is_unwritten) * _PROBE_ENTRIES)
        content = read((stop - first) * ENTRY_BYTES, first * ENTRY_BYTES)
    found = np.frombuffer(content, ENTRY)
    return _Entries(queue_id, base + first, found[: _written(found["size"])])


def _written(sizes: NDArray[np.int32]) -> int:
    """Return the number of entries before the unwritten ones, which have size 0."""
    return bisect_left(range(len(sizes)), True, key=lambda at: not sizes[at])
