"""The index by key: content of its files, and results of searches."""

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest

from rockoon_broker.index.directory import IndexShape, is_index_name, name_after
from rockoon_broker.index.key_index import UNITS_WALKED_MAX, KeyCandidates, KeySearch, search_files
from rockoon_format.hashes import index_key_hash
from rockoon_format.index_file import HEADER_BYTES, index_file_bytes
from support.index_file import IndexFile
from support.key_index import (
    SHAPE,
    Indexed,
    indexed_one_by_one,
    keyed,
    small_settings,
)
from support.seeds import seeds
from support.store_directory import NOW_MS, FailingDisk, healthy, unpack_golden


@pytest.mark.parametrize("seed", seeds(3))
def test_files_hold_what_putting_one_key_after_another_leaves(indexed: Indexed, seed: int) -> None:
    choose = random.Random(seed)
    indexed.open_index()
    for _ in range(8):
        indexed.send_random(choose, choose.randrange(1, 20))
        indexed.follow(bytes_max=choose.choice((91, 300, 5000)))
        if choose.random() < 0.3 and indexed.index is not None:
            indexed.index.checkpoint()
    keys = indexed.every_key()
    assert indexed.index is not None
    indexed.index.close()
    wanted = indexed_one_by_one(keys)
    assert len(wanted) > 2
    assert indexed.files() == wanted
    assert len(indexed.full_ms) == sum(
        IndexFile(each, slots=50, units=64).is_full for each in wanted
    )


@pytest.mark.parametrize("seed", seeds(3))
def test_every_key_is_found_in_all_its_messages_newest_first(indexed: Indexed, seed: int) -> None:
    choose = random.Random(seed)
    indexed.open_index()
    indexed.send_random(choose, 120)
    indexed.follow()
    by_hash: dict[int, list[int]] = {}
    for key, offset, _ in indexed.every_key():
        by_hash.setdefault(index_key_hash(key), []).append(offset)
    for key, _, _ in indexed.every_key():
        topic, _, name = key.partition("#")
        assert indexed.find(name, topic) == by_hash[index_key_hash(key)][::-1]
    assert indexed.find("absent") == []


def test_times_narrow_a_search_and_never_lose_a_message(indexed: Indexed) -> None:
    indexed.open_index()
    for _ in range(SHAPE.units + 20):
        # The file's first unit counts its seconds from another file's end.
        indexed.clock.time_ms += 50_500
        indexed.send(keyed(keys="k"))
    indexed.follow()
    stored = [(offset, time_ms) for _, offset, time_ms in indexed.every_key()]
    for offset, time_ms in stored:
        assert offset in indexed.find("k", begin_ms=time_ms, end_ms=time_ms)
        assert len(indexed.find("k", begin_ms=time_ms, end_ms=time_ms)) <= 2
    assert indexed.find("k", end_ms=NOW_MS - 1) == []
    assert indexed.find("k", begin_ms=stored[-1][1] + 1000) == []


def test_a_search_that_begins_within_the_log_finds_what_is_behind(indexed: Indexed) -> None:
    indexed.open_index()
    for _ in range(SHAPE.units + 20):
        indexed.send(keyed(keys="k"))
    indexed.follow()
    offsets = [offset for _, offset, _ in indexed.every_key()]
    for number, offset in enumerate(offsets):
        assert indexed.find("k", offset_min=offset) == offsets[number:][::-1]
        assert indexed.find("k", offset_min=offset + 1) == offsets[number + 1 :][::-1]


def test_the_index_of_apache_is_served_and_gone_on_with(tmp_path: Path) -> None:
    owner = Indexed(unpack_golden(tmp_path / "store"), shape=IndexShape(100, 400))
    index = owner.open_index()
    assert index.position == 818
    assert (owner.find("key1", "TopicTest"), owner.find("ck", "TopicTest")) == ([0], [818])
    owner.send(keyed(keys="ours"))
    owner.follow()
    assert len(owner.find("ours")) == 1
    assert owner.find("key1", "TopicTest") == [0]
    owner.close()
    assert len(owner.files()) == 1
    again = Indexed(unpack_golden(tmp_path / "other"), shape=IndexShape(100, 400))
    for file in again.directory.files():
        file.path.unlink()
    again.open_index()
    again.follow()
    before = (again.find("pk", "TopicTest"), again.find("rk", "TopicTest"))
    again.close()
    assert before == ([558], [])


def test_a_file_built_elsewhere_is_found_as_soon_as_it_has_its_name(indexed: Indexed) -> None:
    indexed.open_index()
    indexed.send(keyed(keys="here"))
    indexed.follow()
    built = IndexFile(bytearray(index_file_bytes(50, 64)), slots=50, units=64)
    built.put(index_key_hash("T#elsewhere"), 4711, NOW_MS)
    path = indexed.directory.path / "20200101000000000"
    path.with_suffix(".tmp").write_bytes(bytes(built.view))
    assert indexed.find("elsewhere") == []
    path.with_suffix(".tmp").rename(path)
    assert indexed.find("elsewhere") == [4711]
    assert indexed.find("here") == [0]


def test_files_of_another_size_or_name_are_left_alone(
    indexed: Indexed, caplog: pytest.LogCaptureFixture
) -> None:
    folder = indexed.directory.path
    folder.mkdir()
    (folder / "20200101000000000").write_bytes(b"short")
    (folder / "notes.txt").write_bytes(b"mine")
    indexed.open_index()
    indexed.send(keyed(keys="k"))
    indexed.follow()
    assert indexed.find("k") == [0]
    assert (folder / "20200101000000000").read_bytes() == b"short"
    assert (folder / "notes.txt").exists()
    assert [record.getMessage() for record in caplog.records] == [
        f"{folder}/20200101000000000 has 5 bytes instead of {SHAPE.file_bytes}: not used"
    ]


def test_a_file_cut_short_among_others_is_not_passed_over_in_silence(indexed: Indexed) -> None:
    indexed.open_index()
    for number in range(200):
        indexed.send(keyed(keys=f"k{number}"))
    indexed.follow()
    assert len(indexed.directory.files()) > 3
    assert indexed.search("k70").unserved == ""
    cut = indexed.directory.files()[1].path
    os.truncate(cut, 100)
    found = indexed.search("k70")
    assert found.offsets == []
    assert cut.name in found.unserved


def test_a_key_of_too_many_messages_says_so(tmp_path: Path) -> None:
    owner = Indexed(small_settings(tmp_path), shape=IndexShape(10, 2 * UNITS_WALKED_MAX))
    owner.open_index()
    for _ in range(60):
        owner.send(*[keyed(keys="hot")] * 80)
    owner.follow(bytes_max=1 << 20)
    found = owner.search("hot")
    assert len(found.offsets) == 4096
    assert found.gave_up.startswith("the key is too frequent: 4096 entries were checked")
    owner.close()


def is_plausible(content: bytes | bytearray, pointer: int) -> bool:
    """Return whether a slot, or a unit's link to the next one, leads to the end or into its own
    chain."""

    def slot_of(unit_at: int) -> int:
        return int.from_bytes(content[unit_at : unit_at + 4]) % SHAPE.slots

    units = HEADER_BYTES + SHAPE.slots * 4
    target = int.from_bytes(content[pointer : pointer + 4])
    own = (pointer - HEADER_BYTES) // 4 if pointer < units else slot_of(pointer - 16)
    return target == 0 or (target < SHAPE.units and slot_of(units + 20 * target) == own)


@pytest.mark.parametrize("seed", seeds(1))
def test_a_flipped_bit_in_a_chain_hides_no_message_in_silence(indexed: Indexed, seed: int) -> None:
    """Check that all candidates are found at their positions, or the damage of the file is
    reported."""
    choose = random.Random(seed)
    indexed.open_index()
    for number in range(100):
        indexed.send(keyed(keys=f"k{number % 40}"))
    indexed.follow()
    keys = [f"k{number}" for number in range(40)]
    sound = {key: indexed.find(key) for key in keys}
    for file in indexed.directory.files():
        whole = file.path.read_bytes()
        units = HEADER_BYTES + SHAPE.slots * 4 + 20
        used = units + 20 * file.keys
        for at in choose.sample(range(HEADER_BYTES, used), 60):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << choose.randrange(8)
            pointer = at // 4 * 4 if at < units or (at - units) % 20 >= 16 else None
            # An end of a chain, or an older unit of it, looks like a valid one.
            if pointer is not None and is_plausible(flipped, pointer):
                continue
            file.path.write_bytes(flipped)
            for key in keys:
                found = indexed.search(key)
                missed = set(sound[key]) - set(found.offsets)
                # A position without a message is reported when the log is read there.
                elsewhere = set(found.offsets) - set(sound[key])
                assert not missed or found.unserved or elsewhere, (at, key)
                assert not found.unserved or file.path.name in found.unserved
        file.path.write_bytes(whole)


def test_a_circle_in_a_damaged_chain_ends(indexed: Indexed) -> None:
    indexed.open_index()
    for _ in range(SHAPE.units):
        indexed.send(keyed(keys="k"))
    indexed.follow()
    full = indexed.directory.files()[0].path
    content = bytearray(full.read_bytes())
    for unit in range(1, SHAPE.units):
        at = HEADER_BYTES + SHAPE.slots * 4 + unit * 20 + 16
        content[at : at + 4] = (SHAPE.units - 1).to_bytes(4)
    full.write_bytes(content)
    assert len(indexed.find("k")) <= 3


def test_retention_takes_the_files_of_messages_that_are_gone(indexed: Indexed) -> None:
    index = indexed.open_index()
    indexed.send_random(random.Random(1), 150)
    indexed.follow()
    before = indexed.directory.files()
    cut = before[2].header.end_offset
    assert index.remove_expired(cut) == [file.path.name for file in before[:2]]
    assert [file.path for file in indexed.directory.files()] == [file.path for file in before[2:]]
    assert index.remove_expired(1 << 60) == [file.path.name for file in before[2:-1]]
    first_left = indexed.every_key()[sum(file.keys for file in before[:-1])]
    assert index.begins_ms == first_left[2]


@pytest.mark.parametrize("fault", ["fail_write", "fail_sync"])
@pytest.mark.parametrize("seed", seeds(1))
def test_a_disk_that_refuses_costs_nothing_but_time(tmp_path: Path, fault: str, seed: int) -> None:
    disk = FailingDisk()
    owner = Indexed(small_settings(tmp_path / "store"), index_disk=disk)
    choose = random.Random(seed)
    refusals = 0

    def refuse_now_and_then(*_: Any) -> int:
        nonlocal refusals
        refuses = choose.random() < 0.2
        refusals += refuses
        return errno.ENOSPC if refuses else 0

    setattr(disk, fault, refuse_now_and_then)
    for _ in range(30):
        owner.send_random(choose, 5)
        while owner.index is None or owner.index.position < owner.store.visible_end:
            try:
                index = owner.index or owner.open_index(owner.store.visible_end)
                owner.follow()
                index.checkpoint()
            except OSError:
                if owner.index is not None:
                    owner.index.abandon()
                    owner.index = None
    setattr(disk, fault, healthy)
    keys = owner.every_key()
    owner.close()
    assert refusals > 3
    assert owner.files() == indexed_one_by_one(keys)


@pytest.mark.parametrize(
    "last", ["99991231235959999", "20261331000000000", "20261120256161999", "00000000000000000"]
)
def test_a_name_that_is_no_time_has_one_behind_it(last: str) -> None:
    name = name_after(last, NOW_MS)
    assert is_index_name(name)
    assert name > last


@pytest.mark.parametrize("last", ["99999999999999999"])
def test_behind_the_last_name_there_is_none(last: str) -> None:
    with pytest.raises(OSError, match="move it away"):
        name_after(last, NOW_MS)


def test_names_only_grow() -> None:
    first = name_after("", NOW_MS)
    assert len(first) == 17
    assert name_after(first, NOW_MS + 1) > first
    assert name_after(first, NOW_MS - 3_600_000) > first
    assert name_after(first, NOW_MS) > first
    assert name_after("20231231235959999", NOW_MS) == "20240101000000000"
    assert name_after("99999999999999998", NOW_MS) == "99999999999999999"


def test_when_every_file_has_expired_the_index_begins_with_the_next_message(
    indexed: Indexed,
) -> None:
    index = indexed.open_index()
    for _ in range(SHAPE.units - 1):
        indexed.send(keyed(keys="k"))
    indexed.follow()
    assert len(index.remove_expired(1 << 60)) == 1
    assert index.begins_ms is None
    assert indexed.find("k") == []
    indexed.send(keyed(keys="k"))
    indexed.follow()
    assert len(indexed.find("k")) == 1
    assert index.begins_ms == indexed.clock.time_ms


def test_a_file_cut_short_under_a_search_is_an_error_of_the_disk(indexed: Indexed) -> None:
    indexed.open_index()
    for _ in range(SHAPE.units):
        indexed.send(keyed(keys="k"))
    indexed.follow()
    files = indexed.directory.files()
    files[0].path.write_bytes(files[0].path.read_bytes()[:300])
    with pytest.raises(OSError, match="ends before byte"):
        search_files(
            KeyCandidates(),
            KeySearch(index_key_hash("T#k"), 0, 1 << 60),
            files[:1],
            SHAPE,
            indexed.directory.disk,
        )
