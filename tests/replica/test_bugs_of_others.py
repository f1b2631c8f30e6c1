"""Known faults of other systems, under their known names, and the behaviour here.

Each docstring states the fault, then the result of this test. Reports of RocketMQ, BookKeeper and
NATS are numbers of their issues; KIP and KAFKA are Kafka's. RocketMQ's 6609 and 7689 are in
`tests/store/test_committed.py`. `test_bugs_come_back.py` shows that each test can fail: it breaks
the rule that prevents the fault.
"""

import random
from pathlib import Path

import pytest

from replica.simulation.node import Node
from replica.simulation.script import Script
from replica.simulation.topics import NAME, Routes
from rockoon_broker.topics.served_topics import change_of, table_in_log
from rockoon_broker.topics.topics import TopicTable, plan
from rockoon_core.disk import Disk
from rockoon_core.errors import NotReady, StoreCorrupt
from rockoon_core.replication_rules import (
    Boundary,
    Config,
    Rank,
    Report,
    consistent_point,
    elected,
    rank_of,
)
from rockoon_nameserver import log_membership
from rockoon_proto.v1.nameserver_pb2 import ReplicaFacts as WireFacts
from rockoon_replica import actions, events
from rockoon_replica.log_state import LogState, StateVersion
from rockoon_replica.member import Member
from rockoon_replica.messages import Ack, RecordChunk, Welcome
from rockoon_replica.replica_facts import ReplicaFacts
from rockoon_replica.replica_file import ReplicaFile
from support.byte_log import ByteLog
from support.log_states import come, led_log, replica_node
from support.replicas import Replica, opened
from support.store_directory import crashed_copy

THREE = Config(frozenset({"a", "b", "c"}), 2)
Patch = pytest.MonkeyPatch


# Changes of the voters.


def test_rocketmq_5663_while_more_voters_are_on_their_way_both_sets_decide() -> None:
    """A single master acknowledged alone until the controller's reply arrived. The reply was lost,
    the master died, and a replica led that counted for the controller and lacked messages.

    Here, from the proposal on, no message is acknowledged that only one of both sets has.
    """
    world = Script("one becomes three")
    a, b, c = world.nodes
    leader = world.led_by(a.replica)
    first = world.message(leader)
    world.turns(a.replica, count=1)
    assert first in world.truth.acked
    assert world.register.state.config.in_sync == {a.replica}
    # All have the whole log: the leader proposes them. The proposal is stored, and the reply is
    # lost.
    while not any(isinstance(call, actions.ChangeInSync) for _, call in world.calls):
        world.turns(count=1)
    world.turns(count=1, told=False)
    assert len(world.register.state.config.in_sync) == 3
    late = world.message(leader)
    world.sync(leader)
    assert late not in world.truth.acked
    world.kill(a.replica)
    world.register.depose()
    world.led_by(b.replica, c.replica)
    world.settle()


def test_rocketmq_7017_a_leader_that_is_cut_off_acknowledges_nothing() -> None:
    """A master that was cut off with one controller continued while another was elected; its
    acknowledged messages were lost when the network was whole again.

    Here it has no quorum: its messages are not acknowledged, and are cut when it returns.
    """
    world = Script()
    a, b, c = world.nodes
    former = world.led_by(a.replica, b.replica, c.replica)
    world.message(former)
    world.turns()
    lost = world.message(former)
    world.sync(former)
    world.register.depose()
    second = world.led_by(b.replica, c.replica)
    kept = world.message(second)
    world.turns(b.replica, c.replica)
    assert kept in world.truth.acked
    assert lost not in world.truth.acked
    world.settle()
    assert isinstance(former.log, ByteLog)
    assert former.log.cut


def test_rocketmq_3015_an_acknowledgement_of_what_was_not_sent_does_not_count() -> None:
    """A client that connected to a master's port and wrote a large number there acknowledged all
    future messages; messages were then acknowledged that no slave had.

    Here this ends the session, and commits nothing.
    """
    world = Script()
    a, b, _ = world.nodes
    leader = world.led_by(a.replica, b.replica)
    (session,) = leader.links
    world.message(leader)
    world.sync(leader)
    committed = leader.log.committed_end
    sent = leader.links[session].next or 0
    leader.handle(events.AckArrived(session, Ack(leader.log.end, 0), sent))
    assert leader.log.committed_end == committed
    assert not leader.appends
    world.settle()


def test_bookkeeper_2614_who_was_asked_in_an_election_takes_nothing_of_the_former_leader() -> None:
    """Recovery fenced a bookie by one request and read by others. If the fencing request was lost,
    the former writer continued to commit during the recovery.

    Here a replica makes a durable promise before it reports: later chunks of the old leader are
    neither written nor acknowledged, also after a restart.
    """
    log = ByteLog()
    member = following(log)
    member.handle(events.WelcomeArrived(1, Welcome(1, "a", 0, 0, 0, 0)))
    source = ByteLog()
    source.open_epoch(1)
    chunk = RecordChunk(1, "a", 0, source.bytes_between(0, source.end), 0, 0, 0)
    election = state(2, 2, None)
    asked = member.handle(events.StateSeen(election))
    assert [type(each) for each in asked][-1] is actions.ReportLog
    assert member.handle(events.ChunkArrived(1, chunk)) == []
    assert member.facts.promised == 2
    again = Member("b", member.facts, log)
    # The state of an old nameserver does not bring it back.
    assert again.handle(events.StateSeen(state(1, 1, "a"))) == []


# Common part of two logs.


def test_kip_101_a_follower_does_not_cut_what_it_only_has_not_heard_to_be_committed() -> None:
    """A follower that restarted truncated its log to the high watermark that it knew, and led
    before it had fetched the rest again: an acknowledged message was lost.

    Here it is truncated where the epochs differ, which is nowhere.
    """
    world = Script()
    a, b, c = world.nodes
    leader = world.led_by(a.replica, b.replica)
    sent = world.message(leader)
    while sent not in world.truth.acked:
        world.turns(a.replica, b.replica, count=1)
        # It has the message, and forgets its committed end.
        forget_committed(b)
    world.kill(b.replica)
    world.start(b)
    forget_committed(b)
    # It connects to its leader again, which dies before it sends anything.
    welcome(world, b, leader)
    world.kill(a.replica)
    world.register.depose()
    world.led_by(b.replica, c.replica)
    world.settle()


def test_kip_279_two_quick_changes_of_the_leader_leave_no_logs_that_differ() -> None:
    """A follower asked its leader about an epoch that the leader did not know, got the end of an
    earlier one, and truncated at the wrong position: two logs differed for ever.

    Here both send the starts of their epochs, and the last common one decides. Each of three leads
    once and writes a record that no other copy gets.
    """
    known = [Boundary(1, 0, 10), Boundary(3, 10, 40)]
    assert consistent_point(known, [Boundary(1, 0, 10), Boundary(2, 10, 25)]) == 10
    assert consistent_point(known, [Boundary(1, 0, 8)]) == 8
    assert consistent_point(known, [Boundary(1, 0, 10), Boundary(3, 12, 25)]) == 10
    world = Script()
    a, b, c = world.nodes
    for first, *others in ((a, b, c), (b, c), (c, a)):
        leader = world.led_by(first.replica, *(each.replica for each in others))
        world.message(leader)
        world.turns()
        world.message(leader)
        world.sync(leader)
        world.kill(leader.replica)
        world.register.depose()
    world.settle()
    assert any(isinstance(node.log, ByteLog) and node.log.cut for node in world.nodes)


def test_kafka_10706_elections_in_a_row_without_a_message_end_in_a_log_that_goes_on() -> None:
    """Epochs without records left entries in the caches of epochs that contradicted each other;
    followers asked repeatedly where to truncate.

    Here an epoch is a record of the log, or it does not exist.
    """
    world = Script()
    a, b, c = world.nodes
    leader = world.led_by(a.replica, b.replica, c.replica)
    world.message(leader)
    world.turns()
    for _ in range(3):
        # Each opens its epoch on its own disk, and is deposed.
        for first in (a, b, c):
            world.register.depose()
            for _ in range(3):
                world.turns(first.replica, told=True, count=1)
            world.turns(count=2)
    world.settle(rounds=60)
    boundaries = {tuple(node.log.boundaries()) for node in world.nodes}
    assert len(boundaries) == 1
    assert all(each.first < each.end for each in boundaries.pop())


def test_rocketmq_10666_what_was_cut_is_no_part_of_the_log_after_a_restart(
    tmp_path: Path,
) -> None:
    """A slave's truncation changed positions in memory. The bytes after them stayed on the disk,
    and a restart read them as messages again.

    Here the new end is recorded durably before anything is cut, and a start cuts there. For power
    cuts at any operation see `test_a_power_cut_on_the_way_leaves_the_old_end_or_the_new_one`.
    """
    root = tmp_path / "s"
    with opened(root) as owner:
        owner.open_epoch(1)
        kept = owner.append(bodies=[b"of both logs"]).end_offset
        owner.append(bodies=[b"of this one alone"])
        owner.sync()
        owner.store.close_to_truncate(kept)
    # Killed before it was opened again.
    after = crashed_copy(root, tmp_path / "after")
    with opened(after) as again:
        assert again.store.appended_end == kept
        # Shorter than the former bytes: its end is in the middle of them.
        end = again.append(bodies=[b"x"]).end_offset
        again.sync()
        once_more = crashed_copy(after, tmp_path / "once more")
    with opened(once_more) as again:
        assert again.store.appended_end == end


# Elections.


def test_rocketmq_1094_who_was_away_does_not_bring_its_old_state_to_the_others() -> None:
    """A master returned after minutes. Its slaves copied its old consumer offsets over their newer
    ones, and messages were delivered again.

    Here a replica with fewer records never leads one with more, and copies their records. Progress
    is in a log of this kind (`rockoon_offset`).
    """
    world = Script()
    a, b, c = world.nodes
    leader = world.led_by(a.replica, b.replica, c.replica)
    world.message(leader)
    world.turns()
    world.kill(a.replica)
    world.register.depose()
    leader = world.led_by(b.replica, c.replica)
    newer = [world.message(leader) for _ in range(5)]
    world.turns(b.replica, c.replica)
    assert set(newer) <= world.truth.acked.keys()
    world.start(a)
    world.kill(b.replica)
    # It is the first of the log's replicas, and the first that reports.
    world.register.depose()
    world.turns(a.replica, count=2)
    world.turns(a.replica, c.replica)
    (leader,) = world.leaders()
    assert leader is c
    world.settle()


def test_kip_966_a_last_one_that_lost_its_end_does_not_lead_those_who_have_it() -> None:
    """The last replica of a shrunken in-sync set lost its tail in a power cut, was elected because
    it was the last, and the others truncated their logs to its log.

    Here a replica that may have lost records does not count while others may come.
    """
    world = Script()
    a, b, c = world.nodes
    leader = world.led_by(a.replica, b.replica)
    sent = world.message(leader)
    world.turns(a.replica, b.replica)
    assert sent in world.truth.acked
    world.kill(b.replica)
    world.kill(a.replica)
    a.lose_records(a.log.boundaries()[-1].first + 17)
    world.register.depose()
    world.start(a)
    world.start(c)
    # One replica lost the message, the other never had it.
    world.turns(a.replica, c.replica)
    assert world.leaders() == []
    assert world.register.state.leader is None
    world.start(b)
    world.turns()
    (leader,) = world.leaders()
    assert leader is b
    world.settle()
    assert a.facts.sound


def test_nats_7549_one_bit_on_one_copy_elects_nobody_without_what_was_acknowledged(
    tmp_path: Path,
) -> None:
    """A bit flipped in the files of a minority lost acknowledged messages of the whole stream.

    Here a start that must cut whole records reports it before the cut, and the copy does not count
    in any election until it has copied them again: not even together with one that never had them.
    """
    with opened(tmp_path / "a", commit_log_file_bytes=1 << 20) as a:
        a.open_epoch(1)
        behind = a.append().end_offset
        a.store.confirm(behind)
        a.write_point()
        first = a.append(bodies=[b"acknowledged by a and b"])
        a.append(bodies=[b"this one too"])
        a.sync()
        boundaries, end = a.store.boundaries(), a.store.durable_end
        crashed_copy(tmp_path / "a", tmp_path / "after")
    root, log = tmp_path / "after", tmp_path / "after" / "commitlog" / f"{0:020}"
    flip(log, first.first_physical_offset + 95)
    damaged = log.read_bytes()
    (root / "config").mkdir(exist_ok=True)
    file = ReplicaFile(root / "config", Disk())
    file.write(ReplicaFacts(promised=1))

    def lost(_: str) -> None:
        assert log.read_bytes() == damaged
        file.doubt()

    with opened(root, commit_log_file_bytes=1 << 20, on_loss=lost) as again:
        assert again.store.durable_end == first.first_physical_offset
        facts = file.read()
        assert facts is not None
        told = {
            "a": Report(rank_of(again.store.boundaries(), again.store.durable_end), facts.sound),
            "c": Report(rank_of(boundaries, behind), sound=True),
        }
    assert elected(THREE, told) is None
    told["b"] = Report(rank_of(boundaries, end), sound=True)
    assert elected(THREE, told) == "b"


def test_nats_7556_what_one_forgets_deletes_nothing_of_the_others(tmp_path: Path) -> None:
    """Nodes with damaged snapshots participated with the rest, became leaders of the metadata, and
    deleted a stream that they did not know.

    Here the file of a replica's promises is intact, or the replica does not start; and a log that
    etcd has lost is frozen, and never begins again.
    """
    file = ReplicaFile(tmp_path, Disk())
    file.write(ReplicaFacts(promised=3, version=StateVersion(0, 7), config=THREE))
    path = tmp_path / "replica"
    for position in range(path.stat().st_size):
        flip(path, position)
        with pytest.raises(StoreCorrupt):
            file.read()
        flip(path, position)
    assert file.read() is not None
    path.unlink()
    with pytest.raises(StoreCorrupt):
        file.read()
    forgotten = come(None, "a", promised=3, version=7)
    assert "etcd has lost its state" in forgotten.frozen
    assert forgotten.leader == ""
    with pytest.raises(NotReady):
        come(None, "b", name_exists=True)
    with pytest.raises(NotReady):
        come(forgotten, "b")


# Identities.


def test_rocketmq_5745_a_replica_that_comes_back_at_another_address_is_the_same() -> None:
    """Brokers were identified by their addresses: a broker whose machine had got another address
    could not register, and counted as absent.

    Here a replica is identified by the id of its store. It votes as before, and nothing is copied
    again.
    """
    before = led_log()
    facts = WireFacts(copies=3, promised=1, version=before.version)
    moved = replica_node("a", address="elsewhere:10911")
    after = log_membership.registered(before, moved, facts, is_new=True, name_exists=True)
    assert after == before
    assert list(after.in_sync) == ["a", "b", "c"]


def test_rocketmq_9804_the_next_leader_has_the_topics_that_the_one_before_was_given(
    tmp_path: Path,
) -> None:
    """A topic was in the master's own file of topics and was not copied: after a switch of roles it
    was missing, with its messages still in the log.

    Here the log contains its topics. Its next leader compares them with the routes, whatever its
    own file says, and neither hides a message nor shows a deleted one.
    """
    routes, choose = Routes(), random.Random(1)
    with opened(tmp_path / "a") as leader, opened(tmp_path / "b") as follower:
        leader.open_epoch(1)
        serve(leader, routes)
        leader.append(NAME, 0, [b"of the first"])
        for number in range(2):
            # Deleted, and created again.
            routes.change(choose)
            while routes.incarnation is None:
                routes.change(choose)
            serve(leader, routes)
            leader.append(NAME, 0, [b"%d" % number])
        follower.copy_from(leader)
        follower.store.confirm(follower.store.appended_end)
        follower.open_epoch(2)
        serve(follower, routes)
        assert follower.bodies(NAME) == [b"1"]
        assert follower.append(NAME, 0, [b"next"]).first_queue_offset == 1
        follower.sync()


def serve(replica: Replica, routes: Routes) -> None:
    """Send routes to a leader, and let it act on them."""
    known = replica.store.log_topics
    change = change_of(known, plan(table_in_log(TopicTable(), known), routes.snapshot()))
    if change is not None:
        replica.store.change_topics(change, replica.clock.time_ms)
    replica.sync()
    replica.store.confirm(replica.store.appended_end)


# Helpers.


def state(number: int, epoch: int, leader: str | None) -> LogState:
    return LogState(
        log="broker-a",
        version=StateVersion(0, number),
        epoch=epoch,
        leader=leader,
        at_least=Rank(0, 0),
        config=THREE,
        replicas=("a", "b", "c"),
    )


def following(log: ByteLog) -> Member:
    """Return replica b, connected to the leader a of epoch 1."""
    member = Member("b", ReplicaFacts(), log)
    member.handle(events.StateSeen(state(1, 1, "a")))
    member.handle(events.SessionOpened(1))
    return member


def forget_committed(node: Node) -> None:
    """Reset the committed end of a log, as a restart does."""
    assert isinstance(node.log, ByteLog)
    node.log.committed_end = 0


def welcome(world: Script, follower: Node, leader: Node) -> None:
    """Send Hello from a follower to its leader, and execute the reply."""
    follower.handle(events.StateSeen(world.register.past[-1]))
    world.connect(follower)
    (link,) = follower.links.values()
    while link.up or link.down:
        world.deliver(link)
    assert leader.member.epoch


def flip(path: Path, position: int) -> None:
    """Change a bit of a file, or change it back."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))
