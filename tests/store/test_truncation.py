"""A log is cut where another replica's log differs: completely, or not at all."""

import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from rockoon_broker.store.errors import StoreClosed, StoreDamaged, StoreSyncFailed
from support.crashing_disk import CrashingDisk, PowerGone
from support.replicas import Replica, opened
from support.seeds import seeds
from support.store_check import verify_store


def filled(root: Path) -> tuple[Replica, list[int]]:
    """Return a replica with three files whose first batches are committed, and the ends of all."""
    owner = Replica(root)
    owner.open_epoch(1)
    ends = [owner.append(bodies=[b"%d " % number + bytes(700)]).end_offset for number in range(6)]
    owner.store.confirm(ends[-1])
    owner.open_epoch(2)
    ends += [
        owner.append(topic, bodies=[b"%d " % number + bytes(700)]).end_offset
        for number, topic in enumerate("TUTUT", 6)
    ]
    owner.sync()
    assert ends[-1] > 8192
    return owner, ends


@pytest.mark.parametrize("kept", range(5, 11))
def test_what_is_cut_is_gone_for_all_and_kept_aside(tmp_path: Path, kept: int) -> None:
    owner, ends = filled(tmp_path)
    before = owner.log_bytes()
    owner.store.close_to_truncate(ends[kept])
    with pytest.raises(StoreClosed):
        owner.append()
    with opened(tmp_path) as again:
        store = again.store
        assert store.appended_end == store.durable_end == ends[kept]
        assert again.log_bytes() == before[: ends[kept]]
        assert store.boundaries()[-1].end == ends[kept]
        assert store.boundaries()[-1].epoch == (2 if kept > 5 else 1)
        # Their offsets are free again.
        kept_of_t = 6 + sum(number % 2 == 0 for number in range(6, kept + 1))
        assert again.append(bodies=[b"anew"]).first_queue_offset == kept_of_t
        store.confirm(store.appended_end)
        assert len(again.bodies()) == kept_of_t + 1
        assert again.bodies()[-1] == b"anew"
        again.sync()
    assert verify_store(tmp_path) == []
    aside = b"".join(path.read_bytes() for path in sorted((tmp_path / "lost").glob("*")))
    for number in range(kept + 1, 11):
        assert b"%d " % number in aside
    assert not (tmp_path / "config" / "truncation").exists()


def test_only_an_end_that_may_be_one_is_taken(tmp_path: Path) -> None:
    owner, ends = filled(tmp_path)
    for wrong, reason in (
        (ends[6] - 1, "no record ends"),
        (ends[4], "is not between"),
        (owner.store.appended_end + 1, "is not between"),
    ):
        with pytest.raises(ValueError, match=reason):
            owner.store.close_to_truncate(wrong)
    owner.append()
    owner.store.close()


def test_a_log_without_records_begins_where_it_is_told(tmp_path: Path) -> None:
    for begin in (8192, 4096 * 7):
        with opened(tmp_path) as owner:
            with pytest.raises(ValueError, match="cannot begin"):
                owner.store.close_to_truncate(begin + 1)
            owner.store.close_to_truncate(begin)
    with opened(tmp_path) as owner:
        assert owner.store.log_min_offset == owner.store.appended_end == 4096 * 7
        assert owner.store.committed_end == owner.store.durable_end == 4096 * 7
        assert owner.store.boundaries() == []
        owner.store.confirm(owner.append().end_offset)
        owner.sync()
    assert verify_store(tmp_path) == []
    assert not (tmp_path / "lost").exists()


def test_a_blank_that_others_may_count_on_is_kept(tmp_path: Path) -> None:
    """The bytes that close a file are committed with the next ones, and are not overwritten."""
    with opened(tmp_path / "a") as leader, opened(tmp_path / "b") as follower:
        leader.append(bodies=[bytes(3000)])
        leader.append(bodies=[bytes(3000)])
        while follower.store.appended_end < 4096:
            end = follower.store.appended_end
            follower.store.write_raw(end, leader.store.read_raw(end, 1))
        follower.store.confirm(4096)
        follower.sync()
    with opened(tmp_path / "b") as again:
        assert again.store.appended_end == again.store.committed_end == 4096
        again.append(bodies=[b"short"])
        assert again.log_bytes()[:4096] == (tmp_path / "a/commitlog" / f"{0:020}").read_bytes()


def test_a_decision_that_cannot_be_read_refuses_the_start(tmp_path: Path) -> None:
    owner, ends = filled(tmp_path)
    owner.store.close_to_truncate(ends[7])
    path = tmp_path / "config" / "truncation"
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreDamaged, match="the decided end of the log"):
        Replica(tmp_path)
    content[7] ^= 1
    path.write_bytes(content)
    with opened(tmp_path) as again:
        assert again.store.appended_end == ends[7]


@pytest.mark.parametrize("seed", seeds(2))
def test_a_power_cut_on_the_way_leaves_the_old_end_or_the_new_one(
    tmp_path: Path, seed: int
) -> None:
    choose = random.Random(seed)
    crashes = Crashes(tmp_path, choose)
    for operations in sorted(choose.sample(range(crashes.operations), 5)):
        crashes.end_after(operations)


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(2))
def test_a_power_cut_at_every_operation_leaves_the_old_end_or_the_new_one(
    tmp_path: Path, seed: int
) -> None:
    """Needs a minute for each seed."""
    crashes = Crashes(tmp_path, random.Random(seed))
    found = [crashes.end_after(operations) for operations in range(crashes.operations)]
    decided = found.index(crashes.new_end)
    # Once it is decided, no crash undoes it.
    assert set(found[:decided]) == {crashes.old_end}
    assert set(found[decided:]) == {crashes.new_end}


class Crashes:
    """Truncations of the same store that lose power at one operation of the disk.

    Attributes:
        operations: number of operations of one truncation, with the start after it.
    """

    def __init__(self, root: Path, choose: random.Random) -> None:
        self._root = root
        self._choose = choose
        self._kept = choose.choice((5, 6, 8))
        owner, ends = filled(root / "template")
        owner.store.close()
        self.old_end, self.new_end = ends[-1], ends[self._kept]
        self.operations = self._truncate(None, root / "whole")
        assert self._end_of(root / "whole") == self.new_end

    def end_after(self, operations: int) -> int:
        """Return the log's end if the power is lost before the next operation after these."""
        self._truncate(operations, self._root / str(operations))
        return self._end_of(self._root / str(operations))

    def _truncate(self, operations: int | None, target: Path) -> int:
        """Truncate a copy of the store; write a possible content of the disk to another
        directory."""
        root = target.with_name(f"{target.name}-before")
        shutil.copytree(self._root / "template", root)
        disk = CrashingDisk(root)
        owner = Replica(root, disk)
        disk.operations, disk.crash_at = 0, operations
        with suppress(PowerGone, StoreSyncFailed):
            owner.store.close_to_truncate(self.new_end)
            owner = Replica(root, disk)
        count, disk.crash_at = disk.operations, None
        disk.cut(target, self._choose)
        if operations is None:
            owner.store.close()
        return count

    def _end_of(self, root: Path) -> int:
        with opened(root) as after:
            end = after.store.appended_end
            assert end in (self.old_end, self.new_end)
            after.store.confirm(end)
            last = self._kept if end == self.new_end else 10
            assert len(after.bodies()) + len(after.bodies("U")) == last + 1
            after.sync()
        assert verify_store(root) == []
        return end
