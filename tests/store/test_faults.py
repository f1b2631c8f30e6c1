"""The disk refuses or fails: no acknowledged message is lost, and no offset is skipped."""

import errno
import queue
from pathlib import Path

import pytest

from rockoon_broker.store.errors import (
    AppendFailed,
    AppendRefused,
    BatchTooLarge,
    StoreBusy,
    StoreClosed,
    StoreSyncFailed,
)
from rockoon_broker.store.settings import Flush
from rockoon_broker.store.store import Store
from rockoon_format.batch import encode_batch
from support.store_check import verify_store
from support.store_directory import (
    BORN_HOST,
    NOW_MS,
    FailingDisk,
    Owner,
    batch_of,
    crashed_copy,
    healthy,
    in_log,
    in_queues,
    no_space_in,
    recovered,
    settings,
)
from support.waiting import DEADLINE_SECONDS, wait_until


def test_a_failed_sync_ends_the_store_and_nothing_is_acknowledged(tmp_path: Path) -> None:
    disk = FailingDisk()
    owner = Owner(settings(tmp_path, flush=Flush.SYNC), disk)
    owner.append_durably(bodies=[b"safe"])
    disk.fail_sync = lambda path: errno.EIO if in_log(path) else 0
    lost = owner.append(bodies=[b"unknown"])
    assert owner.failed.get(timeout=DEADLINE_SECONDS).errno == errno.EIO
    # The disk works again, but the pages that it dropped are lost.
    disk.fail_sync = healthy
    for call in (
        owner.append,
        lambda: owner.store.confirm(lost.end_offset),
        lambda: owner.store.tick(owner.clock.time_ms),
    ):
        with pytest.raises(StoreSyncFailed):
            call()
    assert owner.synced.empty()
    assert owner.bodies() == [b"safe"]
    owner.store.close()
    assert (tmp_path / "abort").exists()
    after = recovered(settings(tmp_path))
    assert after.bodies()[0] == b"safe"
    assert not after.store.recovery.was_clean
    after.store.close()


def test_a_failed_sync_of_a_queue_ends_the_store_too(tmp_path: Path) -> None:
    disk = FailingDisk()
    owner = Owner(settings(tmp_path), disk)
    owner.append()
    disk.fail_sync = lambda path: errno.EIO if in_queues(path) else 0
    owner.write_point()
    with pytest.raises(StoreSyncFailed):
        owner.append()
    owner.store.close()
    assert (tmp_path / "abort").exists()


def test_a_file_that_cannot_be_deleted_ends_nothing_and_is_tried_again(tmp_path: Path) -> None:
    disk = FailingDisk()
    owner = Owner(settings(tmp_path / "s"), disk)
    for _ in range(4):
        owner.append(bodies=[bytes(3000)])
    owner.write_point()
    disk.usage_percent = 86
    disk.fail_unlink = lambda path: errno.EACCES if in_log(path) else 0
    owner.store.clean(owner.clock.time_ms)
    wait_until(lambda: owner.store.removal_failure, "a refusal")
    assert owner.store.removal_failure.errno == errno.EACCES
    assert owner.append(bodies=[b"goes on"]).first_queue_offset == 4
    owner.write_point()
    assert owner.store.failure is None
    crashed = crashed_copy(tmp_path / "s", tmp_path / "crashed")
    assert (crashed / "commitlog" / f"{0:020d}").exists()
    recovered(settings(crashed)).store.close()
    disk.fail_unlink = healthy
    owner.store.clean(owner.clock.time_ms)
    owner.wait_for_removals()
    assert owner.store.removal_failure is None
    assert not (tmp_path / "s/commitlog" / f"{0:020d}").exists()
    owner.store.close()
    recovered(settings(tmp_path / "s")).store.close()


def test_a_stop_leaves_what_cannot_be_deleted_to_the_next_start(tmp_path: Path) -> None:
    disk = FailingDisk()
    owner = Owner(settings(tmp_path), disk)
    for _ in range(4):
        owner.append(bodies=[bytes(3000)])
    owner.write_point()
    disk.usage_percent = 86
    disk.fail_unlink = lambda path: errno.EACCES if path.name == f"{0:020d}" else 0
    owner.store.clean(owner.clock.time_ms)
    wait_until(lambda: owner.store.removal_failure, "a refusal")
    owner.store.close()
    after = recovered(settings(tmp_path))
    assert after.store.recovery.was_clean
    assert after.store.min_offset("T", 0) == 0
    after.store.close()


def test_a_failed_sync_at_the_stop_leaves_the_abort_file(tmp_path: Path) -> None:
    disk = FailingDisk()
    owner = Owner(settings(tmp_path), disk)
    owner.append()
    disk.fail_sync = lambda path: errno.EIO if in_log(path) else 0
    with pytest.raises(StoreSyncFailed):
        owner.store.close()
    assert (tmp_path / "abort").exists()
    recovered(settings(tmp_path)).store.close()


def test_a_full_disk_refuses_the_append_and_uses_no_offset(tmp_path: Path) -> None:
    disk = FailingDisk()
    owner = Owner(settings(tmp_path), disk)
    first = owner.append()
    disk.fail_write = no_space_in(in_log)
    with pytest.raises(AppendFailed) as caught:
        owner.append()
    assert caught.value.errno == errno.ENOSPC
    assert owner.store.appended_end == first.end_offset
    disk.fail_write = healthy
    second = owner.append()
    assert second.first_queue_offset == 1
    assert second.first_physical_offset == first.end_offset
    owner.store.close()
    assert verify_store(tmp_path) == []


def test_no_room_for_the_next_file_refuses_the_append_until_there_is(tmp_path: Path) -> None:
    disk = FailingDisk()
    disk.fail_allocate = lambda path: errno.ENOSPC if path.name != f"{0:020d}" else 0
    owner = Owner(settings(tmp_path), disk)
    first = owner.append(bodies=[bytes(3000)])
    for _ in range(2):
        with pytest.raises(AppendFailed):
            owner.append(bodies=[bytes(3000)])
    assert owner.store.appended_end == first.end_offset
    assert len(list((tmp_path / "commitlog").iterdir())) == 1
    small = owner.append(bodies=[b"fits"])
    assert small.first_physical_offset == first.end_offset
    disk.fail_allocate = healthy
    assert owner.append(bodies=[bytes(3000)]).first_physical_offset == 4096
    owner.store.close()
    assert verify_store(tmp_path) == []


def test_a_write_that_fails_in_the_middle_leaves_no_record_behind(tmp_path: Path) -> None:
    """Records of one size: the rest of a failed batch would continue the bytes written over it."""
    disk = FailingDisk()
    owner = Owner(settings(tmp_path / "s"), disk)
    first = owner.append(bodies=[b"one"])
    record = first.end_offset
    disk.write_bytes_max = record
    # Erasing fails as well: only the first two writes succeed.
    writes = iter([0, 0])
    disk.fail_write = lambda *_: next(writes, errno.EIO)
    with pytest.raises(AppendFailed):
        owner.append(bodies=[b"two", b"six", b"ten"])
    assert any((tmp_path / "s/commitlog" / f"{0:020d}").read_bytes()[record:])
    disk.fail_write = healthy
    assert owner.append(bodies=[b"new"]).first_queue_offset == 1
    root = crashed_copy(tmp_path / "s", tmp_path / "copy")
    owner.store.close()
    after = recovered(settings(root))
    assert after.bodies() == [b"one", b"new"]
    after.store.close()


def test_a_failed_write_behind_a_new_file_keeps_the_end(tmp_path: Path) -> None:
    disk = FailingDisk()
    owner = Owner(settings(tmp_path / "s"), disk)
    first = owner.append(bodies=[bytes(2000)])
    disk.fail_write = lambda path, _: (
        errno.EIO if in_log(path) and path.name == f"{4096:020d}" else 0
    )
    with pytest.raises(AppendFailed):
        owner.append(bodies=[bytes(3000)])
    assert owner.store.appended_end == first.end_offset
    recovered(settings(crashed_copy(tmp_path / "s", tmp_path / "1"))).store.close()
    small = owner.append(bodies=[b"small"])
    assert small.first_physical_offset == first.end_offset
    disk.fail_write = healthy
    assert owner.append(bodies=[bytes(3000)]).first_physical_offset == 4096
    recovered(settings(crashed_copy(tmp_path / "s", tmp_path / "2"))).store.close()
    owner.store.close()
    assert verify_store(tmp_path / "s") == []


def test_short_writes_are_finished(tmp_path: Path) -> None:
    disk = FailingDisk()
    disk.write_bytes_max = 7
    owner = Owner(settings(tmp_path), disk)
    owner.append(bodies=[b"a", b"b", b"c"])
    assert owner.bodies() == [b"a", b"b", b"c"]
    owner.store.close()
    assert verify_store(tmp_path) == []


def test_queues_that_cannot_be_written_stop_appends_until_they_can(tmp_path: Path) -> None:
    disk = FailingDisk()
    owner = Owner(settings(tmp_path, flush=Flush.SYNC), disk)
    disk.fail_write = no_space_in(in_queues)
    assert owner.confirm(owner.append(bodies=[b"1"]).end_offset) == []
    assert not owner.store.writable
    with pytest.raises(AppendRefused, match="ConsumeQueues cannot be written"):
        owner.append()
    assert owner.bodies() == []
    disk.fail_write = healthy
    assert owner.store.tick(owner.clock.time_ms) == [("T", 0)]
    assert owner.bodies() == [b"1"]
    owner.append_durably(bodies=[b"3"])
    owner.store.close()
    assert verify_store(tmp_path) == []


def test_a_queue_that_begins_in_the_middle_survives_a_failed_first_write(tmp_path: Path) -> None:
    disk = FailingDisk()
    owner = Owner(settings(tmp_path), disk)
    disk.fail_write = no_space_in(in_queues)
    owner.append(bodies=[b"0"])
    disk.fail_write = healthy
    owner.store.tick(owner.clock.time_ms)
    assert owner.bodies() == [b"0"]
    owner.store.close()


def test_a_stop_with_queues_behind_leaves_the_abort_file(tmp_path: Path) -> None:
    disk = FailingDisk()
    owner = Owner(settings(tmp_path), disk)
    disk.fail_write = no_space_in(in_queues)
    owner.append(bodies=[b"listed nowhere"])
    owner.store.close()
    assert (tmp_path / "abort").exists()
    after = recovered(settings(tmp_path))
    assert after.bodies() == [b"listed nowhere"]
    after.store.close()


def test_too_many_unsynced_bytes_are_refused_as_busy(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path, flush=Flush.SYNC, unsynced_bytes_max=4096))
    waiting = [owner.append(bodies=[bytes(1500)]) for _ in range(3)]
    with pytest.raises(StoreBusy):
        owner.append()
    owner.confirm(waiting[-1].end_offset)
    owner.append_durably()
    owner.store.close()


def test_a_batch_larger_than_a_file_is_refused_for_good(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path))
    with pytest.raises(BatchTooLarge):
        owner.append(bodies=[bytes(2000)] * 3)
    assert owner.append().first_physical_offset == 0
    owner.store.close()


def test_a_closed_store_refuses_everything_and_closes_once(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path))
    owner.store.close()
    owner.store.close()
    with pytest.raises(StoreClosed):
        owner.append()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_in_a_callback_fails_the_store_rather_than_hanging_it(tmp_path: Path) -> None:
    failed: queue.Queue[OSError] = queue.Queue()

    def broken(end_offset: int) -> None:
        raise RuntimeError(f"{end_offset} goes nowhere")

    owner = Owner(settings(tmp_path, flush=Flush.SYNC))
    owner.store.close()
    store = Store.open(settings(tmp_path, flush=Flush.SYNC), on_synced=broken, on_failed=failed.put)
    frames, lengths = encode_batch(b"T", 0, [b"x"], [b""], NOW_MS, BORN_HOST)
    store.append(batch_of("T", 0, frames, lengths), NOW_MS)
    assert "goes nowhere" in str(failed.get(timeout=DEADLINE_SECONDS))
    with pytest.raises(StoreSyncFailed):
        store.append(batch_of("T", 0, frames, lengths), NOW_MS)
    store.close()
    assert (tmp_path / "abort").exists()


@pytest.mark.parametrize("used_bytes", [0, 500, 3700, 4070])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EBADF])
def test_a_refused_commit_log_says_so_until_a_probe_is_written(
    tmp_path: Path, used_bytes: int, number: int
) -> None:
    """For several ends of the log in its file. A start finds no record in a probe's bytes."""
    disk = FailingDisk()
    owner = Owner(settings(tmp_path / "s"), disk)
    bodies = [b"first"]
    first = owner.append(bodies=bodies)
    if used_bytes > first.end_offset:
        bodies.append(bytes(used_bytes - 2 * first.end_offset + len(b"first")))
        assert owner.append(bodies=bodies[1:]).end_offset == used_bytes
    disk.fail_write = lambda path, _: number if in_log(path) else 0
    disk.fail_allocate = lambda _: number
    with pytest.raises(AppendFailed):
        owner.append(bodies=[bytes(500)])
    for _ in range(2):
        owner.clock.time_ms += 2000
        owner.store.tick(owner.clock.time_ms)
        assert "cannot be written" in owner.store.write_failure
        assert owner.store.idle_ms(owner.clock.time_ms) == 0
    disk.fail_write = disk.fail_allocate = healthy
    owner.clock.time_ms += 2000
    owner.store.tick(owner.clock.time_ms)
    assert owner.store.write_failure == ""
    recovered(settings(crashed_copy(tmp_path / "s", tmp_path / "copy"))).store.close()
    owner.append(bodies=[b"last"])
    assert owner.bodies() == [*bodies, b"last"]
    owner.store.close()
    assert verify_store(tmp_path / "s") == []


def test_a_log_without_room_for_another_file_says_so_while_small_messages_fit(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    disk.fail_allocate = lambda path: errno.ENOSPC if path.name != f"{0:020d}" else 0
    owner = Owner(settings(tmp_path), disk)
    owner.append(bodies=[bytes(3000)])
    with pytest.raises(AppendFailed):
        owner.append(bodies=[bytes(3000)])
    owner.append(bodies=[b"fits"])
    assert "No space left" in owner.store.write_failure
    disk.fail_allocate = healthy
    owner.store.tick(owner.clock.time_ms)
    assert owner.store.write_failure == ""
    owner.append(bodies=[bytes(3000)])
    owner.store.close()
    assert verify_store(tmp_path) == []
