"""Reads of compacted queues: the newest message of each key, then the log, without holes."""

import os
import random
from itertools import pairwise
from pathlib import Path

import pytest

from rockoon_broker.long_poll import PullProgress, Step
from rockoon_broker.store.errors import UnknownOffset
from rockoon_broker.store.reading.reader import GetStatus, TimeBoundary
from rockoon_format.hashes import index_key_hash
from support.compacted_store import RETENTION_MS, CompactedStore, Kept, Model
from support.seeds import seeds
from support.store_check import verify_store
from support.store_directory import FailingDisk, settings

YEAR_MS = 365 * 86_400_000


def lose_old_files(kept: CompactedStore, disk: FailingDisk) -> None:
    """Make the disk so full that all files are deleted that may be."""
    kept.owner.write_point()
    disk.usage_percent = 88
    for _ in range(50):
        if not kept.store.clean(kept.owner.clock.time_ms).delete:
            break
    disk.usage_percent = 50
    kept.owner.wait_for_removals()


def grow(kept: CompactedStore, chance: random.Random, batches: int) -> None:
    for _ in range(batches):
        topic, queue_id = chance.choice("CDN"), chance.randrange(3)
        messages: list[tuple[str | None, bytes]] = [
            (
                chance.choice([None, *(f"k{number}" for number in range(15))]),
                chance.choice([b"", chance.randbytes(chance.randrange(1, 200))]),
            )
            for _ in range(chance.randrange(1, 6))
        ]
        kept.send(topic, queue_id, messages, chance.choice(["TagA", "TagB"]))
        kept.owner.clock.time_ms += chance.choice([0, 1, 3000])


# Known: retention has removed the mark of a deletion, and the generation is still in use.
@pytest.mark.parametrize("seed", seeds(1, known=(3371083404,)))
def test_whatever_happens_readers_see_the_newest_of_each_key_and_then_the_log(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    disk = FailingDisk()
    disk.usage_percent = 50
    kept = CompactedStore(settings(tmp_path / "store"), ("C", "D"), disk)
    model = Model(kept.sent, kept.topics)
    for step in range(8):
        grow(kept, chance, chance.randrange(1, 25))
        model.check(kept, chance)
        happening = ["compact", "compact", "restart", "crash", "lose", "lose", "wait", "drop"]
        match chance.choice(happening):
            case "compact":
                now_ms = kept.owner.clock.time_ms
                kept.compact(chance.choice([1, 5, 1000]), links=chance.random() < 0.7)
                model.compact(now_ms)
            case "restart":
                kept.restart()
            case "crash":
                kept.crash(tmp_path / f"crash-{step}")
            case "drop":
                kept.drop("C")
                model.drop("C")
            case "lose":
                lose_old_files(kept, disk)
            case "wait":
                kept.owner.clock.time_ms += RETENTION_MS
        model.check(kept, chance)
    kept.close()


@pytest.mark.parametrize("seed", seeds(2))
def test_where_store_times_go_back_searches_are_right_in_log_and_generation(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    kept = CompactedStore(settings(tmp_path / "store"), ("C", "D"))
    model = Model(kept.sent, kept.topics)
    for number, set_by_ms in enumerate((0, YEAR_MS, -YEAR_MS, 0, 2 * YEAR_MS, -2 * YEAR_MS)):
        kept.owner.look_at_clock(set_by_ms)
        for _ in range(12):
            # No message replaces another one: generations contain decreasing store times.
            keys = [f"k{chance.getrandbits(64)}" for _ in range(chance.randrange(1, 4))]
            kept.send(chance.choice("CD"), chance.randrange(2), [(key, b"x") for key in keys])
            kept.owner.clock.time_ms += chance.choice([0, 1, 3000])
        if number == 1 + seed or chance.random() < 0.3:
            now_ms = kept.owner.clock.time_ms
            kept.compact(chance.choice([1, 5, 1000]), links=chance.random() < 0.7)
            model.compact(now_ms)
        if chance.random() < 0.5:
            kept.restart()
        model.check(kept, chance)
        for topic, queue_id in sorted({(each.topic, each.queue_id) for each in kept.sent}):
            alive = model.alive(topic, queue_id)
            for each in alive:
                for probe in (each.stored_ms, each.stored_ms + 1):
                    model.check_search(kept, topic, queue_id, probe, alive)
    times = [each.stored_ms for each in kept.sent]
    assert sum(after < before for before, after in pairwise(times)) == 2
    kept.close()


@pytest.fixture
def kept(tmp_path: Path) -> CompactedStore:
    return CompactedStore(settings(tmp_path))


def test_a_pull_in_a_hole_goes_on_behind_it(kept: CompactedStore) -> None:
    kept.send("C", 0, [("a", b"1"), ("b", b"2"), ("a", b"3"), ("a", b"4"), ("c", b"5")])
    kept.compact()
    assert kept.read("C", 0) == [(1, b"2"), (3, b"4"), (4, b"5")]
    pulled = kept.store.get("C", 0, 2, messages_max=1)
    assert (pulled.status, pulled.next_offset) == (GetStatus.FOUND, 4)
    assert (pulled.min_offset, pulled.max_offset) == (0, 5)


def test_a_hole_at_the_end_leads_to_the_log_and_to_waiting(kept: CompactedStore) -> None:
    kept.send("C", 0, [("a", b"1"), ("b", b"2")])
    kept.send("C", 1, [("a", b"3"), ("b", b"4")])
    kept.compact()
    hole = kept.store.get("C", 0, 0)
    assert (hole.status, hole.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 2)
    pull = PullProgress(asked_offset=0, offset=0)
    assert pull.step(hole) is Step.WAIT
    end = kept.store.get("C", 0, pull.offset)
    assert (end.status, end.next_offset, end.min_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, 2, 0)
    assert pull.step(end) is Step.WAIT
    assert pull.answer(end) == (GetStatus.NO_MATCHED_MESSAGE, 2)
    kept.send("C", 0, [("a", b"5")])
    assert pull.step(kept.store.get("C", 0, pull.offset)) is Step.ANSWER
    assert kept.read("C", 0) == [(2, b"5")]
    assert kept.store.get("C", 0, 4).status is GetStatus.OFFSET_OVERFLOW_BADLY


def test_a_tombstone_is_seen_for_its_time_and_goes_with_its_key(kept: CompactedStore) -> None:
    kept.send("C", 0, [("a", b"1"), ("b", b"2"), ("a", b"")])
    kept.compact()
    assert kept.read("C", 0) == [(1, b"2"), (2, b"")]
    kept.owner.clock.time_ms += RETENTION_MS
    kept.compact()
    assert kept.read("C", 0) == [(1, b"2")]


def test_below_what_is_covered_a_reader_hears_where_the_queue_begins(tmp_path: Path) -> None:
    disk = FailingDisk()
    disk.usage_percent = 50
    kept = CompactedStore(settings(tmp_path), (), disk)
    for number in range(30):
        kept.send("C", 0, [(f"k{number}", bytes(500))])
    lose_old_files(kept, disk)
    begin = kept.store.min_offset("C", 0)
    assert begin > 0
    kept.topics = {"C": RETENTION_MS}
    kept.store.set_compacted_topics(kept.topics)
    kept.compact()
    assert kept.store.min_offset("C", 0) == begin
    pulled = kept.store.get("C", 0, begin - 1)
    assert (pulled.status, pulled.next_offset) == (GetStatus.OFFSET_TOO_SMALL, begin)


def test_every_message_outlives_the_files_of_its_log(tmp_path: Path) -> None:
    disk = FailingDisk()
    disk.usage_percent = 50
    kept = CompactedStore(settings(tmp_path), ("C",), disk)
    old = kept.send("C", 0, [(f"k{number}", b"%d" % number) for number in range(10)])
    kept.compact()
    for _ in range(20):
        kept.send("N", 0, [(None, bytes(900))])
    lose_old_files(kept, disk)
    assert kept.store.log_min_offset > old[-1].physical_offset
    for opened in range(3):
        assert kept.read("C", 0) == [(each.offset, each.body) for each in old]
        assert kept.store.max_offset("C", 0) == 10
        assert kept.store.min_offset("C", 0) == 0
        assert kept.store.queue_status("C", 0).last_store_timestamp_ms == old[-1].stored_ms
        for each in old:
            assert each.body in kept.store.read_at(each.physical_offset)
        if opened == 1:
            # An operator deletes the queue, as the error for a damaged entry says.
            kept.close()
            os.remove(tmp_path / "consumequeue" / "C" / "0" / f"{0:020d}")
            kept.open()
        else:
            kept.restart()
    [more] = kept.send("C", 0, [("k0", b"new")])
    assert more.offset == 10
    assert kept.read("C", 0, 9) == [(9, b"9"), (10, b"new")]
    kept.restart()
    kept.compact()
    assert kept.read("C", 0) == [*((each.offset, each.body) for each in old[1:]), (10, b"new")]
    kept.close()
    assert verify_store(tmp_path) == []


def test_keys_are_found_at_what_is_left_of_them(kept: CompactedStore) -> None:
    sent = kept.send("C", 0, [("a", b"1"), ("b", b"2"), ("a b", b"3"), ("a", b"4")])
    kept.send("D", 0, [("a", b"5")])
    compaction = kept.store.compaction
    kept.compact()

    def found(topic: str, key: str) -> list[int]:
        return compaction.offsets_with_key(topic, index_key_hash(f"{topic}#{key}"))

    assert found("C", "a") == [sent[2].physical_offset, sent[3].physical_offset]
    assert found("C", "b") == [sent[1].physical_offset, sent[2].physical_offset]
    assert found("C", "c") == []
    assert found("D", "a") == []
    kept.store.drop_topics("C")
    assert found("C", "a") == []


def test_a_physical_offset_within_a_record_is_none(tmp_path: Path) -> None:
    disk = FailingDisk()
    disk.usage_percent = 50
    kept = CompactedStore(settings(tmp_path), ("C",), disk)
    [old] = kept.send("C", 0, [("a", b"1")])
    kept.compact()
    for _ in range(20):
        kept.send("N", 0, [(None, bytes(900))])
    lose_old_files(kept, disk)
    assert b"1" in kept.store.read_at(old.physical_offset)
    with pytest.raises(UnknownOffset):
        kept.store.read_at(old.physical_offset + 1)


def test_times_in_a_hole_lead_to_its_ends(kept: CompactedStore) -> None:
    sent: list[Kept] = []
    for key in "abbbc":
        sent += kept.send("C", 0, [(key, b"x")])
        kept.owner.clock.time_ms += 1000
    kept.compact()
    in_hole = sent[2].stored_ms
    assert kept.store.search_offset("C", 0, in_hole, TimeBoundary.LOWER) == 3
    assert kept.store.search_offset("C", 0, in_hole, TimeBoundary.UPPER) == 0
