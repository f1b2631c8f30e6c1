"""Searches for records in a log from any position."""

import random

import pytest

from rockoon_format.record import HEAD_BYTES, record_heads, whole_record_bytes
from rockoon_format.scan import scan
from support.log_bytes import log_bytes
from support.seeds import seeds

BASE = 5 << 30


def test_heads_are_found_from_any_place_and_each_names_its_own() -> None:
    buffer, starts = log_bytes(random.Random(1), BASE, records=50)
    log = buffer.tobytes()
    for at in (0, 1, starts[10], starts[10] + 1, len(log) - HEAD_BYTES):
        expected = [BASE + start for start in starts if start >= at]
        assert list(record_heads(log[at:], BASE + at)) == expected
    assert list(record_heads(log, BASE + 1)) == []


@pytest.mark.parametrize("seed", seeds(1))
def test_a_record_whose_lengths_do_not_add_up_is_none_and_costs_no_long_read(seed: int) -> None:
    chance = random.Random(seed)
    buffer, starts = log_bytes(chance, BASE, records=60)
    log = bytearray(buffer.tobytes())
    for number in range(3000):
        start = chance.choice(starts)
        at = start + chance.choice([0, 1, 2, 3, 5, 36, 39, 84, 85, 86, 87, chance.randrange(6000)])
        if at >= len(log):
            continue
        kept, log[at] = log[at], chance.randrange(256)
        asked: list[int] = []

        def read(position: int, count: int, start: int = start, asked: list[int] = asked) -> bytes:
            asked.append(count)
            return bytes(log[start + position : start + position + count])

        found = scan(bytes(log), start, len(log), check_crc=False, records_max=1)
        expected = int(found.sizes[0]) if found.count else 0
        assert whole_record_bytes(read, len(log) - start) == expected, (number, at - start)
        assert sum(asked) <= 256
        log[at] = kept


def test_a_record_that_is_cut_off_by_the_end_is_none() -> None:
    buffer, starts = log_bytes(random.Random(2), BASE, records=3)
    log = buffer.tobytes()
    size = starts[1]
    for cut in range(size):
        assert whole_record_bytes(lambda at, n, cut=cut: log[at : min(at + n, cut)], cut) == 0  # type: ignore[misc]
    assert whole_record_bytes(lambda at, n: log[at : at + n], size) == size
