"""The power is lost at each operation of the disk: a journal with copies keeps all synced bytes."""

import errno
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from rockoon_offset.journal.frames import whole_frames
from rockoon_offset.journal.journal_log import JournalLog
from rockoon_offset.journal.outline import Replay
from support.crashing_disk import CrashingDisk, PowerGone
from support.journal_logs import append, content, former, ledger_state, state_of
from support.seeds import seeds

SEEDS = pytest.mark.parametrize("seed", seeds(1))


class Seen:
    """State of a log that a process has seen before the power was lost.

    Attributes:
        durable: the latest durable end.
        written: all bytes of the log, from position 0.
    """

    def __init__(self) -> None:
        self.durable = 0
        self.written = bytearray()

    def look(self, log: JournalLog) -> None:
        self.durable = max(self.durable, log.durable_end)
        while data := log.read(len(self.written), 1 << 20):
            self.written += data


class Crash(NamedTuple):
    """State after a crash."""

    root: Path
    seen: Seen


def opened(root: Path, disk: CrashingDisk | None = None) -> JournalLog:
    return JournalLog(root, "r", failed=lambda _: None, disk=disk, bytes_max=400)


def crashes(
    root: Path, seed: int, before: Path | None, do: Callable[[JournalLog, Seen], None]
) -> Iterator[Crash]:
    """Open a log and run an operation, repeatedly; each time the power is lost one operation later.

    Args:
        before: the directory at the beginning; None: an empty one.
        do: called with the open log.
    """
    choose = random.Random(seed)
    crash_at = 0
    is_over = False
    while not is_over:
        place, left, seen = root / f"{crash_at}", root / f"{crash_at}-left", Seen()
        if before is None:
            place.mkdir()
        else:
            shutil.copytree(before, place)
        disk = CrashingDisk(place, crash_at)
        # As some file systems do; a test need not write a megabyte each time.
        disk.fail_allocate = lambda _: errno.EOPNOTSUPP
        with suppress(PowerGone):
            log = opened(place, disk)
            try:
                do(log, seen)
            finally:
                log.close()
        is_over = disk.operations < crash_at
        disk.cut(left, choose)
        yield Crash(left, seen)
        crash_at += 1
    assert crash_at > 10


def check(crash: Crash) -> int:
    """Check that a log continues at the right position; return this position."""
    log = opened(crash.root)
    try:
        end, written = log.end, crash.seen.written
        assert crash.seen.durable <= end
        assert log.durable_end == end
        assert bytes(written[log.min_offset : end]) == content(log)[: len(written) - log.min_offset]
        log.open_epoch(9)
        log.commit(log.end)
        replay = Replay()
        for frame in whole_frames(content(log), log.min_offset):
            replay.apply(frame)
        assert state_of(log) == ledger_state(replay.ledger)
        append(log, "after", 1)
        log.sync_nowait()
    finally:
        log.close()
    log = opened(crash.root)
    assert log.boundaries()[-1].epoch == 9
    log.close()
    return end


def lead(log: JournalLog, seen: Seen) -> None:
    """Write, sync, begin files and delete them."""
    log.open_epoch(1)
    for number in range(12):
        seen.look(log)
        log.sync_nowait()
        log.commit(log.end)
        log.retain_from = log.end if number > 9 else 0
        seen.look(log)
        append(log, f"g{number % 3}", number)
        if log.wants_generation:
            log.start_generation()
        log.append_state()


@SEEDS
def test_a_leader_keeps_what_was_synced(seed: int, tmp_path: Path) -> None:
    for crash in crashes(tmp_path, seed, None, lead):
        check(crash)


@SEEDS
def test_a_follower_keeps_what_was_synced(seed: int, tmp_path: Path) -> None:
    leader = opened(made(tmp_path / "leader"))
    lead(leader, Seen())

    def follow(log: JournalLog, seen: Seen) -> None:
        log.truncate(leader.min_offset)
        while data := leader.read(log.end, 400):
            log.write(log.end, data)
            if len(data) % 2:
                log.sync_nowait()
            seen.durable = max(seen.durable, log.durable_end)

    assert leader.min_offset > 0
    written = bytes(leader.min_offset) + content(leader)
    for crash in crashes(made(tmp_path / "follower"), seed, None, follow):
        log = opened(crash.root)
        assert crash.seen.durable <= log.end
        assert content(log) == written[log.min_offset : log.end]
        log.close()
    leader.close()


@SEEDS
def test_a_cut_leaves_the_old_end_or_the_new_one(seed: int, tmp_path: Path) -> None:
    before = Seen()
    log = opened(made(tmp_path / "before"))
    log.open_epoch(1)
    log.commit(log.end)
    point = append(log, "kept", 1)
    for number in range(4):
        append(log, "cut", number)
    log.start_generation()
    append(log, "cut", 10)
    before.look(log)
    log.close()
    ends = []

    def cut(log: JournalLog, seen: Seen) -> None:
        seen.written = before.written
        log.truncate(point)
        seen.durable = -1

    for crash in crashes(made(tmp_path / "cut"), seed, tmp_path / "before", cut):
        is_done, crash.seen.durable = crash.seen.durable < 0, 0
        ends.append(check(crash))
        assert ends[-1] == point or not is_done
    assert set(ends) == {point, len(before.written)}


@SEEDS
def test_an_older_journal_is_taken_over_whole(seed: int, tmp_path: Path) -> None:
    state = former("later", tmp_path / "before")
    for crash in crashes(made(tmp_path / "taken"), seed, tmp_path / "before", lambda *_: None):
        log = opened(crash.root)
        log.commit(log.end)
        assert state_of(log) == state
        log.close()


def made(path: Path) -> Path:
    path.mkdir()
    return path
