"""One replica's decisions, in situations with names."""

from dataclasses import replace

from rockoon_core.replication_rules import Boundary, Config, Rank, Report, consistent_point, elected
from rockoon_replica import actions, events
from rockoon_replica.log import WriteCheck
from rockoon_replica.log_state import AcceptedLoss, CopiesWish, LogState, Move, StateVersion
from rockoon_replica.member import Member, Role
from rockoon_replica.messages import Ack, Hello, RecordChunk, Welcome
from rockoon_replica.replica_facts import ReplicaFacts
from support.byte_log import ByteLog

THREE = Config(frozenset({"a", "b", "c"}), 2)
ALONE = Config(frozenset({"a"}), 1)


def state(number: int, epoch: int, leader: str | None, config: Config = THREE) -> LogState:
    return LogState(
        log="broker-a",
        version=StateVersion(0, number),
        epoch=epoch,
        leader=leader,
        at_least=Rank(0, 0),
        config=config,
        replicas=("a", "b", "c", "d"),
    )


def opened(member: Member, log: ByteLog, first: LogState) -> list[actions.Action]:
    """Show a member the state that assigns it an epoch, and execute its actions on the log."""
    decided = [*member.handle(events.Started()), *member.handle(events.StateSeen(first))]
    for action in decided:
        if isinstance(action, actions.OpenEpoch):
            log.open_epoch(action.epoch)
    log.sync_nowait()
    return [*decided, *member.handle(events.Synced())]


def kinds(decided: object) -> list[str]:
    assert isinstance(decided, (list, tuple))
    return [type(action).__name__ for action in decided]


def test_a_promise_is_durable_before_a_report_is_sent() -> None:
    member = Member("b", ReplicaFacts(), ByteLog())
    decided = member.handle(events.StateSeen(state(2, 3, None)))
    assert kinds(decided) == ["Persist", "ReportLog"]
    assert member.facts.promised == 3


def test_a_single_copy_goes_on_after_a_restart_while_nameservers_are_away() -> None:
    log = ByteLog()
    member = Member("a", ReplicaFacts(), log)
    decided = opened(member, log, state(1, 1, "a", ALONE))
    assert "Established" in kinds(decided)
    assert actions.AllowAppends(True) in decided
    again = Member("a", member.facts, log)
    again.handle(events.Started())
    assert again.role is Role.OPENING
    assert "Established" in kinds(again.handle(events.Synced()))


def test_a_leader_that_gave_another_replica_a_welcome_does_not_go_on_after_a_restart() -> None:
    log = ByteLog()
    member = Member("a", ReplicaFacts(), log)
    opened(member, log, state(1, 1, "a"))
    decided = member.handle(events.HelloArrived(7, Hello(1, "b", (), 0, 0)))
    assert kinds(decided) == ["Persist", "SayWelcome"]
    again = Member("a", member.facts, log)
    assert again.handle(events.Started()) == []
    assert kinds(again.handle(events.StateSeen(state(1, 1, "a")))) == ["Resign"]


def test_an_unsound_replica_that_was_chosen_is_sound_once_its_epoch_is_committed() -> None:
    """It has the highest rank, and would count for nothing when the next one is elected."""
    log = ByteLog()
    member = Member("a", ReplicaFacts(sound=False), log)
    opened(member, log, state(1, 1, "a"))
    assert not member.facts.sound
    member.handle(events.HelloArrived(7, Hello(1, "b", (), 0, 0)))
    decided = member.handle(events.AckArrived(7, Ack(log.end, 0), log.end))
    assert "Established" in kinds(decided)
    assert decided[-1] == actions.Persist(member.facts)
    assert member.facts.sound


def test_a_leader_with_too_few_followers_refuses_appends_before_they_are_written() -> None:
    log = ByteLog()
    member = Member("a", ReplicaFacts(), log)
    assert "Established" not in kinds(opened(member, log, state(1, 1, "a")))
    member.handle(events.HelloArrived(7, Hello(1, "b", (), 0, 0)))
    decided = member.handle(events.AckArrived(7, Ack(log.end, 0), sent_end=log.end))
    assert kinds(decided) == ["CommitUpTo", "Established", "ConfirmEpoch", "AllowAppends"]
    assert member.handle(events.SessionClosed(7)) == [actions.AllowAppends(False)]


def test_a_deposed_leader_promises_and_opens_its_log_again() -> None:
    log = ByteLog()
    member = Member("a", ReplicaFacts(), log)
    opened(member, log, state(1, 1, "a"))
    decided = member.handle(events.StateSeen(state(2, 2, None)))
    assert kinds(decided) == ["Persist", "Reopen"]
    assert member.facts.promised == 2
    assert member.role is Role.OVER


def test_a_hand_over_whose_answer_is_lost_bars_appends_until_a_later_state_is_seen() -> None:
    log = ByteLog()
    member = Member("a", ReplicaFacts(), log)
    opened(member, log, state(1, 1, "a"))
    member.handle(events.HelloArrived(7, Hello(1, "b", (), 0, 0)))
    for action in member.handle(events.AckArrived(7, Ack(log.end, 0), sent_end=log.end)):
        if isinstance(action, actions.CommitUpTo):
            log.commit(action.end)
    asked = actions.HandOver(1, StateVersion(0, 1), "b", Rank(1, log.end))
    # Records may be appended until this is executed: then its basis is out of date.
    assert member.handle(events.HandOverAsked()) == [actions.AllowAppends(False)]
    assert asked in member.handle(events.RepeatDue())
    assert member.handle(events.HandOverAbandoned()) == []
    assert member.handle(events.RepeatDue()) == [asked]
    assert member.handle(events.StateSeen(state(2, 1, "a"))) == [actions.AllowAppends(True)]


def following(log: ByteLog) -> Member:
    """A replica that has said Hello to leader a in epoch 2."""
    member = Member("b", ReplicaFacts(), log)
    member.handle(events.StateSeen(state(5, 2, "a")))
    member.handle(events.SessionOpened(1))
    return member


def written_log(*, committed: bool) -> ByteLog:
    log = ByteLog()
    log.open_epoch(1)
    for number in range(3):
        log.append(b"%d" % number)
    log.sync_nowait()
    if committed:
        log.commit(log.end)
    return log


def test_a_log_with_no_epoch_in_common_is_made_anew_only_when_it_votes_no_longer() -> None:
    member = following(written_log(committed=True))
    remake = Welcome(2, "a", None, 0, 100, 50)
    assert kinds(member.handle(events.WelcomeArrived(1, remake))) == ["Disconnect", "Alarm"]
    without = Config(frozenset({"a", "c", "d"}), 2)
    decided = member.handle(events.StateSeen(state(6, 2, "a", without)))
    assert kinds(decided) == ["Persist", "Remake"]


def test_who_is_told_to_cut_what_is_committed_ends_with_its_log_as_it_is() -> None:
    log = written_log(committed=True)
    member = following(log)
    decided = member.handle(events.WelcomeArrived(1, Welcome(2, "a", 0, 0, 100, 0)))
    assert kinds(decided) == ["Halt"]


def test_what_an_operator_has_given_up_is_set_aside_and_ends_no_process() -> None:
    log = written_log(committed=True)
    member = following(log)
    lost = replace(state(6, 2, "a"), loss=AcceptedLoss(epoch=2, end=10))
    member.handle(events.StateSeen(lost))
    decided = member.handle(events.WelcomeArrived(1, Welcome(2, "a", 0, 0, 100, 0)))
    assert kinds(decided) == ["Disconnect", "Alarm"]


def test_of_a_frozen_log_even_an_older_state_is_answered_with_what_the_replica_knows() -> None:
    member = following(written_log(committed=True))
    restored = replace(state(1, 1, "c"), frozen=True)
    decided = member.handle(events.StateSeen(restored))
    assert [type(each) for each in decided] == [actions.ReportLog]
    assert isinstance(decided[0], actions.ReportLog)
    assert decided[0].facts.version == StateVersion(0, 5)
    assert decided[0].facts.config == THREE


def test_a_log_that_waits_for_its_first_replicas_has_no_election() -> None:
    member = Member("b", ReplicaFacts(), ByteLog())
    waiting = state(1, 0, None, Config(frozenset(), 0))
    assert kinds(member.handle(events.StateSeen(waiting))) == ["Persist"]


def test_a_leader_that_is_to_be_replaced_hands_over_before_it_is() -> None:
    log = ByteLog()
    member = Member("a", ReplicaFacts(), log)
    opened(member, log, replace(state(1, 1, "a"), moves=(Move("a", "d"),)))
    for session, follower in ((7, "b"), (8, "d")):
        member.handle(events.HelloArrived(session, Hello(1, follower, (), 0, 0)))
    decided = [
        action
        for session in (8, 7, 7)
        for action in member.handle(events.AckArrived(session, Ack(log.end, 0), log.end))
    ]
    assert "ChangeInSync" not in kinds(decided)
    assert "AllowAppends" not in kinds(decided)
    assert actions.HandOver(1, StateVersion(0, 1), "b", Rank(1, log.end)) in decided


def test_a_follower_that_finds_other_bytes_has_both_copies_checked_and_declares_none_damaged() -> (
    None
):
    log = written_log(committed=False)
    member = following(log)
    facts = member.facts
    decided = member.handle(events.WelcomeArrived(1, Welcome(2, "a", log.end, 1, 100, 0)))
    assert decided[1:] == [actions.CompareCopies("a", 0, log.end)]
    assert member.facts == facts
    # The session is over, and the next one begins as usual.
    assert not member.handle(events.ChunkArrived(1, RecordChunk(2, "a", log.end, b"", 0, 0, 1)))
    assert kinds(member.handle(events.SessionOpened(2))) == ["SayHello"]


def test_damage_is_durable_reported_and_cleared_by_a_repair_alone() -> None:
    log = written_log(committed=True)
    member = Member("b", ReplicaFacts(), log)
    assert kinds(member.handle(events.DamageFound(0))) == ["Persist"]
    again = Member("b", member.facts, log)
    (_, report) = again.handle(events.StateSeen(state(2, 3, None)))
    assert isinstance(report, actions.ReportLog)
    assert report.report.damaged
    assert report.report.sound
    opened(again, log, replace(state(3, 4, "b"), config=Config(frozenset({"b"}), 1)))
    assert again.role is Role.LEADING
    assert again.facts.damaged == (0,)
    assert kinds(again.handle(events.DamageRepaired(0))) == ["Persist"]
    assert not again.facts.damaged


def test_damage_in_records_that_are_gone_is_forgotten_at_the_start() -> None:
    log = written_log(committed=True)
    member = Member("b", ReplicaFacts(damaged=(0, log.end)), log)
    member.handle(events.Started())
    assert member.facts.damaged == (0,)


def test_a_leader_hands_over_to_no_damaged_follower() -> None:
    log = ByteLog()
    member = Member("a", ReplicaFacts(), log)
    opened(member, log, state(1, 1, "a"))
    for session, who in ((1, "b"), (2, "c")):
        member.handle(events.HelloArrived(session, Hello(1, who, (), 0, 0)))
        ack = Ack(log.end, 0, is_damaged=who == "b")
        member.handle(events.AckArrived(session, ack, log.end))
    log.commit(log.end)
    decided = member.handle(events.HandOverAsked())
    decided = [*decided, *member.handle(events.RepeatDue())]
    (asked,) = {each for each in decided if isinstance(each, actions.HandOver)}
    assert asked.successor == "c"


def test_an_undamaged_copy_wins_among_equals_and_no_copy_with_fewer_records_does() -> None:
    rank, order = Rank(2, 9), ("a", "b", "c")
    told = {"a": Report(rank, sound=True, damaged=True), "c": Report(rank, sound=True)}
    assert elected(THREE, told, order) == "c"
    told["b"] = Report(rank, sound=False)
    assert elected(THREE, told, order) == "c"
    # It may have the only copy of acknowledged records.
    told["a"] = Report(Rank(2, 10), sound=True, damaged=True)
    assert elected(THREE, told, order) == "a"


def test_the_first_epoch_is_of_one_copy_and_none_of_it_is_cut() -> None:
    single, other = [Boundary(0, 0, 40)], [Boundary(0, 0, 90)]
    assert consistent_point(single, other) is None
    assert consistent_point(other, single) == 40


def test_a_first_leader_that_nobody_followed_is_followed_by_its_log_from_the_beginning() -> None:
    """Otherwise each failed first election would leave a replica that can never vote again."""
    alone, followed = [Boundary(1, 0, 17)], [Boundary(2, 0, 17), Boundary(3, 17, 50)]
    assert consistent_point(followed, alone) == 0
    oldest_unknown = [Boundary(3, 17, 50)]
    assert consistent_point(oldest_unknown, alone) is None
    assert consistent_point(followed, [Boundary(0, 0, 40)]) is None


def test_a_silent_leader_is_waited_for_longer_after_elections_that_committed_nothing() -> None:
    log = written_log(committed=True)
    member = Member("b", ReplicaFacts(), log)
    member.handle(events.StateSeen(state(2, 1, "a")))
    assert member.patience(2.0) == 2.0
    member.handle(events.StateSeen(replace(state(4, 3, "a"), vain_epochs=2)))
    assert member.patience(2.0) == 8.0


def test_nobody_is_elected_by_replicas_that_may_have_lost_records_while_others_may_come() -> None:
    told = {"a": Report(Rank(2, 9), sound=False), "b": Report(Rank(1, 5), sound=True)}
    assert elected(THREE, told) is None
    told["c"] = Report(Rank(1, 5), sound=False)
    assert elected(THREE, told) == "a"


def wished(number: int, epoch: int, stays: str | None) -> LogState:
    return replace(state(number, epoch, "a"), copies=3, wish=CopiesWish(1, stays))


def committed(member: Member, log: ByteLog, session: int, end: int) -> list[actions.Action]:
    """A follower has all records up to `end`; return the actions that this commits."""
    decided = list(member.handle(events.AckArrived(session, Ack(end, 0), sent_end=log.end)))
    for action in decided:
        if isinstance(action, actions.CommitUpTo):
            log.commit(action.end)
    return decided


def led_by_a(log: ByteLog, first: LogState) -> Member:
    """A leader of three whose followers are connected (sessions 7 and 8) and have the whole log."""
    member = Member("a", ReplicaFacts(), log)
    opened(member, log, first)
    for session, follower in ((7, "b"), (8, "c")):
        member.handle(events.HelloArrived(session, Hello(1, follower, (), 0, 0)))
    committed(member, log, 7, log.end)
    return member


def test_a_leader_that_is_to_be_the_only_copy_needs_what_is_committed_on_its_own_disk() -> None:
    log = ByteLog()
    member = led_by_a(log, replace(state(1, 1, "a"), copies=3))
    log.append(b"on the others' disks")
    committed(member, log, 7, log.end)
    decided = [*committed(member, log, 8, log.end)]
    assert log.durable_end < log.committed_end == log.end
    decided += member.handle(events.StateSeen(wished(2, 1, None)))
    assert "ChangeInSync" not in kinds(decided)
    log.sync_nowait()
    asked = actions.ChangeInSync(1, StateVersion(0, 2), ALONE)
    assert asked in member.handle(events.Synced())
    # Until it is known to have happened, two must have each acknowledged record (rule 8).
    log.append(b"next")
    log.sync_nowait()
    assert "CommitUpTo" not in kinds(member.handle(events.Synced()))
    done = replace(wished(3, 1, None), config=ALONE)
    assert actions.CommitUpTo(log.end) in member.handle(events.StateSeen(done))


def test_a_leader_hands_over_to_the_copy_that_is_to_stay_while_that_is_there() -> None:
    log = ByteLog()
    member = led_by_a(log, replace(state(1, 1, "a"), copies=3))
    committed(member, log, 8, log.end)
    decided = list(member.handle(events.StateSeen(wished(2, 1, "c"))))
    decided += member.handle(events.RepeatDue())
    assert "ChangeInSync" not in kinds(decided)
    assert actions.HandOver(1, StateVersion(0, 2), "c", Rank(1, log.end)) in decided


def test_a_voter_for_which_retention_waits_no_longer_votes_no_longer_while_two_others_do() -> None:
    log = ByteLog()
    first = replace(state(1, 1, "a"), copies=3)
    member = led_by_a(log, first)
    committed(member, log, 8, log.end)
    had = log.end
    member.handle(events.SessionClosed(8))
    log.append(b"which c has not got")
    log.sync_nowait()
    committed(member, log, 7, log.end)
    # It still has its acknowledged records: retention must wait for it only after them.
    assert member.retention_end() == had
    assert "ChangeInSync" not in kinds(member.handle(events.RetentionHeld(had)))
    asked = actions.ChangeInSync(1, StateVersion(0, 1), Config(frozenset({"a", "b"}), 2))
    decided = member.handle(events.RetentionHeld(log.end))
    assert decided[-1] == asked
    assert "Alarm" in kinds(decided)
    # Until that has happened it may count.
    assert member.retention_end() == had
    two = replace(first, version=StateVersion(0, 2), config=asked.config)
    member.handle(events.StateSeen(two))
    assert member.retention_end() == log.end
    # The last two are kept, whichever of them is away.
    member.handle(events.SessionClosed(7))
    log.append(b"which b has not got")
    assert "ChangeInSync" not in kinds(member.handle(events.RetentionHeld(log.end)))
    # A copy that has returned counts again.
    member.handle(events.RetentionHeld(0))
    for session, follower in ((9, "b"), (10, "c")):
        member.handle(events.HelloArrived(session, Hello(1, follower, (), 0, 0)))
        decided = committed(member, log, session, log.end)
    assert actions.ChangeInSync(1, StateVersion(0, 2), THREE) in decided


def test_retention_does_not_pass_a_voter_that_comes_back_with_less_than_it_had() -> None:
    log = ByteLog()
    member = led_by_a(log, replace(state(1, 1, "a"), copies=3))
    committed(member, log, 7, log.end)
    committed(member, log, 8, log.end)
    assert member.retention_end() == log.end
    # Its disk has changed.
    member.handle(events.SessionClosed(8))
    member.handle(events.HelloArrived(9, Hello(1, "c", (), 0, 0)))
    assert member.retention_end() == 0
    assert "ChangeInSync" in kinds(member.handle(events.RetentionHeld(log.end)))


def test_a_frozen_log_keeps_its_voters_however_long_retention_waits() -> None:
    log = ByteLog()
    first = replace(state(1, 1, "a"), copies=3)
    member = led_by_a(log, first)
    member.handle(events.StateSeen(replace(first, version=StateVersion(0, 2), frozen=True)))
    assert "ChangeInSync" not in kinds(member.handle(events.RetentionHeld(log.end)))


def test_nothing_is_held_up_for_a_copy_that_is_to_stay_and_is_away() -> None:
    log = ByteLog()
    member = led_by_a(log, replace(state(1, 1, "a"), copies=3))
    committed(member, log, 8, log.end)
    log.append(b"which c has not got yet")
    log.sync_nowait()
    committed(member, log, 7, log.end)
    # It is near, so that appends end for it; and it leaves.
    assert actions.AllowAppends(False) in member.handle(events.StateSeen(wished(2, 1, "c")))
    member.handle(events.SessionClosed(8))
    assert member.handle(events.RepeatDue())[0] == actions.AllowAppends(True)
    # An operator withdraws the request.
    assert "HandOver" not in kinds(
        member.handle(events.StateSeen(replace(state(3, 1, "a"), copies=3)))
    )


def test_a_log_that_begins_behind_what_was_deleted_votes_once_it_has_the_generation() -> None:
    log = ByteLog()
    member = following(log)
    welcome = Welcome(2, "a", 100, 0, 200, 100, generation_end=150)
    decided = list(member.handle(events.WelcomeArrived(1, welcome)))
    # Recorded first: a crash after the second step would leave a log that seems to be complete.
    assert decided[:2] == [actions.NeedGeneration(150), actions.Truncate(100)]
    assert decided[-1] == actions.Acknowledge(1, Ack(100, 0, is_lacking=True))
    log.need_generation(150)
    log.truncate(100)
    (report,) = member.handle(events.StateSeen(state(6, 3, None)))[-1:]
    assert report == actions.ReportLog(3, Report(Rank(0, 0), sound=False), member.facts)
    leader = ByteLog()
    leader.generation = leader.generation._replace(identity=7, end=150)
    log.committed_end = log.durable_end = 150
    log.take_generation(leader)
    (report,) = member.handle(events.RepeatDue())
    assert isinstance(report, actions.ReportLog)
    assert report.report.sound


def test_a_learner_whose_next_leader_has_an_older_generation_is_made_anew() -> None:
    log = ByteLog()
    log.need_generation(150)
    log.truncate(100)
    log.open_epoch(1)
    member = Member("d", ReplicaFacts(), log)
    member.handle(events.StateSeen(state(5, 2, "a")))
    member.handle(events.SessionOpened(1))
    crc = log.tail_crc(log.end, log.end - 100)
    older = Welcome(2, "a", log.end, crc, 200, 0, generation_end=80)
    assert kinds(member.handle(events.WelcomeArrived(1, older)))[-1] == "Remake"


def test_what_the_leader_has_deleted_stays_until_both_have_the_same_generation() -> None:
    log = written_log(committed=True)
    member = following(log)
    crc = log.tail_crc(log.end, log.end)
    member.handle(events.WelcomeArrived(1, Welcome(2, "a", log.end, crc, log.end, 0)))
    chunk = RecordChunk(2, "a", log.end, b"", 0, 10, 0, generation=7)
    assert kinds(member.handle(events.ChunkArrived(1, chunk))) == ["Acknowledge"]
    assert member.leader_generation == 7
    log.generation = log.generation._replace(identity=7, end=10)
    allowed = member.handle(events.ChunkArrived(1, chunk))
    assert allowed[0] == actions.AllowDeletion(10)


def test_who_lacks_the_generation_is_not_proposed_as_a_voter() -> None:
    log = ByteLog()
    member = Member("a", ReplicaFacts(), log)
    opened(member, log, state(1, 1, "a"))
    log.generation = log.generation._replace(identity=7, end=1)
    for session, who in ((7, "b"), (8, "d")):
        member.handle(events.HelloArrived(session, Hello(1, who, (), 0, 0)))
        lacking = who == "d"
        for action in member.handle(
            events.AckArrived(session, Ack(log.end, 0, is_lacking=lacking), log.end)
        ):
            if isinstance(action, actions.CommitUpTo):
                log.commit(action.end)
    wanted = replace(state(2, 1, "a"), moves=(Move("c", "d"),))
    assert "ChangeInSync" not in kinds(member.handle(events.StateSeen(wanted)))
    whole = Ack(log.end, 0)
    assert "ChangeInSync" in kinds(member.handle(events.AckArrived(8, whole, log.end)))


def test_a_leader_whose_disk_fails_names_a_follower_that_has_all_and_can_write() -> None:
    log = ByteLog()
    member = Member("a", ReplicaFacts(), log)
    opened(member, log, state(1, 1, "a"))
    for session, follower in ((7, "b"), (8, "c")):
        member.handle(events.HelloArrived(session, Hello(1, follower, (), 0, 0)))
    for action in member.handle(events.AckArrived(7, Ack(log.end, 0), log.end)):
        if isinstance(action, actions.CommitUpTo):
            log.commit(action.end)
    failing = events.WritesChecked(WriteCheck("No space left on device"))
    # With one other voter no record could be committed: readers need this leader.
    member.handle(events.AckArrived(8, Ack(log.end, 0, writes_fail=True), log.end))
    assert member.handle(failing) == []
    assert not member.is_ready
    assert actions.AllowAppends(False) in member.handle(
        events.AckArrived(8, Ack(log.end, 0), log.end)
    )
    assert "HandOver" in kinds(member.handle(events.AckArrived(8, Ack(log.end, 0), log.end)))


def test_a_leader_with_a_full_disk_and_damaged_followers_does_not_wait_for_a_successor() -> None:
    """Its disk accepts the broker's own records: retries, and ends of transactions."""
    log = ByteLog()
    member = Member("a", ReplicaFacts(), log)
    opened(member, log, state(1, 1, "a"))
    for session, follower in ((7, "b"), (8, "c")):
        member.handle(events.HelloArrived(session, Hello(1, follower, (), 0, 0)))
        for action in member.handle(
            events.AckArrived(session, Ack(log.end, 0, is_damaged=True), log.end)
        ):
            if isinstance(action, actions.CommitUpTo):
                log.commit(action.end)
    full = events.WritesChecked(WriteCheck(refusal="95 % of the disk are used"))
    assert kinds(member.handle(full)) == []
    # A follower is repaired: it can lead.
    repaired = member.handle(events.AckArrived(7, Ack(log.end, 0), log.end))
    assert actions.AllowAppends(False) in repaired
    assert "HandOver" in kinds(member.handle(events.AckArrived(7, Ack(log.end, 0), log.end)))
    # It is damaged again before the call arrives, which may still have an effect.
    damaged = events.AckArrived(7, Ack(log.end, 0, is_damaged=True), log.end)
    assert kinds(member.handle(damaged)) == []


def test_a_replica_that_cannot_open_its_epoch_resigns_and_not_in_a_fast_loop() -> None:
    failing = events.WritesChecked(WriteCheck("Input/output error"))
    log = ByteLog()
    member = Member("a", ReplicaFacts(), log)
    member.handle(events.Started())
    assert "OpenEpoch" in kinds(member.handle(events.StateSeen(state(1, 1, "a"))))
    # The record was refused: the log is unchanged.
    assert kinds(member.handle(failing)) == ["Resign"]
    # The call may be lost. A replica that is elected repeatedly waits between two resignations.
    assert kinds(member.handle(failing)) == []
    assert kinds(member.handle(events.RepeatDue())) == ["Resign"]
    assert kinds(member.handle(events.WritesChecked(WriteCheck()))) == []
    assert kinds(member.handle(events.RepeatDue())) == ["OpenEpoch", "Sync"]


def test_the_only_voter_repeats_the_record_of_its_epoch_until_the_disk_accepts_it() -> None:
    log = ByteLog()
    member = Member("a", ReplicaFacts(), log)
    member.handle(events.Started())
    member.handle(events.StateSeen(state(1, 1, "a", ALONE)))
    assert kinds(member.handle(events.WritesChecked(WriteCheck("Input/output error")))) == []
    assert kinds(member.handle(events.RepeatDue())) == []
    member.handle(events.WritesChecked(WriteCheck()))
    assert kinds(member.handle(events.RepeatDue())) == ["OpenEpoch", "Sync"]
    log.open_epoch(1)
    log.sync_nowait()
    assert "Established" in kinds(member.handle(events.Synced()))


def test_a_frozen_log_is_reported_to_once_and_then_once_for_each_repetition() -> None:
    """The reply to a report is the frozen state; without a pause each would cause a new report."""
    log = ByteLog()
    member = Member("a", ReplicaFacts(), log)
    opened(member, log, state(1, 1, "a"))
    frozen = replace(state(1, 1, "a"), frozen=True)
    assert kinds(member.handle(events.StateSeen(frozen))) == ["ReportLog"]
    answer = replace(frozen, reports={"a": Report(Rank(1, log.end), sound=True)})
    for _ in range(3):
        assert kinds(member.handle(events.StateSeen(answer))) == []
    assert "ReportLog" in kinds(member.handle(events.RepeatDue()))
    member.handle(events.StateSeen(state(2, 1, "a")))
    assert "ReportLog" not in kinds(member.handle(events.RepeatDue()))
