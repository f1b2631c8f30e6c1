"""The records of named topics in a store directory, by the entries of its ConsumeQueues.

The entries are complete up to the store's recovery point. If it is missing or may be out of date,
if files are missing, or if the topics are much of the log, the log is read instead.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rockoon_format.checkpoint import checkpoint_crc, decode_checkpoint
from rockoon_format.consume_queue import ENTRY, ENTRY_BYTES, FILLER_SIZE, EntryArray
from rockoon_format.frames import IntArray
from rockoon_format.recovery_point import RECOVERY_POINT_FILE, RecoveryPoint, decode_newest_point
from rockoon_spark.files import LogFile, is_remote, list_queues, read_bytes, read_small
from rockoon_spark.object_stores import child
from rockoon_spark.records.columns import LogRecords, are_whole
from rockoon_spark.records.selection import Selection

# A read of at least this part of a log's messages reads the log: one record in so many.
LOG_FRACTION = 4
# Size of the reads in which the end of a queue's file is searched, if the file cannot be mapped.
_PROBE_ENTRIES = 64

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
    path: str, broker: str, selection: Selection, log_start: int
) -> tuple[ListedRecords, int] | None:
    """Return the records of the named topics, and the physical offset up to which they are all.

    Args:
        path: the store directory, a local path or a URI.
        broker: name of the store's broker.
        selection: of the read; its topics and offsets narrow the result.
        log_start: physical offset below which no record is wanted.

    Returns:
        None if the log must be read instead.

    Raises:
        FileNotFoundError: a file was deleted during this call.
        StoreReadError: the directory cannot be read.
    """
    topics = selection.one_of.get("topic")
    point = _recovery_point(path) if topics else None
    if topics is None or point is None:
        return None
    queues = list_queues(path)
    own = {key: files for key, files in queues.items() if key[0] in topics}
    is_complete = len(queues) >= point.queue_count and {topic for topic, _ in own} == topics
    if not is_complete or not all(map(_is_contiguous, own.values())):
        return None
    columns = defaultdict[str, list[IntArray]](list)
    left = max(point.entry_count - point.first_count, 0) // LOG_FRACTION
    for (topic, queue_id), files in own.items():
        least, end = selection.offsets_of(topic, broker, queue_id)
        for file in files:
            found = _entries(file, least, end)
            left -= len(found.entries)
            if left < 0:
                return None
            entries = found.entries
            if (entries["size"] <= 0).any() or (entries["offset"] < 0).any():
                return None
            starts = entries["offset"].astype(np.int64)
            # An entry out of order is not the one of its message.
            if (starts[1:] < starts[:-1]).any():
                return None
            kept = (starts >= log_start) & (starts < point.log_end)
            kept &= entries["size"] != FILLER_SIZE
            count = int(kept.sum())
            columns["starts"].append(starts[kept])
            columns["sizes"].append(entries["size"][kept].astype(np.int64))
            columns["queue_ids"].append(np.full(count, queue_id, np.int64))
            columns["queue_offsets"].append(found.first + np.flatnonzero(kept))
    whole = {name: np.concatenate(parts) for name, parts in columns.items()}
    order = np.argsort(whole["starts"], kind="stable")
    sorted_columns = {name: column[order] for name, column in whole.items()}
    return ListedRecords(topics, **sorted_columns), point.log_end


def _recovery_point(path: str) -> RecoveryPoint | None:
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

    first: int
    """Queue offset of the first entry."""
    entries: EntryArray


def _entries(file: LogFile, least: int, end: int) -> _Entries:
    """Return the written entries of a queue's file between two queue offsets."""
    base, count = file.start // ENTRY_BYTES, file.bytes // ENTRY_BYTES
    first, stop = max(least - base, 0), min(end - base, count)
    if first >= stop:
        return _Entries(base, np.zeros(0, ENTRY))
    if not is_remote(file):
        # The file is mapped, so that a search costs no reads.
        mapped = read_bytes(file.uri, 0, count * ENTRY_BYTES).view(ENTRY)
        stop = min(stop, _written(mapped["size"]))
        return _Entries(base + first, mapped[first : max(stop, first)])
    if not _read_entries(file, stop - 1, stop)["size"].all():
        probes = range(first, stop, _PROBE_ENTRIES)
        # The first probe without a message is after the last one.
        at = bisect_left(
            probes, True, key=lambda at: not _read_entries(file, at, at + 1)["size"][0]
        )
        stop = min(stop, first + at * _PROBE_ENTRIES)
    found = _read_entries(file, first, stop)
    return _Entries(base + first, found[: _written(found["size"])])


def _read_entries(file: LogFile, first: int, stop: int) -> EntryArray:
    return read_bytes(file.uri, first * ENTRY_BYTES, stop * ENTRY_BYTES).view(ENTRY)


def _written(sizes: NDArray[np.int32]) -> int:
    """Return the number of entries before the unwritten ones, which have size 0."""
    return bisect_left(range(len(sizes)), True, key=lambda at: not sizes[at])
