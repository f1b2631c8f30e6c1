"""Topics begin again after a record of the log, on all copies, once the record is committed."""

import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from rockoon_broker.store.errors import BatchTooLarge
from rockoon_format.log_marks import LogTopics, TopicChange, decode_topic_change
from support.crashing_disk import CrashingDisk, PowerGone
from support.replicas import Replica, opened
from support.seeds import seeds
from support.store_check import verify_store
from support.store_directory import DELETES_ALL, Owner, crashed_copy, recovered, settings

OLD = [b"old %d" % number for number in range(3)]
NEW = [b"new %d" % number for number in range(2)]


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Replica]:
    """T had messages, began again and has new ones; U continues. Everything is committed."""
    with opened(tmp_path / "leader") as owner:
        owner.open_epoch(1)
        for body in OLD:
            owner.append("T", 0, [body])
            owner.append("U", 0, [body])
        owner.begin_anew("T", incarnation=7)
        owner.sync()
        owner.store.confirm(owner.store.appended_end)
        for body in NEW:
            owner.append("T", 0, [body])
        owner.append("U", 0, NEW)
        owner.sync()
        owner.store.confirm(owner.store.appended_end)
        yield owner


def renewal_of(owner: Replica) -> tuple[int, int]:
    """Return start and end of the first record after which a topic begins again."""
    at = owner.store.log_min_offset
    while data := owner.store.read_raw(at, 1):
        if b'"anew":["' in data:
            return at, at + len(data)
        at += len(data)
    raise AssertionError("there is none")


def check(owner: Replica) -> None:
    """Everything is committed: T has the messages after the record, from offset 0 on."""
    assert owner.bodies("T") == NEW
    assert owner.store.max_offset("T", 0) == len(NEW)
    assert owner.bodies("U") == OLD + NEW


@pytest.mark.parametrize("bytes_max", [1, 1 << 20])
def test_nothing_goes_before_the_record_is_committed_and_then_all_does(
    tmp_path: Path, leader: Replica, bytes_max: int
) -> None:
    check(leader)
    first, end = renewal_of(leader)
    with opened(tmp_path / "b") as follower:
        follower.copy_from(leader, bytes_max)
        follower.sync()
        follower.store.confirm(end - 1)
        assert follower.bodies("T") == OLD
        assert follower.store.visible_end == first
        follower.store.confirm(end)
        assert follower.bodies("T") == []
        assert ("T", 0) not in follower.store.queues()
        follower.store.confirm(follower.store.appended_end)
        check(follower)
        assert follower.store.log_topics == LogTopics(7, 1, {"T": 7})
        # It leads now, and offsets continue.
        follower.open_epoch(2)
        assert follower.append("T").first_queue_offset == len(NEW)
        follower.sync()
        follower.store.confirm(follower.store.appended_end)
    assert verify_store(tmp_path / "b") == []


def test_what_is_committed_and_not_durable_here_waits(tmp_path: Path, leader: Replica) -> None:
    """A mark after the log's end would show records that are copied again after a power cut."""
    disk = CrashingDisk(tmp_path / "b")
    with opened(tmp_path / "b", disk) as follower:
        first, end = renewal_of(leader)
        follower.copy_from(leader, 1, end=first)
        follower.sync()
        follower.store.confirm(first)
        # A later call reports the failure of the Syncer.
        disk.fail_sync = lambda _: 5
        with suppress(Exception):
            follower.copy_from(leader, 1, end=end)
            follower.store.confirm(end)
        assert not follower.store.dropped_marks
        follower.failed.get()


def test_a_topic_that_begins_anew_twice_before_anything_is_committed(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as leader, opened(tmp_path / "b") as follower:
        leader.open_epoch(1)
        for number in range(3):
            for _ in range(3 - number):
                leader.append("T", 0, [b"%d" % number])
            leader.begin_anew("T", "U", incarnation=number)
        last = leader.append("T", 0, [b"last"])
        assert last.first_queue_offset == 0
        leader.append("T", 1, [b"last"])
        follower.copy_from(leader, 1 << 20)
        for owner in (leader, follower):
            owner.sync()
            owner.store.confirm(owner.store.appended_end)
            assert owner.bodies("T", 0) == owner.bodies("T", 1) == [b"last"]
            assert owner.append("T", 0).first_queue_offset == 1
            owner.sync()
    for name in "ab":
        crashed_copy(tmp_path / name, tmp_path / f"{name}2")
        with opened(tmp_path / f"{name}2") as again:
            again.store.confirm(again.store.appended_end)
            assert again.bodies("T", 0) == [b"last", b"body"]
        assert verify_store(tmp_path / f"{name}2") == []


@pytest.mark.parametrize("bytes_max", [1, 1 << 20])
def test_a_topic_goes_on_where_it_is_when_another_one_begins_anew(
    tmp_path: Path, bytes_max: int
) -> None:
    """In one piece of the log: a follower that refused it would ask for it without end."""
    with opened(tmp_path / "a") as leader, opened(tmp_path / "b") as follower:
        leader.open_epoch(1)
        for number, topic in enumerate("TUT"):
            leader.append("T", 0, OLD)
            leader.append("U", 0, OLD)
            leader.begin_anew(topic, incarnation=number)
            leader.append("T", 0, NEW)
            leader.append("U", 0, NEW)
        follower.copy_from(leader, bytes_max)
        for owner in (leader, follower):
            owner.sync()
            owner.store.confirm(owner.store.appended_end)
            assert owner.bodies("T") == NEW
            assert owner.bodies("U") == NEW + OLD + NEW
    for name in "ab":
        assert verify_store(tmp_path / name) == []


def test_a_record_that_is_cut_has_not_been(tmp_path: Path, leader: Replica) -> None:
    first, _ = renewal_of(leader)
    with opened(tmp_path / "b") as follower:
        follower.copy_from(leader, 1 << 20)
        follower.store.confirm(first)
        follower.sync()
        follower.store.close_to_truncate(first)
    with opened(tmp_path / "b") as again:
        assert again.store.log_topics == LogTopics()
        assert again.append("T").first_queue_offset == len(OLD)
        again.store.confirm(again.store.appended_end)
        assert again.bodies("T") == [*OLD, b"body"]


@pytest.mark.parametrize("killed", [False, True])
def test_a_store_that_is_opened_as_the_only_copy_has_all_of_it(
    tmp_path: Path, leader: Replica, killed: bool
) -> None:
    root = tmp_path / "b"
    with opened(root) as follower:
        follower.copy_from(leader, 1 << 20)
        follower.sync()
        if killed:
            root = crashed_copy(root, tmp_path / "c")
    again = recovered(settings(root))
    check(again)  # type: ignore[arg-type]
    again.append("T")
    assert again.bodies("T") == [*NEW, b"body"]
    again.store.close()
    assert verify_store(root) == []


def test_which_topics_there_are_outlives_the_records_that_said_it(tmp_path: Path) -> None:
    with opened(tmp_path / "a", **DELETES_ALL) as owner:
        owner.store.open_epoch(1, "a", owner.clock.time_ms, LogTopics(5, 9, {"before": 3}))
        owner.begin_anew("T", incarnation=7)
        owner.store.change_topics(TopicChange(8, 9, {"U": 8}), owner.clock.time_ms)
        known = LogTopics(8, 9, {"before": 3, "T": 7, "U": 8})
        for number in range(5):
            owner.append(bodies=[b"%d" % number + bytes(3000)])
        owner.sync()
        owner.store.confirm(owner.store.appended_end)
        owner.write_point()
        owner.store.retain_from = owner.store.committed_end
        owner.store.clean(owner.clock.time_ms)
        owner.wait_for_removals()
        assert owner.store.log_min_offset > 4096
        assert owner.store.log_topics == known
        owner.store.change_topics(TopicChange(9, 9, {"before": None}), owner.clock.time_ms)
        owner.sync()
        owner.store.confirm(owner.store.appended_end)
        crashed = crashed_copy(tmp_path / "a", tmp_path / "b")
    for root in (tmp_path / "a", crashed):
        with opened(root) as again:
            assert again.store.log_topics == LogTopics(9, 9, {"T": 7, "U": 8})


def test_more_topics_than_fit_into_a_file_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as owner:
        owner.open_epoch(1)
        many = {f"topic-{number}": number for number in range(200)}
        with pytest.raises(BatchTooLarge, match="topics"):
            owner.store.change_topics(TopicChange(1, 1, many), owner.clock.time_ms)
        assert owner.store.log_topics == LogTopics()
        owner.append()


def test_what_is_no_change_of_topics_is_refused() -> None:
    for body in (b"", b"{}", b"[]", b'{"revision":1,"history":1,"topics":{"T":"x"}}'):
        with pytest.raises(ValueError, match="not a change of topics"):
            decode_topic_change(body)


@pytest.mark.parametrize("seed", seeds(2))
def test_a_power_cut_at_every_operation_leaves_it_as_it_was_or_done(
    tmp_path: Path, leader: Replica, seed: int
) -> None:
    """Listed entries are complete, and removed ones are removed again."""
    choose = random.Random(seed)
    for crash_at in count():
        home, left = tmp_path / f"{crash_at}", tmp_path / f"{crash_at}-left"
        home.mkdir()
        disk = CrashingDisk(home)
        follower = Replica(home, disk)
        first, end = renewal_of(leader)
        follower.copy_from(leader, 1, end=first)
        follower.store.confirm(first)
        follower.sync()
        follower.write_point()
        follower.copy_from(leader, choose.choice((1, 1 << 20)))
        follower.sync()
        disk.crash_at, disk.operations = crash_at, 0
        follower.store.confirm(follower.store.appended_end)
        crashed = follower.store.visible_end < follower.store.appended_end
        disk.cut(left, choose)
        disk.crash_at = None
        with suppress(OSError, PowerGone):
            follower.store.close()
        with opened(left) as again:
            assert again.bodies("T") in (OLD, [], NEW)
            assert again.bodies("U") in (OLD, OLD + NEW)
            assert again.store.appended_end == leader.store.appended_end
            again.store.confirm(end)
            again.store.confirm(again.store.appended_end)
            check(again)
        assert verify_store(left) == []
        if not crashed:
            assert crash_at > 5
            return


def test_one_copy_writes_no_record_of_topics(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path))
    owner.append("T", 0, OLD)
    owner.store.drop_topics("T")
    owner.append("T", 0, NEW)
    assert owner.store.queues() == [("T", 0)]
    assert owner.bodies("T") == NEW
    owner.store.close()
