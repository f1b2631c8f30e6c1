"""Reading many records of one file or log with few calls."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

# Unwanted bytes between two wanted stretches that are cheaper to read than a second call.
_GAP_BYTES_MAX = 4096


def gather(
    positions: NDArray[np.int64],
    sizes: NDArray[np.int64],
    read: Callable[[int, int], bytes],
    same_file: Callable[[int, int], bool] = lambda _, __: True,
) -> bytes:
    """The records' bytes in order, with one read for every run of neighbours.

    Args:
        positions: where each of n >= 1 records starts, ascending, int64[n].
        sizes: bytes of each, int64[n].
        read: gives so many bytes from a position.
        same_file: whether one read can give the bytes at both positions.

    Raises:
        OSError: the disk.
    """
    ends = positions + sizes
    # Where a new run of adjacent records begins, and where a new read does.
    apart = np.flatnonzero(ends[:-1] != positions[1:]) + 1
    run_starts = positions[np.concatenate(([0], apart))].tolist()
    run_ends = ends[np.concatenate((apart - 1, [-1]))].tolist()
    pieces: list[bytes | memoryview] = []
    index = 0
    while index < len(run_starts):
        last = index
        while (
            last + 1 < len(run_starts)
            and 0 <= run_starts[last + 1] - run_ends[last] <= _GAP_BYTES_MAX
            and same_file(run_starts[index], run_starts[last + 1])
        ):
            last += 1
        base = run_starts[index]
        data = read(base, run_ends[last] - base)
        assert len(data) == run_ends[last] - base
        if last == index:
            pieces.append(data)
        else:
            view = memoryview(data)
            pieces.extend(
                view[run_starts[run] - base : run_ends[run] - base]
                for run in range(index, last + 1)
            )
        index = last + 1
    return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
