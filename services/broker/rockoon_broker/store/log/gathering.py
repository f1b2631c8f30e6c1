"""Reads of many records of one file or log with few calls."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.store.log.file_reads import ColdRead, FileRange
from rockoon_core.disk import Disk

# A gap of at most this many unwanted bytes is cheaper to read than a second call.
_GAP_BYTES_MAX = 4096


def gather(
    positions: NDArray[np.int64],
    sizes: NDArray[np.int64],
    read: Callable[[int, int], bytes],
    same_file: Callable[[int, int], bool] = lambda _, __: True,
) -> bytes:
    """Return the records' bytes in order.

    Args:
        positions: start of each of n >= 1 records, ascending, int64[n].
        sizes: size of each record, bytes, int64[n].
        read, same_file: see `gather_runs`.

    Raises:
        OSError: the disk.
    """
    ends = positions + sizes
    # Indices at which a new run of adjacent records begins.
    apart = np.flatnonzero(ends[:-1] != positions[1:]) + 1
    starts = positions[np.concatenate(([0], apart))].tolist()
    run_ends = ends[np.concatenate((apart - 1, [-1]))].tolist()
    return gather_runs(list(zip(starts, run_ends, strict=True)), read, same_file)


def gather_runs(
    runs: Sequence[tuple[int, int]],
    read: Callable[[int, int], bytes],
    same_file: Callable[[int, int], bool] = lambda _, __: True,
) -> bytes:
    """Return the bytes of runs in order, with one read per group of close runs.

    Args:
        runs: one or more (start, end) positions, ascending.
        read: returns `count` bytes from a position.
        same_file: returns whether one read can cover both positions.

    Raises:
        OSError: the disk.
        ColdRead: raised by `read`; combined with all missing ranges.
    """
    pieces: list[bytes | memoryview] = []
    missing: list[FileRange] = []
    disk: Disk | None = None
    index = 0
    while index < len(runs):
        last = index
        base, end = runs[index]
        while (
            last + 1 < len(runs)
            and 0 <= runs[last + 1][0] - end <= _GAP_BYTES_MAX
            and same_file(base, runs[last + 1][0])
        ):
            last += 1
            end = runs[last][1]
        try:
            data = read(base, end - base)
        except ColdRead as cold:
            # Ask for the remaining runs too, so that one load covers all missing ranges.
            disk = cold.disk
            missing += cold.missing
            pieces.clear()
            index = last + 1
            continue
        assert len(data) == end - base
        if last == index:
            pieces.append(data)
        else:
            view = memoryview(data)
            pieces += (view[start - base : stop - base] for start, stop in runs[index : last + 1])
        index = last + 1
    if disk is not None:
        raise ColdRead(disk, missing)
    return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
