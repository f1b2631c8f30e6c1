"""Times of recovery points: their syncs delay appends, and a start reads the log after the last
one."""

from pathlib import Path

from support.store_directory import FailingDisk, Owner, crashed_copy, settings

TICK_MS = 100


def append_for(owner: Owner, disk: FailingDisk, seconds: int, body: bytes = b"x") -> int:
    """Append at every tick; return the number of recovery points written."""
    disk.syncs.clear()
    for _ in range(seconds * 1000 // TICK_MS):
        owner.append(bodies=[body])
        tick(owner)
    return points(disk)


def tick(owner: Owner) -> None:
    owner.clock.time_ms += TICK_MS
    owner.store.tick(owner.clock.time_ms)
    owner.wait_for_point()


def points(disk: FailingDisk) -> int:
    return sum(path.name == "recoveryPoint" for path in disk.syncs)


def test_points_are_rare_while_the_log_grows_slowly(tmp_path: Path) -> None:
    disk = FailingDisk()
    owner = Owner(settings(tmp_path / "s"), disk)
    assert 3 <= append_for(owner, disk, 30) <= 4
    disk.syncs.clear()
    for _ in range(2_000 // TICK_MS):
        tick(owner)
    assert points(disk) == 1, "none was due, but the log did not grow for a second"
    owner.store.close()


def test_a_start_reads_a_bounded_part_of_the_log(tmp_path: Path) -> None:
    disk = FailingDisk()
    limit = 100_000
    changes = {"recovery_point_bytes": limit, "commit_log_file_bytes": 1 << 20, "reserved_hours": 1}
    owner = Owner(settings(tmp_path / "s", **changes), disk)
    assert append_for(owner, disk, 20, bytes(10_000)) >= 18, "more than the limit each second"
    end = owner.store.appended_end
    after = Owner(settings(crashed_copy(tmp_path / "s", tmp_path / "killed"), **changes))
    # The limit, and the growth of one interval.
    assert end - after.store.recovery.boundary <= limit + 11 * 10_200
    after.store.close()
    owner.store.close()
