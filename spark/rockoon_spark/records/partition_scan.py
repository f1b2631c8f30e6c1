"""Scan of a partition: the records of any piece of a CommitLog file, without an index.

A record names its own physical offset, so where one starts can be proved in the middle of a file:
magic at +4, its own place at +28, parts that add up. So a file may be cut anywhere: a partition
has the records that *start* in it, and tells of the damage that follows any of them.
`parallel_walk` walks one that is in order; one that is not is looked at here, record by record.

Bodies are not looked at here: their checksums are for those who read them (`columns`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rockoon_format.frames import IntArray
from rockoon_format.scan import RECORDS_MAX_DEFAULT, ScanEnd, scan
from rockoon_spark.records.parallel_walk import walk
from rockoon_spark.records.starts import first_record

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a log that belong to no record; physical offsets, the end exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Found:
    """The records that start in a partition."""

    starts: IntArray
    """Their positions in the buffer, ascending."""
    sizes: IntArray
    """Bytes."""
    end: int
    """Position behind the last of them, or behind the damage that follows it; the
    partition's start when there are none."""
    at_log_end: bool = False
    """Nothing was ever written behind `end`, or the file is closed there."""
    damages: Sequence[Damage] = ()
    is_cut: bool = False
    """What stands at the buffer's end is cut off by it: more of the file has to be looked at."""
    forgery: Damage | None = None
    """Behind `stop`, but within the last record: what the next partition takes for one."""


def find_records(
    buffer: Bytes,
    base: int,
    start: int,
    stop: int,
    *,
    proven: bool = False,
    goes_on: bool = False,
) -> Found:
    """The whole records that start in [start, stop), and the damage that follows any of them.

    Of neighbouring partitions each damaged place is told by one: that which has the record before
    it, or the file's start. It also sees whether the next one will begin where this one ends: a
    body may hold the bytes of a record, and its sender may have guessed where it would be stored.

    Args:
        buffer: a CommitLog file from `base` on, so far that the last record is whole, and the head
            of the next.
        base: physical offset of the buffer's first byte.
        start, stop: positions in the buffer.
        proven: a record starts at `start`, or the file ends there: what else is there is damage.
            Otherwise the partition begins with the first record that can be proved.
        goes_on: the file does, behind the buffer.
    """
    first = start if proven else first_record(buffer, base, start, stop, goes_on=goes_on)
    if first is None or first >= stop:
        return Found(_none(), _none(), start)
    chain = walk(buffer, base, first, stop)
    if chain is None:
        found = _one_by_one(buffer, base, first, stop)
    else:
        found = Found(chain.starts, chain.sizes, chain.end, chain.at_log_end)
    damages = list(found.damages)
    forgery = None
    if found.end > stop and not damages:
        forged = first_record(buffer, base, stop, min(found.end, len(buffer)), goes_on=goes_on)
        forgery = None if forged is None else Damage(base + forged, base + found.end)
    if found.end >= stop and not found.at_log_end:
        # The record there is another partition's; whoever begins with the next one does not see it.
        damages += _one_by_one(buffer, base, found.end, found.end + 1, records_max=1).damages
    reached = max(found.end, damages[-1].end - base if damages else 0)
    is_cut = goes_on and reached >= len(buffer)
    return replace(found, damages=damages, is_cut=is_cut, forgery=forgery)


def _one_by_one(
    buffer: Bytes, base: int, first: int, stop: int, records_max: int = RECORDS_MAX_DEFAULT
) -> Found:
    """Walk the partition with every check; damage is passed over and told."""
    starts: list[IntArray] = []
    sizes: list[IntArray] = []
    damages: list[Damage] = []
    view = buffer.data
    position, at_log_end = first, False
    while position < stop:
        found = scan(
            view,
            position,
            len(view),
            check_crc=False,
            with_tag_codes=False,
            records_max=records_max,
        )
        good = int((found.physical_offsets == found.offsets + base).cumprod().sum())
        own = min(int((found.offsets < stop).sum()), good)
        starts.append(found.offsets[:own])
        sizes.append(found.sizes[:own])
        if own:
            position = int(found.offsets[own - 1] + found.sizes[own - 1])
        if position >= stop:
            break
        if good == found.count:
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
