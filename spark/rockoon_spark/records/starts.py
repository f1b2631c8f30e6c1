"""Search for the first record in a range of a CommitLog file, proved by its head and parts.

Bodies are not verified here: tasks that read bodies verify their checksums (`columns`).
"""

import numpy as np
from numpy.typing import NDArray

from rockoon_format.frames import IntArray, locate, sliding
from rockoon_format.record import (
    AT_MAGIC,
    HEAD_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    record_heads,
)

Bytes = NDArray[np.uint8]

_FIRST_WINDOW_BYTES = 4096
_WINDOW_BYTES_MAX = 1 << 20
# Windows of many searches in one array operation. Most records are shorter than the first window;
# if no record starts in the last one, that search continues alone.
_SHARED_WINDOWS_BYTES = (1024, 8192)
_MAGIC_FIRST_BYTE = MAGIC_V1.to_bytes(4, signed=True)[0]
assert MAGIC_V2.to_bytes(4, signed=True)[0] == _MAGIC_FIRST_BYTE


def first_record(
    buffer: Bytes, base: int, start: int, stop: int, *, has_more: bool = False
) -> int | None:
    """Return the position of the first record that starts in [start, stop); None if there is none.

    Args:
        buffer: bytes of a CommitLog file.
        base: physical offset of the buffer's first byte.
        has_more: True if the file continues after the buffer; then a record that is cut off by the
            end of the buffer is accepted.
    """
    view = buffer.data
    position, window_bytes = start, _FIRST_WINDOW_BYTES
    while position < stop:
        window = bytes(view[position : min(position + window_bytes, len(view))])
        for head in record_heads(window, base + position):
            candidate = head - base
            if candidate >= stop:
                return None
            if _is_record(buffer, candidate, has_more=has_more):
                return candidate
        if position + len(window) >= len(view):
            return None
        # Windows overlap, because a head may extend beyond a window's end.
        position += len(window) - HEAD_BYTES + 1
        window_bytes = min(window_bytes * 4, _WINDOW_BYTES_MAX)
    return None


def _is_record(buffer: Bytes, position: int, *, has_more: bool) -> bool:
    size = int.from_bytes(buffer[position : position + 4].tobytes(), signed=True)
    if size > len(buffer) - position:
        return has_more
    if size < RECORD_BYTES_MIN:
        return False
    parts = locate(buffer, np.array([position], np.int64))
    return int(parts.computed_sizes[0]) == size and int(parts.topic_lengths[0]) >= 0


def first_records(buffer: Bytes, base: int, bounds: IntArray, stop: int) -> IntArray:
    """Return the first record at or after each position, without duplicates, ascending.

    Args:
        bounds: positions, ascending.
        stop: position at which the search ends.
    """
    found = np.full(len(bounds), -1, np.int64)
    for window_bytes in _SHARED_WINDOWS_BYTES:
        missing = np.flatnonzero(found < 0)
        within = missing[bounds[missing] + window_bytes + RECORD_BYTES_MIN <= len(buffer)]
        if len(within):
            found[within] = _first_in_windows(buffer, base, bounds[within], window_bytes)
    starts: list[int] = []
    for bound, start in zip(bounds.tolist(), found.tolist(), strict=True):
        if starts and bound <= starts[-1]:
            continue
        first = start if start >= 0 else first_record(buffer, base, bound, stop)
        if first is None or first >= stop:
            break
        starts.append(first)
    return np.array(starts, np.int64)


def _first_in_windows(buffer: Bytes, base: int, bounds: IntArray, window_bytes: int) -> IntArray:
    """Return the position of the first record that starts in each window, int64[n]; -1 if there is
    none.
    """
    windows = sliding(buffer, f"V{window_bytes}")[bounds + AT_MAGIC].view(np.uint8)
    candidates = np.flatnonzero(windows == _MAGIC_FIRST_BYTE)
    windows_of = candidates // window_bytes
    starts = bounds[windows_of] + candidates % window_bytes
    magics = sliding(buffer, ">i4")[starts + AT_MAGIC]
    alike = (magics == MAGIC_V1) | (magics == MAGIC_V2)
    starts, windows_of = starts[alike], windows_of[alike]
    parts = locate(buffer, starts)
    sizes = parts.prefix["size"]
    good = (parts.prefix["physical_offset"] == starts + base) & (parts.topic_lengths >= 0)
    good &= (sizes >= RECORD_BYTES_MIN) & (parts.computed_sizes == sizes)
    good &= starts + sizes <= len(buffer)
    found = np.full(len(bounds), -1, np.int64)
    # Written in descending order, so that the first record of each window is written last.
    found[windows_of[good][::-1]] = starts[good][::-1]
    return found
