"""No descriptor, or no space for the small files: an operation that did not run is no failed
sync."""

import errno
from pathlib import Path

import pytest

from rockoon_broker.store.log import syncer
from rockoon_broker.store.settings import Flush
from support.descriptors import no_descriptors
from support.store_directory import (
    FailingDisk,
    Owner,
    crashed_copy,
    healthy,
    recovered,
    settings,
)
from support.waiting import wait_until


@pytest.fixture(autouse=True)
def _soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncer, "RETRY_SECONDS", 0.01)


def ask_for_point(owner: Owner) -> None:
    owner.clock.time_ms += 10_000
    owner.store.tick(owner.clock.time_ms)


def test_without_descriptors_messages_are_acknowledged_and_the_point_comes_later(
    tmp_path: Path,
) -> None:
    owner = Owner(settings(tmp_path / "s", flush=Flush.SYNC))
    owner.append_durably(bodies=[b"first"])
    # Another queue's file must be opened for its sync.
    owner.append_durably(queue_id=1, bodies=[b"other"])
    with no_descriptors():
        ask_for_point(owner)
        wait_until(lambda: owner.store.point_failure, "the shortage")
        owner.append_durably(bodies=[b"second"])
        assert owner.store.point_pending
        assert owner.store.failure is None
    wait_until(lambda: not owner.store.point_pending, "the point")
    assert owner.store.point_failure is None
    after = recovered(settings(crashed_copy(tmp_path / "s", tmp_path / "crashed")))
    assert after.store.recovery.reason == "recovery point"
    assert after.bodies() == [b"first", b"second"]
    after.store.close()
    owner.store.close()


def test_without_descriptors_old_files_go_later_and_nothing_else_is_closed(tmp_path: Path) -> None:
    disk = FailingDisk()
    owner = Owner(settings(tmp_path), disk)
    for _ in range(4):
        owner.append(bodies=[bytes(3000)])
    owner.write_point()
    with no_descriptors():
        disk.usage_percent = 86
        owner.store.clean(owner.clock.time_ms)
        wait_until(lambda: owner.store.removal_failure, "the shortage")
    disk.usage_percent = 50
    owner.store.clean(owner.clock.time_ms)
    wait_until(lambda: not owner.store.removals_pending, "the removal")
    for _ in range(3):
        owner.append(bodies=[b"goes on" + bytes(2000)])
    owner.write_point()
    assert owner.store.failure is None
    owner.store.close()
    after = recovered(settings(tmp_path))
    assert after.store.recovery.was_clean
    after.store.close()


@pytest.mark.parametrize("name", ["recoveryPoint", "checkpoint"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_point_without_room_is_written_later(tmp_path: Path, name: str, number: int) -> None:
    disk = FailingDisk()
    owner = Owner(settings(tmp_path / "s"), disk)
    owner.append(bodies=[b"first"])
    owner.write_point()
    disk.fail_write = lambda path, _: number if path.name == name else 0
    owner.clock.time_ms += 1
    owner.append(bodies=[b"second"])
    ask_for_point(owner)
    wait_until(lambda: owner.store.point_failure, "the shortage")
    owner.append(bodies=[b"third"])
    assert owner.store.writable
    after = recovered(settings(crashed_copy(tmp_path / "s", tmp_path / "crashed")))
    assert after.store.recovery.reason == "recovery point"
    assert after.bodies() == [b"first", b"second", b"third"]
    after.store.close()
    disk.fail_write = healthy
    wait_until(lambda: not owner.store.point_pending, "the point")
    assert owner.store.point_failure is None
    owner.store.close()
    after = recovered(settings(tmp_path / "s"))
    assert after.store.recovery.was_clean
    after.store.close()


def test_a_point_whose_sync_finds_no_room_is_a_failed_sync(tmp_path: Path) -> None:
    disk = FailingDisk()
    owner = Owner(settings(tmp_path), disk)
    owner.append()
    disk.fail_sync = lambda path: errno.ENOSPC if path.name == "recoveryPoint" else 0
    owner.write_point()
    assert owner.store.failure is not None
    owner.store.close()


def test_a_stop_without_room_for_the_point_leaves_the_rest_to_the_next_start(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    owner = Owner(settings(tmp_path), disk)
    owner.append(bodies=[b"kept"])
    disk.fail_write = lambda path, _: errno.ENOSPC if path.name == "recoveryPoint" else 0
    owner.store.close()
    after = recovered(settings(tmp_path))
    assert not after.store.recovery.was_clean
    assert after.bodies() == [b"kept"]
    after.store.close()


def test_a_start_after_a_kill_needs_no_room_for_another_marker(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path / "s"))
    owner.append(bodies=[b"kept"])
    owner.write_point()
    copy = crashed_copy(tmp_path / "s", tmp_path / "crashed")
    owner.store.close()

    class NoNewFiles(FailingDisk):
        def open(self, path: Path, *, create: bool = False) -> int:
            if create:
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            return super().open(path, create=create)

    after = Owner(settings(copy), NoNewFiles())
    assert after.bodies() == [b"kept"]
    after.store.close()
