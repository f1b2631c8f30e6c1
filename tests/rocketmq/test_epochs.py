"""A store that had copies: RocketMQ keeps its marks as it keeps any topic."""

from pathlib import Path

import pytest

from rocketmq import real
from rocketmq.real import message
from rockoon_format.log_marks import LOG_TOPIC
from support.replicas import Replica
from support.store_check import verify_store

BODY = bytes(300_000)


def replica(store: Path) -> Replica:
    return Replica(
        store,
        commit_log_file_bytes=real.LOG_FILE_BYTES,
        consume_queue_file_entries=real.QUEUE_FILE_ENTRIES,
    )


@pytest.mark.timeout(900)
def test_rocketmq_goes_on_with_a_store_that_says_where_epochs_begin(tmp_path: Path) -> None:
    store = tmp_path / real.BROKER
    with real.running(store) as broker:
        broker.topic("orders", 1)
        broker.send("orders", message(b"of RocketMQ"))
    owner = replica(store)
    for epoch in (1, 2):
        owner.open_epoch(epoch)
        for number in range(4):
            owner.append("orders", bodies=[b"%d" % number + BODY], tags="")
    kept = owner.store.appended_end
    owner.append("orders", bodies=[b"cut"])
    owner.store.confirm(kept)
    owner.sync()
    owner.store.close_to_truncate(kept)
    owner = replica(store)
    boundaries = owner.store.boundaries()
    assert [each.epoch for each in boundaries] == [0, 1, 2]
    assert owner.store.appended_end == kept > 2 * real.LOG_FILE_BYTES
    # Two epochs, and every file since.
    assert owner.store.max_offset(LOG_TOPIC, 0) == 2 + kept // real.LOG_FILE_BYTES
    owner.store.close()
    with real.running(store) as broker:
        expected = [b"of RocketMQ", *[b"%d" % number + BODY for number in (0, 1, 2, 3)] * 2]
        assert broker.bodies("orders") == expected
        broker.send("orders", message(b"once more"))
    assert verify_store(store) == []
    again = replica(store)
    again.store.confirm(again.store.appended_end)
    assert again.bodies("orders") == [*expected, b"once more"]
    firsts = [(each.epoch, each.first) for each in again.store.boundaries()]
    assert firsts == [(each.epoch, each.first) for each in boundaries]
    again.store.close()


@pytest.mark.timeout(900)
def test_rocketmq_opens_the_store_of_a_follower_that_was_cut(tmp_path: Path) -> None:
    """It copied the whole remaining log, and its own end was cut off."""
    store = tmp_path / real.BROKER
    leader, follower = replica(tmp_path / "leader"), replica(store)
    for epoch in (1, 3):
        leader.open_epoch(epoch)
        for number in range(4):
            leader.append("orders", bodies=[b"%d" % number + BODY], tags="")
    follower.copy_from(leader, bytes_max=1 << 20)
    kept = follower.store.appended_end
    follower.open_epoch(4)
    follower.append("orders", bodies=[b"of this copy alone"])
    for owner in (leader, follower):
        owner.store.confirm(kept)
        owner.sync()
    follower.store.close_to_truncate(kept)
    follower = replica(store)
    assert follower.log_bytes() == leader.log_bytes()
    follower.store.confirm(kept)
    follower.store.close()
    leader.store.close()
    with real.running(store) as broker:
        broker.topic("orders", 1)
        expected = [b"%d" % number + BODY for number in (0, 1, 2, 3)] * 2
        assert broker.bodies("orders") == expected
        broker.send("orders", message(b"once more"))
    assert verify_store(store) == []


@pytest.mark.timeout(900)
def test_rocketmq_goes_on_with_a_follower_s_store_in_which_topics_began_anew(
    tmp_path: Path,
) -> None:
    """Three leaders, and a topic that was deleted and created again under the second: its queues
    begin at 0 once more, with the former messages still in the log."""
    store = tmp_path / real.BROKER
    leader, follower = replica(tmp_path / "leader"), replica(store)
    leader.open_epoch(1)
    leader.begin_anew("orders", "kept", incarnation=5)
    for number in range(4):
        leader.append("orders", bodies=[b"over %d" % number + BODY], tags="")
        leader.append("kept", bodies=[b"kept %d" % number], tags="")
    leader.open_epoch(2)
    leader.sync()
    leader.store.confirm(leader.begin_anew("orders", incarnation=9).end_offset)
    leader.sync()
    leader.store.confirm(leader.store.appended_end)
    expected = [b"%d" % number + BODY for number in range(4)]
    for body in expected:
        leader.append("orders", bodies=[body], tags="")
    leader.open_epoch(4)
    follower.copy_from(leader, bytes_max=1 << 20)
    kept = follower.store.appended_end
    follower.open_epoch(5)
    follower.append("kept", bodies=[b"of this copy alone"])
    for owner in (leader, follower):
        owner.store.confirm(kept)
        owner.sync()
    topics = leader.store.log_topics
    leader.store.close()
    follower.store.close_to_truncate(kept)
    follower = replica(store)
    follower.store.confirm(kept)
    follower.sync()
    follower.store.confirm(kept)
    assert follower.bodies("orders") == expected
    firsts = [(each.epoch, each.first) for each in follower.store.boundaries()]
    assert [epoch for epoch, _ in firsts] == [1, 2, 4]
    follower.store.close()
    for round_ in range(2):
        with real.running(store) as broker:
            for topic in ("orders", "kept"):
                broker.topic(topic, 1)
            assert broker.bodies("orders") == expected
            assert broker.bodies("kept") == [b"kept %d" % number for number in range(4)]
            expected.append(b"of RocketMQ %d" % round_)
            broker.send("orders", message(expected[-1]))
            if round_:
                # The state after a crash is read on another path.
                broker.kill()
        again = replica(store)
        again.store.confirm(again.store.appended_end)
        again.sync()
        again.store.confirm(again.store.appended_end)
        assert again.bodies("orders") == expected
        assert again.store.log_topics == topics
        assert [(each.epoch, each.first) for each in again.store.boundaries()] == firsts
        expected.append(b"of a copy again %d" % round_)
        again.store.confirm(again.append("orders", bodies=[expected[-1]], tags="").end_offset)
        again.sync()
        again.store.close()
        assert verify_store(store) == []
