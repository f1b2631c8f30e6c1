"""Copies of a log: a store writes another one's bytes as the same log, with the same queues."""

import random
import zlib
from pathlib import Path

import pytest

from rockoon_broker.store.settings import Flush
from rockoon_core.replication_rules import Boundary
from rockoon_format.log_marks import BEGUN_MAX, LOG_TOPIC, EpochBegin, EpochMark, decode_epoch_mark
from support.replicas import Replica, opened
from support.seeds import seeds
from support.store_check import verify_store
from support.store_directory import DELETES_ALL, Owner, crashed_copy, recovered, settings


def fill(owner: Owner, choose: random.Random, batches: int) -> list[int]:
    """Append at random; return the ends of the batches."""
    ends = []
    for _ in range(batches):
        bodies = [bytes(choose.randrange(400)) for _ in range(choose.randrange(1, 5))]
        appended = owner.append(choose.choice("ABC"), choose.randrange(2), bodies)
        ends.append(appended.end_offset)
    return ends


@pytest.mark.parametrize("seed", seeds(3))
def test_a_copy_is_the_same_log_and_has_the_same_queues(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    with opened(tmp_path / "a") as leader, opened(tmp_path / "b") as follower:
        for epoch in (1, 4):
            leader.open_epoch(epoch)
            ends = fill(leader, choose, 20)
            follower.copy_from(leader, choose.choice((1, 500, 5000)))
            committed = choose.choice(ends)
            for owner in (leader, follower):
                owner.store.confirm(committed)
            assert follower.log_bytes() == leader.log_bytes()
            assert follower.store.boundaries() == leader.store.boundaries()
            for topic in "ABC":
                assert follower.bodies(topic) == leader.bodies(topic)
            end = leader.store.appended_end
            size = end - leader.store.log_min_offset
            crc = zlib.crc32(leader.log_bytes()[-size:])
            assert leader.store.tail_crc(end, size) == follower.store.tail_crc(end, size) == crc
        # It leads now, and offsets continue.
        follower.open_epoch(5)
        fill(follower, choose, 5)
        leader.copy_from(follower)
        for owner in (leader, follower):
            owner.store.confirm(owner.store.appended_end)
            owner.sync()
        assert follower.log_bytes() == leader.log_bytes()
        assert follower.store.queues() == leader.store.queues()
    for name in "ab":
        assert verify_store(tmp_path / name) == []


def test_what_was_copied_is_listed_record_by_record_as_it_is_committed(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as leader, opened(tmp_path / "b") as follower:
        # One chunk with records of all queues mixed.
        ends = [leader.append(topic, 0, [b"x"]).end_offset for topic in "ABABBA"]
        follower.copy_from(leader)
        follower.append("A", 0, [b"behind"])
        for end in (*ends, follower.store.appended_end):
            follower.store.confirm(end)
            leader.store.confirm(min(end, ends[-1]))
            if end <= ends[-1]:
                assert [follower.bodies(t) for t in "AB"] == [leader.bodies(t) for t in "AB"]
        assert follower.bodies("A") == [b"x"] * 3 + [b"behind"]


def test_what_was_copied_is_listed_without_being_read_again(tmp_path: Path) -> None:
    """Committed in parts too: a commit ends where some replica's sync did, not where chunks do."""
    with opened(tmp_path / "a") as leader, opened(tmp_path / "b") as follower:
        ends = [leader.append(topic).end_offset for topic in "ABAB"]
        follower.copy_from(leader, bytes_max=1 << 20)
        (log_file,) = (tmp_path / "b" / "commitlog").iterdir()
        with log_file.open("r+b") as file:
            file.write(bytes(ends[-1]))
        for number, end in enumerate(ends):
            follower.store.confirm(end)
            assert follower.store.visible_end == end
            assert follower.store.max_offset("AB"[number % 2], 0) == number // 2 + 1
        with log_file.open("r+b") as file:
            file.write(leader.log_bytes())


def test_what_was_copied_of_a_topic_that_is_deleted_is_not_listed(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as leader, opened(tmp_path / "b") as follower:
        for topic in "ABA":
            leader.append(topic, 0, [b"x"])
        follower.copy_from(leader)
        follower.store.drop_topics("A")
        follower.store.confirm(follower.store.appended_end)
        assert follower.store.queues() == [("B", 0)]


def test_a_file_s_last_record_is_taken_together_with_the_blank_behind_it(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as leader, opened(tmp_path / "b") as follower:
        places = [0]
        while places[-1] < 4096:
            places.append(leader.append(bodies=[b"small"]).first_physical_offset)
        follower.copy_from(leader, 1, end=places[-2])
        assert follower.store.appended_end == places[-2]
        follower.copy_from(leader)
        assert follower.log_bytes() == leader.log_bytes()


def test_only_what_goes_on_and_is_whole_is_written(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as leader, opened(tmp_path / "b") as follower:
        first = leader.append(bodies=[b"one"])
        leader.append(bodies=[b"two"])
        data = leader.log_bytes()
        flipped = bytearray(data)
        flipped[90] ^= 1
        for offset, wrong, reason in (
            (1, data, "the log ends at 0"),
            (0, b"", "0 bytes"),
            (0, data[:-1], "no whole record"),
            (0, bytes(flipped), "no whole record"),
            (0, data[first.end_offset :], "does not continue"),
            (0, bytes(8192), "has room for 4096"),
        ):
            with pytest.raises(ValueError, match=reason):
                follower.store.write_raw(offset, wrong)
        assert follower.store.appended_end == 0
        follower.store.write_raw(0, data[: first.end_offset])
        follower.store.write_raw(first.end_offset, data[first.end_offset :])
        assert follower.log_bytes() == data
        for offset in (1, first.end_offset - 1, len(data) + 1):
            with pytest.raises(ValueError, match=r"no record|no whole record|the log is"):
                leader.store.read_raw(offset, 100)
        with pytest.raises(ValueError, match="bytes before"):
            leader.store.tail_crc(10, 11)


def test_a_number_that_does_not_follow_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as leader, opened(tmp_path / "b") as other:
        other.append(bodies=[b"an elder one"])
        leader.append("U", bodies=[b"an elder one"])
        leader.append(bodies=[b"one"])
        end = other.store.appended_end
        with pytest.raises(ValueError, match="does not continue"):
            other.store.write_raw(end, leader.log_bytes()[end:])


def test_one_copy_has_no_marks_and_is_epoch_0(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path))
    for _ in range(3):
        owner.append(bodies=[bytes(3000)])
    assert owner.store.boundaries() == [Boundary(0, 0, owner.store.appended_end)]
    assert LOG_TOPIC not in {topic for topic, _ in owner.store.queues()}
    owner.store.close()


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("by_quorum", [False, True])
def test_boundaries_are_in_the_log_whatever_becomes_of_the_process(
    tmp_path: Path, killed: bool, by_quorum: bool
) -> None:
    root = tmp_path / "s"
    owner = Replica(root) if by_quorum else Owner(settings(root))
    owner.append(bodies=[b"of epoch 0"])
    firsts = [0]
    for epoch in (1, 2, 7):
        opening = owner.store.open_epoch(epoch, "a", owner.clock.time_ms)
        firsts.append(opening.first_physical_offset)
        owner.append(bodies=[bytes(3000)])
    if by_quorum:
        owner.store.confirm(firsts[2])
    owner.write_point()
    expected = owner.store.boundaries()
    assert [(each.epoch, each.first) for each in expected] == list(
        zip((0, 1, 2, 7), firsts, strict=True)
    )
    assert [each.end for each in expected] == [*firsts[1:], owner.store.appended_end]
    if killed:
        root = crashed_copy(root, tmp_path / "copy")
    owner.store.close()
    again = Replica(root) if by_quorum else recovered(settings(root))
    assert again.store.boundaries() == expected
    with pytest.raises(ValueError, match="epoch 7 cannot begin after epoch 7"):
        again.store.open_epoch(7, "a", again.clock.time_ms)
    again.store.close()


def test_retention_takes_every_mark_but_the_newest_and_nothing_is_forgotten(
    tmp_path: Path,
) -> None:
    owner = Owner(settings(tmp_path, **DELETES_ALL))
    owner.store.open_epoch(3, "a", owner.clock.time_ms)
    for _ in range(5):
        owner.append(bodies=[bytes(3000)])
    owner.write_point()
    owner.store.clean(owner.clock.time_ms)
    owner.wait_for_removals()
    end = owner.store.appended_end
    assert owner.store.log_min_offset > 4096
    assert owner.store.boundaries() == [Boundary(3, 0, end)]
    owner.store.close()
    again = recovered(settings(tmp_path))
    assert again.store.boundaries() == [Boundary(3, 0, end)]
    again.store.close()


def test_a_copy_may_begin_where_the_log_of_another_begins_now(tmp_path: Path) -> None:
    """Its first mark names epochs without any remaining record; its queues begin in the middle."""
    with opened(tmp_path / "a", **DELETES_ALL) as leader:
        leader.open_epoch(3)
        for number in range(5):
            leader.append(bodies=[b"%d" % number + bytes(3000)])
        leader.store.confirm(leader.store.appended_end)
        leader.sync()
        leader.write_point()
        leader.store.retain_from = leader.store.committed_end
        leader.store.clean(leader.clock.time_ms)
        leader.wait_for_removals()
        begin = leader.store.log_min_offset
        assert begin > 0
        log = tmp_path / "b" / "commitlog" / f"{begin:020}"
        log.parent.mkdir(parents=True)
        log.write_bytes(bytes(4096))
        with opened(tmp_path / "b") as follower:
            assert follower.store.appended_end == begin
            follower.copy_from(leader)
            assert follower.store.boundaries() == leader.store.boundaries()
            follower.store.confirm(follower.store.appended_end)
            assert follower.bodies() == leader.bodies()
            follower.sync()
            crashed = crashed_copy(tmp_path / "b", tmp_path / "c")
        with opened(crashed) as again:
            assert again.store.appended_end == leader.store.appended_end


def test_marks_name_the_newest_epochs_only() -> None:
    begun = tuple(EpochBegin(epoch, 10 * epoch) for epoch in range(500))
    mark = EpochMark(500, "a", begun)
    assert mark.begun_with(6000)[-1] == EpochBegin(500, 6000)
    for body in (b"", b"{}", b'{"epoch":2,"leader":"a","begun":[[3,1]]}', b"[]"):
        with pytest.raises(ValueError, match="epoch"):
            decode_epoch_mark(body)
    assert BEGUN_MAX == 64


def test_many_epochs_grow_no_record(tmp_path: Path) -> None:
    with opened(tmp_path, flush=Flush.ASYNC, commit_log_file_bytes=1 << 20) as owner:
        sizes = []
        for epoch in range(1, 200):
            opening = owner.store.open_epoch(epoch, "a", owner.clock.time_ms)
            sizes.append(opening.end_offset - opening.first_physical_offset)
        assert max(sizes) < 2000
        boundaries = owner.store.boundaries()
        assert len(boundaries) == BEGUN_MAX
        owner.store.confirm(owner.store.appended_end)
    with opened(tmp_path, commit_log_file_bytes=1 << 20) as again:
        assert again.store.boundaries() == boundaries
