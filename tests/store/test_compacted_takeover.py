"""Use of a new generation: reasons of refusals, and the generation in use after a crash."""

import errno
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from rockoon_broker.store.compacted.compaction import REPLACED_KEPT_MS
from rockoon_broker.store.reading.reader import GetStatus
from rockoon_broker.store.settings import Flush
from rockoon_format.generation import (
    CURRENT_FILE,
    MANIFEST_FILE,
    CoveredQueue,
    GenerationTopic,
    Manifest,
    generation_name,
    part_names,
)
from support.compacted_store import CompactedStore, made, once_compacted, published
from support.compaction import compact_store, log_tail
from support.holding_disk import HoldingDisk
from support.store_directory import FailingDisk, crashed_copy, healthy, settings
from support.waiting import DEADLINE_SECONDS

Change = Callable[[Manifest], Manifest]


@pytest.fixture
def kept(tmp_path: Path) -> CompactedStore:
    return once_compacted(tmp_path / "store")


def changed(directory: Path, change: Change) -> None:
    path = directory / MANIFEST_FILE
    path.write_bytes(change(Manifest.from_json(path.read_bytes())).to_json())


def refused(kept: CompactedStore, made: Path, number: int = 2) -> str:
    """Put a generation where the store looks, and wait until it is refused.

    The former generation stays in use, and the reason is stored with the refused one.
    """
    before = kept.in_force
    directory = published(made, number)
    seen = kept.read("C", 0), kept.read("D", 1)
    kept.settle()
    refusal = kept.store.compaction.refusal
    assert refusal is not None
    assert refusal.generation == int(directory.name)
    assert kept.in_force == before
    assert (kept.read("C", 0), kept.read("D", 1)) == seen
    aside = directory.with_name(f".refused-{directory.name}")
    assert (aside / "reason.txt").read_text() == f"{refusal.reason}\n"
    assert (aside / MANIFEST_FILE).exists() or "manifest.json" in refusal.reason
    return refusal.reason


def on_topic(name: str, change: Callable[[GenerationTopic], GenerationTopic]) -> Change:
    return lambda manifest: replace(
        manifest,
        topics=tuple(change(topic) if topic.topic == name else topic for topic in manifest.topics),
    )


def on_queue(name: str, change: Callable[[CoveredQueue], CoveredQueue]) -> Change:
    return on_topic(name, lambda topic: replace(topic, queues=tuple(map(change, topic.queues))))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda it: replace(it, replaces=0), "it replaces generation 0, but 1 is active"),
        (lambda it: replace(it, log_tail=replace(it.log_tail, crc32=1)), "its log differs"),
        (
            lambda it: replace(
                it,
                log_tail=replace(
                    it.log_tail, start=it.log_tail.start + 1, bytes=it.log_tail.bytes - 1
                ),
            ),
            "its log differs",
        ),
        (
            lambda it: replace(
                it, log_end=10**6, log_tail=replace(it.log_tail, start=10**6 - it.log_tail.bytes)
            ),
            "this log ends at",
        ),
        (
            on_queue("C", lambda queue: replace(queue, covered_to=queue.covered_to - 1)),
            "message 4 is at",
        ),
        (on_queue("C", lambda queue: replace(queue, covered_to=99)), "the queue ends at 5"),
        (on_queue("C", lambda queue: replace(queue, covered_from=1)), "the active one from 0"),
        (
            on_topic("C", lambda topic: replace(topic, dropped_below=1)),
            "it has C as deleted below 1, but here it was deleted below 0",
        ),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(
    kept: CompactedStore, change: Change, reason: str
) -> None:  # fmt: skip
    directory = made(kept)
    changed(directory, change)
    assert reason in refused(kept, directory)


def test_a_generation_that_leaves_out_a_topic_is_refused(kept: CompactedStore) -> None:
    directory = made(kept, {"C": 0})
    assert "lacks queue 1 of D" in refused(kept, directory)


def test_a_topic_that_is_compacted_no_more_may_be_left_out(kept: CompactedStore) -> None:
    kept.store.set_compacted_topics({"C"})
    kept.topics = {"C": 0}
    kept.compact()
    # Its remaining messages in the log are served.
    assert [body for _, body in kept.read("D", 1)] == [b"1", b"2", b"3"]


def test_a_topic_whose_policy_changed_while_a_generation_was_made_loses_nothing_to_it(
    kept: CompactedStore,
) -> None:
    directory = made(kept)
    kept.store.set_compacted_topics({"C"})
    assert "D is no longer compacted" in refused(kept, directory)
    assert [body for _, body in kept.read("D", 1)] == [b"1", b"2", b"3"]


def test_a_generation_that_leaves_out_a_queue_is_refused(kept: CompactedStore) -> None:
    kept.send("C", 7, [("z", b"9")])
    directory = made(kept)

    def less(manifest: Manifest) -> Manifest:
        [topic] = [topic for topic in manifest.topics if topic.topic == "C"]
        queues = tuple(
            replace(queue, records=queue.records + 1) if queue.queue == 0 else queue
            for queue in topic.queues
            if queue.queue != 7
        )
        return on_topic("C", lambda it: replace(it, queues=queues))(manifest)

    changed(directory, less)
    assert "lacks queue 7 of C" in refused(kept, directory)


@pytest.mark.parametrize("name", part_names(0))
@pytest.mark.parametrize("damage", ["flip", "cut", "longer", "missing"])
def test_a_damaged_file_is_refused(kept: CompactedStore, name: str, damage: str) -> None:
    directory = made(kept)
    path = directory / name
    content = path.read_bytes()
    match damage:
        case "flip":
            path.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
        case "cut":
            path.write_bytes(content[:-8])
        case "longer":
            path.write_bytes(content + bytes(8))
        case "missing":
            path.unlink()
    assert name in refused(kept, directory)


@pytest.mark.parametrize("damage", ["flip", "cut", "longer", "missing"])
def test_damage_among_superseded_records_is_refused(kept: CompactedStore, damage: str) -> None:
    path = made(kept, links=True) / "00000.superseded"
    content = path.read_bytes()
    match damage:
        case "flip":
            path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        case "cut":
            path.write_bytes(content[:-1])
        case "longer":
            path.write_bytes(content + bytes(1))
        case "missing":
            path.unlink()
    assert path.name in refused(kept, path.parent)


def test_files_of_the_one_in_force_are_not_checked_again_and_copies_are(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    kept = CompactedStore(settings(tmp_path), disk=disk)
    kept.send("C", 0, [("a", b"1"), ("b", b"2"), ("c", b"3")])
    kept.send("D", 1, [("a", b"1")])
    first = kept.compact()
    kept.send("C", 0, [("b", b"4")])
    disk.syncs.clear()
    second = kept.compact(links=True)
    assert second.joinpath("00000.records").samefile(first / "00000.records")
    synced = {path.name for path in disk.syncs if path.parent == second}
    assert synced == {"00000.superseded", *part_names(1), MANIFEST_FILE}
    assert kept.read("C", 0) == [(0, b"1"), (2, b"3"), (3, b"4")]
    kept.send("C", 0, [("c", b"5")])
    copied = made(kept, links=True)
    path = copied / "00000.records"
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    assert path.name in refused(kept, copied, 3)
    kept.restart()
    assert kept.read("C", 0) == [(0, b"1"), (2, b"3"), (3, b"4"), (4, b"5")]
    kept.close()


def test_entries_of_other_records_are_refused(kept: CompactedStore) -> None:
    """All checksums are valid: the program that made it has made a mistake."""
    directory = made(kept)
    manifest = Manifest.from_json((directory / MANIFEST_FILE).read_bytes())
    records = directory / part_names(0)[0]
    content = bytearray(records.read_bytes())
    # The last byte of a body, so that the record does not match its CRC.
    at = content.index(b"KEYS") - 5
    content[at - 10 : at] = bytes(10)
    records.write_bytes(content)
    part = replace(manifest.parts[0], records_sha256=sha256(content).hexdigest())
    changed(directory, lambda it: replace(it, parts=(part, *it.parts[1:])))
    assert "00000.records: byte" in refused(kept, directory)


def test_what_is_no_generation_is_refused(kept: CompactedStore) -> None:
    home = kept.store.compaction.home
    (home / ".incoming-empty").mkdir()
    assert "has no manifest.json" in refused(kept, home / ".incoming-empty")
    directory = made(kept)
    (directory / MANIFEST_FILE).write_bytes(b"{}")
    assert "not a manifest" in refused(kept, directory)
    assert "states number 2" in refused(kept, made(kept), number=5)
    # One refused generation is kept.
    assert [path.name for path in home.glob(".refused*")] == [f".refused-{generation_name(5)}"]


def test_after_a_refusal_the_next_one_is_taken(kept: CompactedStore) -> None:
    directory = made(kept)
    (directory / part_names(0)[0]).unlink()
    refused(kept, directory)
    kept.compact()
    assert kept.store.compaction.refusal is None
    assert kept.read("C", 0) == [(2, b"3"), (3, b"4"), (4, b"5")]


def test_the_second_of_two_jobs_is_refused(kept: CompactedStore) -> None:
    """Both began with generation 1; the later one would undo the other."""
    first = made(kept)
    later = first.with_name(".incoming-later")
    shutil.copytree(first, later)
    changed(later, lambda it: replace(it, generation=3))
    published(first)
    published(later, 3)
    kept.settle()
    assert kept.in_force == 2
    refusal = kept.store.compaction.refusal
    assert refusal is not None
    assert refusal.reason == "it replaces generation 1, but 2 is active"


def test_nothing_is_taken_before_the_broker_says_what_is_compacted(tmp_path: Path) -> None:
    kept = CompactedStore(settings(tmp_path))
    kept.send("C", 0, [("a", b"1"), ("a", b"2")])
    kept.close()
    compact_store(tmp_path, topics=kept.topics)
    kept.open(tell_topics=False)
    for _ in range(20):
        kept.tick()
    assert kept.in_force == 0
    kept.store.set_compacted_topics({"C"})
    kept.settle()
    assert kept.in_force == 1


def test_a_generation_waits_until_its_log_is_durable(tmp_path: Path) -> None:
    disk = HoldingDisk()
    kept = CompactedStore(settings(tmp_path, flush=Flush.SYNC), disk=disk)
    disk.hold()
    kept.send("C", 0, [("a", b"1"), ("a", b"2")])
    end = kept.store.appended_end
    directory = compact_store(tmp_path, topics=kept.topics)
    kept.until(lambda: kept.store.compaction.pending_number)
    for _ in range(20):
        kept.tick()
    assert (kept.in_force, kept.store.compaction.pending_number) == (0, 1)
    disk.release()
    kept.owner.confirm(end)
    kept.settle()
    assert kept.in_force == int(directory.name)
    assert kept.read("C", 0) == [(1, b"2")]


def test_a_topic_deleted_while_a_generation_is_verified_is_not_served_from_it(
    kept: CompactedStore,
) -> None:
    directory = published(made(kept))
    kept.until(lambda: kept.store.compaction.pending_number)
    kept.store.drop_topics("C")
    kept.until(lambda: not directory.exists() or kept.in_force == 2)
    assert kept.store.get("C", 0, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    assert [body for _, body in kept.read("D", 1)] == [b"1", b"2", b"3"]


def test_what_changes_while_a_generation_is_verified_is_heeded(tmp_path: Path) -> None:
    disk, gate, reached = FailingDisk(), threading.Event(), threading.Event()
    kept = CompactedStore(settings(tmp_path), ("C", "D"), disk)
    kept.send("C", 0, [("a", b"1")])
    kept.send("D", 0, [("a", b"1")])
    kept.compact()
    kept.store.set_compacted_topics({"C"})

    disk.fail_sync = lambda path: _held(path, reached, gate)
    directory = published(made(kept, {"C": 0}))
    kept.until(reached.is_set)
    kept.store.set_compacted_topics({"C", "D"})
    gate.set()
    kept.settle()
    assert kept.in_force == 1
    assert not directory.exists()
    refusal = kept.store.compaction.refusal
    assert refusal is not None
    assert "lacks queue 0 of D" in refusal.reason


def test_a_store_that_is_closed_while_it_verifies_begins_anew(kept: CompactedStore) -> None:
    published(made(kept))
    kept.until(lambda: kept.store.compaction.pending_number)
    kept.restart()
    assert kept.in_force == 1
    kept.settle()
    assert kept.in_force == 2


def test_a_generation_is_durable_before_it_is_in_force(tmp_path: Path) -> None:
    disk = FailingDisk()
    kept = CompactedStore(settings(tmp_path), disk=disk)
    kept.send("C", 0, [("a", b"1")])
    directory = kept.compact()
    synced = [path for path in disk.syncs if "compacted" in path.parts]
    current = synced.index(directory.with_name(f"{CURRENT_FILE}.new"))
    assert {path.name for path in synced[:current]} == {*part_names(0), MANIFEST_FILE}


def test_a_generation_that_ends_before_the_one_in_force_is_refused(kept: CompactedStore) -> None:
    kept.compact()
    directory = made(kept)
    changed(
        directory,
        lambda it: replace(
            it,
            log_end=it.log_end - 1,
            log_tail=log_tail(kept.root, it.log_end - 1),
            parts=tuple(replace(part, log_end=part.log_end - 1) for part in it.parts),
        ),
    )
    assert "before the active one" in refused(kept, directory, 3)


@pytest.mark.parametrize("when", ["before", "while"])
def test_a_change_that_no_entry_tells_is_refused(tmp_path: Path, when: str) -> None:
    """No entry has a record's flag; and the manifest is read before all other files."""
    disk, gate, reached = FailingDisk(), threading.Event(), threading.Event()
    kept = CompactedStore(settings(tmp_path), disk=disk)
    kept.send("C", 0, [("a", b"1")])
    directory = made(kept)
    if when == "before":
        gate.set()
        path = directory / part_names(0)[0]
        content = bytearray(path.read_bytes())
        content[19] ^= 1
        path.write_bytes(content)
    disk.fail_sync = lambda path: _held(path, reached, gate)
    directory = published(directory, 1)
    if when == "while":
        kept.until(reached.is_set)
        changed(directory, lambda it: replace(it, created_ms=it.created_ms + 1))
        gate.set()
    kept.settle()
    refusal = kept.store.compaction.refusal
    assert refusal is not None
    assert ("checksum" if when == "before" else "was changed") in refusal.reason


def _held(path: Path, reached: threading.Event, gate: threading.Event) -> int:
    if path.name == MANIFEST_FILE:
        reached.set()
        assert gate.wait(DEADLINE_SECONDS)
    return 0


def test_a_manifest_that_is_not_of_its_parts_is_refused(kept: CompactedStore) -> None:
    directory = made(kept)
    more = on_queue("C", lambda queue: replace(queue, records=queue.records + 1))
    less = on_queue("D", lambda queue: replace(queue, records=queue.records - 1))
    changed(directory, lambda manifest: more(less(manifest)))
    assert "queue 0 of C has 3 records, and 4 by the manifest" in refused(kept, directory)


# Kills while the store begins to use a generation.


class CountingDisk(FailingDisk):
    """Copies the store after every call that changes something below `compacted`."""

    def __init__(self, root: Path, copies: Path) -> None:
        super().__init__()
        self._root = root
        self._copies = copies
        self.taken: list[Path] = []
        self.taking = False

    def _take(self, path: Path) -> None:
        if self.taking and "compacted" in path.parts:
            target = self._copies / f"{len(self.taken)}"
            self.taken.append(crashed_copy(self._root, target))

    def fdatasync(self, fd: int) -> None:
        path = self.paths[fd]
        self._take(path)
        super().fdatasync(fd)

    def rename(self, source: Path, target: Path) -> None:
        self._take(target)
        super().rename(source, target)
        self._take(target)

    def move_directory(self, source: Path, target: Path) -> None:
        self._take(target)
        super().move_directory(source, target)
        self._take(target)

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self._take(path)

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self._take(path)


def test_a_crash_at_any_step_leaves_one_generation_whole_and_in_force(tmp_path: Path) -> None:
    root, copies = tmp_path / "store", tmp_path / "copies"
    copies.mkdir()
    disk = CountingDisk(root, copies)
    kept = CompactedStore(settings(root), disk=disk)
    kept.send("C", 0, [("a", b"1"), ("b", b"2"), ("a", b"3")])
    kept.compact()
    kept.send("C", 0, [("b", b"4")])
    kept.owner.write_point()
    disk.taking = True
    kept.compact()
    kept.owner.clock.time_ms += REPLACED_KEPT_MS
    old = kept.store.compaction.home / generation_name(1)
    kept.until(lambda: not old.exists())
    disk.taking = False
    kept.close()
    assert len(disk.taken) > 8
    found = set()
    for copy in disk.taken:
        after = CompactedStore(settings(copy))
        found.add(after.in_force)
        seen = after.read("C", 0)
        assert seen == (
            [(1, b"2"), (2, b"3"), (3, b"4")] if after.in_force == 1 else [(2, b"3"), (3, b"4")]
        )
        # After each of these states the store continues.
        after.settle()
        assert after.in_force == 2
        after.send("C", 0, [("a", b"5")])
        after.compact()
        assert after.read("C", 0) == [(3, b"4"), (4, b"5")]
        after.close()
    assert found == {1, 2}


def test_a_disk_that_refuses_the_swap_is_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FailingDisk()
    kept = CompactedStore(settings(tmp_path), disk=disk)
    kept.send("C", 0, [("a", b"1"), ("a", b"2")])
    disk.fail_write = lambda path, _: errno.ENOSPC if path.name.startswith(CURRENT_FILE) else 0
    compact_store(tmp_path, topics=kept.topics)
    kept.until(lambda: "not active yet" in caplog.text)
    for _ in range(50):
        kept.tick()
    assert (kept.in_force, kept.store.compaction.pending_number) == (0, 1)
    assert kept.read("C", 0) == [(0, b"1"), (1, b"2")]
    disk.fail_write = healthy
    kept.settle()
    assert kept.read("C", 0) == [(1, b"2")]


def test_what_was_replaced_stays_a_while(kept: CompactedStore) -> None:
    home = kept.store.compaction.home
    kept.compact()
    for _ in range(10):
        kept.tick()
    assert (home / generation_name(1) / MANIFEST_FILE).exists()
    kept.restart()
    kept.until(lambda: not (home / generation_name(1)).exists())


def test_what_was_replaced_goes_although_the_clock_was_set_back(kept: CompactedStore) -> None:
    replaced = kept.store.compaction.home / generation_name(1)
    kept.compact()
    kept.owner.clock.time_ms -= 100 * REPLACED_KEPT_MS
    kept.tick()
    assert replaced.exists()
    kept.owner.clock.time_ms += REPLACED_KEPT_MS
    kept.until(lambda: not replaced.exists())


def test_a_start_removes_what_was_half_made_and_keeps_what_was_handed_over(
    kept: CompactedStore,
) -> None:
    stale, upload = (kept.store.compaction.home / f".incoming-{name}" for name in ("_job-4", "42"))
    for directory in (stale, upload):
        directory.mkdir()
        (directory / "00000.records").write_bytes(b"half")
    kept.restart()
    kept.until(lambda: not stale.exists())
    assert upload.exists()
    assert kept.in_force == 1


# Published by a caller that waits.


def offered(kept: CompactedStore, name: str = ".incoming-1") -> tuple[list[str], Path]:
    """A generation is uploaded under an arbitrary name: result and errors for its caller."""
    incoming = made(kept).rename(kept.store.compaction.home / name)
    manifest = Manifest.from_json((incoming / MANIFEST_FILE).read_bytes())
    heard: list[str] = []
    kept.store.compaction.offer(incoming, manifest, heard.append)
    return heard, incoming


def answered(kept: CompactedStore, heard: list[str]) -> str:
    kept.until(lambda: heard)
    assert len(heard) == 1
    return heard[0]


def test_an_offer_is_answered_when_it_is_in_force(kept: CompactedStore) -> None:
    heard, incoming = offered(kept)
    assert answered(kept, heard) == ""
    assert kept.in_force == 2
    assert not incoming.exists()


def test_a_refused_offer_is_answered_with_the_reason(kept: CompactedStore) -> None:
    heard, incoming = offered(kept)
    (incoming / part_names(0)[0]).unlink()
    assert "00000.records is missing" in answered(kept, heard)
    assert kept.in_force == 1
    assert not incoming.exists()


def test_of_two_offers_one_is_taken(kept: CompactedStore) -> None:
    first, _ = offered(kept, ".incoming-1")
    second, incoming = offered(kept, ".incoming-2")
    changed(incoming, lambda it: it)
    assert answered(kept, first) == ""
    # Another upload with the same content is the same generation.
    assert answered(kept, second) == ""
    assert kept.in_force == 2


def test_an_offer_that_comes_late_is_refused(kept: CompactedStore) -> None:
    late, _ = offered(kept, ".incoming-1")
    kept.store.compaction._offers[0] = replace(
        kept.store.compaction._offers[0],
        manifest=replace(kept.store.compaction._offers[0].manifest, generation=1, replaces=0),
    )
    assert answered(kept, late) == "generation 1 is active"
