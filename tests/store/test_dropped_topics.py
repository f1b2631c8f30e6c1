"""A deleted topic stays deleted, and a new topic of its name begins at offset 0."""

import errno
import random
import threading
from pathlib import Path

import pytest

from rockoon_broker.store.queues.dropped_topics import read_marks
from rockoon_broker.store.reading.reader import GetStatus
from rockoon_broker.store.settings import Flush
from support.holding_disk import HoldingDisk
from support.seeds import seeds
from support.store_check import verify_store
from support.store_directory import (
    FailingDisk,
    Owner,
    crashed_copy,
    healthy,
    in_queues,
    recovered,
    settings,
)
from support.waiting import wait_until


def dropped(owner: Owner) -> None:
    owner.store.drop_topics("T")


def test_its_queues_are_gone_at_once_and_others_stay(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path))
    owner.append("T", 0)
    owner.append("T", 1)
    owner.append("other", 0, [b"stays"])
    dropped(owner)
    assert owner.store.get("T", 0, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    assert owner.store.queues() == [("other", 0)]
    assert not (tmp_path / "consumequeue/T").exists()
    assert owner.bodies("other") == [b"stays"]
    owner.store.close()


class CountingDisk(FailingDisk):
    """Counts the replaced files."""

    replaced = 0

    def replace_file(self, path: Path, content: bytes, *, is_durable: bool = True) -> None:
        self.replaced += 1
        super().replace_file(path, content, is_durable=is_durable)


def test_many_topics_go_together_by_one_write_and_stay_gone(tmp_path: Path) -> None:
    disk = CountingDisk()
    owner = Owner(settings(tmp_path / "s"), disk)
    for topic in ("T", "U", "V", "other"):
        owner.append(topic, 0, [b"old"] * 3)
    owner.write_point()
    before = disk.replaced
    owner.store.drop_topics("T", "U", "V", "never written to")
    assert disk.replaced == before + 1
    assert owner.store.queues() == [("other", 0)]
    assert owner.append("U", 0, [b"new"]).first_queue_offset == 0
    after = recovered(settings(crashed_copy(tmp_path / "s", tmp_path / "crashed")))
    assert sorted(after.store.queues()) == [("U", 0), ("other", 0)]
    assert after.bodies("U") == [b"new"]
    after.store.close()
    owner.store.close()


def test_created_anew_it_begins_at_zero_also_after_every_kind_of_start(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path / "s"))
    owner.append(bodies=[b"old"] * 3)
    dropped(owner)
    assert owner.append(bodies=[b"new"]).first_queue_offset == 0
    crashed = crashed_copy(tmp_path / "s", tmp_path / "crashed")
    owner.write_point()
    pointed = crashed_copy(tmp_path / "s", tmp_path / "pointed")
    owner.store.close()
    rebuilt = crashed_copy(tmp_path / "s", tmp_path / "rebuilt")
    (rebuilt / "recoveryPoint").unlink()
    for root in (tmp_path / "s", crashed, pointed, rebuilt):
        after = recovered(settings(root))
        assert after.bodies() == [b"new"]
        assert after.append().first_queue_offset == 1
        after.store.close()


@pytest.mark.parametrize("moved", [False, True], ids=["marked", "marked and moved"])
def test_a_crash_in_the_middle_of_the_deletion_is_finished_at_the_start(
    tmp_path: Path, moved: bool
) -> None:
    disk = FailingDisk()
    owner = Owner(settings(tmp_path / "s"), disk)
    owner.append(bodies=[b"old"] * 13)
    owner.append("other", 0, [b"stays"])
    owner.write_point()
    if moved:
        disk.fail_unlink = lambda path: errno.EIO if in_queues(path) else 0
        dropped(owner)
    else:
        disk.fail_move = lambda _: errno.EIO
        with pytest.raises(OSError, match="Input/output error"):
            dropped(owner)
    root = crashed_copy(tmp_path / "s", tmp_path / "copy")
    assert len(list((root / "consumequeue").rglob("00*"))) == 3
    after = recovered(settings(root))
    assert after.store.recovery.reason == "recovery point"
    assert after.store.max_offset("T", 0) == 0
    assert after.bodies("other") == [b"stays"]
    assert after.append().first_queue_offset == 0
    after.wait_for_removals()
    assert len(list((root / "consumequeue").rglob("00*"))) == 2
    after.store.close()
    disk.fail_unlink = disk.fail_move = healthy
    dropped(owner)
    owner.store.close()


def test_the_owner_waits_for_no_file_of_a_deleted_topic(tmp_path: Path) -> None:
    threads = set()

    class WatchedDisk(FailingDisk):
        def unlink(self, path: Path) -> None:
            if in_queues(path):
                threads.add(threading.current_thread().name)
            super().unlink(path)

    owner = Owner(settings(tmp_path), WatchedDisk())
    for queue_id in range(20):
        owner.append(queue_id=queue_id)
    dropped(owner)
    owner.wait_for_removals()
    assert threads == {"store-syncer"}
    assert not list((tmp_path / "consumequeue").rglob("00*"))
    owner.store.close()


def test_a_file_that_retention_gave_up_costs_a_new_topic_of_the_name_nothing(
    tmp_path: Path,
) -> None:
    """Files of retention and of the new topic have the same names."""
    disk = FailingDisk()
    owner = Owner(settings(tmp_path), disk)
    for _ in range(3):
        owner.append(bodies=[bytes(250)] * 10)
    owner.write_point()
    disk.usage_percent = 86
    disk.fail_unlink = lambda path: errno.EIO if in_queues(path) else 0
    owner.store.clean(owner.clock.time_ms)
    owner.store.tick(owner.clock.time_ms)
    wait_until(lambda: owner.store.removal_failure, "a refusal")
    assert owner.store.min_offset("T", 0) >= 10
    dropped(owner)
    owner.append(bodies=[b"new"] * 11)
    disk.fail_unlink = healthy
    disk.usage_percent = 10
    owner.store.clean(owner.clock.time_ms)
    owner.wait_for_removals()
    assert sorted(path.name for path in (tmp_path / "consumequeue/T/0").iterdir()) == [
        f"{0:020d}",
        f"{200:020d}",
    ]
    owner.store.close()
    recovered(settings(tmp_path)).store.close()


def test_messages_that_wait_for_a_sync_are_dropped_with_it(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path, flush=Flush.SYNC))
    owner.append("T", 0)
    last = owner.append("other", 0)
    waiting = owner.append("T", 0)
    dropped(owner)
    assert owner.confirm(waiting.end_offset) == [("other", 0)]
    assert owner.store.visible_end == waiting.end_offset > last.end_offset
    assert owner.append_durably("T", 0, [b"new"]).first_queue_offset == 0
    assert owner.bodies() == [b"new"]
    owner.store.close()
    recovered(settings(tmp_path)).store.close()


def test_the_mark_is_forgotten_when_retention_has_passed_it(tmp_path: Path) -> None:
    disk = FailingDisk()
    owner = Owner(settings(tmp_path), disk)
    owner.append()
    dropped(owner)
    assert read_marks(tmp_path) == {"T": owner.store.appended_end}
    for _ in range(3):
        owner.append("other", 0, [bytes(3000)])
    owner.write_point()
    disk.usage_percent = 86
    owner.store.clean(owner.clock.time_ms)
    owner.wait_for_removals()
    owner.store.clean(owner.clock.time_ms)
    assert read_marks(tmp_path) == {}
    owner.store.close()


def test_a_mark_beyond_the_log_that_a_crash_left_hides_nothing_new(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path / "s"))
    first = owner.append("other", 0)
    owner.write_point()
    owner.append("T", 0, [bytes(800)])
    dropped(owner)
    root = crashed_copy(tmp_path / "s", tmp_path / "copy")
    owner.store.close()
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(first.end_offset)
        file.write(bytes(4096 - first.end_offset))
    after = recovered(settings(root))
    assert after.store.appended_end == first.end_offset
    after.append("T", 0, [b"new"])
    copy = crashed_copy(root, tmp_path / "again")
    after.store.close()
    last = recovered(settings(copy))
    assert last.bodies() == [b"new"]
    last.store.close()


def test_times_go_on_behind_its_messages_although_nobody_ever_saw_them(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path, flush=Flush.SYNC))
    before_ms = owner.append_durably("A").store_timestamp_ms
    owner.clock.time_ms += 60_000
    gone = owner.append("T")
    dropped(owner)
    owner.confirm(gone.end_offset)
    assert owner.store.visible_end == gone.end_offset
    owner.store.close()
    # The machine's clock is set back.
    after = Owner(settings(tmp_path, flush=Flush.SYNC), now_ms=before_ms)
    assert after.append_durably("A").store_timestamp_ms >= gone.store_timestamp_ms
    after.store.close()
    assert verify_store(tmp_path) == []


@pytest.mark.parametrize("pending", [False, True], ids=["points written", "a point pending"])
@pytest.mark.parametrize("seed", seeds(3))
def test_a_crash_before_the_next_recovery_point_reads_no_more_than_usual(
    tmp_path: Path, seed: int, pending: bool
) -> None:
    choose = random.Random(seed)
    disk = HoldingDisk()
    owner = Owner(settings(tmp_path / "s"), disk)
    crashes = []
    for number in range(30):
        topic = choose.choice("TUV")
        owner.append(topic, choose.randrange(3), [b"%d" % number] * choose.randrange(1, 15))
        if choose.random() < 0.4:
            owner.store.drop_topics(choose.choice("TUV"))
        if choose.random() < 0.3:
            disk.release()
            owner.wait_for_point()
            if pending:
                disk.hold()
            owner.clock.time_ms += 10_000
            owner.store.tick(owner.clock.time_ms)
            if not pending:
                owner.wait_for_point()
        if choose.random() < 0.2:
            crashes.append(crashed_copy(tmp_path / "s", tmp_path / str(number)))
    everything = {(t, q): owner.bodies(t, q) for t in "TUV" for q in range(3)}
    crashes.append(crashed_copy(tmp_path / "s", tmp_path / "last"))
    disk.release()
    owner.store.close()
    for root in crashes:
        after = recovered(settings(root))
        assert after.store.recovery.reason == "recovery point", after.store.recovery.reason
        if root.name == "last":
            assert {key: after.bodies(*key) for key in everything} == everything
        after.store.close()
