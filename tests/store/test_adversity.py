"""Events at the worst moment: a deletion during a sync, a clock set back, a full disk."""

import errno
from pathlib import Path

import pytest

from rockoon_broker.store.errors import AppendFailed, UnknownOffset
from rockoon_broker.store.queues.dropped_topics import read_marks
from rockoon_broker.store.settings import Flush
from support.store_directory import (
    FailingDisk,
    Owner,
    crashed_copy,
    in_log,
    recovered,
    settings,
)


def test_a_topic_deleted_while_its_directory_is_about_to_be_synced_fails_nothing(
    tmp_path: Path,
) -> None:
    class DeletingDisk(FailingDisk):
        """Deletes a topic's directories just before the Syncer opens them."""

        deletes = False

        def sync_directory(self, path: Path) -> None:
            if self.deletes and path.parent.name == "T":
                self.deletes = False
                owner.store.drop_topics("T")
            super().sync_directory(path)

    disk = DeletingDisk()
    owner = Owner(settings(tmp_path), disk)
    owner.append("T", 0)
    disk.deletes = True
    owner.write_point()
    assert owner.store.failure is None
    owner.append("other", 0)
    owner.store.close()
    recovered(settings(tmp_path)).store.close()


def test_a_mark_outlives_the_log_file_that_it_is_about(tmp_path: Path) -> None:
    class KeepingDisk(FailingDisk):
        """A crash before the deletions that retention requested."""

        def unlink(self, path: Path) -> None:
            if not in_log(path):
                super().unlink(path)

    disk = KeepingDisk()
    owner = Owner(settings(tmp_path / "s"), disk)
    owner.append("T", 0, [b"old"])
    owner.store.drop_topics("T")
    owner.append("T", 0, [b"new"])
    for _ in range(3):
        owner.append("other", 0, [bytes(3000)])
    owner.write_point()
    disk.usage_percent = 86
    owner.store.clean(owner.clock.time_ms)
    root = crashed_copy(tmp_path / "s", tmp_path / "copy")
    owner.store.close()
    (root / "recoveryPoint").unlink()
    after = recovered(settings(root))
    assert after.bodies() == [b"new"]
    after.store.close()


def test_a_full_disk_does_not_stop_the_pass_that_makes_room(tmp_path: Path) -> None:
    disk = FailingDisk()
    owner = Owner(settings(tmp_path, disk_check_delay_ms=0), disk)
    owner.append("T", 0)
    owner.store.drop_topics("T")
    marked = owner.store.appended_end
    for _ in range(4):
        owner.append("other", 0, [bytes(3000)])
    owner.write_point()
    disk.fail_write = lambda path, _: errno.ENOSPC if "droppedTopics" in path.name else 0
    disk.usage_percent = 86
    for _ in range(3):
        owner.clock.time_ms += 60_000
        owner.store.tick(owner.clock.time_ms)
        owner.wait_for_removals()
    assert read_marks(tmp_path) == {"T": marked}
    disk.fail_write = lambda *_: 0
    owner.clock.time_ms += 60_000
    owner.store.tick(owner.clock.time_ms)
    assert read_marks(tmp_path) == {}
    owner.store.close()


def test_a_deleted_message_is_not_found_by_its_place_in_the_log_either(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path))
    old = owner.append("T", 0, [b"old"])
    owner.store.drop_topics("T")
    new = owner.append("T", 0, [b"new"])
    with pytest.raises(UnknownOffset):
        owner.store.read_at(old.first_physical_offset)
    assert b"new" in owner.store.read_at(new.first_physical_offset)
    owner.store.close()


def test_a_clock_set_back_does_not_put_off_syncs_and_points(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path, flush=Flush.ASYNC))
    owner.write_point()
    owner.clock.time_ms -= 3_600_000
    owner.store.tick(owner.clock.time_ms)
    end = owner.append().end_offset
    # A point is written in the second interval without an append.
    for _ in range(2):
        owner.clock.time_ms += 1_500
        owner.store.tick(owner.clock.time_ms)
    owner.wait_for_point()
    assert owner.store.durable_end == end
    owner.store.close()


def test_a_refused_batch_does_not_come_back_after_a_clean_stop(tmp_path: Path) -> None:
    disk = FailingDisk()
    owner = Owner(settings(tmp_path, commit_log_file_bytes=1 << 20), disk)
    owner.append(bodies=[b"kept"])
    disk.write_bytes_max = 400
    disk.fail_write = lambda path, at: errno.EIO if in_log(path) and at > 900 else 0
    with pytest.raises(AppendFailed):
        owner.append(bodies=[b"refused"] * 20)
    disk.fail_write = lambda *_: 0
    disk.write_bytes_max = None
    owner.store.close()
    after = recovered(settings(tmp_path, commit_log_file_bytes=1 << 20))
    assert after.bodies() == [b"kept"]
    after.store.close()
