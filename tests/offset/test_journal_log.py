"""The journal as a log with copies, as replication uses it."""

import asyncio
import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rockoon_core.disk import Disk
from rockoon_core.errors import Busy, StoreCorrupt
from rockoon_core.replication_rules import consistent_point, rank_of
from rockoon_offset.journal import frames, journal_files, journal_log
from rockoon_offset.journal.frames import STATE_BYTES_MAX, state_payloads, unpack
from rockoon_offset.journal.journal_files import generations, journal_path
from rockoon_offset.journal.journal_log import JournalLog
from rockoon_offset.progress.records import encode
from rockoon_replica.log import LogFull, ReplicatedLog
from support.holding_disk import HoldingDisk
from support.journal_logs import append, change, content, former, state_of
from support.store_directory import FailingDisk, healthy
from support.waiting import DEADLINE_SECONDS


@contextmanager
def opened(root: Path, disk: Disk | None = None, **more: Any) -> Iterator[JournalLog]:
    root.mkdir(exist_ok=True)
    failures: list[OSError] = []
    log = JournalLog(root, root.name, failed=failures.append, disk=disk, **more)
    try:
        yield log
    finally:
        log.close()
    assert not failures


def copy(leader: ReplicatedLog, follower: ReplicatedLog) -> None:
    """Match, and copy the following bytes, as a session does."""
    point = leader.min_offset
    if follower.end > follower.min_offset:
        found = consistent_point(leader.boundaries(), follower.boundaries())
        assert found is not None
        point = found
    follower.truncate(point)
    while data := leader.read(follower.end, 700):
        follower.write(follower.end, data)
    assert follower.boundaries() == leader.boundaries()
    size = leader.end - leader.min_offset
    assert leader.tail_crc(leader.end, size) == follower.tail_crc(follower.end, size)


def lead(log: JournalLog, epoch: int) -> None:
    """Open an epoch and commit it, as two of three would."""
    log.open_epoch(epoch)
    log.commit(log.end)


async def test_replicas_whose_logs_went_apart_come_together(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as a, opened(tmp_path / "b") as b:
        assert a.boundaries() == []
        lead(a, 1)
        committed = [append(a, "g", number) for number in range(6)][-1]
        copy(a, b)
        await a.sync()
        await b.sync()
        assert a.durable_end == b.durable_end == committed
        assert list(b.ledger.table.readers()) == []
        b.commit(committed)
        assert state_of(b) == state_of(a)
        # No other copy has the following records; b is elected.
        append(a, "lost", 1)
        lead(b, 2)
        append(b, "kept", 2)
        assert rank_of(b.boundaries(), b.end) > rank_of(a.boundaries(), a.end)
        with pytest.raises(ValueError, match="already contains frames after"):
            a.truncate(committed)
    # A leader is opened again before it follows.
    with opened(tmp_path / "a") as a, opened(tmp_path / "b") as b:
        copy(b, a)
        await a.sync()
        a.commit(a.end)
        b.commit(b.end)
        assert content(a) == content(b)
        assert state_of(a) == state_of(b)
        assert set(a.ledger.table.readers()) == {"g", "kept"}
        with pytest.raises(ValueError, match="is not between"):
            a.truncate(committed)


async def test_a_sync_is_waited_for_and_a_failed_one_is_told(tmp_path: Path) -> None:
    disk, failures = HoldingDisk(everything=True), list[OSError]()
    log = JournalLog(tmp_path, "a", failed=failures.append, disk=disk)
    lead(log, 1)
    await log.sync()
    before = log.durable_end
    disk.hold()
    end = append(log, "g", 1)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(log.sync())
        await asyncio.sleep(0)
        assert not waiting.done()
        assert log.durable_end == before
        disk.release()
    assert log.durable_end == end
    disk.fail_sync = lambda _: errno.EIO
    append(log, "g", 2)
    with pytest.raises(OSError, match="Input/output"):
        await log.sync()
    assert [failure.errno for failure in failures] == [errno.EIO]
    assert log.durable_end == end
    log.close()


async def test_what_a_start_finds_is_durable_and_committed_as_far_as_was_known(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as log:
        lead(log, 1)
        first = append(log, "g", 1)
        log.commit(first)
        append(log, "g", 2)
        last = append(log, "g", 3)
    with opened(tmp_path) as log:
        assert log.end == log.durable_end == last
        # The newest frames prove it.
        assert log.committed_end == first
        assert [each.offset for each in log.ledger.all_progress()] == [1]
        log.commit(last)
        assert [each.offset for each in log.ledger.all_progress()] == [3]
        with pytest.raises(ValueError, match="epoch 1 cannot follow"):
            log.open_epoch(1)


def test_an_older_journal_becomes_one_with_copies(tmp_path: Path) -> None:
    before = former("first", tmp_path)
    with opened(tmp_path) as log:
        assert log.min_offset == 0
        assert log.committed_end == 0
        assert [each.epoch for each in log.boundaries()] == [0]
        lead(log, 1)
        assert state_of(log) == before
        with opened(tmp_path / "b") as other:
            copy(log, other)
            other.commit(other.end)
            assert state_of(other) == before


def test_a_state_of_long_records_is_told_in_pieces_that_can_be_sent() -> None:
    records = [b"%d" % number * 100_000 for number in range(20)]
    payloads = list(state_payloads(iter(records), 1000))
    assert [record for payload in payloads for record in unpack(payload)] == records
    assert max(map(len, payloads)) < 2 * STATE_BYTES_MAX
    assert [len(list(unpack(each))) for each in state_payloads(iter([b"x"] * 5), 2)] == [2, 2, 1]


def test_an_older_journal_without_records_is_an_empty_log(tmp_path: Path) -> None:
    former("empty", tmp_path)
    with opened(tmp_path) as log:
        assert log.end == log.min_offset == 0
        assert generations(tmp_path, "journal") == []


def test_a_copy_begins_with_the_oldest_file_and_has_everything(tmp_path: Path) -> None:
    with opened(tmp_path / "a", bytes_max=2000) as a, opened(tmp_path / "b") as b:
        lead(a, 1)
        a.retain_from = 1 << 40
        for number in range(200):
            append(a, f"g{number % 7}", number)
            if a.wants_generation:
                a.start_generation()
                # A change comes between the parts.
                append(a, "between", number)
                while a.append_state():
                    append(a, "between", number + 1)
            a.commit(a.end)
        assert a.min_offset > 0
        assert len(generations(tmp_path / "a", "journal")) == 2
        copy(a, b)
        b.commit(b.end)
        assert state_of(a) == state_of(b)
        assert b.min_offset == a.min_offset
        assert [file_bytes(each) for each in files(tmp_path / "b")] == [
            file_bytes(each) for each in files(tmp_path / "a")
        ]
    with opened(tmp_path / "b") as b:
        b.commit(b.end)
        assert state_of(a) == state_of(b)


def test_a_state_whose_leader_ended_is_begun_anew_by_the_next_one(tmp_path: Path) -> None:
    with opened(tmp_path / "a", bytes_max=500) as a, opened(tmp_path / "b", bytes_max=500) as b:
        lead(a, 1)
        for number in range(9):
            append(a, f"g{number}", number)
        a.retain_from = b.retain_from = 1 << 40
        assert a.wants_generation
        a.start_generation()
        copy(a, b)
        lead(b, 2)
        assert b.wants_generation
        assert b.min_offset == 0
        b.start_generation()
        while b.append_state():
            append(b, "between", 1)
        assert not b.wants_generation
        assert b.min_offset == 0, "not before it is committed"
        b.commit(b.end)
        assert b.min_offset > 0
        with opened(tmp_path / "c") as c:
            copy(b, c)
            c.commit(c.end)
            assert state_of(c) == state_of(b)


def test_what_is_not_committed_makes_nothing_and_deletes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        lead(log, 1)
        committed = append(log, "g", 1)
        log.commit(committed)
        later = append(log, "h", 2)
        log.retain_from = 1 << 40
        for number in range(3):
            log.start_generation()
            while log.append_state():
                append(log, "h", number)
        # Before all those states.
        log.commit(later)
        assert log.min_offset == 0
    with opened(tmp_path) as log:
        assert log.committed_end == committed
        assert set(log.ledger.table.readers()) == {"g"}
        log.truncate(committed)
        assert log.boundaries()[-1].end == log.end == committed
        assert len(files(tmp_path)) == 1


class SlowDisk(FailingDisk):
    """Each sync of another thread waits until the test releases it."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.let_go = threading.Semaphore(0), threading.Semaphore(0)

    def fdatasync(self, fd: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.begun.release()
            assert self.let_go.acquire(timeout=DEADLINE_SECONDS)
        super().fdatasync(fd)


async def test_a_sync_of_what_was_cut_meanwhile_says_nothing_of_what_came_in_its_place(
    tmp_path: Path,
) -> None:
    disk = SlowDisk()
    with opened(tmp_path / "a") as a, opened(tmp_path / "b", disk) as b:
        lead(a, 1)
        copy(a, b)
        b.sync_nowait()
        point = b.end
        append(a, "cut", 1)
        b.write(point, a.read(point, 1000))
        async with asyncio.TaskGroup() as tasks:
            syncing = tasks.create_task(b.sync())
            assert await asyncio.to_thread(disk.begun.acquire, timeout=DEADLINE_SECONDS)
            b.truncate(point)
            append(a, "other", 1)
            b.write(point, content(a)[point:])
            disk.let_go.release()
            # The next one, for the current content.
            assert await asyncio.to_thread(disk.begun.acquire, timeout=DEADLINE_SECONDS)
            assert b.durable_end == point
            assert not syncing.done()
            disk.let_go.release()
        assert b.durable_end == b.end


def test_a_file_is_kept_as_long_as_others_need_it(tmp_path: Path) -> None:
    with opened(tmp_path, bytes_max=100) as log:
        lead(log, 1)
        ends: list[int] = []
        for number in range(3):
            append(log, "g", number)
            append(log, "h", number)
            log.start_generation()
            assert log.append_state(), "its end is missing"
            assert not log.append_state()
            log.commit(log.end)
            ends.append(log.end)
        assert log.min_offset == 0
        log.retain_from = ends[0]
        append(log, "g", 4)
        log.commit(log.end)
        first = log.min_offset
        assert 0 < first <= ends[0]
        with pytest.raises(ValueError, match="is not between"):
            log.read(0, 100)
        log.retain_from = log.end
        append(log, "g", 5)
        log.commit(log.end)
        assert first < log.min_offset < ends[2]


def test_what_is_sent_is_whole_frames_that_go_on_where_the_log_ends(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as a, opened(tmp_path / "b") as b:
        lead(a, 1)
        first = a.end
        append(a, "g", 1)
        data = content(a)
        for wrong in (data[:-1], data[1:], data[first:], data + b"x", data[:50] + b"?" + data[51:]):
            with pytest.raises(ValueError, match=r"no valid frame|no file can start"):
                b.write(0, wrong)
        with pytest.raises(ValueError, match="is not the end"):
            b.write(first, data[first:])
        assert b.end == 0
        b.write(0, data)
        with pytest.raises(ValueError, match="no frame begins at 1"):
            b.read(1, 100)
        assert b.read(0, 1) == data[: b.boundaries()[0].first + len(b.read(0, 1))]


def test_a_change_that_is_too_large_for_one_message_is_sent_in_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "PART_BYTES_MAX", 250)
    with opened(tmp_path / "a") as a, opened(tmp_path / "b") as b:
        lead(a, 1)
        records = [each for number in range(7) for each in change(a.ledger, f"g{number}", 1)]
        a.append([encode(record) for record in records])
        copy(a, b)
        b.commit(b.end)
        assert state_of(a) == state_of(b)
        found = frames.whole_frames(content(a), 0)
        assert [len(list(frames.unpack(each.payload))) for each in found[1:]] == [2, 2, 2, 1]


def test_a_full_disk_refuses_what_a_leader_sends_and_takes_it_later(tmp_path: Path) -> None:
    disk = FailingDisk()
    with opened(tmp_path / "a") as a, opened(tmp_path / "b", disk) as b:
        lead(a, 1)
        append(a, "g", 1)
        disk.fail_write = lambda *_: errno.ENOSPC
        with pytest.raises(LogFull):
            b.write(0, content(a))
        assert b.end == 0
        disk.fail_write = healthy
        copy(a, b)
        assert content(b) == content(a)


def test_a_leader_without_room_writes_what_it_has_taken_and_takes_no_more(tmp_path: Path) -> None:
    disk = FailingDisk()
    with opened(tmp_path, disk) as log:
        lead(log, 1)
        reserve = tmp_path / "reserve"
        disk.fail_write = lambda *_: errno.ENOSPC if reserve.exists() else 0
        disk.fail_allocate = lambda _: errno.ENOSPC
        log.require_writable()
        append(log, "g", 1)
        with pytest.raises(Exception, match="cannot be stored now"):
            log.require_writable()
        assert log.shortage
        disk.fail_write = lambda *_: errno.ENOSPC
        end = log.end
        with pytest.raises(LogFull):
            append(log, "g", 2)
        assert log.end == end


def test_a_full_disk_can_be_cut(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as a:
        lead(a, 1)
        point = append(a, "g", 1)
        append(a, "g", 2)
    disk, reserve = FailingDisk(), tmp_path / "a" / "reserve"
    with opened(tmp_path / "a", disk) as a:
        disk.fail_write = lambda *_: errno.ENOSPC if reserve.exists() else 0
        a.truncate(point)
        assert a.end == a.durable_end == point
        # The cut bytes are kept.
        kept = [path.read_bytes() for path in (tmp_path / "a" / "lost").iterdir()]
        assert len(frames.whole_frames(kept[0], point)) == 1


def test_of_what_was_cut_the_newest_is_kept(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as a:
        lead(a, 1)
        point = append(a, "g", 1)
        a.commit(point)
    for number in range(12):
        with opened(tmp_path / "a") as a:
            a.open_epoch(number + 2)
            cut = content(a)[point:]
        # As the copy of another leader: it is opened again before it is cut.
        with opened(tmp_path / "a") as a:
            a.truncate(point)
    kept = list((tmp_path / "a" / "lost").iterdir())
    assert len(kept) == journal_files.CUTS_KEPT_MAX == 8
    assert cut in {path.read_bytes() for path in kept}


def test_too_much_that_waits_for_other_copies_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_log, "WAITING_BYTES_MAX", 200)
    with opened(tmp_path) as log:
        lead(log, 1)
        while log.end - log.committed_end <= 200:
            log.require_writable()
            append(log, "g", log.end)
        with pytest.raises(Busy):
            log.require_writable()
        log.commit(log.end)
        log.require_writable()


def test_a_damaged_record_is_told_from_an_unfinished_write(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        lead(log, 1)
        synced = append(log, "g", 1)
        log.sync_nowait()
        ends = [append(log, "g", number) for number in (2, 3)]
    path = journal_path(tmp_path, 1)
    whole = path.read_bytes()
    lost: list[tuple[str, int]] = []

    def start(bad: int) -> int:
        """Return the end of a log after one byte has changed, the one before this position."""
        data = bytearray(whole)
        data[40 + bad - 1] ^= 1
        path.write_bytes(data)
        lost.clear()
        log = JournalLog(
            tmp_path,
            "a",
            failed=print,
            lost=lambda reason: lost.append((reason, path.stat().st_size)),
        )
        end = log.end
        log.close()
        return end

    # The last record: it may never have been written completely.
    assert start(ends[1]) == ends[0]
    assert lost == []
    # A record after it may have been acknowledged, and with it this one.
    assert start(ends[0]) == synced
    assert lost == [(f"cut valid records after {synced}, where {path} cannot be read", len(whole))]
    # It was on the disk.
    with pytest.raises(
        StoreCorrupt, match=f"no valid frame at .*, although it was synced up to {synced}"
    ):
        start(synced)


def test_a_file_whose_beginning_never_reached_the_disk_is_no_file(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        lead(log, 1)
        end = append(log, "g", 1)
        log.start_generation()
    path = journal_path(tmp_path, 2)
    data = path.read_bytes()
    for left in (b"", data[:20], bytes(len(data)), data[:-1], data[:45]):
        path.write_bytes(left)
        with opened(tmp_path) as log:
            assert log.end == end
            assert generations(tmp_path, "journal") == [1]
    with opened(tmp_path) as log:
        lead(log, 2)
        log.start_generation()
        while log.append_state():
            append(log, "g", 2)
        log.commit(log.end)
        before = state_of(log)
        with opened(tmp_path / "b") as other:
            copy(log, other)
            other.commit(other.end)
            assert state_of(other) == before


def files(directory: Path) -> list[Path]:
    return [journal_path(directory, each) for each in generations(directory, "journal")]


def file_bytes(path: Path) -> bytes:
    """Return the files without those of the directory itself."""
    return path.read_bytes()[40:]
