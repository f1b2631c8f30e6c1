"""Queues without any remaining message: every copy of the log knows their next offset."""

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_broker.store.queues.queue_numbers import restore_next_offsets
from rockoon_format.consume_queue import encode_entries
from rockoon_format.log_marks import EpochMark, decode_epoch_mark, encode_epoch_mark
from support.replicas import Replica, opened
from support.store_directory import DELETES_ALL, FailingDisk, crashed_copy, healthy

OPTIONS = DELETES_ALL
EMPTIED = 5


def commit(owner: Replica) -> None:
    owner.sync()
    owner.store.confirm(owner.store.appended_end)


def delete_all_it_can(owner: Replica) -> None:
    commit(owner)
    owner.write_point()
    owner.store.retain_from = owner.store.committed_end
    owner.store.clean(owner.clock.time_ms)
    owner.wait_for_removals()


def fill(owner: Replica) -> None:
    """Append enough messages of another topic for several files."""
    for number in range(5):
        owner.append("U", 0, [b"%d" % number + bytes(3000)])


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Replica]:
    """Delete all messages of T, and of V, which began again in between."""
    with opened(tmp_path / "leader", **OPTIONS) as owner:
        owner.open_epoch(3)
        owner.append("T", 1, [b"gone"] * EMPTIED)
        owner.append("V", 0, [b"gone"] * 9)
        commit(owner)
        owner.begin_anew("V", incarnation=7)
        owner.append("V", 0, [b"gone, too"])
        fill(owner)
        delete_all_it_can(owner)
        assert owner.store.log_min_offset > 0
        assert owner.bodies("T", 1) == owner.bodies("V") == []
        yield owner


def check(owner: Replica) -> None:
    """Continue T and V, on the only leader."""
    for topic, queue_id, number in (("T", 1, EMPTIED), ("V", 0, 1)):
        assert owner.store.min_offset(topic, queue_id) == number
        assert owner.store.max_offset(topic, queue_id) == number
    owner.open_epoch(4)
    assert owner.append("T", 1).first_queue_offset == EMPTIED
    assert owner.append("V", 0).first_queue_offset == 1
    commit(owner)


def begun_behind(leader: Replica, root: Path) -> Path:
    """Return a directory whose log begins where the leader's does."""
    root.mkdir()
    with opened(root) as learner:
        learner.store.close_to_truncate(leader.store.log_min_offset)
    return root


def test_a_copy_that_is_made_anew_goes_on_with_their_numbers(
    tmp_path: Path, leader: Replica
) -> None:
    root = begun_behind(leader, tmp_path / "learner")
    with opened(root) as learner:
        learner.copy_from(leader)
        commit(learner)
        assert learner.bodies("U") == leader.bodies("U")
        crashed = crashed_copy(root, tmp_path / "crashed")
        check(learner)
    with opened(crashed) as again:
        check(again)


def test_a_copy_that_has_lost_their_files_goes_on_with_their_numbers(
    tmp_path: Path, leader: Replica
) -> None:
    root = begun_behind(leader, tmp_path / "learner")
    with opened(root) as learner:
        learner.copy_from(leader)
        commit(learner)
        crashed = crashed_copy(root, tmp_path / "crashed")
    shutil.rmtree(crashed / "consumequeue")
    with opened(crashed) as again:
        check(again)


def test_a_topic_that_began_anew_behind_the_logs_beginning_does_not_go_on(
    tmp_path: Path, leader: Replica
) -> None:
    leader.begin_anew("T", incarnation=9)
    commit(leader)
    root = begun_behind(leader, tmp_path / "learner")
    with opened(root) as learner:
        learner.copy_from(leader)
        assert learner.store.max_offset("T", 1) == EMPTIED
        commit(learner)
        assert ("T", 1) not in learner.store.queues()
        crashed = crashed_copy(root, tmp_path / "crashed")
        learner.open_epoch(4)
        assert learner.append("T", 1).first_queue_offset == 0
    with opened(crashed) as again:
        again.open_epoch(4)
        assert again.append("T", 1).first_queue_offset == 0


def test_a_hundred_thousand_numbers_are_known_at_once_and_get_their_files_a_few_a_tick(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    queues = ConsumeQueues(tmp_path, 1000, 16, disk)
    numbers = {queue_id: 1 + queue_id % 3000 for queue_id in range(100_000)}
    mark = EpochMark(2, "a", (), numbers={"T": numbers})
    disk.fail_allocate = disk.fail_write = lambda *_: errno.ENOSPC
    told = restore_next_offsets(mark, 5, queues, {})
    assert len(told) == queues.unwritten == 100_000
    assert list(tmp_path.iterdir()) == []
    assert {queue.queue_id: queue.max_offset for queue in queues} == numbers
    assert all(queues.min_offset(queue, 5) == queue.max_offset for queue in queues)
    with pytest.raises(OSError, match="No space"):
        queues.write_numbers(100)
    assert (queues.unwritten, queues.stored_count, queues.entry_count) == (100_000, 0, 0)
    disk.fail_allocate = disk.fail_write = healthy
    queues.write_numbers(100)
    assert (queues.unwritten, queues.stored_count) == (99_900, 100)
    # A queue that waits for its write, and gets a message.
    late = queues.find_or_create("T", 2999)
    queues.write(late, 3000, encode_entries([7], [100], [0]).tobytes())
    assert (late.max_offset, queues.unwritten) == (3001, 99_899)
    queues.detach("T")
    assert (queues.unwritten, queues.stored_count, queues.entry_count) == (0, 0, 0)
    queues.close()


def test_a_copy_made_on_a_full_disk_has_the_numbers_and_writes_them_when_there_is_room(
    tmp_path: Path, leader: Replica
) -> None:
    root, disk = begun_behind(leader, tmp_path / "learner"), FailingDisk()
    with opened(root, disk) as learner:
        disk.fail_allocate = lambda path: errno.ENOSPC if "consumequeue" in path.parts else 0
        disk.fail_write = lambda path, _: disk.fail_allocate(path)
        learner.copy_from(leader)
        assert learner.store.max_offset("T", 1) == EMPTIED
        learner.store.tick(learner.clock.time_ms)
        assert "No space" in learner.store.not_writable_reason
        disk.fail_allocate = disk.fail_write = healthy
        learner.store.tick(learner.clock.time_ms)
        assert learner.store.not_writable_reason == ""
        assert (root / "consumequeue" / "T" / "1").is_dir()
        commit(learner)
        learner.write_point()
        crashed = crashed_copy(root, tmp_path / "crashed")
        check(learner)
    with opened(crashed) as again:
        check(again)


def test_numbers_that_would_leave_no_room_are_left_out(tmp_path: Path) -> None:
    with opened(tmp_path / "leader", **OPTIONS) as owner:
        owner.open_epoch(3)
        for queue_id in range(200):
            owner.append("T", queue_id)
        fill(owner)
        commit(owner)
        owner.open_epoch(4)
        fill(owner)
        commit(owner)


def test_a_mark_tells_numbers_as_it_was_told_and_old_ones_tell_none() -> None:
    mark = EpochMark(2, "a", (), numbers={"T": {0: 5, 3: 1}})
    assert decode_epoch_mark(encode_epoch_mark(mark)).numbers == {"T": {0: 5, 3: 1}}
    assert decode_epoch_mark(b'{"epoch":2,"leader":"a","begun":[]}').numbers == {}
    for numbers in (b"[]", b'{"T":[[0]]}', b'{"T":[[0,-1]]}', b'{"T":[[-1,0]]}', b'{"T":5}'):
        body = b'{"epoch":2,"leader":"a","begun":[],"numbers":%s}' % numbers
        with pytest.raises(ValueError, match="not a mark of an epoch"):
            decode_epoch_mark(body)
