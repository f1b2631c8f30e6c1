"""A copy of a log always uses the generation of its leader."""

import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rockoon_broker.store.errors import StorageError
from rockoon_core.disk import Disk
from rockoon_format.batch import encode_batch
from rockoon_format.file_names import OFFSET_MAX
from rockoon_format.generation import INCOMING_PREFIX
from rockoon_format.properties import encode
from support.compaction import compact_store
from support.crashing_disk import CrashingDisk, PowerGone
from support.replicas import Replica
from support.store_directory import BORN_HOST, NOW_MS, batch_of
from support.waiting import DEADLINE_SECONDS, wait_until

TOPICS = {"C": 60_000, "D": 60_000, "E": 60_000}
NUMBERS = count(1)
QUEUES = [(topic, 0) for topic in (*TOPICS, "T")]


class AnyThreadsDisk(CrashingDisk):
    """Counts the operations of all threads: a separate thread prepares a generation."""

    def __init__(self, root: Path, crash_at: int | None = None) -> None:
        super().__init__(root, crash_at)
        self._counting = threading.Lock()

    def _step(self) -> bool:
        with self._counting:
            gone = self.crash_at is not None and self.operations >= self.crash_at
            self.operations += not gone
            return gone

    def is_gone(self, crash_at: int) -> bool:
        return self.operations >= crash_at


class Copy(Replica):
    """One copy of a log with compacted topics."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        hours = ";".join(f"{hour:02d}" for hour in range(24))
        super().__init__(root, disk, reserved_hours=0, delete_when=hours)
        self.root = root

    def send(self, topic: str, *pairs: tuple[str, bytes]) -> None:
        frames, lengths = encode_batch(
            topic.encode(),
            0,
            [body for _, body in pairs],
            [encode({"KEYS": key}) for key, _ in pairs],
            NOW_MS - 1000,
            BORN_HOST,
            room=True,
        )
        self.store.append(batch_of(topic, 0, frames, lengths), self.clock.time_ms)

    def commit(self) -> None:
        """Sync the whole log, so that it is on this disk too."""
        self.sync()
        self.store.confirm(self.store.appended_end)

    def until(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not holds():
            assert time.monotonic() < deadline, "the store does not get there"
            self.clock.time_ms += 500
            self.store.tick(self.clock.time_ms)
            # The store's threads finish sooner if this thread does not spin.
            threading.Event().wait(0.001)

    def lead(self) -> None:
        """Receive routes with the compacted topics, and make a generation of the whole log."""
        self.store.set_compacted_topics(TOPICS)
        made = compact_store(self.root, topics=TOPICS, now_ms=self.clock.time_ms)
        self.until(lambda: self.number == int(made.name))

    def delete(self, below: int) -> None:
        """Delete files as retention may."""
        self.write_point()
        self.store.retain_from = below
        self.store.clean(self.clock.time_ms)
        self.wait_for_removals()

    @property
    def number(self) -> int:
        manifest = self.store.compaction.manifest
        return manifest.generation if manifest else 0

    @property
    def is_lacking(self) -> bool:
        compaction = self.store.compaction
        made_to = compaction.manifest.log_end if compaction.manifest else 0
        return made_to < compaction.needed_end

    def begin_behind(self, leader: "Copy") -> None:
        """Become a learner whose log begins where the leader's does."""
        manifest = leader.store.compaction.manifest
        assert manifest is not None
        self.store.compaction.need(manifest.log_end)
        self.store.close_to_truncate(leader.store.log_min_offset)
        self.__init__(self.root, self.disk)  # type: ignore[misc]

    def take(self, leader: "Copy", is_over: Callable[[], bool] = lambda: False) -> str:
        """Use the leader's generation; return the reason if it is refused."""
        compaction = leader.store.compaction
        manifest = compaction.manifest
        assert manifest is not None
        home = self.store.compaction.home
        # Files of a former generation are being deleted.
        incoming = home / f"{INCOMING_PREFIX}_taken-{next(NUMBERS)}"
        shutil.copytree(compaction.directory_of(manifest.generation), incoming)
        heard: list[str] = []
        self.store.compaction.offer(incoming, manifest, heard.append, compaction.marks)
        self.until(lambda: heard or is_over())
        return heard[0] if heard else "it is over"

    def shown(self) -> dict[Any, Any]:
        """Return the messages of readers, and the next offsets of queues."""
        return {queue: (self.bodies(*queue), self.store.max_offset(*queue)) for queue in QUEUES}


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Copy]:
    """Some messages of C are after the generation, all of D are in it; T is not compacted."""
    owner = Copy(tmp_path / "leader")
    owner.open_epoch(1)
    for number in range(4):
        owner.send("C", ("a", b"%d" % number), ("b", b"%d" % number))
        owner.send("D", ("a", b"%d" % number))
        owner.append("T", 0, [bytes(3000)])
    owner.commit()
    owner.lead()
    owner.send("C", ("a", b"last"))
    for _ in range(2):
        owner.append("T", 0, [bytes(3000)])
    owner.commit()
    yield owner
    owner.store.close()


@pytest.fixture
def follower(tmp_path: Path, leader: Copy) -> Iterator[Copy]:
    """Return a follower that has copied the whole log."""
    owner = Copy(tmp_path / "follower")
    owner.copy_from(leader, 1 << 20)
    owner.commit()
    yield owner
    owner.store.close()


def test_a_follower_shows_and_deletes_what_its_leader_does(leader: Copy, follower: Copy) -> None:
    assert follower.take(leader) == ""
    assert follower.store.compaction.identity == leader.store.compaction.identity
    assert not follower.is_lacking
    assert follower.shown() == leader.shown()
    leader.delete(OFFSET_MAX)
    assert leader.store.log_min_offset > 0
    follower.delete(leader.store.log_min_offset)
    assert follower.store.log_min_offset == leader.store.log_min_offset
    assert follower.shown() == leader.shown()


def test_a_follower_that_missed_one_takes_the_next(leader: Copy, follower: Copy) -> None:
    leader.lead()
    assert leader.number == 2
    assert follower.take(leader) == ""
    assert follower.shown() == leader.shown()


def test_a_damaged_file_is_refused_and_another_copy_of_it_taken(
    leader: Copy, follower: Copy
) -> None:
    home = leader.store.compaction.directory_of(leader.number)
    path = home / "00000.records"
    whole = path.read_bytes()
    path.write_bytes(whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])
    assert "00000.records" in follower.take(leader)
    assert follower.number == 0
    path.write_bytes(whole)
    assert follower.take(leader) == ""
    assert follower.shown() == leader.shown()


def test_one_that_no_leader_had_in_force_makes_room(leader: Copy, follower: Copy) -> None:
    """This copy led when the generation was published, and no longer when it was verified."""
    stale = follower.store.compaction.directory_of(1)
    stale.mkdir(parents=True)
    (stale / "00000.records").write_bytes(b"of another run")
    assert follower.take(leader) == ""
    assert follower.shown() == leader.shown()


@pytest.fixture
def learner(tmp_path: Path, leader: Copy) -> Iterator[Copy]:
    """Its log begins where the leader's does, which has deleted messages of the generation."""
    leader.delete(OFFSET_MAX)
    assert leader.store.log_min_offset > 0
    owner = Copy(tmp_path / "learner")
    owner.begin_behind(leader)
    owner.copy_from(leader, 1 << 20)
    owner.commit()
    yield owner
    owner.store.close()


def test_a_learner_lacks_what_is_before_its_log_until_it_has_the_generation(
    tmp_path: Path, leader: Copy, learner: Copy
) -> None:
    assert learner.is_lacking
    assert learner.shown() != leader.shown()
    assert learner.take(leader) == ""
    assert not learner.is_lacking
    assert learner.shown() == leader.shown()
    # In this process, and after a start.
    for _ in range(2):
        learner.store.close()
        learner = Copy(tmp_path / "learner")
        assert not learner.is_lacking
        assert learner.shown() == leader.shown()
    # It leads now; offsets of D continue after messages that only the generation has.
    learner.open_epoch(2)
    learner.send("D", ("z", b"new"))
    learner.commit()
    assert learner.store.max_offset("D", 0) == leader.store.max_offset("D", 0) + 1
    learner.store.close()


def test_a_log_never_begins_behind_what_was_deleted_without_knowing_it(
    tmp_path: Path, leader: Copy
) -> None:
    """The power is lost at each moment of the first use of a generation."""
    leader.delete(OFFSET_MAX)
    log_min = leader.store.log_min_offset
    for crash_at in count(step=5):
        home, left = tmp_path / f"{crash_at}", tmp_path / f"{crash_at}-left"
        home.mkdir()
        disk = AnyThreadsDisk(home)
        learner = Copy(home, disk)
        disk.crash_at, disk.operations = crash_at, 0
        with suppress(PowerGone, StorageError):
            learner.begin_behind(leader)
            learner.copy_from(leader, 1 << 20)
            store = learner.store
            wait_until(lambda: store.durable_end == store.appended_end or store.failure, "a sync")  # noqa: B023
        finished = not disk.is_gone(crash_at)
        disk.cut(left, random.Random(crash_at))
        disk.crash_at = None
        with suppress(StorageError, OSError):
            learner.store.close()
        again = Copy(left)
        begins_at = again.store.log_min_offset
        assert begins_at in (0, log_min)
        assert again.is_lacking or begins_at == 0
        again.store.close()
        if finished:
            assert crash_at > 8
            assert begins_at == log_min
            return


def test_numbers_go_on_behind_a_generation_that_was_just_taken(leader: Copy, learner: Copy) -> None:
    learner.take(leader)
    learner.open_epoch(2)
    learner.send("D", ("z", b"new"))
    learner.commit()
    assert learner.store.max_offset("D", 0) == leader.store.max_offset("D", 0) + 1


def test_what_was_deleted_with_its_topic_is_not_shown_by_a_learner(
    tmp_path: Path, leader: Copy
) -> None:
    """The record that states it was deleted from the log with the files before its beginning."""
    leader.begin_anew("D")
    leader.append("T", 0, [bytes(3000)])
    leader.commit()
    for _ in range(2):
        leader.append("T", 0, [bytes(3000)])
    leader.commit()
    leader.store.set_compacted_topics({"D"})
    leader.delete(OFFSET_MAX)
    learner = Copy(tmp_path / "learner")
    learner.begin_behind(leader)
    learner.copy_from(leader, 1 << 20)
    learner.commit()
    assert learner.take(leader) == ""
    assert leader.shown()["D", 0] == ([], 0)
    assert learner.shown()["D", 0] == ([], 0)
    learner.store.close()


@pytest.mark.parametrize("is_learner", [True, False])
def test_power_that_goes_at_any_moment_of_a_take_over_leaves_what_was_or_what_is(
    tmp_path: Path, leader: Copy, is_learner: bool
) -> None:
    # A generation that replaces another one, which this copy never had.
    leader.lead()
    prepared = Copy(tmp_path / "prepared")
    if is_learner:
        leader.delete(OFFSET_MAX)
        prepared.begin_behind(leader)
    prepared.copy_from(leader, 1 << 20)
    prepared.commit()
    prepared.store.close()
    numbers = []
    for crash_at in count():
        home, left = tmp_path / f"{crash_at}", tmp_path / f"{crash_at}-left"
        shutil.copytree(prepared.root, home)
        disk = AnyThreadsDisk(home)
        cut_short = Copy(home, disk)
        cut_short.store.confirm(cut_short.store.appended_end)
        disk.crash_at, disk.operations = crash_at, 0
        with suppress(PowerGone, StorageError):
            cut_short.take(leader, partial(disk.is_gone, crash_at))
        finished = not disk.is_gone(crash_at)
        disk.cut(left, random.Random(crash_at))
        disk.crash_at = None
        with suppress(StorageError, OSError):
            cut_short.store.close()
        again = Copy(left)
        again.store.confirm(again.store.appended_end)
        numbers.append(again.number)
        assert again.is_lacking == (is_learner and not again.number)
        if not again.number:
            assert again.take(leader) == ""
        assert again.shown() == leader.shown()
        again.store.close()
        shutil.rmtree(home)
        shutil.rmtree(left)
        if finished:
            assert numbers.count(0) > 8
            assert numbers[-1] == 2
            return


@pytest.mark.parametrize("harm", ["00000.records", "00000.entries", "manifest.json", "current"])
def test_a_copy_whose_generation_is_damaged_is_lacking_until_it_has_copied_it_again(
    tmp_path: Path, leader: Copy, follower: Copy, harm: str
) -> None:
    leader.lead()
    follower.take(leader)
    home = follower.store.compaction.home
    follower.store.close()
    path = home / harm if harm == "current" else home / f"{2:020d}" / harm
    path.unlink()
    again = Copy(tmp_path / "follower")
    again.store.confirm(again.store.appended_end)
    assert again.is_lacking
    assert again.store.compaction.identity == 0
    assert again.take(leader) == ""
    assert not again.is_lacking
    assert again.shown() == leader.shown()
    again.store.close()
