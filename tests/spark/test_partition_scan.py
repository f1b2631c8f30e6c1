"""Records found in partitions of a CommitLog file: whole, cut anywhere, damaged."""

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from rockoon_format.record import encode_blank
from rockoon_spark.records.partition_scan import Damage, FoundRecords, find_records, first_record
from support import golden_store
from support.kernels import BOTH, each_kernel
from support.log_bytes import log_bytes
from support.seeds import seeds

each_kernel = pytest.fixture(scope="module", autouse=True, params=BOTH)(each_kernel)

BASE = 3 << 30


def walk(buffer: NDArray[np.uint8], base: int, split_bytes: int) -> list[FoundRecords]:
    return [
        find_records(buffer, base, at, min(at + split_bytes, len(buffer)), proven=at == 0)
        for at in range(0, len(buffer), split_bytes)
    ]


def test_the_golden_log_has_its_eight_records_and_a_closed_end() -> None:
    content = golden_store.files()[f"commitlog/{0:020d}"]
    found = find_records(np.frombuffer(content, np.uint8), 0, 0, len(content), proven=True)
    assert found.starts[:2].tolist() == [0, 178]
    assert (found.starts[1:] == found.starts[:-1] + found.sizes[:-1]).all()
    assert found.at_log_end
    assert not found.damages


@pytest.mark.parametrize("seed", seeds(1))
def test_splits_of_any_size_own_every_record_once(seed: int) -> None:
    chance = random.Random(seed)
    buffer, starts = log_bytes(chance, BASE, records=400)
    for split_bytes in (len(buffer), 7, 91, 1000, 4096):
        found = np.concatenate([found.starts for found in walk(buffer, BASE, split_bytes)])
        assert found.tolist() == starts, split_bytes


def test_a_body_that_holds_a_record_is_not_taken_for_one() -> None:
    inner, _ = log_bytes(random.Random(1), BASE + 5000, records=1)
    buffer, starts = log_bytes(random.Random(2), BASE, bodies=[inner.tobytes(), b"next"])
    # One byte into the first record: the copy inside the body names another place.
    assert first_record(buffer, BASE, 1, len(buffer)) == starts[1]


@pytest.mark.parametrize("seed", seeds(1))
def test_damage_is_passed_over_and_told_with_its_place(seed: int) -> None:
    chance = random.Random(seed)
    buffer, starts = log_bytes(chance, BASE, records=200)
    victim = chance.randrange(1, 199)
    for wrong in (b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\0\0\0\x5b"):
        broken = buffer.copy()
        broken[starts[victim] : starts[victim] + 4] = np.frombuffer(wrong, np.uint8)
        found = find_records(broken, BASE, 0, len(broken), proven=True)
        assert found.starts.tolist() == starts[:victim] + starts[victim + 1 :]
        place = Damage(BASE + starts[victim], BASE + starts[victim + 1])
        assert list(found.damages) == [place]


def test_damage_that_a_split_ends_in_is_told_once() -> None:
    buffer, starts = log_bytes(random.Random(3), BASE, records=50)
    buffer[starts[20] + 4] ^= 0xFF
    middle = starts[20] + 10
    before = find_records(buffer, BASE, 0, middle, proven=True)
    behind = find_records(buffer, BASE, middle, len(buffer))
    assert before.starts.tolist() == starts[:20]
    assert behind.starts.tolist() == starts[21:]
    assert [*before.damages, *behind.damages] == [Damage(BASE + starts[20], BASE + starts[21])]


@pytest.mark.parametrize("tail", [encode_blank(500), bytes(500)])
def test_a_closed_file_and_one_that_is_still_written_end_without_damage(tail: bytes) -> None:
    buffer, starts = log_bytes(random.Random(4), BASE, records=30)
    whole = np.append(buffer, np.frombuffer(tail.ljust(500, b"\0"), np.uint8))
    for split_bytes in (len(whole), 300):
        walked = walk(whole, BASE, split_bytes)
        assert np.concatenate([found.starts for found in walked]).tolist() == starts
        assert not [damage for found in walked for damage in found.damages]
    assert find_records(whole, BASE, 0, len(whole), proven=True).at_log_end


def test_a_body_that_forges_a_record_in_its_own_place_is_told_by_who_ends_with_it() -> None:
    before, _ = log_bytes(random.Random(1), BASE, bodies=[b"ordinary"])
    # The sender of the forged record knows the end of the log, and the bytes before a body.
    inner_at = BASE + len(before) + 88
    inner, _ = log_bytes(random.Random(2), inner_at, bodies=[b"pay me"])
    buffer, starts = log_bytes(random.Random(1), BASE, bodies=[b"ordinary", inner.tobytes(), b"x"])
    forged = starts[1] + 88
    assert first_record(buffer, BASE, starts[1] + 1, len(buffer)) == forged
    for cut in (starts[1] + 1, forged):
        before_cut = find_records(buffer, BASE, 0, cut, proven=True)
        assert before_cut.forgery == Damage(BASE + forged, BASE + starts[2])
        assert not before_cut.damages
    for cut in (starts[1], forged + 1, starts[2]):
        assert find_records(buffer, BASE, 0, cut, proven=True).forgery is None


@pytest.mark.parametrize("seed", seeds(1))
def test_zeros_between_records_are_damage_and_not_the_end_of_the_log(seed: int) -> None:
    chance = random.Random(seed)
    buffer, starts = log_bytes(chance, BASE, records=100)
    first = chance.randrange(1, 80)
    after = first + chance.randrange(1, 15)
    buffer[starts[first] : starts[after]] = 0
    rest = starts[:first] + starts[after:]
    damage = Damage(BASE + starts[first], BASE + starts[after])
    whole = find_records(buffer, BASE, 0, len(buffer), proven=True)
    assert whole.starts.tolist() == rest
    assert list(whole.damages) == [damage]
    for middle in (starts[first], starts[first] + 10, starts[after] - 1, starts[after]):
        before = find_records(buffer, BASE, 0, middle, proven=True)
        behind = find_records(buffer, BASE, middle, len(buffer))
        assert np.concatenate([before.starts, behind.starts]).tolist() == rest
        assert [*before.damages, *behind.damages] == [damage]
