"""The chain of a partition's records, found by walks from many positions at the same time.

Each walk begins at a proven record start and follows the sizes. All walks advance together, in one
NumPy operation per step. At the end the result is verified: the records have no gap, the lengths of
their parts add up to their size, and each is at the physical offset that it names. If this fails,
`partition_scan` scans record by record. The compiled kernel does all this in one walk.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rockoon_format import kernel
from rockoon_format.frames import IntArray, locate, sliding
from rockoon_format.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from rockoon_format.scan import sizes_in_place
from rockoon_spark.records.starts import first_records
from rockoon_spark.records.touch_pages import touch_pages

Bytes = NDArray[np.uint8]

_MAGIC_MASK = 0xFFFFFFFF
_WALKS_MAX = 4096
# Number of records verified in one step; they fit into the processor's cache.
_BLOCK_RECORDS = 4096
# Bytes copied for one call of the compiled kernel; they fit into the processor's cache.
_WINDOW_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Chain:
    """Contiguous records of a partition, with their positions."""

    starts: IntArray
    sizes: IntArray
    end: int
    """Position after the last record."""
    at_log_end: bool
    """True if nothing was written after `end`, or the file is closed there."""


def walk(buffer: Bytes, base: int, first: int, stop: int) -> Chain | None:
    """Return the records that start in [first, stop); None if one of them is unusual.

    Args:
        buffer: bytes of a CommitLog file.
        base: physical offset of the buffer's first byte.
        first: position of a record's start, or of the log's end.
        stop: position.
    """
    last = len(buffer) - RECORD_BYTES_MIN
    if first > last:
        return None
    if kernel.is_compiled():
        return _walk_compiled(buffer, base, first, stop)
    # A step costs almost the same for any number of walks, and each walk needs a proven start:
    # this number minimizes the sum.
    walks = min(math.isqrt((stop - first) // 32) + 1, _WALKS_MAX)
    bounds = np.linspace(first, stop, walks + 1)[1:-1].astype(np.int64)
    later = first_records(buffer, base, bounds[bounds > first], stop)
    walk_starts = np.append(first, later[later > first])
    starts = _follow(buffer, walk_starts, np.append(walk_starts[1:], stop))
    if int(starts[-1]) > last:
        return None
    head = int(sliding(buffer, ">i8")[starts[-1]])
    at_log_end = head == 0 or head & _MAGIC_MASK == MAGIC_BLANK & _MAGIC_MASK
    if at_log_end:
        end, starts = int(starts[-1]), starts[:-1]
    else:
        end = int(starts[-1]) + (head >> 32)
        if not stop <= end <= len(buffer):
            return None
    sizes = _proved_sizes(buffer, base, starts)
    if sizes is None or (np.append(starts, end) != np.append(first, starts + sizes)).any():
        return None
    return Chain(starts, sizes, end, at_log_end)


def _walk_compiled(buffer: Bytes, base: int, first: int, stop: int) -> Chain | None:
    """Find the records as `walk` does, with the compiled kernel, window by window."""
    found = [np.zeros(0, np.int64)]
    at, window_bytes = first, _WINDOW_BYTES
    last = len(buffer) - RECORD_BYTES_MIN
    while at < stop and at <= last:
        window = buffer[at : at + window_bytes].tobytes()
        sizes, more = sizes_in_place(window, base + at, len(buffer) - at, stop - at)
        if not len(sizes) and not more:
            break
        # If a record is longer than the window, the next window is larger.
        window_bytes = _WINDOW_BYTES if len(sizes) else window_bytes * 2
        found.append(sizes)
        at += int(sizes.sum())
    head = int(sliding(buffer, ">i8")[at]) if at <= last else -1
    at_log_end = at < stop and (head == 0 or head & _MAGIC_MASK == MAGIC_BLANK & _MAGIC_MASK)
    if at < stop and not at_log_end:
        return None
    sizes = np.concatenate(found)
    return Chain(np.cumsum(sizes) - sizes + first, sizes, at, at_log_end)


def _follow(buffer: Bytes, positions: IntArray, ends: IntArray) -> IntArray:
    """Follow the sizes of records from each position up to its end; return all visited positions,
    sorted.
    """
    heads = sliding(buffer, ">i8")
    ends = np.minimum(ends, len(heads))
    visited = []
    while len(positions):
        visited.append(positions)
        sizes = heads[positions] >> 32
        # A size below the minimum is no record: this walk stops here.
        following = np.where(sizes < RECORD_BYTES_MIN, ends, positions + sizes)
        going = following < ends
        if going.all():
            positions = following
        else:
            positions, ends = following[going], ends[going]
    # The positions of each step are sorted, so a stable sort merges them: eight times as fast.
    return np.sort(np.concatenate(visited), kind="stable")


def _proved_sizes(buffer: Bytes, base: int, starts: IntArray) -> IntArray | None:
    """Return the size of the record at each position; None if a record is incomplete or names
    another offset.
    """
    sizes = np.empty(len(starts), np.int64)
    for at in range(0, len(starts), _BLOCK_RECORDS):
        chosen = starts[at : at + _BLOCK_RECORDS]
        touch_pages(buffer[chosen[0] : chosen[-1]], len(chosen))
        parts = locate(buffer, chosen)
        magics, stated = parts.prefix["magic"], parts.prefix["size"]
        whole = (parts.computed_sizes == stated) & (parts.topic_lengths >= 0)
        whole &= parts.prefix["physical_offset"] == chosen + base
        whole &= (magics == MAGIC_V1) | (magics == MAGIC_V2)
        if not whole.all():
            return None
        sizes[at : at + len(chosen)] = stated
    return sizes
