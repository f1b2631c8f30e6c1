"""Files that can be derived from the log are created again, whatever their state."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rockoon_broker.store.log import syncer
from support.file_harms import (
    a_directory,
    emptied,
    garbage,
    halved,
    missing,
    one_byte_longer,
)
from support.store_directory import (
    FailingDisk,
    Owner,
    crashed_copy,
    healthy,
    recovered,
    settings,
)
from support.waiting import wait_until

QUEUES = [("A", 0), ("A", 1), ("B", 0)]


HARMS = [emptied, halved, one_byte_longer, garbage, missing, a_directory]
FILES = {
    "abort": "abort",
    "checkpoint": "checkpoint",
    "recovery point": "recoveryPoint",
    "oldest of a queue": "consumequeue/A/0/00000000000000000000",
    "in the middle of a queue": "consumequeue/A/0/00000000000000000200",
    "newest of a queue": "consumequeue/A/0/00000000000000000400",
    "only one of a queue": "consumequeue/B/0/00000000000000000000",
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """One store after a clean stop, and after a crash."""
    root = tmp_path_factory.mktemp("stores")
    owner = Owner(settings(root / "clean"))
    for number in range(25):
        owner.append("A", 0, [b"A0 %d" % number])
        owner.append("A", 1, [b"A1 %d" % number])
    for number in range(5):
        owner.append("B", 0, [b"B0 %d" % number])
    owner.write_point()
    crashed = crashed_copy(root / "clean", root / "crashed")
    owner.store.close()
    return {True: root / "clean", False: crashed}


def content(owner: Owner) -> dict[tuple[str, int], list[bytes]]:
    return {key: owner.bodies(*key) for key in QUEUES}


EVERYTHING = {
    ("A", 0): [b"A0 %d" % number for number in range(25)],
    ("A", 1): [b"A1 %d" % number for number in range(25)],
    ("B", 0): [b"B0 %d" % number for number in range(5)],
}


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("which", FILES)
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "crashed"])
def test_a_broker_starts_with_all_messages_whatever_became_of_a_file(
    stores: dict[bool, Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    harm: Callable[[Path], None],
    which: str,
    clean: bool,
) -> None:
    root = crashed_copy(stores[clean], tmp_path / "copy")
    path = root / FILES[which]
    if not path.exists():
        path.write_bytes(b"no clean stop leaves one")
    harm(path)
    # Entries of the right size are checked when they are read.
    opened = Owner if harm is garbage else recovered
    after = opened(settings(root))
    assert content(after) == EVERYTHING
    if path.parent.name == "0" and harm not in (garbage, missing):
        assert str(path) in caplog.text
    for queue, messages in EVERYTHING.items():
        assert after.append(*queue, [b"new"]).first_queue_offset == len(messages)
    after.store.close()
    recovered(settings(root)).store.close()
    if harm is a_directory:
        (kept,) = root.glob("lost/*/somebody's")
        assert kept.read_bytes() == b"file"


@pytest.mark.parametrize("place", ["consumequeue", "consumequeue/A", "consumequeue/A/0"])
def test_a_file_in_the_place_of_a_directory_gives_way(
    stores: dict[bool, Path], tmp_path: Path, place: str
) -> None:
    root = crashed_copy(stores[True], tmp_path / "copy")
    shutil.rmtree(root / place)
    (root / place).write_bytes(b"somebody's")
    after = recovered(settings(root))
    assert content(after) == EVERYTHING
    after.store.close()


def test_a_foreign_file_in_a_queue_is_kept_aside(stores: dict[bool, Path], tmp_path: Path) -> None:
    root = crashed_copy(stores[True], tmp_path / "copy")
    (root / "consumequeue/A/0/notes").write_bytes(b"somebody's")
    after = recovered(settings(root))
    assert after.store.recovery.reason == "clean stop"
    after.store.close()
    assert (root / "lost/consumequeue-A-0-notes").read_bytes() == b"somebody's"


def test_a_torn_file_that_is_newer_than_the_recovery_point_costs_no_reading(
    stores: dict[bool, Path], tmp_path: Path
) -> None:
    """Remains of a queue's file after a power cut; the file was created after the recovery
    point."""
    root = crashed_copy(stores[False], tmp_path / "copy")
    (root / "consumequeue/A/0/00000000000000000600").write_bytes(b"")
    (root / "consumequeue/C/0").mkdir(parents=True)
    (root / "consumequeue/C/0/00000000000000000000").write_bytes(bytes(77))
    after = recovered(settings(root))
    assert after.store.recovery.reason == "recovery point"
    assert after.store.recovery.records_scanned == 0
    after.store.close()


def shortened(root: Path) -> Owner:
    """A store whose log begins after all messages of queue G 0, which had 13."""
    disk = FailingDisk()
    owner = Owner(settings(root), disk)
    owner.append("G", 0, [b"gone"] * 13)
    for number in range(120):
        owner.append("A", 0, [b"%d " % number + bytes(300)])
    owner.write_point()
    disk.usage_percent = 90
    owner.store.clean(owner.clock.time_ms)
    disk.usage_percent = 10
    for _ in range(3):
        owner.write_point()
        wait_until(lambda: not owner.store.removals_pending, "deleted files")
    assert owner.store.log_min_offset > 4096
    assert owner.store.min_offset("G", 0) == owner.store.max_offset("G", 0) == 13
    return owner


@pytest.mark.parametrize("harm", [emptied, halved, a_directory])
def test_numbers_are_not_given_twice_where_only_a_lost_file_knew_them(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    shortened(tmp_path).store.close()
    harm(tmp_path / "consumequeue/G/0/00000000000000000200")
    after = Owner(settings(tmp_path))
    assert after.append("G", 0, [b"new"]).first_queue_offset == 20
    assert after.bodies("G", 0) == [b"new"]
    after.store.close()


def test_an_oldest_queue_file_that_is_missing_is_no_retention(tmp_path: Path) -> None:
    owner = shortened(tmp_path)
    bodies = owner.bodies("A", 0)
    oldest = min((tmp_path / "consumequeue/A/0").iterdir())
    assert int(oldest.name) > 0, "retention took none"
    owner.store.close()
    oldest.unlink()
    after = Owner(settings(tmp_path))
    assert "the durable beginning of a ConsumeQueue is missing" in after.store.recovery.reason
    assert after.bodies("A", 0) == bodies
    after.store.close()


def test_queue_files_that_retention_took_are_missed_by_no_start(tmp_path: Path) -> None:
    owner = shortened(tmp_path / "s")
    crashed = crashed_copy(tmp_path / "s", tmp_path / "crashed")
    owner.store.close()
    for root in (tmp_path / "s", crashed):
        after = Owner(settings(root))
        assert after.store.recovery.reason in ("clean stop", "recovery point")
        after.store.close()


@pytest.mark.parametrize("end", ["killed", "stopped", "healed"])
def test_queue_files_that_retention_took_go_behind_the_point_that_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The disk has no space for this recovery point at first."""
    monkeypatch.setattr(syncer, "RETRY_SECONDS", 0.01)
    disk = FailingDisk()
    owner = Owner(settings(tmp_path / "s"), disk)
    for number in range(120):
        owner.append("A", 0, [b"%d " % number + bytes(300)])
    owner.write_point()
    disk.usage_percent = 90
    owner.store.clean(owner.clock.time_ms)
    disk.usage_percent = 10
    tries = 0

    def no_room(path: Path, _: int) -> int:
        nonlocal tries
        tries += path.name == "recoveryPoint"
        return errno.ENOSPC if path.name == "recoveryPoint" else 0

    disk.fail_write = no_room
    owner.clock.time_ms += 10_000
    owner.store.tick(owner.clock.time_ms)
    # Other work runs between two attempts.
    wait_until(lambda: tries > 3, "tries")
    root = tmp_path / "s"
    oldest = root / "consumequeue/A/0/00000000000000000000"
    if end == "killed":
        root = crashed_copy(root, tmp_path / "killed")
    if end == "healed":
        assert oldest.exists()
        disk.fail_write = healthy
        wait_until(lambda: not owner.store.removals_pending, "deleted files")
        assert not oldest.exists()
    owner.store.close()
    after = Owner(settings(root))
    assert after.store.recovery.reason == ("clean stop" if end == "healed" else "recovery point")
    after.store.close()
