"""A clock that was wrong for a long time: store times decrease where a file begins, and all
messages are found.
"""

import errno
import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rockoon_broker.store.errors import AppendFailed
from rockoon_broker.store.log.time_runs import BEHIND_MS
from rockoon_broker.store.reading.reader import TimeBoundary
from rockoon_broker.store.recovery.checkpoint_files import read_checkpoint
from rockoon_format.batch import decode_columns
from rockoon_format.record import MAGIC_BLANK, encode_blank
from support.seeds import seeds
from support.store_check import verify_store
from support.store_directory import (
    NOW_MS,
    FailingDisk,
    Owner,
    PowerCutDisk,
    crashed_copy,
    in_log,
    recovered,
    settings,
)

YEAR_MS = 365 * 86_400_000
FILE_BYTES = 4096


def stored_times(owner: Owner, topic: str = "T", queue_id: int = 0) -> list[int]:
    """Return a value of each kept message of a queue."""
    found: list[int] = []
    offset = owner.store.min_offset(topic, queue_id)
    while offset < owner.store.max_offset(topic, queue_id):
        result = owner.store.get(topic, queue_id, offset)
        if result.count:
            columns = decode_columns(result.frames, result.lengths)
            found += columns.store_timestamps_ms.tolist()
        offset = result.next_offset
    return found


def check_searches(owner: Owner, topic: str, queue_id: int, probes: Sequence[int]) -> None:
    """A search returns the message after the newest one that is too early, whatever comes
    before."""
    low = owner.store.min_offset(topic, queue_id)
    times = stored_times(owner, topic, queue_id)
    for probe in probes:
        early = [offset for offset, time_ms in enumerate(times, low) if time_ms < probe]
        until = [offset for offset, time_ms in enumerate(times, low) if time_ms <= probe]
        lower = owner.store.search_offset(topic, queue_id, probe, TimeBoundary.LOWER)
        upper = owner.store.search_offset(topic, queue_id, probe, TimeBoundary.UPPER)
        assert lower == (early[-1] + 1 if early else low), (probe, times)
        assert upper == (until[-1] if until else low), (probe, times)


def a_wrong_year(owner: Owner, messages: int = 3) -> None:
    """Append messages, some of them in a wrong year, and some after the clock is corrected."""
    for set_by_ms in (0, YEAR_MS, -YEAR_MS):
        owner.clock.time_ms += set_by_ms
        owner.look_at_clock()
        for _ in range(messages):
            owner.clock.time_ms += 1000
            owner.append(bodies=[b"x"] * 2)


def test_messages_bear_the_time_again_once_the_clock_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    owner = Owner(settings(tmp_path))
    a_wrong_year(owner)
    seconds = [time_ms // 1000 for time_ms in stored_times(owner)]
    first = NOW_MS // 1000
    after = [
        *range(first + 1, first + 4),
        *range(first + YEAR_MS // 1000 + 4, first + YEAR_MS // 1000 + 7),
    ]
    after += range(first + 7, first + 10)
    assert seconds == sorted(2 * after, key=after.index)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert f"decrease by {YEAR_MS // 1000 - 1} s" in caplog.text
    search = owner.store.search_offset
    # Yesterday, the year, and today.
    assert search("T", 0, NOW_MS + 2000) == 2
    assert search("T", 0, NOW_MS + 7001) == 14
    assert search("T", 0, NOW_MS + 9001) == 18
    assert search("T", 0, NOW_MS + YEAR_MS) == 18
    assert search("T", 0, NOW_MS + 3500) == search("T", 0, NOW_MS + 7000) == 6
    assert search("T", 0, NOW_MS + 5000, TimeBoundary.UPPER) == 5
    assert search("T", 0, NOW_MS + YEAR_MS + 5000, TimeBoundary.UPPER) == 17
    owner.store.close()


def test_the_file_ends_with_an_ordinary_blank_and_the_next_begins_the_run(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path))
    a_wrong_year(owner, messages=1)
    files = sorted((tmp_path / "commitlog").iterdir())
    content = files[0].read_bytes()
    blank = content.rindex(MAGIC_BLANK.to_bytes(4, signed=True)) - 4
    assert content[blank : blank + 8] == encode_blank(FILE_BYTES - blank)
    assert not content[blank + 8 :].strip(b"\0")
    assert owner.store.entries("T", 0, 4, 1)["offset"][0] == FILE_BYTES
    owner.store.close()
    assert verify_store(tmp_path) == []


@pytest.mark.parametrize("behind_ms", [1, BEHIND_MS])
def test_a_clock_that_is_a_little_behind_is_waited_for(tmp_path: Path, behind_ms: int) -> None:
    owner = Owner(settings(tmp_path))
    owner.append()
    owner.clock.time_ms -= behind_ms
    owner.look_at_clock()
    assert owner.append().store_timestamp_ms == NOW_MS
    assert owner.store.appended_end < FILE_BYTES
    owner.store.close()


def test_no_run_begins_before_the_checkpoint_says_nothing_of_its_time(tmp_path: Path) -> None:
    """RocketMQ uses the checkpoint's times: they must not cover bytes that are not on the disk."""
    owner = Owner(settings(tmp_path))
    owner.clock.time_ms += YEAR_MS
    owner.append()
    owner.look_at_clock()
    owner.clock.time_ms -= YEAR_MS
    # No write has been requested yet.
    assert owner.append().store_timestamp_ms == NOW_MS + YEAR_MS
    owner.look_at_clock()
    checkpoint = read_checkpoint(tmp_path)
    assert max(checkpoint.log_timestamp_ms, checkpoint.queues_timestamp_ms) < NOW_MS
    assert owner.append().store_timestamp_ms == NOW_MS
    owner.write_point()
    assert read_checkpoint(tmp_path).log_timestamp_ms == NOW_MS
    owner.store.close()


def test_a_start_finds_the_runs_and_ends_one_itself(tmp_path: Path) -> None:
    configured = settings(tmp_path)
    owner = Owner(configured)
    a_wrong_year(owner)
    owner.clock.time_ms += YEAR_MS
    owner.append()
    owner.store.close()
    again = recovered(configured)
    assert again.store.recovery.reason == "clean stop"
    again.clock.time_ms = NOW_MS + 20_000
    again.look_at_clock()
    assert again.append().store_timestamp_ms == NOW_MS + 20_000
    probes = [NOW_MS + 500 * at for at in range(45)]
    check_searches(again, "T", 0, [*probes, *(probe + YEAR_MS for probe in probes)])
    again.store.close()


@pytest.mark.parametrize("lost", [(), ("recoveryPoint",), ("recoveryPoint", "checkpoint", "abort")])
@pytest.mark.parametrize("queues", ["kept", "lost"])
def test_a_start_from_the_logs_beginning_takes_the_runs_as_they_are(
    tmp_path: Path, lost: Sequence[str], queues: str
) -> None:
    configured = settings(tmp_path / "store")
    owner = Owner(configured)
    a_wrong_year(owner, messages=20)
    times = stored_times(owner)
    copy = crashed_copy(tmp_path / "store", tmp_path / "copy")
    owner.store.close()
    for name in lost:
        (copy / name).unlink()
    if queues == "lost":
        for path in (copy / "consumequeue/T/0").iterdir():
            path.unlink()
    again = recovered(configured, copy)
    assert stored_times(again) == times
    assert len(set(times)) == 60
    check_searches(again, "T", 0, [*times, *(time_ms + 1 for time_ms in times)])
    again.store.close()


def test_a_disk_that_refuses_the_next_file_delays_the_run(tmp_path: Path) -> None:
    disk = FailingDisk()
    owner = Owner(settings(tmp_path), disk)
    owner.clock.time_ms += YEAR_MS
    owner.append()
    owner.clock.time_ms -= YEAR_MS
    owner.look_at_clock()
    disk.fail_allocate = lambda _: errno.ENOSPC
    with pytest.raises(AppendFailed):
        owner.append()
    disk.fail_allocate = lambda _: 0
    for refused_at in (0, FILE_BYTES):
        # First the blank, then the record itself.
        disk.fail_write = lambda path, _, at=refused_at: (  # type: ignore[misc]
            errno.EIO if in_log(path) and int(path.name) == at else 0
        )
        with pytest.raises(AppendFailed):
            owner.append()
    disk.fail_write = lambda *_: 0
    # The clock is ahead again in the meantime: no run has begun.
    owner.clock.time_ms += YEAR_MS
    owner.look_at_clock()
    assert owner.append().first_physical_offset < FILE_BYTES
    owner.clock.time_ms -= YEAR_MS
    owner.look_at_clock()
    assert owner.append().store_timestamp_ms == NOW_MS
    assert len(set(stored_times(owner))) == 2
    owner.store.close()
    assert verify_store(tmp_path) == []


def test_retention_takes_a_run_and_the_rest_is_found(tmp_path: Path) -> None:
    disk = FailingDisk()
    disk.usage_percent = 50
    owner = Owner(settings(tmp_path), disk)
    a_wrong_year(owner, messages=30)
    for _ in range(9):
        owner.write_point()
        disk.usage_percent = 88
        owner.store.clean(owner.clock.time_ms)
        disk.usage_percent = 50
        times = stored_times(owner)
        check_searches(owner, "T", 0, [*times, NOW_MS, NOW_MS + YEAR_MS, NOW_MS + 2 * YEAR_MS])
        owner.append(bodies=[bytes(400)] * 6)
    assert max(times) < NOW_MS + YEAR_MS
    owner.store.close()


def live_through(owner: Owner, chance: random.Random, steps: int) -> None:
    """Append messages in several queues under a clock that is sometimes set."""
    for _ in range(steps):
        owner.clock.time_ms += chance.choice([0, 1, 400, 30_000])
        if chance.random() < 0.1:
            owner.clock.time_ms += chance.choice([YEAR_MS, BEHIND_MS // 2, 2 * BEHIND_MS])
        if chance.random() < 0.15:
            owner.clock.time_ms -= chance.choice([YEAR_MS, BEHIND_MS // 2, 2 * BEHIND_MS])
        if chance.random() < 0.7:
            owner.look_at_clock()
        count = chance.choice([1, 1, 3])
        owner.append(
            chance.choice("TU"), chance.randrange(2), [bytes(chance.choice([1, 500]))] * count
        )


@pytest.mark.parametrize("seed", seeds(2))
def test_whatever_the_clock_and_the_power_do_searches_by_time_are_right(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    configured = settings(tmp_path / "0")
    configured.root.mkdir()
    now_ms = NOW_MS
    for life in range(1, 6):
        disk = PowerCutDisk(configured.root)
        owner = Owner(configured, disk, now_ms=now_ms)
        live_through(owner, chance, chance.randrange(5, 40))
        every = {
            (topic, queue_id): stored_times(owner, topic, queue_id)
            for topic, queue_id in owner.store.queues()
        }
        for topic, queue_id in every:
            known = {time_ms for times in every.values() for time_ms in times}
            probes = [
                at + by
                for at in chance.sample(sorted(known), min(20, len(known)))
                for by in (-1, 0, 1)
            ]
            check_searches(owner, topic, queue_id, probes)
        now_ms = owner.clock.time_ms
        end = chance.choice(["clean", "killed", "power"])
        target = tmp_path / str(life)
        if end == "killed":
            crashed_copy(configured.root, target)
        if end == "power":
            disk.cut(target, chance)
        owner.store.close()
        if end != "clean":
            configured = replace(configured, root=target)
        assert verify_store(configured.root) == [] or end != "clean"
        again = recovered(configured)
        for (topic, queue_id), times in every.items():
            found = stored_times(again, topic, queue_id)
            assert found == times[: len(found)]
            assert end == "power" or len(found) == len(times)
            check_searches(again, topic, queue_id, times)
        again.store.close()


class SteppingDisk(FailingDisk):
    """Copies the state after a kill before each call that changes something."""

    def __init__(self, root: Path, copies: Path) -> None:
        super().__init__()
        self._root, self._copies = root, copies
        self._guard = threading.Lock()
        self.is_watched = False
        self.steps: list[Path] = []

    def _step(self) -> None:
        if self.is_watched:
            with self._guard:
                self.steps.append(crashed_copy(self._root, self._copies / str(len(self.steps))))

    def open(self, path: Path, *, create: bool = False) -> int:
        if create:
            self._step()
        return super().open(path, create=create)

    def pwrite(self, fd: int, data: Any, position: int) -> int:
        self._step()
        return super().pwrite(fd, data, position)

    def allocate(self, fd: int, count: int) -> None:
        self._step()
        super().allocate(fd, count)

    def fdatasync(self, fd: int) -> None:
        self._step()
        super().fdatasync(fd)


def test_a_kill_at_every_step_of_it_leaves_a_store_that_goes_on(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    disk = SteppingDisk(root, tmp_path)
    configured = settings(root)
    owner = Owner(configured, disk)
    owner.append()
    owner.look_at_clock(YEAR_MS)
    owner.append()
    disk.is_watched = True
    owner.look_at_clock(-YEAR_MS)
    owner.append()
    owner.write_point()
    disk.is_watched = False
    owner.store.close()
    ends = set()
    for step in disk.steps:
        again = recovered(configured, step)
        ends.add(again.store.max_offset("T", 0))
        again.look_at_clock()
        assert again.append().store_timestamp_ms == NOW_MS
        assert len(again.bodies()) == again.store.max_offset("T", 0)
        assert again.store.search_offset("T", 0, NOW_MS + 1) == again.store.max_offset("T", 0)
        again.store.close()
        assert verify_store(step) == []
    assert ends == {2, 3}
    assert len(disk.steps) > 10
