"""A log with several copies: readers see a message after its owner has committed it."""

from pathlib import Path

import pytest

from rockoon_broker.store.errors import StoreBusy, UnknownOffset
from rockoon_broker.store.settings import Flush
from support.holding_disk import HoldingDisk
from support.replicas import Replica, opened
from support.store_check import verify_store
from support.store_directory import Owner, crashed_copy, settings

KEY = ("T", 0)


@pytest.mark.parametrize("flush", list(Flush))
def test_durable_is_not_committed(tmp_path: Path, flush: Flush) -> None:
    with opened(tmp_path, flush=flush) as owner:
        first = owner.append(bodies=[b"one"])
        second = owner.append(bodies=[b"two"])
        owner.clock.time_ms += 10_000
        owner.store.tick(owner.clock.time_ms)
        owner.sync()
        assert owner.store.max_offset(*KEY) == 0
        assert owner.store.queue_status(*KEY).next_offset == 2
        with pytest.raises(UnknownOffset):
            owner.store.read_at(first.first_physical_offset)
        assert owner.store.confirm(first.end_offset) == [KEY]
        assert owner.bodies() == [b"one"]
        assert owner.store.visible_end == owner.store.committed_end == first.end_offset
        with pytest.raises(ValueError, match="cannot be committed"):
            owner.store.confirm(second.end_offset + 1)


def test_committed_elsewhere_is_seen_before_it_is_durable_here(tmp_path: Path) -> None:
    disk = HoldingDisk()
    with opened(tmp_path, disk) as owner:
        disk.hold()
        appended = owner.append()
        owner.store.confirm(appended.end_offset)
        assert owner.store.max_offset(*KEY) == 1
        assert owner.store.settled_end == 0
        disk.release()
        owner.sync()
        assert owner.store.settled_end == appended.end_offset


@pytest.mark.parametrize("killed", [False, True])
def test_rocketmq_6609_and_7689_a_start_shows_and_renumbers_nothing_uncommitted(
    tmp_path: Path, killed: bool
) -> None:
    """RocketMQ: a restart listed messages without a commit (6609), and the repair of this assigned
    their queue offsets a second time, so that one of two messages was never read (7689).

    Here a start keeps these messages, lists none of them, and counts their offsets.
    """
    root = tmp_path / "s"
    owner = Replica(root)
    first = owner.append(bodies=[b"one"])
    owner.store.confirm(first.end_offset)
    tail = owner.append(bodies=[b"two", b"three"])
    owner.append("U", bodies=[bytes(3000)])
    owner.write_point()
    if killed:
        root = crashed_copy(root, tmp_path / "copy")
    owner.store.close()
    with opened(root) as again:
        assert again.store.appended_end > tail.end_offset
        assert again.store.committed_end == first.end_offset
        assert again.bodies() == [b"one"]
        assert again.store.max_offset("U", 0) == 0
        behind = again.append(bodies=[b"four"])
        assert behind.first_queue_offset == 3
        # Up to the middle of the found messages.
        again.store.confirm(tail.end_offset)
        assert again.bodies() == [b"one", b"two", b"three"]
        assert again.store.max_offset("U", 0) == 0
        again.store.confirm(behind.end_offset)
        assert again.bodies() == [b"one", b"two", b"three", b"four"]
        assert again.store.max_offset("U", 0) == 1
        again.sync()
    assert verify_store(root) == []


def test_without_a_recovery_point_nothing_is_known_to_be_committed(tmp_path: Path) -> None:
    with opened(tmp_path) as owner:
        ends = [owner.append(bodies=[b"%d" % number]).end_offset for number in range(100)]
        owner.store.confirm(ends[-1])
    (tmp_path / "recoveryPoint").unlink()
    with opened(tmp_path) as again:
        assert again.store.appended_end == ends[-1]
        assert again.store.committed_end < ends[-1]
        again.store.confirm(ends[-1])
        assert len(again.bodies()) == 100
    assert verify_store(tmp_path) == []


def test_what_waits_for_other_copies_is_bounded(tmp_path: Path) -> None:
    with opened(tmp_path, unsynced_bytes_max=4096) as owner:
        last = owner.append(bodies=[bytes(2000)])
        last = owner.append(bodies=[bytes(2000)])
        owner.sync()
        with pytest.raises(StoreBusy, match="other copies"):
            owner.append()
        owner.store.confirm(last.end_offset)
        owner.append()


def test_a_topic_deleted_in_between_stays_deleted(tmp_path: Path) -> None:
    with opened(tmp_path) as owner:
        owner.append(bodies=[b"old"])
        owner.store.drop_topics("T")
        new = owner.append(bodies=[b"new"])
        assert new.first_queue_offset == 0
        owner.store.confirm(new.end_offset)
        assert owner.bodies() == [b"new"]
        owner.sync()
    assert verify_store(tmp_path) == []


def test_one_copy_takes_up_what_a_quorum_has_left(tmp_path: Path) -> None:
    with opened(tmp_path) as owner:
        owner.append(bodies=[b"one"])
    alone = Owner(settings(tmp_path, flush=Flush.SYNC))
    assert alone.bodies() == [b"one"]
    alone.store.close()
