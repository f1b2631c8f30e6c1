"""Old files are deleted, oldest first and never the last; a full disk stops appends while full."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from rockoon_broker.store.errors import AppendRefused
from rockoon_broker.store.reading.reader import GetStatus, TimeBoundary
from rockoon_broker.store.retention.retention import (
    LogFacts,
    LogFileAge,
    RetentionDecision,
    RetentionRules,
    decide,
    parse_hours,
)
from rockoon_broker.store.settings import StoreSettings
from rockoon_core.disk import DiskUsage
from support import store_directory
from support.replicas import opened
from support.store_directory import NOW_MS, FailingDisk, Owner, recovered


def settings(root: Path, **changes: Any) -> StoreSettings:
    return store_directory.settings(root, **{"reserved_hours": 72, **changes})


DAY_MS = 24 * 3_600_000
HOUR_MS = 3_600_000
RULES = RetentionRules(
    reserved_ms=72 * HOUR_MS,
    delete_hours=frozenset({4}),
    used_percent_max=75,
    forced_percent=85,
    full_percent=90,
    files_per_pass_max=10,
    file_bytes=100,
    deletes_unread=True,
)
OLD, NEW = NOW_MS - 73 * HOUR_MS, NOW_MS - HOUR_MS


def decided(ages: list[int], percent: int = 50, hour: int = 4) -> RetentionDecision:
    files = [LogFileAge(number * 100, age) for number, age in enumerate(ages)]
    usage = DiskUsage(percent, 100 - percent)
    return decide(LogFacts(files, usage), RULES, now_ms=NOW_MS, local_hour=hour)


@pytest.mark.parametrize(
    ("ages", "percent", "hour", "deleted"),
    [
        ([OLD, OLD, NEW], 50, 4, (0, 100)),
        ([OLD, OLD, NEW], 50, 5, ()),
        ([OLD, OLD, NEW], 75, 5, ()),
        ([OLD, OLD, NEW], 76, 5, (0, 100)),
        ([OLD, NEW, OLD, NEW], 76, 5, (0,)),
        ([NEW, NEW, NEW], 85, 4, ()),
        ([NEW, NEW, NEW], 86, 5, (0,)),
        ([OLD], 99, 4, ()),
        ([], 99, 4, ()),
        ([OLD] * 30, 50, 4, tuple(range(0, 1000, 100))),
        ([NEW] * 30, 95, 5, (0,)),
        ([OLD, OLD, NEW], 86, 5, (0, 100)),
    ],
)
def test_what_goes(ages: list[int], percent: int, hour: int, deleted: tuple[int, ...]) -> None:
    assert decided(ages, percent, hour).delete == deleted


def test_a_file_expires_exactly_at_its_reserved_time() -> None:
    assert decided([NOW_MS - 72 * HOUR_MS, NEW]).delete == (0,)
    assert decided([NOW_MS - 72 * HOUR_MS + 1, NEW]).delete == ()


@pytest.mark.parametrize(("percent", "writable"), [(90, True), (91, False)])
def test_appends_stop_above_the_last_mark(percent: int, writable: bool) -> None:
    assert decided([NEW], percent).writable is writable


def test_the_used_share_is_rounded_up() -> None:
    assert DiskUsage(7501, 2499).used_percent == 76
    assert DiskUsage(7500, 2500).used_percent == 75
    assert DiskUsage(0, 0).used_percent == 100


def test_hours_are_a_list_and_nothing_else() -> None:
    assert parse_hours("04") == {4}
    assert parse_hours("04;16") == {4, 16}
    for text in ("", "24", "4,5", "-1", "four"):
        with pytest.raises(ValueError, match="hours"):
            parse_hours(text)


class Cleaned:
    """A store of many small files, and a disk whose usage the test sets."""

    def __init__(self, configured: StoreSettings) -> None:
        self.disk = FailingDisk()
        self.disk.usage_percent = 50
        self.owner = Owner(configured, self.disk)
        self.store = self.owner.store
        self.log = configured.root / "commitlog"

    def fill(self, batches: int) -> None:
        """Append; each batch fills its own file."""
        for _ in range(batches):
            self.owner.append(bodies=[bytes(500)] * 5)
        self.owner.write_point()

    def age(self, hours: float) -> None:
        """Advance the clock by some hours."""
        self.owner.clock.time_ms += int(hours * HOUR_MS)

    def clean(self, hour: int) -> tuple[int, ...]:
        self.owner.clock.hour = hour
        return self.store.clean(self.owner.clock.time_ms).delete

    def settle(self) -> None:
        """Free the bytes of deleted files: the CommitLog file, then queues' files."""
        self.owner.wait_for_removals()
        self.owner.write_point()
        self.owner.wait_for_removals()

    def names(self) -> list[int]:
        """Return start offsets of the files in use, without the file that is reserved ahead."""
        self.owner.wait_for_removals()
        starts = sorted(int(path.name) for path in self.log.iterdir())
        return [start for start in starts if start < self.store.appended_end]


@pytest.fixture
def cleaned(tmp_path: Path) -> Cleaned:
    return Cleaned(settings(tmp_path))


def test_expired_files_go_in_the_hour_and_readers_are_sent_on(cleaned: Cleaned) -> None:
    cleaned.fill(6)
    cleaned.age(73)
    assert cleaned.clean(hour=5) == ()
    assert cleaned.clean(hour=4) == tuple(range(0, 5 * 4096, 4096))
    store = cleaned.store
    assert store.log_min_offset == 5 * 4096
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (25, 30)
    result = store.get("T", 0, 3)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, 25)
    assert store.get("T", 0, 25).status is GetStatus.FOUND
    assert store.search_offset("T", 0, 0, TimeBoundary.LOWER) == 25
    assert store.search_offset("T", 0, 0, TimeBoundary.UPPER) == 25
    store.tick(cleaned.owner.clock.time_ms)
    assert cleaned.names() == [5 * 4096]
    queue = cleaned.log.parent / "consumequeue/T/0"
    assert [int(path.name) // 20 for path in sorted(queue.iterdir())] == [20]
    store.close()
    after = recovered(settings(cleaned.log.parent))
    assert after.store.min_offset("T", 0) == 25
    assert after.store.recovery.reason == "clean stop"
    after.store.close()


def test_after_a_crash_behind_a_clean_pass_the_point_still_fits(cleaned: Cleaned) -> None:
    cleaned.fill(6)
    cleaned.age(73)
    cleaned.clean(hour=4)
    cleaned.store.tick(cleaned.owner.clock.time_ms)
    cleaned.names()
    root = cleaned.log.parent
    cleaned.owner.append()
    cleaned.disk.fail_sync = lambda _: 5
    with pytest.raises(Exception, match="cleanly"):
        cleaned.store.close()
    after = recovered(settings(root))
    assert after.store.recovery.reason == "recovery point"
    assert after.store.max_offset("T", 0) == 31
    after.store.close()


def test_an_idle_queue_whose_messages_are_gone_keeps_its_numbers(cleaned: Cleaned) -> None:
    cleaned.owner.append("idle", 3, [b"x"] * 7)
    cleaned.fill(3)
    cleaned.age(73)
    cleaned.clean(hour=4)
    store = cleaned.store
    assert (store.min_offset("idle", 3), store.max_offset("idle", 3)) == (7, 7)
    assert store.get("idle", 3, 0).status is GetStatus.OFFSET_TOO_SMALL
    assert store.get("idle", 3, 7).status is GetStatus.OFFSET_OVERFLOW_ONE
    status = store.queue_status("idle", 3)
    assert (status.min_offset, status.first_store_timestamp_ms) == (7, None)
    assert cleaned.owner.append("idle", 3).first_queue_offset == 7
    assert store.min_offset("idle", 3) == 7
    store.close()
    after = recovered(settings(cleaned.log.parent))
    assert (after.store.min_offset("idle", 3), after.store.max_offset("idle", 3)) == (7, 8)
    after.store.close()


def test_a_full_disk_stops_appends_and_an_emptier_one_lets_them_in(cleaned: Cleaned) -> None:
    cleaned.fill(3)
    cleaned.disk.usage_percent = 91
    cleaned.clean(hour=12)
    with pytest.raises(AppendRefused, match="91 % full, messages are refused above 90 %"):
        cleaned.owner.append()
    assert cleaned.owner.bodies()
    cleaned.disk.usage_percent = 90
    cleaned.clean(hour=12)
    cleaned.owner.append()
    cleaned.store.close()


def test_above_the_forced_mark_young_files_go_one_at_a_time_but_never_the_last(
    tmp_path: Path,
) -> None:
    cleaned = Cleaned(settings(tmp_path, disk_pressure_policy="delete"))
    cleaned.fill(3)
    cleaned.disk.usage_percent = 86
    assert cleaned.clean(hour=12) == (0,)
    # Its bytes, or those of its queues' files, are not free yet.
    assert cleaned.clean(hour=12) == ()
    cleaned.settle()
    cleaned.settle()
    assert cleaned.clean(hour=12) == ()
    assert cleaned.names() == [8192]
    cleaned.store.close()


def test_a_tick_cleans_only_when_it_is_time(tmp_path: Path) -> None:
    cleaned = Cleaned(settings(tmp_path, disk_check_delay_ms=60_000, disk_check_interval_ms=10_000))
    start = cleaned.owner.clock.time_ms
    cleaned.disk.usage_percent = 91
    cleaned.store.tick(start + 59_999)
    assert cleaned.store.last_retention is None
    cleaned.store.tick(start + 60_000)
    assert not cleaned.store.writable
    cleaned.disk.usage_percent = 50
    # Under pressure the disk is checked more often.
    cleaned.store.tick(start + 64_999)
    assert not cleaned.store.writable
    cleaned.store.tick(start + 65_000)
    assert cleaned.store.writable
    cleaned.store.close()


def test_files_that_no_recovery_point_covers_stay(cleaned: Cleaned) -> None:
    cleaned.fill(2)
    for _ in range(3):
        cleaned.owner.append(bodies=[bytes(500)] * 5)
    cleaned.disk.usage_percent = 76
    cleaned.age(73)
    cleaned.clean(hour=12)
    assert cleaned.store.log_min_offset == 4096
    cleaned.owner.write_point()
    cleaned.clean(hour=12)
    assert cleaned.store.log_min_offset == 4 * 4096
    cleaned.store.close()


def test_a_disk_that_cannot_be_looked_at_takes_no_messages_until_it_can(cleaned: Cleaned) -> None:
    cleaned.fill(2)
    now_ms = cleaned.owner.clock.time_ms + DAY_MS
    cleaned.disk.usage_failure = errno.EIO
    cleaned.store.tick(now_ms)
    with pytest.raises(AppendRefused, match="cannot read the fill"):
        cleaned.owner.append()
    cleaned.disk.usage_failure = 0
    cleaned.store.tick(now_ms + DAY_MS)
    cleaned.owner.append()
    cleaned.store.close()


def test_a_file_that_was_copied_today_is_as_old_as_its_newest_message(cleaned: Cleaned) -> None:
    cleaned.fill(3)
    cleaned.age(73)
    now_seconds = cleaned.owner.clock.time_ms / 1000
    for path in cleaned.log.iterdir():
        os.utime(path, (now_seconds, now_seconds))
    assert cleaned.clean(hour=4) == (0, 4096)
    cleaned.store.close()


def test_a_start_finds_how_old_files_are(cleaned: Cleaned) -> None:
    cleaned.fill(3)
    cleaned.store.close()
    again = Cleaned(cleaned.store.settings)
    again.age(73)
    # A last record that cannot be read: the file's own time is used, as long as it exists.
    with next(again.log.glob(f"{4096:020}")).open("r+b") as file:
        file.seek(0)
        file.write(bytes(4096))
    again.store.close()
    third = Cleaned(cleaned.store.settings)
    third.age(2 * 73)
    os.utime(third.log / f"{4096:020}", (third.owner.clock.time_ms / 1000,) * 2)
    assert third.clean(hour=4) == (0,)
    third.store.close()


def test_a_log_with_copies_stays_as_far_as_they_need_it(tmp_path: Path) -> None:
    with opened(tmp_path, reserved_hours=0, disk_used_percent_max=40) as owner:
        for _ in range(4):
            owner.append(bodies=[bytes(500)] * 5)
        owner.store.confirm(owner.store.appended_end)
        owner.sync()
        owner.write_point()
        for retained, begin in ((None, 0), (8191, 4096), (8192, 8192), (1 << 40, 12_288)):
            if retained is not None:
                owner.store.retain_from = retained
            owner.store.clean(owner.clock.time_ms)
            assert owner.store.log_min_offset == begin
            # While it waits for them, it reports the end of the files that it would delete.
            held = 12_288 if begin < 12_288 else 0
            assert owner.store.retention_held_end == held
