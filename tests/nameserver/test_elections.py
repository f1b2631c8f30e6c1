"""Elections: the leader of a log, its epoch, and the replicas that count."""

import random

import pytest

from rockoon_core.errors import InvalidArgument, LogChanged, RockoonError
from rockoon_nameserver import elections, log_membership
from rockoon_nameserver.elections import LogDecision
from rockoon_proto.v1.logs_pb2 import LogState, Move, Rank, Report
from support.log_states import call, come, depose, elect, led_log, new_log, report
from support.seeds import seeds


def test_a_new_log_waits_for_its_replicas_and_begins_with_an_election_of_them() -> None:
    state = come(None, "a")
    assert (state.epoch, list(state.in_sync), state.version) == (0, [], 1)
    assert not report(state, "a", 0, epoch=0).done
    state = come(come(state, "b"), "c")
    assert (state.epoch, list(state.in_sync), state.quorum) == (1, ["a", "b", "c"], 2)
    assert (state.leader, state.version) == ("", 3)


def test_so_many_reports_elect_as_overlap_every_quorum_and_the_highest_rank_leads() -> None:
    state = report(new_log(), "b", 7, epoch=0).state
    assert state.leader == ""
    state = report(state, "c", 9, epoch=0).state
    assert (state.leader, state.at_least) == ("c", Rank(epoch=0, end=9))
    # A late report changes nothing, however long the log is.
    late = report(state, "a", 100, epoch=0)
    assert (late.state, late.done) == (state, False)


def test_a_longer_log_of_an_older_epoch_does_not_lead() -> None:
    state = depose(depose(led_log()))
    state = report(state, "b", 1_000, epoch=1).state
    state = report(state, "c", 10, epoch=0).state
    assert state.leader == "b"
    state = depose(state)
    state = report(report(state, "a", 1_000, epoch=1).state, "c", 10, epoch=2).state
    assert state.leader == "c"


def test_an_unsound_replica_counts_only_when_nobody_is_left_to_wait_for() -> None:
    state = report(new_log(), "a", 90, sound=False).state
    state = report(state, "b", 50).state
    assert state.leader == ""
    assert report(state, "c", 60).state.leader == "a"
    assert report(report(state, "a", 90).state, "c", 60).state.leader == "a"


def test_among_equals_the_first_replica_leads_and_the_one_that_was_lost_does_not() -> None:
    assert elect(new_log(), c=5, b=5).leader == "b"
    state = depose(led_log("a"))
    assert elect(state, a=5, c=5).leader == "c"


def test_one_follower_that_cannot_hear_the_leader_does_not_depose_it() -> None:
    state = led_log()
    state = elections.suspect(state, call(state, "b")).state
    assert (state.epoch, state.leader, list(state.suspects)) == (1, "a", ["b"])
    again = elections.suspect(state, call(state, "b"))
    assert (again.state, again.done) == (state, True)
    # It learns it again; the next one to lose it is alone too.
    state = elections.suspect(state, call(state, "b"), retract=True).state
    state = elections.suspect(state, call(state, "c")).state
    assert (state.leader, list(state.suspects)) == ("a", ["c"])
    state = elections.suspect(state, call(state, "b")).state
    assert (state.epoch, state.leader, state.former_leader) == (2, "", "a")
    assert list(state.suspects) == []


def test_a_suspicion_of_an_epoch_that_is_over_deposes_nobody() -> None:
    before = led_log()
    state = elect(depose(before), b=1, c=0)
    for who in ("a", "c"):
        late = elections.suspect(state, call(before, who))
        assert (late.state, late.done) == (state, False)


def test_a_process_that_has_just_started_suspects_nobody() -> None:
    state = led_log()
    state = elections.suspect(state, call(state, "b")).state
    assert list(come(state, "b", empty=False).suspects) == []


def test_epochs_that_commit_nothing_are_counted_for_followers_to_wait_longer() -> None:
    state = led_log()
    assert (state.confirmed, state.vain_epochs) == (True, 0)
    state = elect(depose(state), b=1, c=1)
    assert state.vain_epochs == 0
    for count in (1, 2, 3):
        state = elect(depose(state), b=1, c=1, a=1)
        assert (state.confirmed, state.vain_epochs) == (False, count)
    assert not elections.confirm(state, call(state, state.in_sync[0], epoch=2)).done
    state = elections.confirm(state, call(state, state.leader)).state
    assert state.vain_epochs == 0


def test_a_leader_that_was_started_anew_has_another_epoch_begun() -> None:
    state = led_log()
    with pytest.raises(InvalidArgument, match="resigns"):
        elections.suspect(state, call(state, "a"))
    assert not elections.resign(state, call(state, "b")).done
    outcome = elections.resign(state, call(state, "a"))
    assert (outcome.state.epoch, outcome.state.leader) == (2, "")
    again = elections.resign(outcome.state, call(state, "a"))
    assert (again.state, again.done) == (outcome.state, True)


def test_leadership_is_handed_to_a_member_of_the_set_in_one_step() -> None:
    state = led_log()
    rank = Rank(epoch=1, end=500)
    after = elections.hand_over(state, call(state, "a"), "c", rank).state
    assert (after.epoch, after.leader, after.former_leader) == (2, "c", "a")
    assert (after.at_least, after.confirmed) == (rank, False)
    again = elections.hand_over(after, call(state, "a"), "c", rank)
    assert (again.state, again.done) == (after, True)
    for nobody in ("a", "d", ""):
        with pytest.raises(InvalidArgument):
            elections.hand_over(state, call(state, "a"), nobody, rank)


def test_a_hand_over_that_was_thought_lost_and_lands_late_changes_nothing() -> None:
    """Its successor may lack records that were committed since (A2)."""
    state = led_log()
    late = call(state, "a")
    state = elections.suspect(state, call(state, "b")).state
    outcome = elections.hand_over(state, late, "c", Rank(epoch=1, end=500))
    assert (outcome.state, outcome.done) == (state, False)


def test_the_leader_alone_changes_who_counts_and_only_when_it_knows_the_present_state() -> None:
    state = come(led_log(), "d")
    assert list(state.in_sync) == ["a", "b", "c"]
    new = ["a", "b", "d"]
    assert not elections.change_in_sync(state, call(state, "b"), new, 2).done
    assert not elections.change_in_sync(state, call(led_log(), "a"), new, 2).done
    outcome = elections.change_in_sync(state, call(state, "a"), new, 2)
    assert outcome.done
    assert (list(outcome.state.in_sync), outcome.state.quorum) == (new, 2)
    again = elections.change_in_sync(outcome.state, call(state, "a"), ["d", "a", "b"], 2)
    assert (again.state, again.done) == (outcome.state, True)


@pytest.mark.parametrize(
    ("in_sync", "quorum", "why"),
    [
        (["b", "c", "d"], 2, "stays"),
        (["a", "b", "e"], 2, "registered"),
        (["a", "a", "b"], 2, "distinct"),
        (["a"], 1, "is to have 3"),
        (["a", "b", "c", "d"], 3, "is to have 3"),
        (["a", "b", "d"], 1, "majority"),
        (["a", "b", "d"], 3, "majority"),
    ],
)
def test_what_can_be_no_in_sync_set_is_refused(in_sync: list[str], quorum: int, why: str) -> None:
    state = come(led_log(), "d")
    with pytest.raises(InvalidArgument, match=why):
        elections.change_in_sync(state, call(state, "a"), in_sync, quorum)


def test_a_leader_has_one_vote_no_longer_that_is_away_and_again_when_it_is_back() -> None:
    state = led_log()
    state = elections.change_in_sync(state, call(state, "a"), ["a", "c"], 2).state
    assert (list(state.in_sync), state.quorum, state.copies) == (["a", "c"], 2, 3)
    back = elections.change_in_sync(state, call(state, "a"), ["a", "b", "c"], 2)
    assert (list(back.state.in_sync), back.done) == (["a", "b", "c"], True)
    # No other report would be needed.
    with pytest.raises(InvalidArgument, match="is to have 3"):
        elections.change_in_sync(state, call(state, "a"), ["a"], 1)


def test_a_log_of_one_copy_grows_to_three_when_its_leader_is_told_so() -> None:
    state = come(None, "a", empty=False, copies=1)
    assert (state.epoch, state.leader, list(state.in_sync), state.quorum) == (1, "a", ["a"], 1)
    state = come(come(state, "b"), "c")
    with pytest.raises(InvalidArgument, match="is to have 1"):
        elections.change_in_sync(state, call(state, "a"), ["a", "b", "c"], 2)
    state = come(state, "a", empty=False, copies=3)
    state = elections.change_in_sync(state, call(state, "a"), ["a", "b", "c"], 2).state
    assert (list(state.in_sync), state.quorum, state.leader) == (["a", "b", "c"], 2, "a")
    # A replica that does not know it yet does not make it smaller.
    assert come(state, "a", empty=False, copies=1).copies == 3


def test_an_operator_may_end_an_election_that_cannot_end_and_the_price_is_kept() -> None:
    state = led_log()
    with pytest.raises(LogChanged):
        elections.elect(state, state.version - 1, accept_loss=False)
    with pytest.raises(InvalidArgument, match="has a leader"):
        elections.elect(state, 0, accept_loss=True)
    state = elections.elect(state, state.version, accept_loss=False).state
    assert (state.epoch, state.leader) == (2, "")
    with pytest.raises(InvalidArgument, match="no replica"):
        elections.elect(state, 0, accept_loss=True)
    state = report(state, "b", 40).state
    state = elections.elect(state, state.version, accept_loss=True).state
    assert (state.leader, state.losses, state.loss_epoch, state.loss_end) == ("b", 1, 2, 40)
    assert list(state.in_sync) == ["a", "b", "c"]


def test_when_all_copies_are_gone_an_empty_one_leads_if_an_operator_says_so() -> None:
    state = come(led_log(), "d", name="broker-a-b")
    state = elections.elect(state, 0, accept_loss=False).state
    state = report(state, "d", 0, epoch=0).state
    assert state.leader == ""
    state = elections.elect(state, 0, accept_loss=True).state
    assert (state.leader, list(state.in_sync), state.losses) == ("d", ["b", "c", "d"], 1)


def test_members_of_the_set_are_chosen_before_all_others_at_a_loss() -> None:
    state = elections.elect(come(led_log(), "d"), 0, accept_loss=False).state
    state = report(report(state, "d", 1_000).state, "c", 3).state
    assert elections.elect(state, 0, accept_loss=True).state.leader == "c"


def test_an_undamaged_copy_is_chosen_at_a_loss_and_of_these_the_one_with_most_records() -> None:
    state = elections.elect(led_log(), 0, accept_loss=False).state
    for who, end, damaged in (("a", 50, True), ("b", 40, False)):
        state.reports[who].CopyFrom(Report(rank=Rank(end=end), sound=True, damaged=damaged))
    assert elections.elect(state, 0, accept_loss=True).state.leader == "b"
    state.reports["c"].CopyFrom(Report(rank=Rank(end=45), sound=False))
    assert elections.elect(state, 0, accept_loss=True).state.leader == "c"


class AnyCalls:
    """Random calls of random replicas, with present and past states; checks each change.

    Attributes:
        leaders: by epoch.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.states = [led_log()]
        self.leaders: dict[int, str] = {}

    def step(self) -> None:
        before = self.states[-1]
        # In most cases the caller knows the present state; sometimes the call is old.
        known = before if self.random.random() < 0.7 else self.random.choice(self.states)
        try:
            after = self.called(before, known)
        except RockoonError:
            return
        self.check(before, after)
        self.states.append(after)

    def called(self, state: LogState, known: LogState) -> LogState:
        who = self.random.choice("abcde")
        if who not in {each.replica_id for each in state.replicas}:
            return come(state, who, empty=self.random.random() < 0.8)
        caller, other = call(known, who), self.random.choice("abcde")
        rank = Rank(epoch=max(0, known.epoch - 1), end=self.random.randrange(100))
        outcome: LogDecision
        match self.random.randrange(9):
            case 0 | 1:
                outcome = elections.suspect(state, caller, retract=self.random.random() < 0.2)
            case 2 | 3:
                outcome = report(
                    state, who, rank.end, epoch=rank.epoch, sound=self.random.random() < 0.9
                )
            case 4:
                outcome = elections.confirm(state, caller)
            case 5:
                outcome = elections.resign(state, caller)
            case 6:
                outcome = elections.hand_over(state, caller, other, rank)
            case 7:
                wanted = self.random.sample("abcde", 3)
                outcome = elections.change_in_sync(state, caller, wanted, 2)
            case _:
                outcome = log_membership.move(
                    state, Move(leaves=who, joins=other), withdraw=self.random.random() < 0.3
                )
        return outcome.state

    def check(self, before: LogState, after: LogState) -> None:
        assert after.version == before.version + (after != before)
        assert before.epoch <= after.epoch <= before.epoch + 1
        if after.epoch == before.epoch and before.leader:
            assert after.leader == before.leader
        if after.leader:
            assert self.leaders.setdefault(after.epoch, after.leader) == after.leader
            assert after.leader in after.in_sync
        if list(after.in_sync) != list(before.in_sync):
            assert after.epoch == before.epoch
            assert after.leader == before.leader != ""
            assert len(after.in_sync) == 3
        assert after.quorum == 2
        assert set(after.suspects) <= set(after.in_sync) - {after.leader}
        assert not (after.leader and after.reports)


@pytest.mark.parametrize("seed", seeds(5))
def test_an_epoch_has_one_leader_and_who_counts_changes_only_when_it_proposes(seed: int) -> None:
    calls = AnyCalls(seed)
    for _ in range(2_000):
        calls.step()
    assert len(calls.leaders) > 20


def test_only_a_frozen_log_is_adopted() -> None:
    with pytest.raises(InvalidArgument, match="not frozen"):
        log_membership.adopt(led_log(), [], accept_loss=True)
