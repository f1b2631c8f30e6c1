"""Index files out of keys that lie in scratch files: what goes where, writing it, comparing it.

Each file is what putting one key after another would leave (`rockoon_format.index_file`). It can be
made on its own: of the file before, it only takes the time and place of the last key.
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
from rockoon_format.index_entries import KeyEntries
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
from rockoon_format.index_slots import PutKeys, Slots
from rockoon_spark.index.target import IndexedFile, IndexShape, crc32_of

# So many keys are linked at once: what stays in a processor's cache.
_BLOCK_KEYS = 16_384
_COPY_BYTES = 1 << 20
_EPOCH = datetime.datetime(1970, 1, 1)
_NAMED_MS_MAX = 253_402_300_799_999


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of the keys that were taken out of one partition."""

    partition: int
    first: int
    """Numbers of keys within the partition, the end exclusive."""
    behind: int


@dataclass(frozen=True, slots=True)
class KeyCount:
    """How many keys were taken out of a partition."""

    keys: int
    begins: tuple[int, ...] = ()
    """Numbers of those that were stored at an earlier time than the one before."""


class ScratchKeys:
    """Keys of partitions as files of a directory that all tasks see: int64[3, n], a row each for
    hashes, offsets and times."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def save(self, partition: int, keys: Sequence[KeyEntries]) -> "KeyCount":
        """Keep the keys of a partition, given in parts; return how many they are."""
        columns = [np.zeros((3, 0), np.int64)]
        columns += [np.stack([part.hashes, part.offsets, part.timestamps_ms]) for part in keys]
        together = np.concatenate(columns, axis=1)
        # A task may run twice: each attempt has a file of its own.
        unfinished = self._directory / f"{partition}.{uuid.uuid4().hex}"
        # Not by np.save: it does not notice when the disk is full at the end of a small array.
        unfinished.write_bytes(together.tobytes())
        unfinished.rename(self._path(partition))
        goes_back = np.flatnonzero(np.diff(together[2]) < 0) + 1
        return KeyCount(int(together.shape[1]), tuple(goes_back.tolist()))

    def load(self, piece: Piece) -> KeyEntries:
        together = np.memmap(self._path(piece.partition), np.int64, "r").reshape(3, -1)
        columns = together[:, piece.first : piece.behind]
        return KeyEntries(columns[0], columns[1], columns[2])

    def _path(self, partition: int) -> Path:
        return self._directory / f"{partition}.keys"


@dataclass(frozen=True, slots=True)
class FilePlan:
    """One index file and the keys that it gets."""

    name: str
    start: IndexHeader
    """What its header is before its first key; of a file that is continued, what it is now."""
    pieces: tuple[Piece, ...]
    continues: bool = False


def cut_keys(counts: Sequence[int], bounds: Sequence[int]) -> list[tuple[Piece, ...]]:
    """Share out the keys of all partitions, one partition after the other.

    Args:
        counts: keys of each partition.
        bounds: numbers of keys, over all partitions, at which a share begins; the last one ends.
    """
    ends = np.cumsum(counts)
    starts = ends - counts
    shares = []
    for low, high in pairwise(bounds):
        pieces = []
        number = int(np.searchsorted(ends, low, "right"))
        while number < len(counts) and starts[number] < high:
            first = max(low - int(starts[number]), 0)
            behind = min(high - int(starts[number]), counts[number])
            if behind > first:
                pieces.append(Piece(number, first, behind))
            number += 1
        shares.append(tuple(pieces))
    return shares


def plan_files(
    counts: Sequence[KeyCount],
    scratch: ScratchKeys,
    shape: IndexShape,
    last: IndexedFile | None,
    *,
    goes_on: bool,
) -> list[FilePlan]:
    """Decide which keys go into which file.

    Args:
        counts: keys of each partition.
        last: the last file that was made.
        goes_on: it is still there, and gets keys if it has room.
    """
    keys = [each.keys for each in counts]
    begins = _file_begins(counts, scratch, last)
    room = shape.file_keys - last.keys if last and goes_on and begins[0] else 0
    bounds = [0]
    for begin in begins:
        while bounds[-1] < begin:
            fitting = room if room and len(bounds) == 1 else shape.file_keys
            bounds.append(min(bounds[-1] + fitting, begin))
    plans: list[FilePlan] = []
    start = IndexHeader() if last is None else header_behind(last.header)
    name = "" if last is None else last.name
    for number, pieces in enumerate(cut_keys(keys, bounds)):
        if not pieces:
            continue
        if number == 0 and last is not None and room:
            plans.append(FilePlan(last.name, last.header, pieces, continues=True))
        else:
            name = name_behind(name, _first_time_ms(scratch, pieces[0]))
            plans.append(FilePlan(name, start, pieces))
        start = _start_behind(scratch, pieces[-1])
    return plans


def _file_begins(
    counts: Sequence[KeyCount], scratch: ScratchKeys, last: IndexedFile | None
) -> list[int]:
    """Numbers of keys, over all partitions, at which a file must begin, since store times go back
    there; behind them the number of all."""
    begins: list[int] = []
    before_ms = 0 if last is None else last.header.end_timestamp_ms
    total = 0
    for partition, count in enumerate(counts):
        if count.keys:
            if _first_time_ms(scratch, Piece(partition, 0, 1)) < before_ms:
                begins.append(total)
            begins += [total + begin for begin in count.begins]
            before_ms = _first_time_ms(scratch, Piece(partition, count.keys - 1, count.keys))
        total += count.keys
    return [*begins, total]


def _first_time_ms(scratch: ScratchKeys, piece: Piece) -> int:
    return int(scratch.load(piece).timestamps_ms[0])


def _start_behind(scratch: ScratchKeys, piece: Piece) -> IndexHeader:
    """The header of a new file behind one that ends with a piece."""
    keys = scratch.load(piece)
    end_ms, end_offset = int(keys.timestamps_ms[-1]), int(keys.offsets[-1])
    return header_behind(IndexHeader(end_timestamp_ms=end_ms, end_offset=end_offset))


def name_behind(last: str, time_ms: int) -> str:
    """The name of a file whose first key was stored then, in UTC, above `last` (may be empty)."""
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
    plan: FilePlan, shape: IndexShape, scratch: ScratchKeys, directory: Path, former: Path
) -> IndexedFile:
    """Write one index file into a directory, sparse where it has no keys, and sync it.

    Units are written block by block, slots and header at the end: not through a mapping, where a
    full disk would be a signal that kills the process instead of an error.

    Args:
        former: directory of the file that the plan continues.
    """
    unfinished = directory / f"{plan.name}.{uuid.uuid4().hex}"
    slots = Slots(shape.slots)
    header = plan.start
    # Whatever is in a store is for its owner alone.
    unfinished.touch(0o600, exist_ok=False)
    with unfinished.open("wb") as file:
        file.truncate(shape.file_bytes)
        if plan.continues:
            with (former / plan.name).open("rb") as continued:
                continued.seek(HEADER_BYTES)
                slots.load(0, continued.read(shape.slots * SLOT_BYTES))
            _copy_units(former / plan.name, file, shape, header)
        for linked in _linked(plan.start, slots, _keys_of(plan.pieces, scratch)):
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
    shape: IndexShape,
    scratch: ScratchKeys,
    directory: Path,
    expected: IndexedFile,
    gone: int,
) -> list[str]:
    """Say what of a file is not as the log and the manifest have it.

    Args:
        plan: with the keys that are still in the log, behind those that are not.
        gone: how many keys at the file's start are in the log no more. These are taken from the
            file itself: their places in the chains are looked at.
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
        problems.append(f"{path}: its header is not the one that was published")
    if gone < expected.keys:
        problems += _differences(path, content, plan, shape, scratch, expected, gone)
    if not problems and crc32_of(path) != expected.crc32:
        problems.append(f"{path}: its checksum is not the one that was published")
    return problems


def _differences(
    path: Path,
    content: NDArray[np.uint8],
    plan: FilePlan,
    shape: IndexShape,
    scratch: ScratchKeys,
    expected: IndexedFile,
    gone: int,
) -> Iterator[str]:
    slots = Slots(shape.slots)
    header = plan.start
    units = stored_units(content, shape)

    def keys() -> Iterator[KeyEntries]:
        if gone:
            yield _own_keys(units[1 : gone + 1], expected.header)
        yield from _keys_of(plan.pieces, scratch)

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
        yield f"{path}: the log's keys make the header {header}, published was {expected.header}"
        return
    stored_slots = content[HEADER_BYTES : HEADER_BYTES + shape.slots * SLOT_BYTES].view(">i4")
    expected_slots = np.frombuffer(slots.stored(0, shape.slots), ">i4")
    differing = np.flatnonzero(stored_slots != expected_slots)
    if len(differing):
        slot = int(differing[0])
        yield (
            f"{path}: slot {slot} (byte {HEADER_BYTES + slot * SLOT_BYTES}) holds unit "
            f"{stored_slots[slot]}, not {expected_slots[slot]}"
        )


def stored_units(content: NDArray[np.uint8], shape: IndexShape) -> NDArray[np.void]:
    """The units of an index file's content, UNIT[units]; number 0 is not used."""
    start = unit_position(shape.slots, 0)
    units: NDArray[np.void] = content[start : start + shape.units * UNIT_BYTES].view(UNIT)
    return units


def _own_keys(units: NDArray[np.void], header: IndexHeader) -> KeyEntries:
    """What units say of their keys, whose times they have to the second."""
    times = header.begin_timestamp_ms + units["seconds"].astype(np.int64) * 1000
    # The first one's seconds count from another file's end.
    times[0] = header.begin_timestamp_ms
    hashes = np.maximum(units["hash"].astype(np.int64), 0)
    return KeyEntries(hashes, units["offset"].astype(np.int64), times)


def _copy_units(path: Path, copy: BinaryIO, shape: IndexShape, header: IndexHeader) -> None:
    """Copy the units that a header counts, and not the nothing behind them."""
    position, end = unit_position(shape.slots, 1), unit_position(shape.slots, header.next_unit)
    with path.open("rb") as file:
        file.seek(position)
        copy.seek(position)
        while position < end and (block := file.read(min(_COPY_BYTES, end - position))):
            copy.write(block)
            position += len(block)


def _keys_of(pieces: Sequence[Piece], scratch: ScratchKeys) -> Iterator[KeyEntries]:
    for piece in pieces:
        yield scratch.load(piece)


def _linked(header: IndexHeader, slots: Slots, keys: Iterator[KeyEntries]) -> Iterator[PutKeys]:
    """Link keys in order, block by block; `slots` become what they make of them."""
    for part in keys:
        for at in range(0, len(part), _BLOCK_KEYS):
            linked = slots.put(header, part.behind(at).first(_BLOCK_KEYS))
            header = linked.header
            yield linked
