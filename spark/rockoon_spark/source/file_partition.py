"""Partitions of a log that one task reads."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rockoon_spark.files import LogFile, read_range
from rockoon_spark.records.columns import LogRecords
from rockoon_spark.records.partition_scan import Found, find_records

SPLIT_BYTES = 64 << 20
# What is read behind a split, so that its last record is whole; more when that is not enough.
_BEYOND_BYTES = 1 << 20
_RECORD_BYTES_MAX = 64 << 20
# How far before its end a file's last record is looked for, one after the other.
_TAILS_BYTES = (1 << 20, 16 << 20)
# How often damage at the end of what is written is looked at before it is believed.
_LOOKS_MAX = 3
_LOOK_INTERVAL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Split:
    """The records that start in a partition of a CommitLog file."""

    file: LogFile
    start: int
    """Positions in the file, the end exclusive."""
    stop: int


def split_files(files: Sequence[LogFile], split_bytes: int) -> list[Split]:
    """Cut files into partitions of at most `split_bytes`; each has to be 1 or more."""
    return [
        Split(file, start, min(start + split_bytes, file.bytes))
        for file in files
        for start in range(0, file.bytes, split_bytes)
    ]


def read_split(
    split: Split, *, proven: bool = False, wait: Callable[[float], object] = time.sleep
) -> tuple[NDArray[np.uint8], Found]:
    """A split's bytes, and the records that start in it; positions count from its start.

    Args:
        proven: a record starts at the split's start, or nothing was written from there on; it is
            so at a file's start.
        wait: spends so many seconds.
    """
    looks = 0
    while True:
        buffer, found = _look(split, proven=proven or split.start == 0)
        looks += 1
        behind = split.file.start + split.start + len(buffer)
        is_last = bool(found.damages) and found.damages[-1].end >= behind
        if not is_last or looks == _LOOKS_MAX:
            return buffer, found
        # Nothing whole stands behind it: a broker may be writing this very record.
        wait(_LOOK_INTERVAL_SECONDS)


def _look(split: Split, *, proven: bool) -> tuple[NDArray[np.uint8], Found]:
    length = split.stop - split.start
    base = split.file.start + split.start
    beyond = _BEYOND_BYTES
    while True:
        buffer = read_range(split.file, split.start, split.stop, beyond)
        goes_on = split.start + len(buffer) < split.file.bytes and beyond < _RECORD_BYTES_MAX
        found = find_records(buffer, base, 0, length, proven=proven, goes_on=goes_on)
        if not found.is_cut:
            return buffer, found
        beyond *= 8


def files_of_times(files: Sequence[LogFile], least_ms: int, most_ms: int) -> list[LogFile]:
    """The files that can hold records stored within some time.

    Times ascend over each file. The next one may begin with an earlier time than the last record
    bears, where a clock came back: so a file is left out only by times of its own.
    """
    firsts = [_first_time_ms(file) for file in files]
    kept = []
    for number, file in enumerate(files):
        first = firsts[number]
        following = next((each for each in firsts[number + 1 :] if each is not None), None)
        begins_late = first is not None and first > most_ms
        may_end_early = following is not None and following < least_ms
        if not begins_late and not (may_end_early and _ends_before(file, least_ms)):
            kept.append(file)
    return kept


def _ends_before(file: LogFile, time_ms: int) -> bool:
    """Whether the last record of a file is proved to have been stored before some time."""
    for tail_bytes in _TAILS_BYTES:
        tail = Split(file, max(file.bytes - tail_bytes, 0), file.bytes)
        buffer, found = read_split(tail)
        if found.damages:
            return False
        if len(found.starts):
            base = file.start + tail.start
            last = LogRecords.of(buffer, base, found.starts[-1:], found.sizes[-1:], "")
            return int(last.store_timestamps_ms[0]) < time_ms
    return False


def _first_time_ms(file: LogFile) -> int | None:
    """Store time of a file's first record, None if there is none."""
    buffer, found = read_split(Split(file, 0, 1))
    if not len(found.starts):
        return None
    records = LogRecords.of(buffer, file.start, found.starts, found.sizes, "")
    return int(records.store_timestamps_ms[0])
