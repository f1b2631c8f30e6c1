"""Keys that were found when their messages came: the index is what reading would make of it."""

import random
from pathlib import Path

import pytest

from rockoon_broker.index.follower import next_pieces
from rockoon_broker.store.log.batch import AppendBatch
from rockoon_broker.store.log.file_reads import ColdRead, cached, load
from rockoon_broker.store.log.found_keys import STRETCH_BYTES, FoundKeys, KeyRun, KeyStretch
from rockoon_format.batch import encode_batch
from rockoon_format.index_entries import PackedKeys
from support.cold_disk import ColdDisk
from support.kernels import BOTH, needs_compiled, using
from support.key_index import Indexed, indexed_one_by_one, keyed, small_settings
from support.seeds import seeds
from support.store_directory import BORN_HOST, NOW_MS, Owner, batch_of

NO_TEXT = b"KEYS\x01\xff\xfe k\x02"


def batch(choose: random.Random) -> AppendBatch:
    """Messages with no, one or several keys, some of which are no text."""
    properties = [
        NO_TEXT if choose.random() < 0.03 else keyed(f"{choose.getrandbits(64):032X}", "a k b")
        for _ in range(choose.randrange(1, 6))
    ]
    topic = choose.choice("TUV")
    frames, lengths = encode_batch(
        topic.encode(), 0, [b"body"] * len(properties), properties, NOW_MS, BORN_HOST, room=True
    )
    return batch_of(topic, 0, frames, lengths)


@pytest.mark.parametrize("choice", BOTH)
@pytest.mark.parametrize("seed", seeds(4))
def test_lone_and_joint_batches_are_indexed_as_if_they_were_read(
    tmp_path: Path, seed: int, choice: str
) -> None:
    choose = random.Random(seed)
    owner = Indexed(small_settings(tmp_path / "store"))
    with using(choice):
        index = owner.open_index()
        # Now and then there is no room, or nobody has wanted any.
        owner.store.found_keys = FoundKeys(choose.choice((0, 2000, 1 << 20)))
        owner.store._appender._found_keys = owner.store.found_keys
        for _ in range(40):
            owner.store.found_keys.wanted = choose.random() < 0.9
            owner.clock.time_ms += 1000
            if choose.random() < 0.5:
                owner.store.append(batch(choose), owner.clock.time_ms)
            else:
                batches = [batch(choose) for _ in range(choose.randrange(1, 4))]
                owner.store.append_group(batches, owner.clock.time_ms)
            if choose.random() < 0.3:
                owner.follow(bytes_max=choose.choice((91, 400, 4000)), pieces_max=2)
        owner.follow(bytes_max=700)
        assert index.until_ms == owner.clock.time_ms
        keys = owner.every_key()
        owner.close()
    assert owner.files() == indexed_one_by_one(keys)


@needs_compiled
def test_nothing_is_read_of_what_was_appended_while_the_index_followed(tmp_path: Path) -> None:
    owner = Indexed(small_settings(tmp_path / "store"))
    index = owner.open_index()
    owner.store.found_keys.wanted = True
    for number in range(60):
        owner.send(keyed(f"{number:032X}", "k"))
    pieces = next_pieces(owner.store, index.position, 1 << 20)
    # But where a file's end is closed by a blank.
    assert [type(each) for each in pieces[::2]] == [KeyRun] * len(pieces[::2])
    assert not any(each.records.count for each in pieces[1::2] if not isinstance(each, KeyRun))
    owner.follow()
    assert len(owner.find("k")) == 60
    owner.close()


@needs_compiled
def test_keys_that_were_found_are_taken_once_where_what_follows_is_cold(tmp_path: Path) -> None:
    disk = ColdDisk()
    owner = Owner(small_settings(tmp_path / "store"), disk)
    ends: list[int] = []
    for wanted in (True, False):
        owner.store.found_keys.wanted = wanted
        owner.append("T", 0, [b"body"])
        ends.append(owner.store.appended_end)
    disk.evict()
    (found,) = cached(lambda: next_pieces(owner.store, 0, 1 << 20))
    assert (isinstance(found, KeyRun), found.next_offset) == (True, ends[0])
    with pytest.raises(ColdRead) as cold:
        cached(lambda: next_pieces(owner.store, ends[0], 1 << 20))
    assert load(disk, cold.value.missing)
    (read,) = cached(lambda: next_pieces(owner.store, ends[0], 1 << 20))
    assert read.next_offset == ends[1]
    owner.store.close()


def stretch(start: int, end: int) -> KeyStretch:
    return KeyStretch(start, end, PackedKeys(bytes(8), bytes(8)), NOW_MS)


def test_who_is_behind_has_the_oldest_and_a_full_memory_waits_until_half_is_free() -> None:
    found = FoundKeys(bytes_max=4 * (STRETCH_BYTES + 16))
    found.wanted = True
    for start in range(0, 80, 10):
        found.add(stretch(start, start + 10))
    # Of the first four one is taken: nothing is kept before another one is gone.
    assert [each.end for each in (found.pop_run(0, 80, 10) or KeyRun([])).stretches] == [10]
    found.add(stretch(80, 90))
    assert found.stop_before(5, 99) == 10
    assert found.pop_run(20, 80, 5) == KeyRun([stretch(20, 30)])
    found.add(stretch(90, 100))
    assert found.pop_run(30, 35, 99) is None
    assert found.pop_run(30, 99, 99) == KeyRun([stretch(30, 40)])
    assert found.pop_run(40, 200, 99) is None
    assert found.stop_before(40, 200) == 90
    assert found.stop_before(40, 85) == 85
    found.clear()
    assert found.pop_run(90, 200, 99) is None
