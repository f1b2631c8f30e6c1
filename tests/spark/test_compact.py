"""Compaction keeps the newest record of each key of a store's log and former generation."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rockoon_spark.compaction.sources import CompactionError
from rockoon_spark.jobs.compact import Worthwhile, compact
from support.compacting import (
    COMPACTED,
    PART_BYTES,
    RETENTION_MS,
    TOPICS,
    Compacting,
    compare,
    kept,
    manifest,
    place,
    run,
)
from support.seeds import seeds
from support.store_directory import crashed_copy


@pytest.fixture
def before(tmp_path: Path) -> Callable[[], Path]:
    """Return a function that copies the store."""

    def copy() -> Path:
        target = tmp_path / "before"
        shutil.rmtree(target, ignore_errors=True)
        return crashed_copy(tmp_path / "store", target)

    return copy


@pytest.mark.parametrize("seed", seeds(1))
def test_two_runs_leave_what_comparing_one_record_after_another_leaves(
    spark: SparkSession, tmp_path: Path, before: Callable[[], Path], seed: int
) -> None:
    root = tmp_path / "store"
    owner = Compacting(root)
    choose = random.Random(seed)
    for number in (1, 2):
        owner.send_random(choose, 200)
        owner.clock.time_ms += RETENTION_MS
        copy, now_ms = before(), owner.clock.time_ms
        report = compact(spark, place(root, now_ms), split_bytes=10_000, part_bytes=8_000)
        owner.take_over(number)
        compare(root, copy, number, now_ms)
        assert report.generation == number
        assert report.records_left == len(kept(root)) < report.records
        assert report.parts > 1
    owner.store.close()


@pytest.mark.parametrize("seed", seeds(4))
def test_random_stores_topics_moments_and_restarts(
    tmp_path: Path, before: Callable[[], Path], seed: int
) -> None:
    choose = random.Random(seed)
    root = tmp_path / "store"
    topics: tuple[str, ...] = ()
    owner = Compacting(root, topics)

    def restart_sometimes(owner: Compacting) -> Compacting:
        if choose.random() < 0.7:
            return owner
        owner.store.close()
        return Compacting(root, topics, owner.clock.time_ms)

    for _ in range(5):
        owner = restart_sometimes(owner)
        topics = tuple(choose.sample(TOPICS, choose.randrange(1, 4)))
        owner.name_compacted(topics)
        owner.send_random(choose, choose.randrange(100), keys=choose.choice([1, 5, 50]))
        if choose.random() < 0.3:
            owner.store.drop_topics(choose.choice(TOPICS))
            owner.send_random(choose, choose.randrange(20))
        owner.clock.time_ms += choose.randrange(2 * RETENTION_MS)
        copy, now_ms = before(), owner.clock.time_ms
        lag_ms = choose.choice([0, 0, RETENTION_MS // 2])
        worthwhile = Worthwhile(
            choose.choice([0.0, 0.5]),
            choose.choice([0, RETENTION_MS]),
            rewrites=choose.random() < 0.1,
        )
        report = run(
            place(root, now_ms),
            retries=choose.randrange(2),
            lag_ms=lag_ms,
            # With large parts, runs link and merge parts instead of writing them again.
            part_bytes=choose.choice([PART_BYTES, 1 << 20]),
            worthwhile=worthwhile,
        )
        assert report.generation == owner.in_force + report.is_new
        # The next start finds a generation that is not active yet.
        owner = restart_sometimes(owner)
        owner.take_over(report.generation)
        if report.is_new:
            compare(root, copy, report.generation, now_ms)
    owner.store.close()


def test_nothing_new_makes_nothing_until_tombstones_have_to_go(tmp_path: Path) -> None:
    owner = Compacting(tmp_path / "store")
    owner.send("a", b"")
    owner.send("b")
    first = run(place(owner.root, owner.clock.time_ms))
    assert (first.is_new, first.tombstones_left) == (True, 1)
    owner.take_over(1)
    late_ms = manifest(owner.root, 1).created_ms + RETENTION_MS
    again = run(place(owner.root, late_ms - 1))
    assert (again.is_new, again.generation) == (False, 1)
    last = run(place(owner.root, late_ms))
    assert (last.is_new, last.tombstones_dropped, last.records_left) == (True, 1, 1)
    owner.store.close()


def test_a_deleted_key_that_comes_back_is_there(tmp_path: Path) -> None:
    owner = Compacting(tmp_path / "store")
    for body in (b"first", b"", b"last"):
        owner.send("a", body)
    run(place(owner.root, owner.clock.time_ms))
    owner.take_over(1)
    assert owner.bodies("C") == [b"last"]
    owner.store.close()


def test_the_same_key_in_two_topics_and_keys_that_differ_in_little_stay_apart(
    tmp_path: Path,
) -> None:
    owner = Compacting(tmp_path / "store")
    keys = ["a", "a ", "a b", "b a", "a\0", "ab", "A", 255 * "x", 256 * "x", 257 * "x", 300 * "x"]
    for topic in COMPACTED:
        for key in keys:
            for _ in range(2):
                owner.send(key, key.encode(), topic)
    run(place(owner.root, owner.clock.time_ms))
    owner.take_over(1)
    for topic in COMPACTED:
        assert owner.bodies(topic) == [key.encode() for key in keys]
    owner.store.close()


def test_messages_without_a_key_and_of_blank_keys_all_stay(tmp_path: Path) -> None:
    owner = Compacting(tmp_path / "store")
    for key in (None, " ", None, " ", "  "):
        owner.send(key, b"")
    report = run(place(owner.root, owner.clock.time_ms))
    assert (report.keyless, report.records_left) == (5, 5)
    owner.take_over(1)
    assert owner.bodies("C") == 5 * [b""]
    owner.store.close()


def test_young_messages_are_left_for_the_next_run(tmp_path: Path) -> None:
    owner = Compacting(tmp_path / "store")
    for number in range(30):
        owner.clock.time_ms += 99
        owner.send("a", b"%d" % number)
    report = run(place(owner.root, owner.clock.time_ms), lag_ms=1000)
    # Messages are a tenth of a second apart, and one has exactly the lag.
    assert report.records == 20
    owner.take_over(1)
    assert owner.bodies("C") == [b"%d" % number for number in range(19, 30)]
    # A longer lag does not undo the compaction.
    owner.send("a", b"last")
    assert not run(place(owner.root, owner.clock.time_ms), lag_ms=2000).is_new
    owner.name_compacted(TOPICS)
    again = run(place(owner.root, owner.clock.time_ms), lag_ms=2000)
    assert (again.is_new, again.log_end) == (True, report.log_end)
    owner.take_over(2)
    owner.store.close()


def test_small_parts_become_one_and_empty_stores_make_none(tmp_path: Path) -> None:
    owner = Compacting(tmp_path / "store")
    empty = run(place(owner.root, owner.clock.time_ms))
    assert (empty.is_new, empty.generation) == (False, 0)
    choose = random.Random(2)
    for number in (1, 2, 3):
        owner.send_random(choose, 50, keys=200)
        report = run(place(owner.root, owner.clock.time_ms), part_bytes=500)
        owner.take_over(number)
    assert report.parts > 10
    owner.send("one", b"more")
    merged = run(place(owner.root, owner.clock.time_ms), part_bytes=1 << 20)
    assert (merged.parts, merged.records_left) == (1, report.records_left + 1)
    owner.take_over(4)
    owner.store.close()


def test_a_topic_compacted_later_is_read_from_the_log_beside_the_parts_of_others(
    tmp_path: Path,
) -> None:
    owner = Compacting(tmp_path / "store")
    for number in range(6):
        owner.send(f"k{number}", 300 * b"x")
    for number in range(60):
        owner.send("always the same", b"%d" % number, "plain")
    run(place(owner.root, owner.clock.time_ms), part_bytes=1 << 20)
    owner.take_over(1)
    owner.name_compacted(TOPICS)
    report = run(place(owner.root, owner.clock.time_ms), part_bytes=300)
    owner.take_over(2)
    # The former part does not state where its records were in the log: some parts got none.
    assert 0 in [part.records for part in manifest(owner.root, 2).parts]
    assert report.records_left == 7
    assert owner.bodies("C") == 6 * [300 * b"x"]
    assert owner.bodies("plain") == [b"59"]
    owner.store.close()


def test_a_generation_that_waits_for_its_broker_comes_first(tmp_path: Path) -> None:
    owner = Compacting(tmp_path / "store")
    owner.send("a")
    run(place(owner.root, owner.clock.time_ms))
    with pytest.raises(CompactionError, match="waits for the broker"):
        run(place(owner.root, owner.clock.time_ms))
    owner.take_over(1)
    assert not run(place(owner.root, owner.clock.time_ms)).is_new
    owner.store.close()
