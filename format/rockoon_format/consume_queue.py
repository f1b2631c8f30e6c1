"""ConsumeQueue entries: 20 bytes each, entry N at byte 20 N of the queue's files.

    0                  8          12                 20
    +------------------+----------+------------------+
    | physical offset  | size     | tags code        |
    | i64              | i32      | i64              |
    +------------------+----------+------------------+

Unwritten entries are zeros. If the first file of a queue does not start with its first message, it
starts with fillers (offset 0, size 0x7FFFFFFF, code 0). An entry is valid if its offset is not
negative and its size is positive, so fillers are valid. Source: ConsumeQueue.

A run has the entries of consecutive messages of a queue; `queue_runs` cuts the runs of all queues
out of a scan.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rockoon_format import kernel
from rockoon_format.frames import IntArray
from rockoon_format.names import SCHEDULE_TOPIC, TIMER_TOPIC
from rockoon_format.record import SYS_FLAGS_UNLISTED
from rockoon_format.scan import Scan

ENTRY = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
ENTRY_BYTES = 20
assert ENTRY.itemsize == ENTRY_BYTES

FILLER_SIZE = 0x7FFFFFFF
EXT_ADDRESS_MAX = -(2**31) - 1
"""Codes up to this value are not hashes: with enableConsumeQueueExt, RocketMQ stores the position
of a unit in `consumequeue_ext` there. The hash can be computed from the record."""

EntryArray = NDArray[np.void]
"""Structured arrays of `ENTRY`."""


def encode_entries(offsets: ArrayLike, sizes: ArrayLike, tags_codes: ArrayLike) -> EntryArray:
    """Return a structured array of entries; `.tobytes()` is the file's content.

    Args:
        offsets: physical offsets of the records in the CommitLog, int64[n].
        sizes: record sizes in bytes, int[n].
        tags_codes: tags codes, int64[n].
    """
    offsets = np.asarray(offsets, np.int64)
    entries = np.empty(len(offsets), ENTRY)
    entries["offset"] = offsets
    entries["size"] = sizes
    entries["tags_code"] = tags_codes
    return entries


def decode_entries(buffer: bytes | bytearray | memoryview) -> EntryArray:
    """View a buffer's entries without copying; an incomplete last entry is ignored."""
    return np.frombuffer(buffer, ENTRY, count=len(memoryview(buffer)) // ENTRY_BYTES)


def filler_entries(count: int) -> bytes:
    """Return the bytes of `count` fillers."""
    filler = np.zeros((), ENTRY)
    filler["size"] = FILLER_SIZE
    return filler.tobytes() * count


# Entries of delayed messages hold due times, which the kernel does not compute.
_DELAYED = [SCHEDULE_TOPIC.encode(), TIMER_TOPIC.encode()]


@dataclass(frozen=True, slots=True)
class QueueRuns:
    """Entries of n runs, by topic and queue, in the order of the log within each queue.

    The queue offsets of a run are consecutive and in one queue file.
    """

    topic_numbers: IntArray
    queue_ids: IntArray
    files: IntArray
    """Number of each run's file within its queue."""
    first_offsets: IntArray
    """Queue offset of each run's first entry."""
    bounds: NDArray[np.int32]
    """Start of each run in `entries`, and the end of the last run, n + 1 items."""
    entries: bytes


def queue_runs(
    records: Scan, physical: IntArray, listed: NDArray[np.bool_], file_entries: int
) -> QueueRuns:
    """Cut the entries of a scan's records.

    Args:
        records: n records, with tag codes.
        physical: offset of each record in the log.
        listed: records that a queue lists, bool[n].
        file_entries: number of entries of a queue file.
    """
    columns = (
        records.topic_numbers,
        records.queue_ids,
        records.queue_offsets,
        physical,
        records.sizes,
        records.tag_codes,
    )
    packed = [column.tobytes() for column in columns]
    made = kernel.native.queue_runs(*packed, listed.tobytes(), file_entries)
    if made is not None:
        return _unpacked(*made)
    return _by_numpy(columns, listed, file_entries)


class LogCutter:
    """Cuts the entries of one chunk of a log after another.

    Args:
        marks: by topic, the physical offset below which its records have no entries.
        file_entries: number of entries of a queue file.
    """

    def __init__(self, marks: Mapping[str, int], file_entries: int) -> None:
        named = [(topic.encode(), mark) for topic, mark in marks.items()]
        self._cutter = kernel.native.QueueCutter(named, _DELAYED, SYS_FLAGS_UNLISTED, file_entries)

    def add(self, frames: bytes, stop: int, start: int) -> bool:
        """Add the records at the start of `frames`. Returns False and adds none if they
        must be passed to `queue_runs`, for example because messages are delayed.

        Args:
            frames: bytes.
            stop: end of the last record in `frames`.
            start: physical offset of the first byte.
        """
        return bool(self._cutter.add(frames, stop, start))

    def taken(self) -> tuple[list[bytes], QueueRuns]:
        """Remove and return all runs, with their topics, as from `queue_runs`."""
        made = self._cutter.taken()
        assert made is not None, "entries of less than 2 GiB"
        topics, packed = made
        return topics, _unpacked(*packed)


def _unpacked(heads: bytearray, bounds: bytes, entries: bytes) -> QueueRuns:
    """Return the runs in the kernel's result."""
    topics, queues, files, firsts = np.frombuffer(heads, np.int64).reshape(4, -1)
    return QueueRuns(topics, queues, files, firsts, np.frombuffer(bounds, np.int32), entries)


def _by_numpy(
    columns: tuple[IntArray, ...], listed: NDArray[np.bool_], file_entries: int
) -> QueueRuns:
    chosen = np.flatnonzero(listed)
    # A stable sort keeps the order of the log within each queue.
    order = chosen[np.lexsort((columns[1][chosen], columns[0][chosen]))]
    numbers, queues, offsets, *rest = (column[order] for column in columns)
    content = encode_entries(*rest).tobytes()
    files = offsets // file_entries
    breaks = np.diff(offsets) != 1
    for values in (numbers, queues, files):
        breaks |= np.diff(values) != 0
    firsts = np.append(np.zeros(min(len(order), 1), np.int64), np.flatnonzero(breaks) + 1)
    bounds = np.append(firsts, len(order)).astype(np.int32) * ENTRY_BYTES
    return QueueRuns(
        numbers[firsts], queues[firsts], files[firsts], offsets[firsts], bounds, content
    )
