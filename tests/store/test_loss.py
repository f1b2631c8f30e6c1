"""No file is deleted before the time predicted for it; without an obstacle it is deleted then."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rockoon_broker.store.retention.expiry import LossCause, earliest_loss
from rockoon_broker.store.retention.retention import LogFacts, LogFileAge, RetentionRules, decide
from rockoon_core.disk import DiskUsage
from support.seeds import seeds
from support.store_directory import FailingDisk, Owner, settings

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
# Midnight in UTC.
NOW_MS = 1_699_920_000_000
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


def hour_in_utc(at_ms: int) -> int:
    return at_ms // HOUR_MS % 24


def shifted(minutes: int) -> Callable[[int], int]:
    return lambda at_ms: hour_in_utc(at_ms + minutes * MINUTE_MS)


@pytest.mark.parametrize(
    ("age_hours", "percent", "in_hours", "cause"),
    [
        (0, 50, 76, LossCause.EXPIRED_AT_HOUR),
        (72 - 4, 50, 4, LossCause.EXPIRED_AT_HOUR),
        (72 - 4.5, 50, 4.5, LossCause.EXPIRED_AT_HOUR),
        (72 - 5, 50, 24 + 4, LossCause.EXPIRED_AT_HOUR),
        (1000, 75, 4, LossCause.EXPIRED_AT_HOUR),
        (1000, 76, 0, LossCause.EXPIRED),
        (71, 76, 1, LossCause.EXPIRED),
        (71, 85, 1, LossCause.EXPIRED),
        (0, 86, 0, LossCause.DISK_FULL),
    ],
)
def test_by_age_in_the_hours_sooner_on_a_fuller_disk(
    age_hours: float, percent: int, in_hours: float, cause: LossCause
) -> None:
    newest_ms = NOW_MS - int(age_hours * HOUR_MS)
    usage = DiskUsage(percent, 100 - percent)
    loss = earliest_loss(newest_ms, usage, RULES, now_ms=NOW_MS, local_hour=hour_in_utc)
    assert (loss.at_ms, loss.cause) == (NOW_MS + int(in_hours * HOUR_MS), cause)


def test_hours_that_begin_at_a_quarter_and_an_hour_that_a_day_leaves_out() -> None:
    usage, old = DiskUsage(1, 99), NOW_MS - 100 * HOUR_MS
    kathmandu = shifted(5 * 60 + 45)
    loss = earliest_loss(old, usage, RULES, now_ms=NOW_MS, local_hour=kathmandu)
    assert loss.at_ms == NOW_MS + (22 * 60 + 15) * MINUTE_MS

    def summer_begins(at_ms: int) -> int:
        hour = hour_in_utc(at_ms)
        return hour + 1 if hour == 4 and at_ms < NOW_MS + 24 * HOUR_MS else hour

    loss = earliest_loss(old, usage, RULES, now_ms=NOW_MS, local_hour=summer_begins)
    assert loss.at_ms == NOW_MS + 28 * HOUR_MS


class SimulatedLog:
    """Files as retention sees them, growing with time; each has a number as its start."""

    def __init__(self, choose: random.Random) -> None:
        self.choose = choose
        self.now_ms = NOW_MS + choose.randrange(48 * 60) * MINUTE_MS
        self.files = [
            LogFileAge(number, self.now_ms - choose.randrange(120 * 60) * MINUTE_MS)
            for number in range(choose.randrange(1, 30))
        ]
        if choose.random() < 0.7:
            ages = sorted(file.newest_ms for file in self.files)
            self.files = [LogFileAge(number, age) for number, age in enumerate(ages)]

    def write(self) -> None:
        """Write to the last file; sometimes this fills it."""
        self.files[-1] = replace(self.files[-1], newest_ms=self.now_ms)
        if self.choose.random() < 0.5:
            self.files.append(LogFileAge(self.files[-1].start + 1, self.now_ms))

    def predictions(
        self, usage: DiskUsage, rules: RetentionRules, local_hour: Callable[[int], int]
    ) -> dict[int, int]:
        """Return the earliest loss of each file."""
        predicted = {}
        for index, file in enumerate(self.files):
            newest = max(each.newest_ms for each in self.files[: index + 1])
            if file is self.files[-1]:
                newest = max(newest, self.now_ms)
            loss = earliest_loss(newest, usage, rules, now_ms=self.now_ms, local_hour=local_hour)
            predicted[file.start] = loss.at_ms
        return predicted


@pytest.mark.parametrize("seed", seeds(20))
def test_a_simulated_week_deletes_nothing_before_its_time(seed: int) -> None:
    choose = random.Random(seed)
    log = SimulatedLog(choose)
    rules = replace(
        RULES,
        reserved_ms=choose.choice((0, 1, 71 * 60 + 13, 72 * 60)) * MINUTE_MS,
        delete_hours=frozenset(choose.sample(range(24), choose.randrange(1, 4))),
        files_per_pass_max=choose.choice((1, 10, 1000)),
    )
    local_hour = shifted(choose.choice((0, 60, -570, 345)))
    band = choose.choice((range(76), range(76, 86), range(86, 100)))
    percents = [choose.choice(band) for _ in range(5)]
    predicted = log.predictions(DiskUsage(percents[0], 100 - percents[0]), rules, local_hour)
    # Under pressure a pass deletes one file.
    held_up = rules.files_per_pass_max < 1000 or band.start > rules.forced_percent
    last = log.files[-1].start
    # The clock jumps from event to event: passes at most ten minutes apart, and writes.
    for _ in range(6 * 24 * 8):
        log.now_ms += choose.randrange(1, 10 * MINUTE_MS)
        if choose.random() < 0.05:
            log.write()
        percent = choose.choice(percents)
        decision = decide(
            LogFacts(log.files, DiskUsage(percent, 100 - percent)),
            rules,
            now_ms=log.now_ms,
            local_hour=local_hour(log.now_ms),
        )
        for start in decision.delete:
            assert log.now_ms >= predicted.get(start, 0), (start, last)
            # A pass can be too late for an hour of deletion that was about to end.
            late_ms = predicted.get(start, 0) + 10 * MINUTE_MS
            in_time = percents[0] > rules.used_percent_max or (
                local_hour(late_ms) in rules.delete_hours
            )
            if not held_up and start < last and in_time:
                assert log.now_ms < late_ms
        log.files = [file for file in log.files if file.start not in decision.delete]
    if not held_up:
        assert log.files[0].start >= min(last, log.files[-1].start)


def test_a_store_tells_where_a_message_is_and_deletes_it_when_it_said(tmp_path: Path) -> None:
    disk = FailingDisk()
    disk.usage_percent = 50
    owner = Owner(settings(tmp_path, reserved_hours=72, disk_pressure_policy="delete"), disk)
    store = owner.store
    now_ms = owner.clock.time_ms
    # Each batch fills its own file.
    for hours in (73, 70, 69, 0):
        owner.clock.time_ms = now_ms - hours * HOUR_MS
        owner.append(bodies=[bytes(500)] * 5)
    owner.clock.time_ms = now_ms - 10_000
    owner.write_point()
    owner.clock.hour = 4
    forecast = store.loss_forecast(now_ms)
    stored = [store.stored_at("T", 0, offset) for offset in (0, 7, 12, 19, 20)]
    assert stored[4] is None
    places = [each.physical_offset // 4096 for each in stored if each is not None]
    assert places == [0, 1, 2, 3]
    assert stored[1] is not None
    assert stored[1].store_timestamp_ms == now_ms - 70 * HOUR_MS
    # Asked for the newest message first: older files count all the same.
    hours = [(forecast.of(at * 4096).at_ms - now_ms) / HOUR_MS for at in (3, 0, 1, 2)]
    assert hours == [72, 0, 2, 3]
    owner.clock.time_ms = now_ms
    assert store.clean(now_ms + 2 * HOUR_MS - 1).delete == (0,)
    owner.clock.time_ms += 3 * HOUR_MS
    assert store.clean(owner.clock.time_ms).delete == (4096, 2 * 4096)
    # An offset without a message means the oldest kept message.
    oldest = store.stored_at("T", 0, 0)
    assert oldest is not None
    assert oldest.physical_offset == 3 * 4096
    assert forecast.of(0).at_ms == now_ms
    disk.usage_percent = 86
    assert store.loss_forecast(now_ms).of(3 * 4096).cause is LossCause.DISK_FULL
    assert store.stored_at("unknown", 0, 0) is None
    store.close()
