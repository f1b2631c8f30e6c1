"""Keys of a log whose store times decrease, because its clock was wrong for a long time."""

import random
from pathlib import Path

import pytest

from rockoon_broker.index.query import KeyQuery, why_unreached
from rockoon_format.hashes import index_key_hash
from support.key_index import FOREVER_MS, Indexed, indexed_one_by_one, keyed, small_settings
from support.seeds import seeds
from support.store_directory import NOW_MS, crashed_copy

YEAR_MS = 365 * 86_400_000


@pytest.mark.parametrize("seed", seeds(3))
def test_every_key_is_found_by_its_times_whatever_the_clock_and_the_process_do(
    tmp_path: Path, seed: int
) -> None:
    choose = random.Random(seed)
    root = tmp_path / "0"
    indexed = Indexed(small_settings(root))
    indexed.open_index()
    for life in range(1, 5):
        for _ in range(choose.randrange(2, 5)):
            indexed.look_at_clock(choose.choice([0, YEAR_MS, -YEAR_MS, 2_000_000, -2_000_000]))
            indexed.send_random(choose, choose.randrange(1, 20))
            indexed.follow(bytes_max=choose.choice((300, 5000)))
            if choose.random() < 0.3 and indexed.index is not None:
                indexed.index.checkpoint()
        keys = indexed.every_key()
        check_times(indexed, keys, choose)
        now_ms = indexed.clock.time_ms
        killed = choose.random() < 0.5
        if killed:
            crashed_copy(root, tmp_path / str(life))
        indexed.close()
        if killed:
            root = tmp_path / str(life)
        indexed = Indexed(small_settings(root))
        indexed.clock.time_ms = now_ms
        indexed.open_index(was_clean=not killed)
        indexed.follow()
        assert indexed.every_key() == keys
    check_times(indexed, keys, choose)
    indexed.close()
    assert indexed.files() == indexed_one_by_one(keys)


def check_times(indexed: Indexed, keys: list[tuple[str, int, int]], choose: random.Random) -> None:
    for key, _, time_ms in choose.sample(keys, min(15, len(keys))):
        topic, _, name = key.partition("#")
        for begin_ms, end_ms in ((time_ms, time_ms), (time_ms - 5000, time_ms), (0, time_ms)):
            wanted = {
                offset
                for other, offset, stored_ms in keys
                if index_key_hash(other) == index_key_hash(key) and begin_ms <= stored_ms <= end_ms
            }
            assert wanted <= set(indexed.find(name, topic, begin_ms, end_ms))


def asked(begin_ms: int, end_ms: int) -> KeyQuery:
    return KeyQuery("T", "k", unique=False, begin_ms=begin_ms, end_ms=end_ms, messages_max=9)


def test_an_index_that_is_behind_where_times_go_back_says_so(indexed: Indexed) -> None:
    index = indexed.open_index()
    store = indexed.store
    indexed.look_at_clock(YEAR_MS)
    indexed.send(keyed(keys="k"))
    indexed.follow()
    indexed.look_at_clock(-YEAR_MS)
    indexed.send(keyed(keys="k"))

    def unreached(begin_ms: int, end_ms: int) -> str:
        return why_unreached(asked(begin_ms, end_ms), index, store.runs, store.visible_end, 0)

    assert "behind: retry the query" in unreached(0, NOW_MS + 5000)
    assert unreached(0, NOW_MS) == ""
    indexed.follow()
    assert unreached(0, FOREVER_MS) == ""
    assert indexed.full_ms == [NOW_MS + YEAR_MS + 1000]


def test_a_lost_file_before_times_go_back_may_have_held_any_time(indexed: Indexed) -> None:
    indexed.open_index()
    for set_by_ms in (0, YEAR_MS, -YEAR_MS):
        indexed.look_at_clock(set_by_ms)
        indexed.send(keyed(keys="k"))
        indexed.follow()
    indexed.send(keyed(keys="k"))
    indexed.follow()
    indexed.close()
    files = indexed.directory.files()
    assert [file.keys for file in files] == [2, 2]
    wanted = indexed.files()
    files[0].path.unlink()
    again = Indexed(small_settings(indexed.store.settings.root))
    index = again.open_index()
    again.follow()

    def unreached(begin_ms: int, end_ms: int) -> str:
        store = again.store
        return why_unreached(asked(begin_ms, end_ms), index, store.runs, store.visible_end, 0)

    # Later than the beginning of the index, but not than its content.
    assert "before physical offset" in unreached(NOW_MS + YEAR_MS, NOW_MS + 2 * YEAR_MS)
    again.fill_gap()
    assert unreached(NOW_MS + YEAR_MS, NOW_MS + 2 * YEAR_MS) == ""
    assert len(again.find("k", begin_ms=NOW_MS + YEAR_MS)) == 1
    again.close()
    assert again.files() == wanted
