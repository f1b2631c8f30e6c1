"""A store with a generation: its starts, deleted topics, and the part of the log that it keeps."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from rockoon_broker.store.compacted.hold import Hold
from rockoon_broker.store.errors import StoreDamaged
from rockoon_format.generation import CURRENT_FILE, MANIFEST_FILE, generation_name, part_names
from rockoon_format.record import AT_QUEUE_OFFSET
from support.compacted_store import CompactedStore, made, once_compacted, published
from support.store_directory import FailingDisk, healthy, settings


@pytest.fixture
def kept(tmp_path: Path) -> CompactedStore:
    return once_compacted(tmp_path / "store")


# Refused starts.


@pytest.mark.parametrize(
    "harm",
    [
        "manifest cut",
        "manifest gone",
        "entries flipped",
        "entries gone",
        "records cut",
        "current damaged",
        "directory gone",
    ],
)
def test_a_damaged_generation_in_force_is_no_start(kept: CompactedStore, harm: str) -> None:
    kept.compact()
    kept.close()
    home = kept.root / "compacted"
    directory = home / generation_name(2)
    what, how = harm.split()
    path = {
        "manifest": directory / MANIFEST_FILE,
        "entries": directory / part_names(0)[1],
        "records": directory / part_names(0)[0],
        "current": home / CURRENT_FILE,
        "directory": directory,
    }[what]
    if what == "directory":
        shutil.rmtree(path)
    else:
        content = path.read_bytes()
        path.write_bytes(
            {
                "cut": content[:-9],
                "flipped": content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
                "damaged": b"{",
                "gone": b"",
            }[how]
        )
        if how == "gone":
            path.unlink()
    with pytest.raises(StoreDamaged, match="move compacted away"):
        kept.open()
    shutil.move(home, kept.root / "aside")
    kept.open()
    assert len(kept.read("C", 0)) == 5
    kept.close()


def test_a_lost_current_is_no_beginning(kept: CompactedStore) -> None:
    kept.compact()
    kept.close()
    (kept.root / "compacted" / CURRENT_FILE).unlink()
    with pytest.raises(StoreDamaged, match="generation 2 replaced 1"):
        kept.open()


def test_a_log_that_is_gone_or_another_is_no_start(kept: CompactedStore) -> None:
    kept.compact()
    kept.close()
    log = kept.root / "commitlog"
    saved = kept.root / "saved"
    log.rename(saved)
    with pytest.raises(StoreDamaged, match="the log of generation"):
        kept.open()
    # First a log that was created again and is shorter, then one that is long enough.
    compacted = kept.root / "compacted"
    compacted.rename(kept.root / "aside")
    for count in (1, 40):
        shutil.rmtree(log, ignore_errors=True)
        shutil.rmtree(kept.root / "consumequeue", ignore_errors=True)
        other = CompactedStore(settings(kept.root), ())
        for _ in range(count):
            other.send("C", 0, [("x", b"other")])
        other.close()
        (kept.root / "aside").rename(compacted)
        with pytest.raises(StoreDamaged, match=r"this log ends at|its log differs"):
            kept.open()
        compacted.rename(kept.root / "aside")


def test_a_record_that_was_damaged_since_is_told_with_its_place(kept: CompactedStore) -> None:
    path = kept.compact() / part_names(0)[0]
    content = path.read_bytes()
    generation = kept.store.compaction.generation
    assert generation is not None
    second = int(generation.parts[0].positions[1])
    damaged = bytearray(content)
    damaged[second + AT_QUEUE_OFFSET] ^= 1
    path.write_bytes(damaged)
    # Earlier messages come first, and later ones can be read.
    pulled = kept.store.get("C", 0, 0)
    assert (pulled.count, pulled.next_offset) == (1, 3)
    with pytest.raises(StoreDamaged, match=rf"00000\.records is damaged: at byte {second}"):
        kept.store.get("C", 0, 3)
    assert kept.read("C", 0, 4) == [(4, b"5")]
    path.write_bytes(content[:-5])
    with pytest.raises(StoreDamaged, match=r"00000\.records is damaged"):
        kept.read("D", 1, 2)


def test_a_damaged_part_is_told_when_a_reader_comes_to_it(tmp_path: Path) -> None:
    kept = CompactedStore(settings(tmp_path))
    kept.send("C", 0, [(f"k{number}", b"%d" % number) for number in range(4)])
    path = kept.compact(records_per_part=2) / part_names(1)[0]
    path.write_bytes(bytes(path.stat().st_size))
    pulled = kept.store.get("C", 0, 0)
    assert (pulled.count, pulled.next_offset) == (2, 2)
    with pytest.raises(StoreDamaged, match=r"00001\.records is damaged: at byte 0"):
        kept.store.get("C", 0, 2)


# Deletions.


def test_a_deleted_topic_is_served_no_more_and_begins_anew(kept: CompactedStore) -> None:
    kept.compact()
    kept.store.drop_topics("C")
    assert kept.store.max_offset("C", 0) == 0
    assert kept.store.min_offset("C", 0) == 0
    [new] = kept.send("C", 0, [("a", b"new")])
    assert new.offset == 0
    for _ in range(2):
        assert kept.read("C", 0) == [(0, b"new")]
        assert [body for _, body in kept.read("D", 1)] == [b"1", b"2", b"3"]
        kept.restart()
    kept.compact()
    assert kept.read("C", 0) == [(0, b"new")]
    manifest = kept.store.compaction.manifest
    assert manifest is not None
    assert manifest.topic("C") is not None


def test_a_topic_deleted_while_a_generation_was_made_is_not_served_from_it(
    kept: CompactedStore,
) -> None:
    directory = made(kept)
    kept.store.drop_topics("C")
    kept.send("C", 0, [("a", b"new")])
    published(directory)
    kept.settle()
    assert kept.in_force == 2
    assert kept.read("C", 0) == [(0, b"new")]
    assert [body for _, body in kept.read("D", 1)] == [b"1", b"2", b"3"]
    kept.restart()
    assert kept.read("C", 0) == [(0, b"new")]


def test_a_deletion_is_remembered_as_long_as_a_generation_has_the_topic(tmp_path: Path) -> None:
    disk = FailingDisk()
    disk.usage_percent = 50
    kept = CompactedStore(settings(tmp_path), ("C", "D"), disk)
    [old] = kept.send("C", 0, [("a", b"old")])
    kept.send("D", 0, [("a", b"1")])
    kept.compact()
    kept.store.drop_topics("C")
    for _ in range(20):
        kept.send("N", 0, [(None, bytes(900))])
    kept.owner.write_point()
    disk.usage_percent = 88
    while kept.store.clean(kept.owner.clock.time_ms).delete:
        kept.owner.wait_for_removals()
        if kept.store.log_min_offset > 3 * 4096:
            break
    disk.usage_percent = 50
    kept.store.clean(kept.owner.clock.time_ms)
    assert kept.store.log_min_offset > old.physical_offset + 4096
    for _ in range(3):
        assert kept.store.is_dropped("C", old.physical_offset)
        assert kept.store.max_offset("C", 0) == 0
        assert kept.read("D", 0) == [(0, b"1")]
        kept.restart()
    # The next generation contains the deletion, and then the log may lose it.
    kept.compact()
    kept.store.clean(kept.owner.clock.time_ms)
    marks = json.loads((tmp_path / "config" / "droppedTopics.json").read_bytes())["marks"]
    assert "C" not in marks
    kept.restart()
    assert kept.store.max_offset("C", 0) == 0


# Retention of the log.


def fill_files(kept: CompactedStore, count: int) -> None:
    for _ in range(count):
        kept.send("N", 0, [(None, bytes(3000))])
    kept.owner.write_point()


@pytest.fixture
def full(tmp_path: Path) -> CompactedStore:
    """A store on a disk so full that all files are deleted that may be."""
    disk = FailingDisk()
    disk.usage_percent = 88
    return CompactedStore(settings(tmp_path), ("C",), disk)


def cleaned(kept: CompactedStore) -> int:
    """Return the beginning of the log after all files that may be deleted are deleted."""
    for _ in range(10):
        kept.store.clean(kept.owner.clock.time_ms)
    return kept.store.log_min_offset


def test_the_log_stays_from_the_first_message_that_is_not_compacted(full: CompactedStore) -> None:
    fill_files(full, 5)
    [first] = full.send("C", 0, [("a", b"1")])
    first_ms = full.owner.clock.time_ms
    fill_files(full, 5)
    full.owner.clock.time_ms += 3_600_000
    [second] = full.send("C", 1, [("a", b"2")])
    fill_files(full, 5)
    # The second reply equals the first.
    for _ in range(2):
        assert full.store.compaction.hold() == Hold(first.physical_offset, "C", first_ms)
    assert cleaned(full) == first.physical_offset // 4096 * 4096
    full.compact()
    assert full.store.compaction.hold() is None
    assert cleaned(full) > second.physical_offset
    assert full.read("C", 1) == [(0, b"2")]
    [third] = full.send("C", 0, [("b", b"3")])
    now_ms = full.owner.clock.time_ms
    assert full.store.compaction.hold() == Hold(third.physical_offset, "C", now_ms)
    fill_files(full, 5)
    assert cleaned(full) == third.physical_offset // 4096 * 4096
    full.restart()
    fill_files(full, 1)
    assert cleaned(full) == third.physical_offset // 4096 * 4096
    full.store.drop_topics("C")
    fill_files(full, 1)
    assert full.store.compaction.hold() is None
    assert cleaned(full) > third.physical_offset


def test_a_full_disk_says_what_the_log_waits_for(
    full: CompactedStore, caplog: pytest.LogCaptureFixture
) -> None:
    full.send("C", 0, [("a", b"1")])
    fill_files(full, 5)
    assert isinstance(full.disk, FailingDisk)
    full.disk.usage_percent = 95
    cleaned(full)
    assert "the message of C at 0 is not compacted yet" in full.store.refusal_reason
    assert caplog.text.count("keeping CommitLog files") == 1
    full.disk.usage_percent = 88
    full.compact()
    cleaned(full)
    assert full.store.writable
    assert os.listdir(full.root / "compacted")


def test_a_topic_that_becomes_compacted_holds_what_the_log_still_has(full: CompactedStore) -> None:
    [old] = full.send("D", 0, [("a", b"1")])
    fill_files(full, 4)
    full.store.set_compacted_topics({"C", "D"})
    assert cleaned(full) == old.physical_offset
    full.store.set_compacted_topics({"C"})
    assert cleaned(full) > old.physical_offset


def test_an_entry_that_cannot_be_right_keeps_the_whole_log(full: CompactedStore) -> None:
    fill_files(full, 5)
    full.send("C", 0, [("a", b"1")])
    fill_files(full, 5)
    path = full.root / "consumequeue" / "C" / "0" / f"{0:020d}"
    content = path.read_bytes()
    path.write_bytes(b"\x7f" + content[1:])
    begin = full.store.log_min_offset
    assert cleaned(full) == begin
    path.write_bytes(content)
    assert cleaned(full) > begin


# A topic that is not compacted for some time.


@pytest.fixture
def overtaken(full: CompactedStore) -> CompactedStore:
    """While C was not compacted, retention deleted a message of it that is newer than the
    generation."""
    full.topics = {**full.topics, "D": full.topics["C"]}
    full.store.set_compacted_topics(full.topics)
    full.send("C", 0, [("a", b"1"), ("b", b"2")])
    full.send("D", 0, [("a", b"1")])
    full.compact()
    fill_files(full, 3)
    full.store.set_compacted_topics({"D"})
    [gone] = full.send("C", 0, [("a", b"3")])
    deleted: tuple[int, ...] = (0,)
    while deleted:
        deleted = full.store.clean(full.owner.clock.time_ms).delete
    # Only messages of the generation are deleted from the log, so it still exists.
    assert full.read("C", 0) == [(0, b"1"), (1, b"2"), (2, b"3")]
    fill_files(full, 5)
    assert cleaned(full) > gone.physical_offset
    return full


def test_what_retention_overtook_is_not_shown_again_and_the_topic_is_compacted_anew(
    overtaken: CompactedStore,
) -> None:
    kept = overtaken
    assert kept.read("C", 0) == []
    kept.store.set_compacted_topics(kept.topics)
    [fourth] = kept.send("C", 1, [("c", b"4")])
    for _ in range(2):
        assert kept.read("C", 0) == []
        assert (kept.store.min_offset("C", 0), kept.store.max_offset("C", 0)) == (3, 3)
        assert kept.read("C", 1) == [(0, b"4")]
        assert kept.read("D", 0) == [(0, b"1")]
        assert kept.store.compaction.covered_end("C") == 0
        hold = kept.store.compaction.hold()
        assert hold is not None
        assert hold.physical_offset == fourth.physical_offset
        kept.restart()
    assert kept.send("C", 0, [("a", b"5")])[0].offset == 3
    kept.compact()
    fill_files(kept, 5)
    assert cleaned(kept) > fourth.physical_offset
    for _ in range(2):
        assert kept.read("C", 0) == [(3, b"5")]
        assert kept.read("C", 1) == [(0, b"4")]
        assert kept.read("D", 0) == [(0, b"1")]
        kept.restart()
    marks = json.loads((kept.root / "config" / "droppedTopics.json").read_bytes())
    assert marks["overtaken"] == {}


def test_what_was_overtaken_while_a_generation_was_made_is_not_served_from_it(
    full: CompactedStore,
) -> None:
    full.send("C", 0, [("a", b"1")])
    full.compact()
    full.send("C", 0, [("b", b"2")])
    fill_files(full, 2)
    directory = made(full)
    full.store.set_compacted_topics(())
    # The file with both messages is deleted, and not the files before the generation's end.
    assert cleaned(full) == 4096
    full.store.set_compacted_topics(full.topics)
    published(directory)
    full.settle()
    assert full.in_force == 2
    for _ in range(2):
        assert full.store.compaction.covered_end("C") == 0
        assert full.read("C", 0) == []
        full.restart()
    full.send("C", 0, [("a", b"3")])
    full.compact()
    assert full.read("C", 0) == [(2, b"3")]


def test_files_that_a_crash_brings_back_are_no_gap(full: CompactedStore, tmp_path: Path) -> None:
    full.send("C", 0, [("a", b"1")])
    full.compact()
    fill_files(full, 2)
    full.store.set_compacted_topics(())
    [second] = full.send("C", 0, [("a", b"2")])
    fill_files(full, 5)
    assert isinstance(full.disk, FailingDisk)
    old = {f"{start:020d}" for start in range(0, full.store.visible_end, 4096)}
    full.disk.fail_unlink = lambda path: errno.EIO if path.name in old else 0
    assert cleaned(full) > second.physical_offset
    full.crash(tmp_path / "crashed")
    assert full.store.log_min_offset <= second.physical_offset
    full.compact()
    assert full.read("C", 0) == [(1, b"2")]
    full.restart()
    assert full.read("C", 0) == [(1, b"2")]


def test_files_stay_while_it_cannot_be_noted_that_they_go(
    full: CompactedStore, caplog: pytest.LogCaptureFixture
) -> None:
    full.send("C", 0, [("a", b"1")])
    full.compact()
    fill_files(full, 2)
    full.store.set_compacted_topics(())
    [second] = full.send("C", 0, [("a", b"2")])
    fill_files(full, 5)
    assert isinstance(full.disk, FailingDisk)
    full.disk.fail_write = lambda path, _: errno.ENOSPC if "droppedTopics" in path.name else 0
    assert cleaned(full) == second.physical_offset // 4096 * 4096
    assert "cannot record their deletion" in caplog.text
    assert full.read("C", 0) == [(0, b"1"), (1, b"2")]
    full.disk.fail_write = healthy
    assert cleaned(full) > second.physical_offset
    assert full.read("C", 0) == []
