"""Changed or missing bytes of files are found, named, and distinguished from a torn write."""

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rockoon_broker.store.errors import StoreDamaged
from rockoon_broker.store.settings import StoreSettings
from rockoon_format.hashes import tags_code
from support.replicas import opened
from support.store_directory import (
    NOW_MS,
    FailingDisk,
    Owner,
    crashed_copy,
    healthy,
    in_log,
    recovered,
    settings,
)

BODIES = [b"body %03d" % number for number in range(100)]
LOG_FILE_BYTES = 1 << 20
YEAR_MS = 365 * 86_400_000


def poke(path: Path, position: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)


def tree(root: Path) -> dict[str, bytes]:
    """Return all files of a store except the lock."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def closed(root: Path) -> StoreSettings:
    configured = settings(root, commit_log_file_bytes=LOG_FILE_BYTES)
    owner = Owner(configured)
    for body in BODIES:
        owner.append("T", 0, [body])
    owner.store.close()
    return configured


def log_of(root: Path) -> Path:
    return min((root / "commitlog").iterdir())


def break_body(root: Path, body: bytes) -> None:
    log = log_of(root)
    poke(log, log.read_bytes().find(body), b"X")


# The CommitLog.


def test_a_flipped_byte_before_durable_records_refuses_the_start_and_changes_nothing(
    tmp_path: Path,
) -> None:
    configured = closed(tmp_path)
    (tmp_path / "recoveryPoint").unlink()
    break_body(tmp_path, BODIES[30])
    before = tree(tmp_path)
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="nothing was changed") as refused:
            Owner(configured)
        assert refused.value.path == log_of(tmp_path)
        record = log_of(tmp_path).read_bytes()[refused.value.position :]
        assert record[88:96] == b"Xody 030"
        assert tree(tmp_path) == before


def test_a_disk_that_cannot_read_is_not_told_as_damage(tmp_path: Path) -> None:
    """To skip the damage would skip a queue without damage."""
    configured, disk = closed(tmp_path), FailingDisk()
    owner = Owner(configured, disk)
    disk.fail_read = lambda path: errno.EIO if in_log(path) else 0
    for wish in (None, np.array([tags_code("TagA")], np.int64)):
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            owner.store.get("T", 0, 0, tag_codes=wish)
    disk.fail_read = healthy
    assert owner.bodies() == BODIES
    owner.store.close()


@pytest.mark.parametrize("left_bytes", [0, 3, 1000])
def test_nobody_stumbles_over_a_log_file_that_is_cut_short_in_use(
    tmp_path: Path, left_bytes: int
) -> None:
    with opened(tmp_path / "s") as leader, opened(tmp_path / "copy") as copy:
        for body in BODIES:
            leader.clock.time_ms += 1
            leader.append("T", 0, [body])
        leader.store.confirm(leader.store.appended_end)
        store = leader.store
        first, cut, following, *_ = sorted((tmp_path / "s/commitlog").iterdir())
        os.truncate(cut, left_bytes)
        # A follower of the log gets the damaged range, and continues after it.
        chunks, at = [], 0
        while at < store.visible_end:
            chunks.append(store.read_log(at))
            at = chunks[-1].next_offset
        (gone,) = (chunk for chunk in chunks if chunk.skipped_bytes)
        assert gone.next_offset == int(following.name)
        assert chunks[0].start == int(first.name)
        # Another copy of the log gets all bytes before it, and none of it.
        with pytest.raises(ValueError, match=r"no (whole )?record begins"):
            copy.copy_from(leader)
        assert copy.store.appended_end == gone.start
        assert store.blank_at(int(following.name) - 1) is None
        for time_ms in range(NOW_MS, NOW_MS + len(BODIES), 7):
            assert 0 <= store.search_offset("T", 0, time_ms) <= len(BODIES)
        status = store.queue_status("T", 0)
        assert (status.min_offset, status.max_offset) == (0, len(BODIES))


def test_damage_below_the_recovery_point_refuses_the_start(tmp_path: Path) -> None:
    """Because a queue is lost, the start reads the whole log; only then it finds the damage."""
    configured = closed(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue/T/0")
    break_body(tmp_path, BODIES[30])
    log = log_of(tmp_path).read_bytes()
    for _ in range(2):
        with pytest.raises(StoreDamaged):
            Owner(configured)
        assert log_of(tmp_path).read_bytes() == log


def test_the_damage_can_be_cut_out_with_everything_behind_it_kept_aside(tmp_path: Path) -> None:
    configured = closed(tmp_path)
    (tmp_path / "recoveryPoint").unlink()
    (tmp_path / "checkpoint").unlink()
    break_body(tmp_path, BODIES[30])
    before = log_of(tmp_path).read_bytes()
    after = recovered(configured)
    assert after.bodies() == BODIES[:30]
    (kept,) = after.store.recovery.lost_files
    assert kept.read_bytes() == before[int(kept.name) :].rstrip(b"\0")
    assert after.store.recovery.records_in_lost == 69
    assert after.append("T", 0, [b"goes on"]).first_queue_offset == 30
    after.store.close()


def test_whole_records_behind_a_torn_one_are_kept_aside_where_no_sync_is_known(
    tmp_path: Path,
) -> None:
    """After a power cut this is no damage: the torn record may never have been synced."""
    configured = settings(tmp_path / "s", commit_log_file_bytes=LOG_FILE_BYTES)
    owner = Owner(configured)
    for body in BODIES[:10]:
        owner.append("T", 0, [body])
    owner.write_point()
    for body in BODIES[10:]:
        owner.append("T", 0, [body])
    root = crashed_copy(tmp_path / "s", tmp_path / "copy")
    owner.store.close()
    break_body(root, BODIES[30])
    after = recovered(configured, root)
    assert after.store.recovery.reason == "recovery point"
    assert after.bodies() == BODIES[:30]
    assert after.store.recovery.records_in_lost == 69
    (kept,) = after.store.recovery.lost_files
    assert kept.parent == root / "lost"
    assert all(body in kept.read_bytes() for body in BODIES[31:])
    after.store.close()
    again = recovered(configured, root)
    assert again.store.recovery.lost_files == ()
    again.store.close()


def test_what_rocketmq_leaves_behind_its_end_is_no_damage(tmp_path: Path) -> None:
    """RocketMQ does not clear truncated bytes, so old records remain at their positions."""
    configured = closed(tmp_path)
    (tmp_path / "recoveryPoint").unlink()
    (tmp_path / "abort").write_text("4711")
    after = recovered(configured)
    end = after.store.appended_end
    after.clock.time_ms += 10_000
    after.append("T", 0, [b"newer"])
    after.store.close()
    (tmp_path / "recoveryPoint").unlink()
    (tmp_path / "abort").write_text("4711")
    log = log_of(tmp_path)
    whole = log.read_bytes()
    size = int.from_bytes(whole[end : end + 4])
    stale_at = end + size + 7
    stale = bytearray(whole[:size])
    stale[28:36] = stale_at.to_bytes(8)
    poke(log, end + size, b"\x01" * 7 + bytes(stale))
    last = recovered(configured)
    assert last.bodies() == [*BODIES, b"newer"]
    last.store.close()


@pytest.mark.parametrize("place", ["in the wrong year", "where the next run begins"])
def test_damage_before_what_was_durable_is_found_though_its_times_were_wrong(
    tmp_path: Path, place: str
) -> None:
    """After a crash of RocketMQ only store times show which records were durable."""
    configured = settings(tmp_path)
    owner = Owner(configured)
    for set_by_ms in (0, YEAR_MS, -YEAR_MS):
        owner.look_at_clock(set_by_ms)
        for _ in range(20):
            owner.clock.time_ms += 1000
            owner.append(bodies=[b"x"] * 2)
    (run,) = owner.store.runs.runs_after(0)
    wrong = int(owner.store.entries("T", 0, 42, 1)["offset"][0])
    owner.store.close()
    (tmp_path / "recoveryPoint").unlink()
    (tmp_path / "abort").write_text("4711")
    at = wrong if place == "in the wrong year" else run.start
    file = tmp_path / "commitlog" / f"{at - at % 4096:020d}"
    poke(file, at % 4096 + 89, b"X")
    before = tree(tmp_path)
    with pytest.raises(StoreDamaged, match="nothing was changed"):
        Owner(configured)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        ("a flipped byte", "69 whole records follow"),
        ("no log", "the log ends at 0"),
        ("the last record", "was durable up to"),
        ("a torn end", None),
    ],
)
def test_an_owner_is_told_of_a_loss_before_anything_is_cut(
    tmp_path: Path, harm: str, told: str | None
) -> None:
    """With copies elsewhere, this copy must not vote after it has lost records."""
    configured = settings(tmp_path / "s", commit_log_file_bytes=LOG_FILE_BYTES)
    owner = Owner(configured)
    for body in BODIES:
        owner.append("T", 0, [body])
    if harm in ("no log", "the last record"):
        owner.write_point()
    root = crashed_copy(tmp_path / "s", tmp_path / "copy")
    owner.store.close()
    log = log_of(root)
    if harm == "a flipped byte":
        break_body(root, BODIES[30])
    elif harm == "the last record":
        break_body(root, BODIES[-1])
    elif harm == "no log":
        shutil.rmtree(log.parent)
    else:
        end = len(log.read_bytes().rstrip(b"\0"))
        poke(log, end - 20, bytes(20))
    reasons: list[str] = []

    def lost(reason: str) -> None:
        assert not (root / "lost").exists()
        reasons.append(reason)

    Owner(replace(configured, root=root), on_loss=lost).store.close()
    assert len(reasons) == (told is not None)
    assert told is None or told in reasons[0]
    # No later message reports it.
    Owner(replace(configured, root=root), on_loss=lost).store.close()
    assert len(reasons) == (told is not None)


# ConsumeQueues.


@pytest.mark.parametrize("what", ["zeros", "garbage", "another entry", "a later entry"])
@pytest.mark.parametrize("at", [0, 3, 9])
def test_a_damaged_entry_is_made_anew_by_the_first_who_reads_it(
    tmp_path: Path, what: str, at: int
) -> None:
    configured = closed(tmp_path)
    files = sorted((tmp_path / "consumequeue/T/0").iterdir())
    right = [file.read_bytes() for file in files]
    wrong = {
        "zeros": bytes(20),
        "garbage": b"\x7f" * 20,
        "another entry": right[0][100:120],
        "a later entry": right[5][0:20],
    }[what]
    poke(files[2], at * 20, wrong)
    after = Owner(configured)
    assert after.bodies("T", 0) == BODIES
    after.store.close()
    assert [file.read_bytes() for file in files] == right


def test_a_file_full_of_zeros_is_made_anew(tmp_path: Path) -> None:
    configured = closed(tmp_path)
    file = sorted((tmp_path / "consumequeue/T/0").iterdir())[4]
    right = file.read_bytes()
    file.write_bytes(bytes(len(right)))
    after = Owner(configured)
    assert after.bodies("T", 0) == BODIES
    after.store.close()
    assert file.read_bytes() == right


def test_queues_of_two_topics_that_were_exchanged_are_noticed(tmp_path: Path) -> None:
    configured = settings(tmp_path)
    owner = Owner(configured)
    for _ in range(5):
        owner.append("T", 0, [b"of T"])
        owner.append("U", 0, [b"of U"])
    owner.store.close()
    (tmp_path / "consumequeue/T").rename(tmp_path / "consumequeue/V")
    (tmp_path / "consumequeue/U").rename(tmp_path / "consumequeue/T")
    (tmp_path / "consumequeue/V").rename(tmp_path / "consumequeue/U")
    after = Owner(configured)
    assert after.bodies("T", 0) == [b"of T"] * 5
    assert after.bodies("U", 0) == [b"of U"] * 5
    after.store.close()


def test_messages_before_a_damaged_record_are_served_and_its_place_is_named(
    tmp_path: Path,
) -> None:
    configured = closed(tmp_path)
    log = log_of(tmp_path)
    at = log.read_bytes().find(BODIES[30]) - 88
    poke(log, at, bytes(80))
    after = Owner(configured)
    found = after.store.get("T", 0, 20)
    assert (found.count, found.next_offset) == (10, 30)
    with pytest.raises(StoreDamaged, match="message 30 of queue 0 of T is lost") as refused:
        after.store.get("T", 0, 30)
    assert (refused.value.path, refused.value.position) == (log, at)
    assert after.store.get("T", 0, 31).count == 9
    after.store.close()
