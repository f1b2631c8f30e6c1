"""Scan of a partition: the records of any range of a CommitLog file, without an index.

A record contains its own physical offset, so a record start can be proved in the middle of a file:
magic at +4, physical offset at +28, lengths of the parts that add up to the size. So a file may be
divided anywhere: a partition has the records that *start* in it, and reports the damage that
follows one of them. `parallel_walk` reads a partition without damage; other partitions are scanned
here, record by record.

Bodies are not verified here: tasks that read bodies verify their checksums (`columns`).
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
    """Bytes of a log that belong to no record; physical offsets, `end` is exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class FoundRecords:
    """The records that start in a partition, with their positions."""

    starts: IntArray
    """Positions of the records in the buffer, ascending."""
    sizes: IntArray
    """Sizes of the records in bytes."""
    end: int
    """Position after the last record and the damage that follows it; the partition's start if there
    are no records."""
    at_log_end: bool = False
    """True if nothing was written after `end`, or the file is closed there."""
    damages: Sequence[Damage] = ()
    is_cut: bool = False
    """True if the buffer ends within a record or damage: more of the file must be read."""
    forgery: Damage | None = None
    """Number of bytes after `stop`, within the last record, that the next partition mistakes for a
    record.
    """


def find_records(
    buffer: Bytes,
    base: int,
    start: int,
    stop: int,
    *,
    proven: bool = False,
    has_more: bool = False,
) -> FoundRecords:
    """Return the whole records that start in [start, stop), and the damage after each of them.

    A damaged range is reported by one partition: the partition of the record before it, or the
    first of the file. The result also shows whether the next partition will begin where this one
    ends: a body may contain the bytes of a valid record, if its sender guessed the physical offset.

    Args:
        buffer: a CommitLog file from `base` on, up to the end of the last record and the head of
            the next.
        base: physical offset of the buffer's first byte.
        start, stop: positions in the buffer.
        proven: True if a record starts at `start`, or the file ends there: any other bytes are
            damage. False if the partition begins with the first record that can be proved.
        has_more: True if the file continues after the buffer.
    """
    first = start if proven else first_record(buffer, base, start, stop, has_more=has_more)
    if first is None or first >= stop:
        return FoundRecords(_none(), _none(), start)
    chain = walk(buffer, base, first, stop)
    if chain is None:
        found = _one_by_one(buffer, base, first, stop)
    else:
        found = FoundRecords(chain.starts, chain.sizes, chain.end, chain.at_log_end)
    damages = list(found.damages)
    forgery = None
    if found.end > stop and not damages:
        forged = first_record(buffer, base, stop, min(found.end, len(buffer)), has_more=has_more)
        forgery = None if forged is None else Damage(base + forged, base + found.end)
    if found.end >= stop and not found.at_log_end:
        # Damage before the next partition's first record: that partition does not detect it.
        damages += _one_by_one(buffer, base, found.end, found.end + 1, records_max=1).damages
    last = max(found.end, damages[-1].end - base if damages else 0)
    is_cut = has_more and last >= len(buffer)
    return replace(found, damages=damages, is_cut=is_cut, forgery=forgery)


def _one_by_one(
    buffer: Bytes, base: int, first: int, stop: int, records_max: int = RECORDS_MAX_DEFAULT
) -> FoundRecords:
    """Scan the partition record by record with all checks; damage is skipped and reported."""
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
                at_log_end = not _has_later_record(buffer, base, position, found.end)
                if at_log_end:
                    break
        following = first_record(buffer, base, position + 1, len(view))
        resume = len(view) if following is None else following
        damages.append(Damage(base + position, base + resume))
        position = resume
    return FoundRecords(_joined(starts), _joined(sizes), position, at_log_end, damages)


def _has_later_record(buffer: Bytes, base: int, position: int, end: ScanEnd) -> bool:
    """True if a record follows bytes that look like the end of the log."""
    if end is ScanEnd.END:
        return False
    return first_record(buffer, base, position + 1, len(buffer)) is not None


def _none() -> IntArray:
    return np.zeros(0, np.int64)


def _joined(parts: list[IntArray]) -> IntArray:
    return np.concatenate(parts) if parts else _none()
