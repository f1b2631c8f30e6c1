"""Slots of an index file: both kernels write the content of an index file in a buffer."""

import random

import numpy as np
import pytest

from rockoon_format.index_entries import KeyEntries, Slots
from rockoon_format.index_file import (
    HEADER_BYTES,
    SLOT_BYTES,
    SLOTS_PER_PAGE,
    IndexHeader,
    index_file_bytes,
    unit_position,
)
from support.index_file import IndexFile
from support.kernels import BOTH, needs_compiled, of_both, using
from support.seeds import seeds

UNITS = 3000


def random_keys(choose: random.Random, count: int) -> KeyEntries:
    """Return hashes, some of them repeated, and random times."""
    hashes = [choose.choice([choose.randrange(9), choose.randrange(2**31)]) for _ in range(count)]
    times = [choose.choice([5_000 + number, choose.randrange(2**44)]) for number in range(count)]
    offsets = [choose.randrange(2**62) for _ in range(count)]
    return KeyEntries(*(np.array(column, np.int64) for column in (hashes, offsets, times)))


def put(
    parts: list[KeyEntries], start: IndexHeader, count: int, dirt: bytes
) -> tuple[bytes, bytes, IndexHeader, list[tuple[int, int]], list[int]]:
    """Return units, slots, header, changed pages and the newest unit of some hashes."""
    slots, header, units = Slots(count), start, b""
    slots.load(0, dirt)
    for part in parts:
        made = slots.put(header, part)
        assert made.first_unit == header.next_unit
        header, units = made.header, units + made.units.tobytes()
    newest = [slots.newest(key_hash) for key_hash in range(12)]
    return units, slots.stored(0, count), header, slots.changed_runs(), newest


@needs_compiled
@pytest.mark.parametrize("seed", seeds(6))
def test_keys_get_the_places_that_an_index_file_in_a_buffer_gives_them(seed: int) -> None:
    choose = random.Random(seed)
    count = choose.choice([1, 7, 2 * SLOTS_PER_PAGE, 5 * SLOTS_PER_PAGE + 3])
    start = choose.choice([IndexHeader(), IndexHeader(9_000, 9_000, 4, 4)])
    # After a crash, a slot may point beyond the last unit.
    dirt = b"".join(choose.randrange(-5, 50).to_bytes(4, signed=True) for _ in range(min(count, 9)))
    parts = [random_keys(choose, choose.choice([1, 5, 128, 129, 700])) for _ in range(3)]
    file = IndexFile(bytearray(index_file_bytes(count, UNITS)), slots=count, units=UNITS)
    if start != IndexHeader():
        file.follow(IndexHeader(1, start.end_timestamp_ms, 1, start.end_offset, 1, UNITS))
    file.view[HEADER_BYTES : HEADER_BYTES + len(dirt)] = dirt
    for part in parts:
        assert file.put_all(part.hashes, part.offsets, part.timestamps_ms) == len(part)
    for units, stored, header, _, newest in (
        both := of_both(lambda: put(parts, start, count, dirt))
    ):
        at = unit_position(count, 1)
        assert units == file.view[at : at + len(units)]
        assert stored == file.view[HEADER_BYTES : HEADER_BYTES + count * SLOT_BYTES]
        assert header == file.header
        assert newest == [file_newest(file, key_hash % count) for key_hash in range(12)]
    assert both[0][3] == both[1][3]
    keys = np.concatenate([part.hashes for part in parts]) % count // SLOTS_PER_PAGE
    pages = sorted({*keys.tolist()})
    assert [
        page
        for first, length in both[0][3]
        for page in range(first // SLOTS_PER_PAGE, (first + length) // SLOTS_PER_PAGE)
    ] == pages


def file_newest(file: IndexFile, slot: int) -> int:
    at = HEADER_BYTES + slot * SLOT_BYTES
    return int.from_bytes(file.view[at : at + SLOT_BYTES], signed=True)


@needs_compiled
def test_pages_count_as_changed_that_a_file_has_otherwise_or_that_have_units() -> None:
    def told() -> list[object]:
        slots = Slots(3 * SLOTS_PER_PAGE)
        slots.put(IndexHeader(), random_keys(random.Random(1), 1).first(1))
        slots.note_written()
        found: list[object] = [slots.is_changed]
        stored = bytearray(slots.stored(0, slots.count))
        slots.compare(0, bytes(stored))
        found.append(slots.changed_runs())
        stored[(2 * SLOTS_PER_PAGE + 5) * SLOT_BYTES] ^= 1
        slots.compare(SLOTS_PER_PAGE, bytes(stored[SLOTS_PER_PAGE * SLOT_BYTES :]))
        found += [slots.changed_runs(), slots.is_changed]
        slots.note_written()
        slots.mark_used()
        return [*found, slots.changed_runs(), slots.stored(3 * SLOTS_PER_PAGE - 1, 9)]

    by_numpy, compiled = of_both(told)
    assert by_numpy == compiled
    assert by_numpy[:4] == [False, [], [(2 * SLOTS_PER_PAGE, SLOTS_PER_PAGE)], True]
    assert len(by_numpy[4]) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("choice", BOTH)
@pytest.mark.parametrize("key_hash", [-1, 2**31])
def test_a_hash_that_no_index_has_is_refused(choice: str, key_hash: int) -> None:
    one = np.ones(1, np.int64)
    keys = KeyEntries(one * key_hash, one, one)
    with using(choice), pytest.raises(ValueError, match="is not an index hash"):
        Slots(5).put(IndexHeader(), keys)
