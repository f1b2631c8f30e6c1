"""Index files built from keys in scratch files: assignment of keys to files, writing, comparing.

Each file is identical to one that a broker writes key by key (`rockoon_format.index_file`). Files
can be written in parallel: a file depends only on the time and offset of the last key of the file
before it.
"""

import datetime
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from rockoon_format.file_names import index_file_name
from rockoon_format.index_entries import KeyEntries, PutKeys, Slots
from rockoon_format.index_file import (
    HEADER_BYTES,
    SLOT_BYTES,
    UNIT,
    UNIT_BYTES,
    IndexHeader,
    decode_header,
    encode_header,
    header_behind,
    unit_position,
)
from rockoon_spark.index.target import IndexedFile, IndexFileShape, crc32_of

# Number of keys linked in one step; they fit into the processor's cache.
_BLOCK_KEYS = 16_384
_COPY_BYTES = 1 << 20
_EPOCH = datetime.datetime(1970, 1, 1)
_NAMED_MS_MAX = 253_402_300_799_999


@dataclass(frozen=True, slots=True)
class IndexKeyRange:
    """A range of the keys that were extracted from one partition."""

    partition: int
    first: int
    """Index of the first key within the partition."""
    stop: int
    """Index after the last key within the partition."""


@dataclass(frozen=True, slots=True)
class KeyCount:
    """Number of keys that were extracted from one partition."""

    keys: int
    begins: tuple[int, ...] = ()
    """Indexes of the keys that have an earlier store time than the key before them."""


class ScratchKeys:
    """Keys of all partitions, in scratch files of a directory that all tasks can read.

    File: int64[3, n], with rows for hashes, offsets and times.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def save(self, partition: int, keys: Sequence[KeyEntries]) -> "KeyCount":
        """Write the keys of a partition; return their number."""
        columns = [np.zeros((3, 0), np.int64)]
        columns += [np.stack([part.hashes, part.offsets, part.timestamps_ms]) for part in keys]
        together = np.concatenate(columns, axis=1)
        # A task may run twice, so each attempt writes its own file.
        unfinished = self._directory / f"{partition}.{uuid.uuid4().hex}"
        # Not np.save: it does not report a full disk at the end of a small array.
        unfinished.write_bytes(together.tobytes())
        unfinished.rename(self._path(partition))
        goes_back = np.flatnonzero(np.diff(together[2]) < 0) + 1
        return KeyCount(int(together.shape[1]), tuple(goes_back.tolist()))

    def load(self, keys: IndexKeyRange) -> KeyEntries:
        together = np.memmap(self._path(keys.partition), np.int64, "r").reshape(3, -1)
        columns = together[:, keys.first : keys.stop]
        return KeyEntries(columns[0], columns[1], columns[2])

    def _path(self, partition: int) -> Path:
        return self._directory / f"{partition}.keys"


@dataclass(frozen=True, slots=True)
class FilePlan:
    """Plan of an index file: the keys to add to it."""

    name: str
    start: IndexHeader
    """Header of the file before the keys are added; for an extended file, its current
    header.
    """
    keys: tuple[IndexKeyRange, ...]
    extends: bool = False


def divide_keys(counts: Sequence[int], bounds: Sequence[int]) -> list[tuple[IndexKeyRange, ...]]:
    """Divide the keys of all partitions, in order, into shares for index files.

    Args:
        counts: number of keys of each partition.
        bounds: index of each share's first key, counted over all partitions; at the end the index
            after the last share.
    """
    ends = np.cumsum(counts)
    starts = ends - counts
    shares = []
    for low, high in pairwise(bounds):
        share = []
        number = int(np.searchsorted(ends, low, "right"))
        while number < len(counts) and starts[number] < high:
            first = max(low - int(starts[number]), 0)
            stop = min(high - int(starts[number]), counts[number])
            if stop > first:
                share.append(IndexKeyRange(number, first, stop))
            number += 1
        shares.append(tuple(share))
    return shares


def plan_files(
    counts: Sequence[KeyCount],
    scratch: ScratchKeys,
    shape: IndexFileShape,
    last: IndexedFile | None,
    *,
    last_exists: bool,
) -> list[FilePlan]:
    """Assign the keys of all partitions to index files.

    Args:
        counts: keys of each partition.
        last: the last file of the previous run.
        last_exists: it still exists and is extended if it has room.
    """
    keys = [each.keys for each in counts]
    begins = _file_begins(counts, scratch, last)
    room = shape.file_keys - last.keys if last and last_exists and begins[0] else 0
    bounds = [0]
    for begin in begins:
        while bounds[-1] < begin:
            fitting = room if room and len(bounds) == 1 else shape.file_keys
            bounds.append(min(bounds[-1] + fitting, begin))
    plans: list[FilePlan] = []
    start = IndexHeader() if last is None else header_behind(last.header)
    name = "" if last is None else last.name
    for number, share in enumerate(divide_keys(keys, bounds)):
        if not share:
            continue
        if number == 0 and last is not None and room:
            plans.append(FilePlan(last.name, last.header, share, extends=True))
        else:
            name = next_file_name(name, _first_time_ms(scratch, share[0]))
            plans.append(FilePlan(name, start, share))
        start = _next_header(scratch, share[-1])
    return plans


def _file_begins(
    counts: Sequence[KeyCount], scratch: ScratchKeys, last: IndexedFile | None
) -> list[int]:
    """Return the indexes of keys, over all partitions, at which a file must begin because store
    times go back there, followed by the total number of keys."""
    begins: list[int] = []
    before_ms = 0 if last is None else last.header.end_timestamp_ms
    total = 0
    for partition, count in enumerate(counts):
        if count.keys:
            if _first_time_ms(scratch, IndexKeyRange(partition, 0, 1)) < before_ms:
                begins.append(total)
            begins += [total + begin for begin in count.begins]
            before_ms = _first_time_ms(
                scratch, IndexKeyRange(partition, count.keys - 1, count.keys)
            )
        total += count.keys
    return [*begins, total]


def _first_time_ms(scratch: ScratchKeys, keys: IndexKeyRange) -> int:
    return int(scratch.load(keys).timestamps_ms[0])


def _next_header(scratch: ScratchKeys, last: IndexKeyRange) -> IndexHeader:
    """Return the header of a new file after a file that ends with the given keys."""
    keys = scratch.load(last)
    end_ms, end_offset = int(keys.timestamps_ms[-1]), int(keys.offsets[-1])
    return header_behind(IndexHeader(end_timestamp_ms=end_ms, end_offset=end_offset))


def next_file_name(last: str, time_ms: int) -> str:
    """Return the name of a file by the store time of its first key, in UTC.

    The name is above `last`, which may be empty.
    """
    time_ms = min(max(time_ms, 0), _NAMED_MS_MAX)
    if (name := _name_of(time_ms)) > last:
        return name
    moment = datetime.datetime.strptime(last, "%Y%m%d%H%M%S%f")
    milliseconds = (moment - _EPOCH) // datetime.timedelta(milliseconds=1)
    return _name_of(milliseconds + 1)


def _name_of(time_ms: int) -> str:
    moment = _EPOCH + datetime.timedelta(milliseconds=time_ms)
    milliseconds = moment.second * 1000 + moment.microsecond // 1000
    return index_file_name(
        moment.year, moment.month, moment.day, moment.hour, moment.minute, milliseconds
    )


def write_file(
    plan: FilePlan, shape: IndexFileShape, scratch: ScratchKeys, directory: Path, former: Path
) -> IndexedFile:
    """Write and sync one index file; unused units are a hole in a sparse file.

    Units are written block by block, then slots and header. The file is not mapped, because a full
    disk would then kill the process by a signal instead of raising an error.

    Args:
        former: directory of the file that the plan extends.
    """
    unfinished = directory / f"{plan.name}.{uuid.uuid4().hex}"
    slots = Slots(shape.slots)
    header = plan.start
    # Files of a store are readable by their owner only.
    unfinished.touch(0o600, exist_ok=False)
    with unfinished.open("wb") as file:
        file.truncate(shape.file_bytes)
        if plan.extends:
            with (former / plan.name).open("rb") as extended:
                extended.seek(HEADER_BYTES)
                slots.load(0, extended.read(shape.slots * SLOT_BYTES))
            _copy_units(former / plan.name, file, shape, header)
        for linked in _linked(plan.start, slots, map(scratch.load, plan.keys)):
            file.seek(unit_position(shape.slots, linked.first_unit))
            file.write(linked.units.tobytes())
            header = linked.header
        file.seek(0)
        file.write(encode_header(header))
        file.write(slots.stored(0, shape.slots))
        file.flush()
        os.fsync(file.fileno())
    written = IndexedFile(plan.name, crc32_of(unfinished), header)
    unfinished.rename(directory / plan.name)
    return written


def compare_file(
    plan: FilePlan,
    shape: IndexFileShape,
    scratch: ScratchKeys,
    directory: Path,
    expected: IndexedFile,
    deleted: int,
) -> list[str]:
    """Compare a file with the log and the manifest; return a sentence per difference.

    Args:
        plan: with the keys that are still in the log.
        deleted: number of keys at the file's start whose records are no longer in the log. They
            are read from the file itself, so only their chain links are verified.
    """
    path = directory / plan.name
    try:
        content = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:
        return [f"{path} cannot be read: {error}"]
    if len(content) != shape.file_bytes:
        return [f"{path} has {len(content)} bytes, not {shape.file_bytes}"]
    problems = []
    if decode_header(content[:HEADER_BYTES].tobytes()) != expected.header:
        problems.append(f"{path}: its header differs from the manifest")
    if deleted < expected.keys:
        problems += _differences(path, content, plan, shape, scratch, expected, deleted)
    if not problems and crc32_of(path) != expected.crc32:
        problems.append(f"{path}: its checksum differs from the manifest")
    return problems


def _differences(
    path: Path,
    content: NDArray[np.uint8],
    plan: FilePlan,
    shape: IndexFileShape,
    scratch: ScratchKeys,
    expected: IndexedFile,
    deleted: int,
) -> Iterator[str]:
    slots = Slots(shape.slots)
    header = plan.start
    units = stored_units(content, shape)

    def keys() -> Iterator[KeyEntries]:
        if deleted:
            yield _stored_keys(units[1 : deleted + 1], expected.header)
        yield from map(scratch.load, plan.keys)

    for linked in _linked(plan.start, slots, keys()):
        stored = units[linked.first_unit : linked.header.next_unit]
        header = linked.header
        if stored.tobytes() != linked.units.tobytes():
            at = int(np.flatnonzero(stored != linked.units)[0])
            number = linked.first_unit + at
            yield (
                f"{path}: unit {number} (byte {unit_position(shape.slots, number)}) is "
                f"{stored[at].tolist()}, the log has {linked.units[at].tolist()} "
                "(hash, offset, seconds, previous unit)"
            )
            return
    if header != expected.header:
        yield f"{path}: expected header {header} by the log, the manifest has {expected.header}"
        return
    stored_slots = content[HEADER_BYTES : HEADER_BYTES + shape.slots * SLOT_BYTES].view(">i4")
    expected_slots = np.frombuffer(slots.stored(0, shape.slots), ">i4")
    differing = np.flatnonzero(stored_slots != expected_slots)
    if len(differing):
        slot = int(differing[0])
        yield (
            f"{path}: slot {slot} (byte {HEADER_BYTES + slot * SLOT_BYTES}) has unit "
            f"{stored_slots[slot]}, expected {expected_slots[slot]}"
        )


def stored_units(content: NDArray[np.uint8], shape: IndexFileShape) -> NDArray[np.void]:
    """Return the units of an index file's content, UNIT[units]; unit 0 is unused."""
    start = unit_position(shape.slots, 0)
    units: NDArray[np.void] = content[start : start + shape.units * UNIT_BYTES].view(UNIT)
    return units


def _stored_keys(units: NDArray[np.void], header: IndexHeader) -> KeyEntries:
    """Return the keys of units; their times are exact to the second."""
    times = header.begin_timestamp_ms + units["seconds"].astype(np.int64) * 1000
    # The seconds of the first unit count from the end of the file before.
    times[0] = header.begin_timestamp_ms
    hashes = np.maximum(units["hash"].astype(np.int64), 0)
    return KeyEntries(hashes, units["offset"].astype(np.int64), times)


def _copy_units(path: Path, copy: BinaryIO, shape: IndexFileShape, header: IndexHeader) -> None:
    """Copy the used units; the unused rest stays a hole of the sparse copy."""
    position, end = unit_position(shape.slots, 1), unit_position(shape.slots, header.next_unit)
    with path.open("rb") as file:
        file.seek(position)
        copy.seek(position)
        while position < end and (block := file.read(min(_COPY_BYTES, end - position))):
            copy.write(block)
            position += len(block)


def _linked(header: IndexHeader, slots: Slots, keys: Iterator[KeyEntries]) -> Iterator[PutKeys]:
    """Add keys to an index file's slots in order, block by block."""
    for part in keys:
        for at in range(0, len(part), _BLOCK_KEYS):
            linked = slots.put(header, part.without_first(at).first(_BLOCK_KEYS))
            header = linked.header
            yield linked
