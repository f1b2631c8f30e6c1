"""Keys that were found when their messages arrived: the index equals that of a read of the log."""

import gc
import itertools
import random
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rockoon_broker.index.follower import FOUND_KEYS_TIMES, next_pieces
from rockoon_broker.store.log import file_reads
from rockoon_broker.store.log.batch import AppendBatch
from rockoon_broker.store.log.file_reads import ColdRead, load
from rockoon_broker.store.log.found_keys import BATCH_BYTES, KEPT_BYTES_MAX, FoundKeys, KeyRun
from rockoon_format.batch import encode_batch
from rockoon_format.index_entries import PackedKeys
from support.cold_disk import ColdDisk
from support.kernels import BOTH, needs_compiled, using
from support.key_index import Indexed, indexed_one_by_one, keyed, small_settings
from support.seeds import seeds
from support.store_directory import BORN_HOST, NOW_MS, Owner, batch_of

NO_TEXT = b"KEYS\x01\xff\xfe k\x02"


def batch(choose: random.Random) -> AppendBatch:
    """Return messages with no, one or several keys, some of them not text."""
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
        # Sometimes there is no space, or no indexer.
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
    # Except where a blank closes the end of a file.
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
    (found,) = file_reads.cached(lambda: next_pieces(owner.store, 0, 1 << 20))
    assert (isinstance(found, KeyRun), found.next_offset) == (True, ends[0])
    with pytest.raises(ColdRead) as cold:
        file_reads.cached(lambda: next_pieces(owner.store, ends[0], 1 << 20))
    assert load(disk, cold.value.missing)
    (read,) = file_reads.cached(lambda: next_pieces(owner.store, ends[0], 1 << 20))
    assert read.next_offset == ends[1]
    owner.store.close()


@needs_compiled
def test_a_call_returns_a_bounded_part_of_a_full_cache(tmp_path: Path) -> None:
    owner = Indexed(small_settings(tmp_path / "store"))
    owner.store.found_keys.wanted = True
    ends = [0]
    for number in range(60):
        owner.send(keyed(f"{number:032X}", "k"))
        ends.append(owner.store.appended_end)
    assert ends[-1] < owner.store.settings.commit_log_file_bytes, "no blank between two runs"
    batch_bytes_max = max(end - start for start, end in itertools.pairwise(ends))
    position, calls = 0, 0
    while position < owner.store.visible_end:
        pieces = next_pieces(owner.store, position, 500)
        assert {type(each) for each in pieces} == {KeyRun}
        bound = position + 500 * FOUND_KEYS_TIMES
        position = pieces[-1].next_offset
        assert min(bound, ends[-1]) <= position <= bound + batch_bytes_max
        calls += 1
    assert calls > 1
    owner.close()


def keys_at(start: int) -> PackedKeys:
    return PackedKeys(start.to_bytes(8, sys.byteorder), start.to_bytes(8, sys.byteorder))


def cached(bytes_max: int, *starts: int) -> FoundKeys:
    """Return a cache with a batch of ten bytes and one key at each start."""
    found = FoundKeys(bytes_max)
    found.wanted = True
    for start in starts:
        found.add(start, start + 10, keys_at(start), NOW_MS + start)
    return found


def popped(found: FoundKeys, position: int, end: int, bytes_max: int) -> list[int] | None:
    """Return starts of the popped batches."""
    run = found.pop_run(position, end, bytes_max)
    if run is None:
        return None
    entries = run.entries()
    starts: list[int] = entries.offsets.tolist()
    assert entries.hashes.tolist() == starts
    assert entries.timestamps_ms.tolist() == [NOW_MS + start for start in starts]
    assert (run.start, run.next_offset) == (starts[0], starts[-1] + 10)
    assert run.newest_ms == NOW_MS + starts[-1]
    return starts


def test_a_full_cache_keeps_the_oldest_keys_until_half_of_it_is_free() -> None:
    found = cached(4 * (BATCH_BYTES + 16), *range(0, 80, 10))
    # Four batches filled it, and one is popped: too few for another one.
    assert popped(found, 0, 80, 10) == [0]
    found.add(80, 90, keys_at(80), NOW_MS + 80)
    assert found.stop_before(5, 99) == 10
    assert popped(found, 20, 80, 5) == [20]
    found.add(90, 100, keys_at(90), NOW_MS + 90)
    assert popped(found, 30, 35, 99) is None
    assert popped(found, 30, 99, 99) == [30]
    assert popped(found, 40, 200, 99) is None
    assert found.stop_before(40, 200) == 90
    assert found.stop_before(40, 85) == 85
    found.clear()
    assert popped(found, 90, 200, 99) is None


@pytest.mark.parametrize("seed", seeds(8))
def test_popped_runs_have_the_adjacent_batches_within_the_bounds(seed: int) -> None:
    choose = random.Random(seed)
    starts = [start for start in range(0, 400, 10) if choose.random() < 0.85]
    found, position = cached(1 << 20, *starts), 0
    while position < 400:
        position += choose.choice((0, 0, 0, 3, 10))
        end, bytes_max = position + choose.randrange(60), choose.randrange(1, 60)
        wanted: list[int] = []
        while position + 10 * len(wanted) in starts:
            stop = position + 10 * len(wanted) + 10
            if stop > end or (wanted and stop > position + bytes_max):
                break
            wanted.append(stop - 10)
        assert popped(found, position, end, bytes_max) == (wanted or None)
        position = (
            wanted[-1] + 10 if wanted else min((s for s in starts if s > position), default=400)
        )
    assert popped(found, 500, 600, 99) is None
    found.wanted = True
    assert found._bytes == 0


@pytest.mark.parametrize("seed", seeds(4))
def test_keys_keep_the_order_of_their_batches_whatever_their_number(seed: int) -> None:
    choose = random.Random(seed)
    found = FoundKeys()
    found.wanted = True
    wanted: list[tuple[int, int]] = []
    for start in range(0, 3000, 10):
        offsets = [start] * choose.choice((0, 1, 1, 2, 64, 65, 200))
        packed = np.array(offsets, np.int64).tobytes()
        found.add(start, start + 10, PackedKeys(packed, packed), NOW_MS + start)
        wanted += [(offset, NOW_MS + offset) for offset in offsets]
    seen: list[tuple[int, int]] = []
    position = 0
    while (run := found.pop_run(position, 3000, choose.choice((10, 500, 3000)))) is not None:
        assert run.start == position
        entries = run.entries()
        assert entries.hashes.tolist() == entries.offsets.tolist()
        seen += zip(entries.offsets.tolist(), entries.timestamps_ms.tolist(), strict=True)
        position = run.next_offset
    assert (position, seen) == (3000, wanted)


def test_a_piece_of_a_full_cache_costs_no_move_of_the_rest() -> None:
    found = cached(KEPT_BYTES_MAX)
    end = 10 * (KEPT_BYTES_MAX // BATCH_BYTES)
    nothing = PackedKeys(b"", b"")
    for start in range(0, end, 10):
        found.add(start, start + 10, nothing, NOW_MS)
    begin_seconds = time.process_time()
    position = 0
    for _ in range(5_000):
        run = found.pop_run(position, end, 100)
        assert run is not None
        position = run.next_offset
    # If each run copied the remaining keys, a copy would need 0.5 ms and the loop 2.5 s.
    assert time.process_time() - begin_seconds < 0.5


def test_the_event_loop_does_no_work_per_batch_when_it_hands_out_keys() -> None:
    def calls(count: int) -> int:
        """Return the function calls for the keys of a number of batches."""
        found, seen = cached(1 << 20, *range(0, 10 * count, 10)), []
        sys.setprofile(lambda _, event, __: seen.append(event) if event.endswith("call") else None)
        try:
            run = found.pop_run(0, 10 * count, 10 * count)
            assert run is not None
            run.entries()
        finally:
            sys.setprofile(None)
        assert run.next_offset == 10 * count
        return len(seen)

    assert calls(1000) == calls(10)


def test_cached_keys_need_no_object_per_batch() -> None:
    # With one per batch, the garbage collector would traverse them on the event loop.
    found = cached(1 << 20, 0)
    before = len(gc.get_objects())
    for start in range(10, 10_000, 10):
        found.add(start, start + 10, keys_at(start), NOW_MS)
    assert len(gc.get_objects()) < before + 100


def test_every_batch_adds_its_keys_with_the_same_work() -> None:
    # If a batch did the work of 64 others, it would determine the slowest percent of awaited sends.
    found = cached(1 << 20, 0)
    seen: list[str] = []
    calls: list[int] = []
    for start in range(10, 10_000, 10):
        keys = keys_at(start)
        sys.setprofile(lambda _, event, __: seen.append(event) if event.endswith("call") else None)
        try:
            found.add(start, start + 10, keys, NOW_MS)
        finally:
            sys.setprofile(None)
        calls.append(len(seen))
        seen.clear()
    assert len(set(calls)) == 1
