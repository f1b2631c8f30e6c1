"""One file of the key index: a hash table from keys to CommitLog offsets, in a buffer.

    0          40                40 + 4 slots                        40 + 4 slots + 20 units
    +----------+-----------------+------------------------------------+
    | header   | slots, i32 each | units, 20 bytes each; 0 is not used|
    +----------+-----------------+------------------------------------+
    header: begin ms i64, end ms i64, begin offset i64, end offset i64,
            slots used i32, next unit i32
    unit:   key hash i32, physical offset i64, seconds since begin i32, previous unit i32

A slot holds the newest unit of its chain; a unit holds the previous one; 0 ends the chain. Keys are
not stored: a lookup also returns hash collisions, and its caller compares the messages' keys.

Invariants: 1 <= next unit <= units; every slot and every `previous` is below the next unit; the
previous of a unit is below the unit. A unit's seconds cannot be negative, and a search follows a
chain until the seconds are too low. Therefore a new file starts where store times decrease.

Keys of a record: `index_entries`. Source: IndexFile, IndexHeader.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace

import numpy as np
from numpy.typing import NDArray

SLOTS_DEFAULT = 5_000_000
UNITS_DEFAULT = 20_000_000
HEADER_BYTES = 40
SLOT_BYTES = 4
UNIT_BYTES = 20
SECONDS_MAX = 2**31 - 1
SLOTS_PER_PAGE = 1024
"""A page has 4 KiB, like the blocks of file systems."""

UNIT = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_HEADER = struct.Struct(">qqqqii")
_UNIT = struct.Struct(">iqii")
assert _HEADER.size == HEADER_BYTES
assert UNIT.itemsize == _UNIT.size == UNIT_BYTES


class IndexFileError(ValueError):
    """A buffer without a valid index file of the expected shape."""


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """Store times in epoch milliseconds and CommitLog offsets of the first and last message."""

    begin_timestamp_ms: int = 0
    end_timestamp_ms: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    slots_used: int = 0
    next_unit: int = 1


def decode_header(raw: bytes | memoryview) -> IndexHeader:
    """Read a header; a next unit of zero or less is read as 1, the number in an empty file."""
    if len(raw) < HEADER_BYTES:
        raise IndexFileError(f"an index header of {len(raw)} bytes")
    header = IndexHeader(*_HEADER.unpack_from(raw))
    return replace(header, next_unit=max(1, header.next_unit))


def index_file_bytes(slots: int = SLOTS_DEFAULT, units: int = UNITS_DEFAULT) -> int:
    """Return the size of an index file."""
    return HEADER_BYTES + slots * SLOT_BYTES + units * UNIT_BYTES


def encode_header(header: IndexHeader) -> bytes:
    """Return the header's 40 bytes.

    The number of the next unit is written with the first key, so an empty file contains 0.
    """
    fields = list(astuple(header))
    if header.next_unit <= 1:
        fields[-1] = 0
    return _HEADER.pack(*fields)


def header_behind(previous: IndexHeader) -> IndexHeader:
    """Return the header of a new file after a full one, before its first key.

    The seconds of its first unit count from the previous file's end, as in Java.
    """
    end_ms, end_offset = max(0, previous.end_timestamp_ms), max(0, previous.end_offset)
    return IndexHeader(end_ms, end_ms, end_offset, end_offset)


def unit_position(slots: int, unit: int) -> int:
    """Return the position of a unit in an index file with the given number of slots."""
    return HEADER_BYTES + slots * SLOT_BYTES + unit * UNIT_BYTES


def keys_in_order(header: IndexHeader, store_timestamps_ms: NDArray[np.int64]) -> int:
    """Number of the next keys that fit before store times decrease, ignoring the file's size.

    Args:
        header: the file's.
        store_timestamps_ms: store time of each key's record, int64[n].
    """
    times_ms = store_timestamps_ms
    before_ms = header.end_timestamp_ms if header.next_unit > 1 else 0
    if len(times_ms) and times_ms[0] < before_ms:
        return 0
    # Not `np.diff` with `prepend`, which needs ten times as long for a few hundred keys.
    goes_back = times_ms[1:] < times_ms[:-1]
    return int(goes_back.argmax()) + 1 if goes_back.any() else len(times_ms)


@dataclass(frozen=True, slots=True)
class LinkedKeys:
    """Keys with their positions in a file, not written yet."""

    units: NDArray[np.void]
    """UNIT[n], consecutive in the file."""
    slot_numbers: NDArray[np.int64]
    """Slots that change, without duplicates, int64[m]."""
    slot_values: NDArray[np.int64]
    """Their new values."""
    slots_used: int
    """Number of the keys that are the first of their slots."""


def link_keys(
    slots: NDArray[np.int32],
    first_unit: int,
    first_seconds: int,
    begin_ms: int,
    key_hashes: NDArray[np.int64],
    physical_offsets: NDArray[np.int64],
    store_timestamps_ms: NDArray[np.int64],
) -> LinkedKeys:
    """Compute the positions of keys, as if they were added one by one.

    Args:
        slots: the file's current slots, ">i4"[slots]; not changed.
        first_unit: number of the first key's unit.
        first_seconds: seconds of the first key's unit.
        begin_ms: begin of the file, epoch milliseconds, including these keys.
        key_hashes: `hashes.index_key_hash` of each key, int64[n], at least one; they must fit.
        physical_offsets, store_timestamps_ms: physical offset and store time
            of each key's record, int64[n].
    """
    count = len(key_hashes)
    numbers = first_unit + np.arange(count)
    slot_numbers = key_hashes % len(slots)

    # Sorting by slot, and by number within a slot, puts the keys of a chain in order. Both numbers
    # are in one integer, because NumPy sorts integers several times faster than pairs.
    index_bits = count.bit_length()
    both = np.sort(slot_numbers << index_bits | np.arange(count))
    order = both & ((1 << index_bits) - 1)
    sorted_slots, sorted_numbers = both >> index_bits, numbers[order]
    starts_chain = np.ones(count, np.bool_)
    starts_chain[1:] = sorted_slots[1:] != sorted_slots[:-1]
    before = slots[sorted_slots].astype(np.int64)
    before[(before <= 0) | (before > sorted_numbers)] = 0
    previous = np.empty(count, np.int64)
    previous[order] = np.where(starts_chain, before, np.roll(sorted_numbers, 1))
    ends_chain = np.roll(starts_chain, -1)

    units = np.empty(count, UNIT)
    units["hash"] = key_hashes
    units["offset"] = physical_offsets
    units["seconds"] = 0
    if begin_ms > 0:
        units["seconds"] = np.clip((store_timestamps_ms - begin_ms) // 1000, 0, SECONDS_MAX)
    units["seconds"][0] = first_seconds
    units["previous"] = previous
    slots_used = int((previous == 0).sum())
    return LinkedKeys(units, sorted_slots[ends_chain], sorted_numbers[ends_chain], slots_used)


def header_with(
    header: IndexHeader,
    physical_offsets: NDArray[np.int64],
    store_timestamps_ms: NDArray[np.int64],
    slots_used: int,
) -> IndexHeader:
    """Return the header after more keys, at least one. `slots_used`: number of keys that are the
    first of their slots."""
    is_first = header.next_unit <= 1
    return IndexHeader(
        int(store_timestamps_ms[0]) if is_first else header.begin_timestamp_ms,
        int(store_timestamps_ms[-1]),
        int(physical_offsets[0]) if is_first else header.begin_offset,
        int(physical_offsets[-1]),
        header.slots_used + slots_used,
        header.next_unit + len(physical_offsets),
    )


@dataclass(frozen=True, slots=True)
class FoundUnit:
    """A key of a chain."""

    key_hash: int
    physical_offset: int
    stored_ms: int
    """Store time of its record, epoch milliseconds, up to 999 ms too early."""


def walk_chain(
    header: IndexHeader,
    newest: int,
    read_unit: Callable[[int], bytes | memoryview],
    *,
    key_hash: int,
    slots: int,
) -> Iterator[FoundUnit]:
    """Walk a chain of units from the newest to the oldest.

    The format has no checksum, but a unit must fit its chain: its slot, and the position of the
    previous unit. Without this check, a flipped bit could end the chain early and hide messages.

    Args:
        header: the file's.
        newest: the content of the chain's slot; 0 if it has no units.
        read_unit: returns the 20 bytes of a unit by its number.
        key_hash: any hash of the chain's slot.
        slots: number of slots of the file.

    Raises:
        IndexFileError: the chain is damaged; earlier results passed the check.
    """
    unit, above = newest, header.next_unit
    while unit != 0:
        # A cycle would never end; the numbers of a valid chain descend.
        if not 0 < unit < above:
            raise IndexFileError(f"the chain of a key leads from unit {above} to {unit}")
        above = unit
        found_hash, offset, seconds, unit = _UNIT.unpack(read_unit(above))
        # No physical offset is negative, and no record is older than the file's first one.
        if seconds < 0 or offset < 0 or found_hash % slots != key_hash % slots:
            raise IndexFileError(f"unit {above} is not in the chain of the key")
        # The first unit's seconds count from another file's end, but its time is the header's.
        stored_ms = header.begin_timestamp_ms + (seconds * 1000 if above > 1 else 0)
        yield FoundUnit(found_hash, offset, stored_ms)


def _seconds_since(begin_ms: int, time_ms: int) -> int:
    if begin_ms <= 0:
        return 0
    return min(max(0, (time_ms - begin_ms) // 1000), SECONDS_MAX)


def first_place(header: IndexHeader, time_ms: int) -> tuple[int, int, int]:
    """Return the arguments `first_unit`, `first_seconds` and `begin_ms` of `link_keys` for the next
    keys of a file.

    The seconds of a file's first key count from the previous file's end.

    Args:
        header: the file's current header.
        time_ms: store time of the next key's record.
    """
    begin_ms = time_ms if header.next_unit <= 1 else header.begin_timestamp_ms
    return header.next_unit, _seconds_since(header.begin_timestamp_ms, time_ms), begin_ms
