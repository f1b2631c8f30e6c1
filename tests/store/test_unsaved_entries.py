"""Entries in memory only: readable as all others, in files at each recovery point, never lost."""

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from rockoon_broker.store.errors import AppendRefused
from rockoon_broker.store.log import syncer
from rockoon_broker.store.queues import consume_queues
from rockoon_broker.store.queues.consume_queue import ConsumeQueue
from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_format.consume_queue import ENTRY_BYTES, encode_entries
from rockoon_format.hashes import tags_code
from support.seeds import seeds
from support.store_check import verify_store
from support.store_directory import (
    FailingDisk,
    Owner,
    crashed_copy,
    healthy,
    in_log,
    in_queues,
    no_space_in,
    recovered,
    settings,
)
from support.waiting import DEADLINE_SECONDS, wait_until


@contextmanager
def filled(root: Path, disk: FailingDisk | None = None) -> Iterator[Owner]:
    """Five messages; only the first has its entry in a file."""
    owner = Owner(settings(root), disk)
    for number in range(5):
        owner.append(bodies=[b"%d" % number])
    yield owner
    owner.store.close()


def stored(root: Path) -> int:
    """Return the number of entries in a queue's files."""
    files = sorted((root / "consumequeue/T/0").iterdir())
    data = b"".join(path.read_bytes() for path in files)
    return len(data.rstrip(b"\0")) // ENTRY_BYTES


def test_entries_are_read_before_any_file_has_them_and_a_point_writes_them(tmp_path: Path) -> None:
    with filled(tmp_path / "s") as owner:
        assert owner.bodies() == [b"0", b"1", b"2", b"3", b"4"]
        entries = owner.store.entries("T", 0, 0, 10)
        assert stored(tmp_path / "s") == 1
        owner.write_point()
        assert owner.store.entries("T", 0, 0, 10).tobytes() == entries.tobytes()
        assert verify_store(crashed_copy(tmp_path / "s", tmp_path / "1")) == []
    assert verify_store(tmp_path / "s") == []


def test_a_kill_takes_entries_that_the_next_start_makes_again(tmp_path: Path) -> None:
    with filled(tmp_path / "s") as owner:
        owner.write_point()
        owner.append(bodies=[b"5", b"6"])
        killed = crashed_copy(tmp_path / "s", tmp_path / "1")
        assert verify_store(killed) != []
    again = recovered(settings(killed))
    assert again.bodies() == [b"0", b"1", b"2", b"3", b"4", b"5", b"6"]
    again.store.close()


def test_a_full_disk_stops_appends_at_the_point_until_there_is_room(tmp_path: Path) -> None:
    disk = FailingDisk()
    with filled(tmp_path / "s", disk) as owner:
        disk.fail_write = no_space_in(in_queues)
        owner.append(bodies=[b"5"])
        owner.write_point()
        with pytest.raises(AppendRefused, match="ConsumeQueues cannot be written"):
            owner.append()
        # Readers have seen it and still see it; and no point counts it.
        assert len(owner.bodies()) == 6
        killed = crashed_copy(tmp_path / "s", tmp_path / "1")
        for _ in range(2):
            owner.store.tick(owner.clock.time_ms)
            assert not owner.store.writable
        disk.fail_write = healthy
        owner.store.tick(owner.clock.time_ms)
        owner.append(bodies=[b"6"])
    assert verify_store(tmp_path / "s") == []
    again = recovered(settings(killed))
    assert len(again.bodies()) == 6
    again.store.close()


def test_a_stop_on_a_full_disk_is_no_clean_one(tmp_path: Path) -> None:
    disk = FailingDisk()
    with filled(tmp_path, disk):
        disk.fail_write = no_space_in(in_queues)
    again = recovered(settings(tmp_path))
    assert not again.store.recovery.was_clean
    assert len(again.bodies()) == 5
    again.store.close()


def test_a_full_disk_is_met_although_a_recovery_point_waits_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncer, "RETRY_SECONDS", 0.01)
    disk = FailingDisk()
    owner = Owner(settings(tmp_path, commit_log_file_bytes=1 << 20), disk)
    for _ in range(2):
        owner.append()
    disk.fail_write = no_space_in(lambda path: path.name == "recoveryPoint")
    owner.clock.time_ms += 10_000
    owner.store.tick(owner.clock.time_ms)
    wait_until(lambda: owner.store.point_failure, "the shortage")
    # The log's file has its blocks.
    disk.fail_write = no_space_in(lambda path: not in_log(path))
    owner.append()
    owner.clock.time_ms += 1000
    owner.store.tick(owner.clock.time_ms)
    assert not owner.store.writable
    disk.fail_write = healthy
    owner.store.tick(owner.clock.time_ms)
    assert owner.store.writable
    owner.store.close()
    assert verify_store(tmp_path) == []


def test_a_stop_syncs_what_a_point_that_is_not_there_was_to_sync(tmp_path: Path) -> None:
    disk, reached, gate = FailingDisk(), threading.Event(), threading.Event()
    owner = Owner(settings(tmp_path), disk)
    owner.wait_for_point()
    for queue_id in range(6):
        for _ in range(3):
            owner.append("T", queue_id)

    def held(path: Path) -> int:
        if in_queues(path) and threading.current_thread().name == "store-syncer":
            reached.set()
            assert gate.wait(DEADLINE_SECONDS)
        return 0

    disk.fail_sync = held
    owner.clock.time_ms += 10_000
    owner.store.tick(owner.clock.time_ms)
    assert reached.wait(DEADLINE_SECONDS)
    with ThreadPoolExecutor() as others:
        closing = others.submit(owner.store.close)
        # It ends after its current call: the stop must be requested before that.
        wait_until(lambda: owner.store.not_writable_reason or not owner.store.writable, "a stop")
        gate.set()
        closing.result()
    files = {path for path in tmp_path.rglob("0*") if in_queues(path) and path.is_file()}
    assert len(files) == 6
    assert files <= set(disk.syncs)


def test_a_queue_s_leading_file_goes_although_the_next_one_is_in_memory(tmp_path: Path) -> None:
    disk = FailingDisk()
    owner = Owner(settings(tmp_path, files_per_pass_max=1000), disk)
    for _ in range(10):
        owner.append()
    for _ in range(3):
        owner.append("U", bodies=[bytes(3000)])
    owner.write_point()
    owner.append()
    owner.append("U", bodies=[bytes(3000)])
    disk.usage_percent = 95
    owner.store.clean(owner.clock.time_ms)
    owner.store.tick(owner.clock.time_ms)
    disk.usage_percent = 50
    assert owner.store.min_offset("T", 0) == 10
    owner.write_point()
    owner.wait_for_removals()
    assert [path.name for path in (tmp_path / "consumequeue/T/0").iterdir()] == [f"{200:020d}"]
    owner.store.close()


def test_a_filter_reads_on_behind_what_files_have(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path))
    for _ in range(3):
        owner.append()
    owner.write_point()
    for _ in range(2):
        owner.append()
    wanted = np.array([tags_code("TagA")], np.int64)
    result = owner.store.get("T", 0, 0, tag_codes=wanted)
    assert (result.count, result.next_offset) == (5, 5)
    owner.store.close()


def three_unsaved(root: Path) -> tuple[ConsumeQueues, ConsumeQueue]:
    queues = ConsumeQueues(root, 10, 4, FailingDisk())
    queue = queues.find_or_create("T", 0)
    for number in range(4):
        entries = encode_entries([100 * number], [100], [number])
        queues.write(queue, number, entries.tobytes())
    assert queue.unsaved_count == 3
    return queues, queue


def test_an_emptied_queue_begins_again(tmp_path: Path) -> None:
    queues, queue = three_unsaved(tmp_path)
    queues.empty(queue)
    assert (queues.entry_count, queues.stored_count, len(queues.unsaved)) == (0, 0, 0)
    new = encode_entries([900], [100], [9])
    queues.write(queue, 5, new.tobytes())
    queues.save()
    assert queues.read(queue, 5, 9).tobytes() == new.tobytes()
    queues.close()


def test_what_is_written_again_is_read_whether_or_not_a_file_had_it(tmp_path: Path) -> None:
    queues, queue = three_unsaved(tmp_path)
    right = encode_entries([250], [50], [7])
    queues.rewrite(queue, 2, right)
    for _ in range(2):
        assert queues.read(queue, 2, 1).tobytes() == right.tobytes()
        queues.save()
    queues.close()


def test_a_topic_takes_its_entries_along(tmp_path: Path) -> None:
    with filled(tmp_path) as owner:
        owner.store.drop_topics("T")
        assert owner.store.max_offset("T", 0) == 0
        owner.append(bodies=[b"again"])
        owner.append(bodies=[b"and again"])
        assert owner.bodies() == [b"again", b"and again"]
        owner.write_point()
        assert owner.bodies() == [b"again", b"and again"]
    assert verify_store(tmp_path) == []


class Twin:
    """Queues and their expected content: the bytes of all entries of each."""

    def __init__(self, root: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.root, self.disk = root, FailingDisk()
        self.queues = ConsumeQueues(root, 10, 4, self.disk)
        self.held: dict[ConsumeQueue, bytes] = {}
        self.position = 0

    def write(self) -> None:
        queue = self.queues.find_or_create("T", self.chance.randrange(6))
        count = self.chance.choice((1, 1, 2, 3, 7, 30))
        positions = [self.position + 100 * number for number in range(count)]
        self.position += 100 * count
        entries = encode_entries(positions, [100] * count, positions)
        before = self.held.get(queue, b"")
        self.queues.write(queue, len(before) // ENTRY_BYTES, entries.tobytes())
        self.held[queue] = before + entries.tobytes()

    def refused_write(self) -> None:
        """A failed call adds nothing, and the former entries stay."""
        self.disk.fail_write = no_space_in(in_queues)
        before = dict(self.held)
        try:
            self.write()
        except OSError:
            assert self.held == before
        self.disk.fail_write = healthy

    def refused_save(self) -> None:
        self.disk.fail_write = no_space_in(in_queues)
        if len(self.queues.unsaved):
            with pytest.raises(OSError, match="No space"):
                self.queues.save()
        self.disk.fail_write = healthy

    def check(self) -> None:
        for queue, held in self.held.items():
            count = len(held) // ENTRY_BYTES
            assert queue.max_offset == count
            first = self.chance.randrange(count + 1)
            found, wanted = b"", self.chance.randrange(1, 40)
            while len(found) < min(wanted, count - first) * ENTRY_BYTES:
                left, at = wanted - len(found) // ENTRY_BYTES, first + len(found) // ENTRY_BYTES
                part = self.queues.read(queue, at, left).tobytes()
                assert 0 < len(part) <= left * ENTRY_BYTES
                found += part
            assert found == held[first * ENTRY_BYTES :][: len(found)]
            assert len(self.queues.read(queue, count, wanted)) == 0

    def check_files(self) -> None:
        """All entries that are not reported as unsaved are in files."""
        for queue, held in self.held.items():
            files = sorted((self.root / "T" / str(queue.queue_id)).iterdir())
            data = b"".join(path.read_bytes() for path in files)
            saved = queue.saved_offset * ENTRY_BYTES
            assert data[:saved] == held[:saved]
            assert queue.unsaved_count <= consume_queues.UNSAVED_ENTRIES_MAX
        assert len(self.queues.unsaved) <= consume_queues.UNSAVED_QUEUES_MAX


@pytest.mark.parametrize("seed", seeds(2))
def test_whatever_is_written_is_read_and_comes_into_files(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume_queues, "UNSAVED_ENTRIES_MAX", 8)
    monkeypatch.setattr(consume_queues, "UNSAVED_QUEUES_MAX", 3)
    twin = Twin(tmp_path / "consumequeue", seed)
    steps = [twin.write] * 8 + [twin.refused_write, twin.refused_save, twin.queues.save]
    for _ in range(300):
        twin.chance.choice(steps)()
        twin.check()
        twin.check_files()
    twin.queues.pop_unsynced()
    assert not any(queue.unsaved_count for queue in twin.held)
    twin.check_files()
    twin.queues.close()
