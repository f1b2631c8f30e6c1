"""A replica's disk is restored from an older snapshot of itself, under its own id."""

from pathlib import Path

import pytest

from replica.simulation.node import Node
from replica.simulation.script import Script
from replica.simulation.truth import Violation
from replica.simulation.world import Snapshot
from rockoon_core.disk import Disk
from rockoon_core.replication_rules import Config, Rank
from rockoon_replica import actions, events
from rockoon_replica.log_state import NO_RUN, LogState, ProcessRun, StateVersion
from rockoon_replica.member import Member
from rockoon_replica.replica_facts import ReplicaFacts
from rockoon_replica.replica_file import ReplicaFile
from support.byte_log import ByteLog

THREE = Config(frozenset({"a", "b", "c"}), 2)
BEFORE = ReplicaFacts(promised=1, version=StateVersion(0, 1), config=THREE, run=ProcessRun(5, 50))


def state(
    number: int, known: ProcessRun | None, leader: str | None = None, epoch: int = 2
) -> LogState:
    return LogState(
        log="broker-a",
        version=StateVersion(0, number),
        epoch=epoch,
        leader=leader,
        at_least=Rank(0, 0),
        config=THREE,
        replicas=("a", "b", "c"),
        runs={} if known is None else {"a": known},
    )


@pytest.mark.parametrize(
    ("known", "decided", "run", "sound"),
    [
        (ProcessRun(5, 50), ["Persist", "Persist", "ReportLog"], ProcessRun(5, 50), True),
        # Its registration has not arrived; or a crash came between the store and etcd, often.
        (ProcessRun(4, 40), [], ProcessRun(5, 50), True),
        (ProcessRun(1, 10), [], ProcessRun(5, 50), True),
        (None, [], ProcessRun(5, 50), True),
        # Other processes were started on a store with the same past.
        (ProcessRun(5, 51), ["Alarm", "Persist"], ProcessRun(6, 50), False),
        (ProcessRun(9, 90), ["Alarm", "Persist"], ProcessRun(10, 50), False),
    ],
)
def test_a_replica_takes_part_once_etcd_has_its_start_and_notices_a_later_one(
    known: ProcessRun | None, decided: list[str], run: ProcessRun, sound: bool
) -> None:
    member = Member("a", BEFORE, ByteLog())
    acts = member.handle(events.StateSeen(state(2, known)))
    assert [type(act).__name__ for act in acts] == decided
    assert (member.facts.run, member.facts.sound) == (run, sound)
    if "ReportLog" in decided:
        return
    # It registers; then a state shows that.
    acts = member.handle(events.StateSeen(state(3, run)))
    assert isinstance(acts[-1], actions.ReportLog)
    assert acts[-1].report.sound == sound
    # A state from before its registration arrives late.
    assert not member.handle(events.StateSeen(state(2, known)))
    assert member.facts.run == run


def test_a_replica_that_does_not_count_its_starts_waits_for_nothing() -> None:
    member = Member("a", BEFORE._replace(run=NO_RUN), ByteLog())
    acts = member.handle(events.StateSeen(state(2, None)))
    assert isinstance(acts[-1], actions.ReportLog)


def test_a_replica_does_not_wait_for_nameservers_that_discard_starts() -> None:
    member = Member("a", BEFORE, ByteLog())
    former = state(2, NO_RUN)
    acts = member.handle(events.StateSeen(former))
    assert isinstance(acts[-1], actions.ReportLog)
    assert not member.facts.run_seen
    # The nameservers are upgraded: an older snapshot is detected again.
    acts = member.handle(events.StateSeen(state(3, ProcessRun(5, 51))))
    assert [type(act).__name__ for act in acts] == ["Alarm", "Persist"]
    # If another copy has a start, nothing is discarded.
    waits = Member("a", BEFORE, ByteLog())
    known = {"a": NO_RUN, "b": ProcessRun(1, 10)}
    assert not waits.handle(events.StateSeen(LogState(**{**vars(former), "runs": known})))


def test_an_older_snapshot_that_is_started_often_is_noticed_all_the_same() -> None:
    facts = BEFORE._replace(run_seen=True)
    for number in (60, 70, 80):
        # These reach no nameserver.
        facts = facts.in_next_run(number)
    member = Member("a", facts, ByteLog())
    member.handle(events.StateSeen(state(2, ProcessRun(6, 59))))
    assert not member.facts.sound


def test_an_older_leader_does_not_go_on_in_the_epoch_in_which_it_was_alone() -> None:
    log = ByteLog()
    log.open_epoch(2)
    facts = BEFORE._replace(promised=2, led=2, alone=True)
    # ... nor in an epoch of which it has lost that it led.
    for forgotten in (facts, BEFORE):
        member = Member("a", forgotten, log)
        member.handle(events.StateSeen(state(2, ProcessRun(5, 51), leader="a")))
        # A crash between the two: the next process knows it too.
        member = Member("a", member.facts._replace(run=ProcessRun(7, 70)), log)
        acts = member.handle(events.StateSeen(state(3, ProcessRun(7, 70), leader="a")))
        assert isinstance(acts[-1], actions.Resign)
        assert member.epoch == 0
    # The same process continues without a restore.
    again = Member("a", facts._replace(run_seen=True), log)
    again.handle(events.StateSeen(state(2, ProcessRun(5, 50), leader="a")))
    assert again.epoch == 2


def test_the_only_voter_goes_on_with_what_it_has_and_counts_on() -> None:
    facts = BEFORE._replace(
        promised=2,
        led=2,
        alone=True,
        config=Config(frozenset({"a"}), 1),
        version=StateVersion(0, 2),
    )
    log = ByteLog()
    member = Member("a", facts, log)
    member.handle(events.Started())
    assert member.epoch == 2
    alone = state(3, ProcessRun(7, 70), leader="a")
    member.handle(events.StateSeen(LogState(**{**vars(alone), "config": facts.config})))
    assert member.facts.run == ProcessRun(8, 50)
    assert (member.facts.sound, member.facts.alone) == (True, True)


def test_a_former_only_voter_that_was_put_back_gives_up_the_epoch_that_others_share_by_now() -> (
    None
):
    # It led on without nameservers. Since the snapshot two replicas have joined, in the same epoch.
    only = Config(frozenset({"a"}), 1)
    facts = BEFORE._replace(promised=2, led=2, alone=True, config=only, version=StateVersion(0, 2))
    log = ByteLog()
    log.open_epoch(2)
    member = Member("a", facts, log)
    member.handle(events.Started())
    assert member.epoch == 2
    acts = member.handle(events.StateSeen(state(3, ProcessRun(7, 70), leader="a")))
    assert acts[-1] == actions.Reopen()
    assert not member.facts.sound
    # The next life waits for its registration, then ends the epoch.
    member = Member("a", member.facts, log)
    assert not member.handle(events.Started())
    acts = member.handle(events.StateSeen(state(4, ProcessRun(8, 50), leader="a")))
    assert isinstance(acts[-1], actions.Resign)
    assert member.epoch == 0
    assert not member.facts.sound


def test_a_follower_that_finds_a_later_start_leaves_its_leader_and_copies_again() -> None:
    log = ByteLog()
    member = Member("a", BEFORE, log)
    member.handle(events.StateSeen(state(2, ProcessRun(5, 50), leader="b")))
    member.handle(events.SessionOpened(1))
    acts = member.handle(events.StateSeen(state(3, ProcessRun(6, 60), leader="b")))
    assert actions.Disconnect() in acts
    acts = member.handle(events.StateSeen(state(4, ProcessRun(7, 50), leader="b")))
    assert acts[-1] == actions.Connect("b", 2)


def test_the_store_counts_each_process_once_and_before_etcd_does(tmp_path: Path) -> None:
    file = ReplicaFile(tmp_path, Disk())
    file.begin_run(11)
    assert file.read() is None, "it never was a replica"
    file.write(ReplicaFacts(promised=3, run=ProcessRun(1, 11)))
    # A start that was not seen in etcd may be registered or not. It is not counted twice: otherwise
    # an older snapshot that is started often enough would reach etcd's count.
    for number in (22, 33):
        ReplicaFile(tmp_path, Disk()).begin_run(number)
        assert file.read() == ReplicaFacts(promised=3, run=ProcessRun(1, 11))
    for starts, number in ((2, 44), (3, 55)):
        facts = file.read()
        assert facts is not None
        file.write(facts._replace(run_seen=True))
        ReplicaFile(tmp_path, Disk()).begin_run(number)
        assert file.read() == ReplicaFacts(promised=3, run=ProcessRun(starts, number))
    # As written by a version that counted nothing.
    file.write(ReplicaFacts(promised=3))
    file.begin_run(66)
    assert file.read() == ReplicaFacts(promised=3, run=ProcessRun(1, 66))


class Story(Script):
    """Messages are on two of three disks; one of these is restored to a state before them."""

    def __init__(self, *bugs: str, nameserver: bool = True) -> None:
        super().__init__(bugs=bugs, nameserver=nameserver, old_disks=True)
        self.a, self.b, self.c = self.nodes
        self.led_by(self.a.replica, self.b.replica, self.c.replica)

    def acknowledged_by_two(self) -> None:
        """Send 100 messages that `c` does not have."""
        self.kill(self.c.replica)
        (leader,) = self.leaders()
        for _ in range(100):
            sent = self.message(leader)
            self.turns(self.a.replica, self.b.replica, count=2)
            assert sent in self.truth.acked

    def start_again(self, node: Node) -> None:
        self.kill(node.replica)
        self.start(node)
        self.turns()

    def put_back_b(self, snapshot: Snapshot) -> None:
        for node in (self.a, self.b):
            self.kill(node.replica)
        snapshot.restore(self.b)
        self.counts["harms"] += 1
        self.register.depose()
        self.start(self.b)
        self.start(self.c)
        self.turns(self.b.replica, self.c.replica)


@pytest.mark.parametrize("nameserver", [False, True])
def test_a_snapshot_of_an_earlier_start_elects_nobody_until_it_has_copied_again(
    nameserver: bool,
) -> None:
    story = Story(nameserver=nameserver)
    snapshot = Snapshot.of(story.b)
    story.start_again(story.b)
    story.acknowledged_by_two()
    story.put_back_b(snapshot)
    assert story.leaders() == []
    assert not story.b.facts.sound
    story.start(story.a)
    story.turns()
    assert story.leaders() == [story.a]
    story.settle()
    assert story.b.facts.sound


def test_otherwise_its_messages_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Member, "_knows_run", lambda *_: True)
    story = Story(nameserver=False)
    snapshot = Snapshot.of(story.b)
    story.start_again(story.b)
    story.acknowledged_by_two()
    with pytest.raises(Violation, match="has not all committed"):
        story.put_back_b(snapshot)


def test_a_crash_between_the_store_and_etcd_leaves_the_replica_sound() -> None:
    story = Story()
    for _ in range(3):
        story.kill(story.b.replica)
        # The start is counted in the store, and no nameserver gets the report.
        story.start(story.b)
    story.turns()
    assert story.b.facts.sound
    assert story.register.state.runs[story.b.replica] == story.b.facts.run


def test_etcd_that_is_restored_from_a_backup_has_counted_less_and_makes_nobody_unsound() -> None:
    story = Story()
    past = story.register.past[-1]
    story.start_again(story.b)
    story.register.restore(past, frozen=True)
    story.kill(story.b.replica)
    story.start(story.b)
    story.turns()
    assert story.register.state.frozen
    story.register.adopt([])
    story.settle()
    assert all(node.facts.sound for node in story.nodes)


def test_a_snapshot_of_the_present_run_makes_the_election_wait_for_an_operator() -> None:
    """The counter shows nothing then; the recorded ends of leaders do."""
    story = Story()
    snapshot = Snapshot.of(story.b)
    story.acknowledged_by_two()
    story.record(story.a)
    story.turns(story.a.replica)
    story.may_hold = True
    story.put_back_b(snapshot)
    assert story.leaders() == []
    assert "acknowledged records are missing" in story.register.state.held
    # The copy with the messages returns: no operator must accept a loss.
    story.start(story.a)
    story.turns()
    assert story.leaders() == [story.a]
    assert story.register.state.held == ""
    story.settle()


class TwoLeaders(Story):
    """`a` leads an epoch that is over, and receives no state. `b` has promised the next one to `c`;
    its disk is restored to before that, and a nameserver that is behind names `a`."""

    def __init__(self, *bugs: str) -> None:
        super().__init__(*bugs, nameserver=False)
        snapshot = Snapshot.of(self.b)
        past = self.register.past[-1]
        self.start_again(self.b)
        self.register.depose()
        self.turns(self.b.replica, self.c.replica)
        (leader,) = [each for each in self.leaders() if each is not self.a]
        assert self.leaders() == [self.a, leader]
        sent = self.message(leader)
        self.turns(self.b.replica, self.c.replica)
        assert sent in self.truth.acked
        self.kill(self.b.replica)
        snapshot.restore(self.b)
        self.counts["harms"] += 1
        self.start(self.b)
        self.b.handle(events.StateSeen(past))
        self.message(self.a)
        self.turns(self.a.replica, self.b.replica, told=False)


def test_an_older_snapshot_follows_no_leader_that_it_has_promised_to_leave() -> None:
    story = TwoLeaders()
    assert story.b.target is None
    story.settle()


def test_otherwise_two_leaders_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Member._knows_run

    def knows(self: Member, seen: LogState) -> bool:
        real(self, seen)
        return True

    monkeypatch.setattr(Member, "_knows_run", knows)
    with pytest.raises(Violation):
        TwoLeaders()
