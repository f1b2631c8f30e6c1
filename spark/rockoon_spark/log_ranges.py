"""Finding the records of any stretch of a CommitLog file, without an index and without its start.

A record names its own physical offset, so where one starts can be proved in the middle of a file:
magic at +4, its own place at +28, parts that add up, body CRC. That makes any byte range a split:
it owns the records that *start* in it. Inside a range the chain of sizes is walked in many lanes at
once: each begins at a proven start, and each has to land exactly where the next one began.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rockoon_format.frames import IntArray, locate, sliding
from rockoon_format.record import CRC_MASK, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from rockoon_format.scan import ScanEnd, scan

Bytes = NDArray[np.uint8]

_MAGICS = tuple(magic.to_bytes(4, signed=True) for magic in (MAGIC_V1, MAGIC_V2))
_AT_MAGIC = 4
_AT_PHYSICAL_OFFSET = 28
_HEAD_BYTES = 36
# A lane of this length has some hundred records: enough to pay for proving where it starts.
_LANE_BYTES = 1 << 18
_LANES_MAX = 2048
_FIRST_WINDOW_BYTES = 4096
_WINDOW_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a log that belong to no record; physical offsets, the end exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Found:
    """The records that start in a range of a buffer."""

    starts: IntArray
    """Their positions in the buffer, ascending."""
    sizes: IntArray
    """Bytes."""
    end: int
    """Position behind the last of them, or behind the damage that follows it; the range's start
    when there are none."""
    at_log_end: bool = False
    """Nothing was ever written behind `end`, or the file is closed there."""
    damages: Sequence[Damage] = ()


def find_records(buffer: Bytes, base: int, start: int, stop: int, *, proven: bool = False) -> Found:
    """The whole records that start in [start, stop).

    Args:
        buffer: a CommitLog file from `base` on, so far that the last record is whole.
        base: physical offset of the buffer's first byte.
        start, stop: positions in the buffer.
        proven: a record starts at `start`, or the file ends there: what else is there is damage.
            Otherwise the range begins with the first record that can be proved.
    """
    first = start if proven else first_record(buffer, base, start, stop)
    if first is None or first >= stop:
        return Found(_none(), _none(), start)
    return _in_lanes(buffer, base, first, stop) or _one_by_one(buffer, base, first, stop)


def first_record(buffer: Bytes, base: int, start: int, stop: int) -> int | None:
    """Position of the first record that starts in [start, stop) beyond doubt; None without one."""
    view = buffer.data
    position, window_bytes = start, _FIRST_WINDOW_BYTES
    while position < stop:
        window = bytes(view[position : min(position + window_bytes, len(view))])
        for candidate in _heads(window, base + position):
            if position + candidate >= stop:
                return None
            if _is_record(buffer, position + candidate):
                return position + candidate
        if position + len(window) >= len(view):
            return None
        # A head may lie across the window's end.
        position += len(window) - _HEAD_BYTES + 1
        window_bytes = min(window_bytes * 4, _WINDOW_BYTES_MAX)
    return None


def _heads(window: bytes, offset: int) -> Iterator[int]:
    """Positions in the window at which a head says that it belongs there, ascending."""
    behind = len(window)
    following = [window.find(magic, _AT_MAGIC) for magic in _MAGICS]
    while True:
        at = min((at for at in following if at >= 0), default=behind)
        if at == behind:
            return
        head = at - _AT_MAGIC
        stated = window[head + _AT_PHYSICAL_OFFSET : head + _HEAD_BYTES]
        if len(stated) == 8 and int.from_bytes(stated, signed=True) == offset + head:
            yield head
        which = following.index(at)
        following[which] = window.find(_MAGICS[which], at + 1)


def _is_record(buffer: Bytes, position: int) -> bool:
    size = int.from_bytes(buffer[position : position + 4].tobytes(), signed=True)
    if not RECORD_BYTES_MIN <= size <= len(buffer) - position:
        return False
    record = buffer[position : position + size].tobytes()
    parts = locate(record, np.zeros(1, np.int64))
    body_start, body_bytes = int(parts.body_starts[0]), int(parts.body_lengths[0])
    if int(parts.computed_sizes[0]) != size or body_bytes < 0:
        return False
    crc = zlib.crc32(record[body_start : body_start + body_bytes]) & CRC_MASK
    return not body_bytes or crc == int(parts.prefix["body_crc"][0])


def _in_lanes(buffer: Bytes, base: int, first: int, stop: int) -> Found | None:
    """Walk the range in step; None if anything about it is unusual."""
    lanes = min(max((stop - first) // _LANE_BYTES, 1), _LANES_MAX)
    starts = _lane_starts(buffer, base, first, stop, int(lanes))
    words = sliding(buffer, ">i4")
    last_word = len(words) - 1
    lane_ends = np.append(starts[1:], stop)
    lane_numbers = np.arange(len(starts))
    positions = starts.copy()
    steps: list[tuple[IntArray, IntArray, IntArray]] = []
    end, at_log_end = first, False
    while len(positions):
        if int(positions.max()) + _AT_MAGIC > last_word:
            return None
        sizes = words[positions].astype(np.int64)
        magics = words[positions + _AT_MAGIC]
        good = (magics == MAGIC_V1) | (magics == MAGIC_V2)
        good &= (sizes >= RECORD_BYTES_MIN) & (positions + sizes <= len(buffer))
        if not good.all():
            # Only the last lane may come to where the file is closed, or not written yet.
            wrong = np.flatnonzero(~good)
            if len(wrong) != 1 or lane_numbers[wrong[0]] != len(starts) - 1:
                return None
            at = int(wrong[0])
            unwritten = sizes[at] == 0 and magics[at] == 0
            if not (unwritten or magics[at] == MAGIC_BLANK):
                return None
            end, at_log_end = int(positions[at]), True
            positions, lane_numbers = np.delete(positions, at), np.delete(lane_numbers, at)
            sizes, lane_ends = np.delete(sizes, at), np.delete(lane_ends, at)
        steps.append((lane_numbers, positions, sizes))
        following = positions + sizes
        if len(lane_numbers) and lane_numbers[-1] == len(starts) - 1:
            end = int(following[-1])
        going = following < lane_ends
        # All but the last lane have to end exactly where the next began.
        if ((following > lane_ends) & (lane_numbers < len(starts) - 1)).any():
            return None
        if going.all():
            positions = following
        else:
            positions, lane_ends = following[going], lane_ends[going]
            lane_numbers = lane_numbers[going]
    found, sizes = _in_order(steps, len(starts))
    if not _are_whole(buffer, base, found, sizes):
        return None
    return Found(found, sizes, end, at_log_end)


def _lane_starts(buffer: Bytes, base: int, first: int, stop: int, lanes: int) -> IntArray:
    starts = [first]
    for bound in np.linspace(first, stop, lanes + 1)[1:-1].astype(np.int64).tolist():
        if bound <= starts[-1]:
            continue
        found = first_record(buffer, base, bound, stop)
        if found is None:
            break
        starts.append(found)
    return np.array(starts, np.int64)


def _in_order(
    steps: list[tuple[IntArray, IntArray, IntArray]], lanes: int
) -> tuple[IntArray, IntArray]:
    """What the lanes found, one lane after the other."""
    starts = np.full((lanes, len(steps)), -1, np.int64)
    sizes = np.zeros((lanes, len(steps)), np.int64)
    for step, (numbers, found, lengths) in enumerate(steps):
        starts[numbers, step] = found
        sizes[numbers, step] = lengths
    taken = starts.ravel() >= 0
    return starts.ravel()[taken], sizes.ravel()[taken]


def _are_whole(buffer: Bytes, base: int, starts: IntArray, sizes: IntArray) -> bool:
    for at in range(0, len(starts), 65_536):
        chosen = starts[at : at + 65_536]
        parts = locate(buffer, chosen)
        whole = (parts.computed_sizes == sizes[at : at + 65_536]) & (parts.body_lengths >= 0)
        whole &= (parts.topic_lengths >= 0) & (parts.properties_lengths >= 0)
        whole &= parts.prefix["physical_offset"] == chosen + base
        if not whole.all():
            return False
    return True


def _one_by_one(buffer: Bytes, base: int, first: int, stop: int) -> Found:
    """Walk the range with every check; damage is passed over and told."""
    starts: list[IntArray] = []
    sizes: list[IntArray] = []
    damages: list[Damage] = []
    view = buffer.data
    position, at_log_end = first, False
    while position < stop:
        found = scan(view, position, len(view), check_crc=False)
        own = found.offsets < stop
        starts.append(found.offsets[own])
        sizes.append(found.sizes[own])
        if found.position >= stop or not own.all():
            last = int(own.sum())
            position = int(found.offsets[last - 1] + found.sizes[last - 1]) if last else position
            break
        position = found.position
        if found.end is ScanEnd.LIMIT:
            continue
        if found.end in (ScanEnd.BLANK, ScanEnd.ZERO, ScanEnd.END):
            at_log_end = not _more_behind(buffer, base, position, found.end)
            if at_log_end:
                break
        following = first_record(buffer, base, position + 1, len(view))
        resume = len(view) if following is None else following
        damages.append(Damage(base + position, base + resume))
        position = resume
    return Found(_joined(starts), _joined(sizes), position, at_log_end, damages)


def _more_behind(buffer: Bytes, base: int, position: int, end: ScanEnd) -> bool:
    """Whether records stand behind what looks like the end of what was written."""
    if end is ScanEnd.END:
        return False
    return first_record(buffer, base, position + 1, len(buffer)) is not None


def _none() -> IntArray:
    return np.zeros(0, np.int64)


def _joined(parts: list[IntArray]) -> IntArray:
    return np.concatenate(parts) if parts else _none()
