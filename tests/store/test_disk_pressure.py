"""On a full disk, read files are deleted first, and unread ones only if the policy allows it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rockoon_broker.store.errors import AppendRefused
from rockoon_broker.store.reading.reader import GetStatus
from rockoon_broker.store.retention.cleaner import RANGES_MAX, DeletedRanges
from rockoon_broker.store.retention.expiry import LogGrowth, LossCause, earliest_loss
from rockoon_broker.store.retention.foreign_store import MARK_FILE, OWN_FILES
from rockoon_broker.store.retention.retention import (
    DeletionReason,
    FileReading,
    LogFacts,
    LogFileAge,
    RetentionDecision,
    RetentionRules,
    UnreadBy,
    decide,
)
from rockoon_core.disk import Disk, DiskUsage
from rockoon_format.record import encode_record
from rockoon_replica.replica_facts import ReplicaFacts
from rockoon_replica.replica_file import ReplicaFile
from support import golden_store
from support.replicas import opened
from support.store_directory import (
    NOW_MS,
    FailingDisk,
    Owner,
    batch_of,
    no_space_in,
    settings,
)

HOUR_MS = 3_600_000
RULES = RetentionRules(
    reserved_ms=72 * HOUR_MS,
    delete_hours=frozenset({4}),
    used_percent_max=75,
    forced_percent=85,
    full_percent=90,
    files_per_pass_max=10,
    file_bytes=100,
)
OLD, NEW = NOW_MS - 73 * HOUR_MS, NOW_MS - HOUR_MS
UNREAD = FileReading((UnreadBy("slow", "T@broker-a:0", 5),), messages=5, is_waited_for=True)
READ = FileReading()
AWAY = FileReading(is_waited_for=True, unknown_because="the offset service does not answer")


def decided(
    readings: dict[int, FileReading] | None,
    ages: tuple[int, ...] = (NEW, NEW, NEW),
    percent: int = 86,
    *,
    hour: int = 12,
    rules: RetentionRules = RULES,
    **facts: Any,
) -> RetentionDecision:
    files = [LogFileAge(number * 100, age) for number, age in enumerate(ages)]
    known = LogFacts(files, DiskUsage(percent, 100 - percent), readings=readings, **facts)
    return decide(known, rules, now_ms=NOW_MS, local_hour=hour)


# Decisions.


@pytest.mark.parametrize(
    ("reading", "refuse", "delete"),
    [
        (READ, (0,), (0,)),
        (UNREAD, (), (0,)),
        (AWAY, (), (0,)),
        (FileReading(pending=1), (), (0,)),
    ],
    ids=["read", "unread", "nobody knows", "a delayed message waits"],
)
def test_what_goes_before_its_time(
    reading: FileReading, refuse: tuple[int, ...], delete: tuple[int, ...]
) -> None:
    for rules, goes in ((RULES, refuse), (replace(RULES, deletes_unread=True), delete)):
        decision = decided({100: reading}, rules=rules)
        assert decision.delete == goes
        assert {each.reason for each in decision.deletions} <= {DeletionReason.DISK_PRESSURE}


def test_the_groups_are_asked_before_any_file_goes() -> None:
    assert decided({}).wanted_ends == (100,)
    assert decided({}, (OLD, OLD, NEW), 50, hour=4).wanted_ends == (100, 200)
    assert decided({}, percent=85).wanted_ends == ()


def test_nothing_goes_while_files_that_were_deleted_still_fill_the_disk() -> None:
    assert decided({100: READ}, is_freeing=True).delete == ()


def test_a_follower_deletes_what_its_leader_has_deleted_and_nothing_else() -> None:
    assert decided(None, deleted_elsewhere_end=100).delete == (0,)
    assert decided(None, deleted_elsewhere_end=99).delete == ()


def test_a_refusal_names_the_groups_that_have_not_read_the_oldest_file() -> None:
    decision = decided({100: UNREAD}, percent=91)
    assert not decision.writable
    assert "slow 5 of T@broker-a:0 (disk_pressure_policy = refuse)" in decision.refusal


def test_the_next_file_must_fit_below_the_mark() -> None:
    small = DiskUsage(850, 150)
    known = LogFacts([LogFileAge(0, NEW)], small, next_file_bytes=51)
    assert not decide(known, RULES, now_ms=NOW_MS, local_hour=12).writable
    known = replace(known, next_file_bytes=50)
    assert decide(known, RULES, now_ms=NOW_MS, local_hour=12).writable


@pytest.mark.parametrize(("percent", "full"), [(95, False), (96, True)])
def test_the_broker_has_a_reserve_above_the_mark_of_clients(percent: int, full: bool) -> None:
    decision = decided({100: UNREAD}, percent=percent)
    assert (decision.writable, bool(decision.full)) == (False, full)


WAITING = replace(RULES, waits_for=("slow",), wait_bytes_max=200)


@pytest.mark.parametrize(
    ("ages", "reading", "goes", "reason"),
    [
        # Two expired files are within the limit.
        ((OLD, OLD, NEW), UNREAD, (), None),
        ((OLD, OLD, NEW), AWAY, (), None),
        ((OLD, OLD, NEW), READ, (0,), DeletionReason.EXPIRED),
        # Of three files the oldest is deleted, for its own reason.
        ((OLD, OLD, OLD, NEW), UNREAD, (0,), DeletionReason.WAIT_LIMIT),
    ],
)
def test_an_expired_file_waits_for_a_group_up_to_a_limit(
    ages: tuple[int, ...],
    reading: FileReading,
    goes: tuple[int, ...],
    reason: DeletionReason | None,
) -> None:
    readings = {100 * (number + 1): reading for number in range(len(ages))}
    if reading is READ:
        readings[200] = UNREAD
    expired_end = 100 * ages.count(OLD)
    decision = decided(readings, ages, 50, hour=4, rules=WAITING, expired_end=expired_end)
    assert decision.delete == goes
    assert [each.reason for each in decision.deletions] == [reason] * len(goes)


def test_a_group_that_nobody_waits_for_keeps_no_expired_file() -> None:
    other = replace(UNREAD, is_waited_for=False)
    decision = decided({100: other}, (OLD, NEW), 50, hour=4, rules=WAITING, expired_end=100)
    assert decision.delete == (0,)


# Forecasts.


def hour_of(at_ms: int) -> int:
    return at_ms // HOUR_MS % 24


def test_a_growing_log_fills_the_disk_before_its_files_expire() -> None:
    rules, usage = replace(RULES, deletes_unread=True), DiskUsage(50_000, 50_000)
    growing = {"bytes_per_second": 350.0, "now_ms": NOW_MS, "local_hour": hour_of}
    first = earliest_loss(NOW_MS, usage, rules, **growing)
    assert (first.at_ms - NOW_MS, first.cause) == (100_000, LossCause.DISK_FILLS)
    behind = earliest_loss(NOW_MS, usage, rules, before_bytes=35_000, **growing)
    assert behind.at_ms - NOW_MS == 200_000
    # Under `refuse` no unread file is deleted; then messages are refused.
    assert earliest_loss(NOW_MS, usage, RULES, **growing).cause is LossCause.EXPIRED_AT_HOUR
    assert RULES.seconds_to_pressure(usage, 400.0) == 100
    assert RULES.seconds_to_pressure(usage, 0.0) is None
    assert RULES.seconds_to_pressure(DiskUsage(91, 9), 0.0) == 0


def test_the_rate_is_that_of_the_faster_time() -> None:
    growth = LogGrowth()
    assert growth.bytes_per_second == 0
    for second in range(101):
        growth.record(NOW_MS + second * 1000, second * 10)
    assert growth.bytes_per_second == 10
    for second in range(10):
        growth.record(NOW_MS + 101_000 + second * 1000, 1000 + second * 1000)
    assert 400 < growth.bytes_per_second < 1000
    # A pause does not reset the growth; a clock that was set back does.
    growth.record(NOW_MS + 200_000, 10_000)
    assert growth.bytes_per_second == 50
    growth.record(NOW_MS + 199_990, 10_000)
    assert growth.bytes_per_second == 50
    growth.record(NOW_MS, 10_000)
    assert growth.bytes_per_second == 0


# Stores.


def filled(root: Path, files: int, percent: int = 50, **changes: Any) -> tuple[Owner, FailingDisk]:
    """A store in which each batch fills a file, durably."""
    disk = FailingDisk()
    owner = Owner(settings(root, **{"reserved_hours": 72, **changes}), disk)
    for _ in range(files):
        owner.append(bodies=[bytes(500)] * 5)
    owner.write_point()
    disk.usage_percent = percent
    return owner, disk


def test_without_a_word_of_the_groups_every_file_stays(tmp_path: Path) -> None:
    owner, _ = filled(tmp_path, 3, percent=91)
    for _ in range(3):
        assert owner.store.clean(owner.clock.time_ms).delete == ()
    with pytest.raises(AppendRefused, match="unread messages are unknown"):
        owner.append()
    owner.store.close()


def test_the_broker_s_own_records_are_taken_from_the_reserve(tmp_path: Path) -> None:
    owner, disk = filled(tmp_path, 1, percent=91)
    frames = encode_record(golden_store.FULL)
    own = batch_of("TopicTest", 0, frames, [len(frames)], internal=True)
    owner.store.clean(owner.clock.time_ms)
    with pytest.raises(AppendRefused):
        owner.append()
    owner.store.append(own, owner.clock.time_ms)
    disk.usage_percent = 96
    owner.store.clean(owner.clock.time_ms)
    with pytest.raises(AppendRefused, match="appends stop above 95 %"):
        owner.store.append(own, owner.clock.time_ms)
    owner.store.close()


def test_a_copy_s_records_are_taken_from_the_reserve(tmp_path: Path) -> None:
    leader, _ = filled(tmp_path / "leader", 1)
    data = leader.store.read_raw(0, 1 << 20)
    disk = FailingDisk()
    disk.usage_percent = 91
    with opened(tmp_path / "follower", disk=disk) as follower:
        follower.store.clean(follower.clock.time_ms)
        assert not follower.store.writable
        follower.store.write_raw(0, data)
        assert follower.store.appended_end == len(data)
    leader.store.close()


def test_a_producer_does_not_fill_the_reserve_between_two_looks(tmp_path: Path) -> None:
    owner, disk = filled(tmp_path, 1)
    disk.usage_percent = 91
    # The store checks when the file is half full, not only in the next pass.
    for _ in range(10):
        if owner.store.writable:
            owner.append(bodies=[bytes(500)])
    with pytest.raises(AppendRefused, match="91 % full"):
        owner.append()
    assert owner.store.appended_end < 2 * 4096
    owner.store.close()


def test_each_deleted_file_is_logged_with_the_groups_that_lose(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    owner, _ = filled(tmp_path, 3, percent=86, disk_pressure_policy="delete")
    owner.store.require_readings()
    assert owner.store.clean(owner.clock.time_ms).delete == ()
    assert owner.store.wanted_readings == (4096,)
    assert owner.store.clean_with({4096: UNREAD}, owner.clock.time_ms).delete == (0,)
    (line,) = [each for each in caplog.messages if "is deleted" in each]
    assert line == (
        f"CommitLog file {0:020d} is deleted: disk pressure, the disk is 86 % full; unread by "
        "groups: slow 5 of T@broker-a:0"
    )
    assert owner.store.deleted_files == {DeletionReason.DISK_PRESSURE: 1}
    owner.store.close()


def test_readers_hear_why_messages_are_gone_also_after_a_restart(tmp_path: Path) -> None:
    owner, disk = filled(tmp_path, 4, percent=86, disk_pressure_policy="delete")
    owner.store.clean(owner.clock.time_ms)
    disk.usage_percent = 76
    owner.wait_for_removals()
    owner.store.close()
    again = Owner(settings(tmp_path, reserved_hours=0), disk)
    # The messages of the second file expire.
    again.clock.time_ms = owner.clock.time_ms
    again.store.clean(again.clock.time_ms)
    assert again.store.min_offset("T", 0) == 15
    reasons = [again.store.deletion_reason("T", 0, offset) for offset in (0, 4, 15, 99)]
    assert reasons == [DeletionReason.DISK_PRESSURE] * 2 + [None, None]
    found = again.store.get("T", 0, 12)
    assert found.status is GetStatus.OFFSET_TOO_SMALL
    assert found.deletion is DeletionReason.EXPIRED
    again.store.close()


def test_a_disk_without_room_for_the_reason_deletes_all_the_same(tmp_path: Path) -> None:
    owner, disk = filled(tmp_path, 3, percent=86, disk_pressure_policy="delete")
    disk.fail_write = no_space_in(lambda path: path.name.startswith("deletions"))
    assert owner.store.clean(owner.clock.time_ms).delete == (0,)
    assert not (tmp_path / "config/deletions.json").exists()
    disk.fail_write = lambda *_: 0
    disk.usage_percent = 50
    owner.store.clean(owner.clock.time_ms)
    assert json.loads((tmp_path / "config/deletions.json").read_bytes())["ranges"]
    owner.store.close()


def test_ranges_of_one_reason_are_one_and_the_oldest_are_forgotten(tmp_path: Path) -> None:
    deletions = DeletedRanges(tmp_path, Disk())
    reasons = (DeletionReason.DISK_PRESSURE, DeletionReason.WAIT_LIMIT)
    for number in range(600):
        reason = reasons[number // 2 % 2]
        deletions.record(number * 10, number * 10 + 10, reason, NOW_MS)
    assert len(deletions.ranges) == RANGES_MAX
    again = DeletedRanges(tmp_path, Disk())
    assert again.ranges == deletions.ranges
    assert again.reason_at(5999) is DeletionReason.WAIT_LIMIT
    assert again.reason_at(5979) is DeletionReason.DISK_PRESSURE
    assert again.reason_at(0) is DeletionReason.EXPIRED
    (tmp_path / "config/deletions.json").write_bytes(b"{")
    assert DeletedRanges(tmp_path, Disk()).ranges == []


# Stores that RocketMQ wrote.


def left_by_rocketmq(root: Path) -> None:
    for name, content in golden_store.files().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def cleaned(root: Path, **changes: Any) -> tuple[int, bool]:
    """Return the beginning of a store's log after a pass in the hour of deletion, years later."""
    disk = FailingDisk()
    owner = Owner(settings(root, **{"reserved_hours": None, **changes}), disk)
    owner.clock.time_ms = owner.store.runs.newest_ms + 10 * 365 * 24 * HOUR_MS
    owner.clock.hour = 4
    owner.write_point()
    owner.store.clean(owner.clock.time_ms)
    begin, foreign = owner.store.log_min_offset, owner.store.is_foreign
    owner.wait_for_removals()
    owner.store.close()
    return begin, foreign


def test_a_store_of_rocketmq_keeps_all_files_until_a_retention_time_is_set(tmp_path: Path) -> None:
    left_by_rocketmq(tmp_path)
    assert cleaned(tmp_path) == (0, True)
    # Also at the next start, which finds Rockoon's own files.
    assert (tmp_path / "recoveryPoint").exists()
    assert cleaned(tmp_path, disk_pressure_policy="delete") == (0, True)
    assert cleaned(tmp_path, reserved_hours=72) == (4096, True)
    # The mark stays: without the setting files are kept again.
    assert (tmp_path / MARK_FILE).exists()


def test_a_store_of_rockoon_s_own_is_cleaned_by_the_default(tmp_path: Path) -> None:
    owner, _ = filled(tmp_path, 3)
    owner.store.close()
    assert cleaned(tmp_path) == (2 * 4096, False)


def test_a_copy_of_a_log_is_no_store_of_rocketmq_without_its_recovery_point(tmp_path: Path) -> None:
    """An operator deletes it so that a start reads the whole log. A follower has no other file."""
    owner, _ = filled(tmp_path, 3)
    owner.store.close()
    (tmp_path / "recoveryPoint").unlink()
    for name in OWN_FILES:
        assert not (tmp_path / name).exists()
    (tmp_path / "config").mkdir(exist_ok=True)
    ReplicaFile(tmp_path / "config", Disk()).write(ReplicaFacts(promised=1))
    assert cleaned(tmp_path)[1] is False
