"""The chain of a partition's records, walked from many places at once.

Each walk begins at a proven start and follows the sizes; all take a step together, as one NumPy
operation. What they found is proved at the end: record after record without a gap, each with parts
that add up and in the place that it names. Where that fails, `partition_scan` looks closer.
The compiled kernel does all that in one walk.
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
# So many records have their parts looked at together: what stays in a processor's cache.
_BLOCK_RECORDS = 4096
# So much is copied for the compiled kernel, and is still in the processor's cache when it is read.
_WINDOW_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Chain:
    """Records that follow one another."""

    starts: IntArray
    sizes: IntArray
    end: int
    """Position behind the last one."""
    at_log_end: bool
    """Nothing was ever written behind `end`, or the file is closed there."""


def walk(buffer: Bytes, base: int, first: int, stop: int) -> Chain | None:
    """The records that start in [first, stop); None if anything about them is unusual.

    Args:
        buffer: bytes of a CommitLog file.
        base: physical offset of the first of them.
        first: where a record starts, or the log ends.
        stop: position.
    """
    last = len(buffer) - RECORD_BYTES_MIN
    if first > last:
        return None
    if kernel.native is not None:
        return _walk_compiled(buffer, base, first, stop)
    # A step costs much the same for any number of walks, a walk costs what proves its start: this
    # many make the sum least.
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
    """What `walk` returns, by the compiled kernel: a copy of a window, then record by record."""
    found = [np.zeros(0, np.int64)]
    at, window_bytes = first, _WINDOW_BYTES
    last = len(buffer) - RECORD_BYTES_MIN
    while at < stop and at <= last:
        window = buffer[at : at + window_bytes].tobytes()
        sizes, more = sizes_in_place(window, base + at, len(buffer) - at, stop - at)
        if not len(sizes) and not more:
            break
        # A record that is longer than the window is looked at again in a larger one.
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
    """Everywhere that the sizes lead to, from each position up to its end, ascending."""
    heads = sliding(buffer, ">i8")
    ends = np.minimum(ends, len(heads))
    visited = []
    while len(positions):
        visited.append(positions)
        sizes = heads[positions] >> 32
        # What says that it is shorter than any record leads nowhere: the walk stops there.
        following = np.where(sizes < RECORD_BYTES_MIN, ends, positions + sizes)
        going = following < ends
        if going.all():
            positions = following
        else:
            positions, ends = following[going], ends[going]
    # Each step's are in order already: merging them costs an eighth of sorting.
    return np.sort(np.concatenate(visited), kind="stable")


def _proved_sizes(buffer: Bytes, base: int, starts: IntArray) -> IntArray | None:
    """Each record's size; None if one is not whole, or elsewhere than it says."""
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
