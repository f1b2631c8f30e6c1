"""A clock that jumps and returns leaves no trace in the store, or one that disappears."""

import logging
from pathlib import Path

import pytest

from rockoon_broker.clock import BELIEVED_AFTER_MS, JUMP_MS, SteadyClock
from rockoon_broker.store.log.batch import AppendBatch
from rockoon_broker.store.retention.retention import LogFileAge, corrected_ages
from rockoon_runtime.access.authentication import UsedSignatures
from support.aside_desk import AsideDesk
from support.broker import batch
from support.eventually import eventually
from support.store_directory import FailingDisk, Owner, settings

NOW_MS = 1_700_000_000_000
YEAR_MS = 365 * 86_400_000


class Clocks:
    """A wall clock that a test sets, and a monotonic clock."""

    def __init__(self) -> None:
        self.elapsed_ms = 0
        self.set_by_ms = 0

    def now_ms(self) -> int:
        return NOW_MS + self.elapsed_ms + self.set_by_ms

    def local_hour(self, at_ms: int) -> int:
        return at_ms // 3_600_000 % 24

    def monotonic_seconds(self) -> float:
        return 1000 + self.elapsed_ms / 1000


def test_one_wrong_reading_is_in_no_store_time(caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    steady = SteadyClock(clocks, NOW_MS - 1000)
    clocks.elapsed_ms = 5000
    assert steady.now_ms() == NOW_MS + 5000
    clocks.set_by_ms = YEAR_MS
    for clocks.elapsed_ms in range(6000, BELIEVED_AFTER_MS, 60_000):
        assert steady.now_ms() == NOW_MS + clocks.elapsed_ms
    clocks.set_by_ms = 0
    assert steady.now_ms() == NOW_MS + clocks.elapsed_ms
    said = [record.levelno for record in caplog.records]
    assert said == [logging.ERROR, logging.WARNING]
    assert "has jumped and is 31536000 s ahead" in caplog.text


@pytest.mark.parametrize("jump_ms", [YEAR_MS, -YEAR_MS, 2 * JUMP_MS, -2 * JUMP_MS])
def test_a_jump_that_lasts_is_believed_ahead_and_back(
    caplog: pytest.LogCaptureFixture, jump_ms: int
) -> None:
    clocks = Clocks()
    steady = SteadyClock(clocks, 0)
    for set_by_ms, before_ms in ((jump_ms, 0), (0, jump_ms)):
        clocks.set_by_ms = set_by_ms
        begun_ms = clocks.elapsed_ms
        caplog.clear()
        for _ in range(3):
            assert steady.now_ms() == NOW_MS + begun_ms + before_ms
        clocks.elapsed_ms += BELIEVED_AFTER_MS
        for _ in range(3):
            assert steady.now_ms() == clocks.now_ms()
        assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2


def test_a_clock_that_does_not_go_on_from_its_jump_is_not_believed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clocks = Clocks()
    steady = SteadyClock(clocks, 0)
    for minute in range(60):
        clocks.elapsed_ms = minute * 60_000
        clocks.set_by_ms = YEAR_MS * (1 if minute % 9 else -2)
        assert steady.now_ms() == NOW_MS + clocks.elapsed_ms
    assert len(caplog.records) == 1


@pytest.mark.parametrize("jump_ms", [YEAR_MS, -YEAR_MS])
def test_a_follower_whose_clock_has_jumped_leads_with_the_time_of_before(jump_ms: int) -> None:
    clocks = Clocks()
    steady = SteadyClock(clocks, 0)
    clocks.elapsed_ms = 30 * 60_000
    clocks.set_by_ms = jump_ms
    right_ms = NOW_MS + clocks.elapsed_ms
    steady.lead_from(right_ms - 1000)
    assert steady.now_ms() == right_ms


def test_small_steps_are_followed_at_once() -> None:
    clocks = Clocks()
    steady = SteadyClock(clocks, 0)
    for step_ms in (JUMP_MS, -JUMP_MS, 500, -500):
        clocks.set_by_ms += step_ms
        assert steady.now_ms() == clocks.now_ms()


def test_a_start_with_a_clock_behind_the_newest_message_waits_whether_it_stays_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clocks = Clocks()
    steady = SteadyClock(clocks, NOW_MS + YEAR_MS)
    assert steady.now_ms() == NOW_MS + YEAR_MS
    assert "is 31536000 s behind" in caplog.text
    clocks.elapsed_ms = BELIEVED_AFTER_MS
    assert steady.now_ms() == NOW_MS + BELIEVED_AFTER_MS


def test_files_of_a_jump_expire_with_those_that_were_written_after_it() -> None:
    ages = [0, YEAR_MS, YEAR_MS + 1, 3000, 4000, YEAR_MS + 2]
    files = [LogFileAge(index, NOW_MS + age) for index, age in enumerate(ages)]
    healed = [file.newest_ms - NOW_MS for file in corrected_ages(files, NOW_MS + 9000)]
    assert healed == [0, 3000, 3000, 3000, 4000, 9000]


def test_signatures_of_a_jump_keep_no_room_once_the_clock_is_back() -> None:
    used = UsedSignatures(60_000, channels_max=1)
    assert used.admit("key", "in the jump", 1, NOW_MS - YEAR_MS, NOW_MS + YEAR_MS)
    assert used.admit("key", "afterwards", 1, NOW_MS, NOW_MS)


async def test_what_is_stored_after_a_jump_bears_the_time_at_which_it_was(tmp_path: Path) -> None:
    desk = AsideDesk(tmp_path)
    started_ms = desk.clock.wall_ms
    times_ms = []
    for ahead_ms in (0, YEAR_MS, 0):
        desk.clock.pass_ms(1000)
        desk.clock.wall_ms += ahead_ms
        request = batch("T", 0, b"one")
        one = AppendBatch("T", 0, request.frames, request.record_lengths)
        await desk.appends.append(one, lambda: None)
        desk.clock.wall_ms -= ahead_ms
        times_ms.append(desk.store.queue_status("T", 0).last_store_timestamp_ms)
    assert times_ms == [started_ms + 1000, started_ms + 2000, started_ms + 3000]
    assert desk.store.search_offset("T", 0, started_ms + 2500) == 2
    desk.store.close()


async def test_what_is_stored_after_a_year_that_was_believed_bears_the_right_time(
    tmp_path: Path,
) -> None:
    desk = AsideDesk(tmp_path)
    started_ms = desk.clock.wall_ms
    for jump_ms in (0, YEAR_MS, -YEAR_MS):
        desk.clock.wall_ms += jump_ms
        # Not believed at first, and believed later.
        for _ in range(2):
            desk.store.tick(desk.appends.store_clock.now_ms())
            await eventually(lambda: not desk.store.point_pending)
            desk.clock.pass_ms(BELIEVED_AFTER_MS)
        desk.store.tick(desk.appends.store_clock.now_ms())
        await eventually(lambda: not desk.store.point_pending)
        request = batch("T", 0, b"one")
        one = AppendBatch("T", 0, request.frames, request.record_lengths)
        await desk.appends.append(one, lambda: None)
    times_ms = [record.store_timestamp_ms - started_ms for record in desk.read()]
    passed_ms = [2 * BELIEVED_AFTER_MS * number for number in (1, 2, 3)]
    assert times_ms == [passed_ms[0], passed_ms[1] + YEAR_MS, passed_ms[2]]
    assert desk.store.search_offset("T", 0, started_ms + passed_ms[2] - 1) == 1
    assert desk.store.search_offset("T", 0, started_ms + passed_ms[2] + 1) == 3
    desk.store.close()


def test_retention_does_not_follow_store_times_that_are_ahead_of_the_clock(tmp_path: Path) -> None:
    disk = FailingDisk()
    disk.usage_percent = 50
    owner = Owner(settings(tmp_path, reserved_hours=72), disk)
    for _ in range(3):
        owner.append(bodies=[bytes(500)] * 5)
    owner.write_point()
    owner.clock.hour = 4
    assert owner.store.clean(owner.clock.time_ms + YEAR_MS).delete == ()
    owner.store.close()
