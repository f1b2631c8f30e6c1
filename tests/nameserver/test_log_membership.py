"""Replicas of logs: their roles at registration, and states of etcd that are behind theirs."""

import pytest

from rockoon_core.errors import InvalidArgument, LogFrozen, NodeNameTaken, NotReady
from rockoon_nameserver import elections, log_membership
from rockoon_nameserver.elections import LogDecision
from rockoon_nameserver.log_membership import (
    REPLICAS_MAX,
    go_on_alone,
    move,
    registered,
    registered_without_replication,
    remove,
    set_copies,
)
from rockoon_proto.v1.logs_pb2 import CopiesWish, LogState, Move, Rank, Report
from rockoon_proto.v1.nameserver_pb2 import BROKER, Node, ReplicaFacts
from support.log_states import LOG, call, come, depose, elect, led_log, new_log, replica_node


def plain(store_id: str) -> Node:
    """A broker of a version without copies."""
    return Node(kind=BROKER, name=LOG, store_id=store_id, address="host:1")


def test_an_empty_store_never_makes_the_state_of_a_name_that_exists() -> None:
    """The replica with the messages would become its copy, cut to nothing (A8)."""
    for copies in (1, 3):
        with pytest.raises(NotReady, match="first start the replica that has its messages"):
            come(None, "b", copies=copies, name_exists=True)
    state = come(None, "a", empty=False, name_exists=True)
    assert (state.leader, state.epoch, list(state.in_sync), state.copies) == ("a", 1, ["a"], 3)
    state = come(state, "b", name_exists=True)
    assert list(state.in_sync) == ["a"]


def test_a_store_with_messages_of_its_own_never_becomes_a_copy() -> None:
    for state in (led_log(), come(None, "a", empty=False)):
        with pytest.raises(NodeNameTaken, match="start it with an empty store"):
            come(state, "x", empty=False)


def test_a_store_with_messages_leads_replicas_that_wait_for_one_another() -> None:
    state = come(come(None, "b"), "a", empty=False)
    assert (state.leader, list(state.in_sync), state.epoch) == ("a", ["a"], 1)
    # Immediately: an unknown replica is refused until it registers again.
    assert [each.replica_id for each in state.replicas] == ["a", "b"]
    assert come(state, "b") is state


def test_an_emptied_disk_is_another_replica_that_is_to_take_the_place_of_its_name() -> None:
    state = come(led_log(), "d", name="broker-a-b")
    assert list(state.in_sync) == ["a", "b", "c"]
    assert [each.replica_id for each in state.replicas] == ["a", "b", "c", "d"]
    assert list(state.moves) == [Move(leaves="b", joins="d")]
    # Once more: the replica that never counted is removed.
    state = come(state, "e", name="broker-a-b")
    assert [each.replica_id for each in state.replicas] == ["a", "b", "c", "e"]
    assert list(state.moves) == [Move(leaves="b", joins="e")]
    assert come(state, "e", name="broker-a-b") is state


def test_what_an_operator_has_asked_for_with_a_replica_holds_for_its_next_disk() -> None:
    """Also if a copy that cannot continue is replaced, under an id that was never typed."""
    state = move(come(led_log(), "x"), Move(leaves="b", joins="x"), withdraw=False).state
    state = come(state, "y", name="broker-a-x")
    assert list(state.moves) == [Move(leaves="b", joins="y")]
    assert [each.replica_id for each in state.replicas] == ["a", "b", "c", "y"]


def test_two_disks_lost_at_once_are_wished_for_and_change_nothing() -> None:
    """The third alone elects no leader, so nothing executes the requests."""
    state = depose(led_log())
    for lost, other in (("b", "d"), ("c", "e")):
        state = come(state, other, name=f"broker-a-{lost}")
    state = elect(state, a=5, d=0, e=0)
    assert (state.leader, list(state.in_sync)) == ("", ["a", "b", "c"])
    # One of the disks was not mounted.
    state = elect(come(state, "b", empty=False), b=5)
    assert (state.leader, list(state.moves)) == ("b", [Move(leaves="c", joins="e")])


def test_a_disk_that_was_only_away_keeps_its_place() -> None:
    state = come(come(led_log(), "d", name="broker-a-b"), "b", name="broker-a-b", empty=False)
    assert list(state.moves) == []
    assert come(state, "d", name="broker-a-b") is state
    # The operator's request stays.
    asked = Move(leaves="b", joins="x")
    state = move(come(led_log(), "x"), asked, withdraw=False).state
    assert list(come(state, "b", empty=False).moves) == [asked]
    assert list(come(state, "d", name="broker-a-b").moves) == [asked]


def test_replicas_that_come_again_and_again_under_other_names_take_no_more_room() -> None:
    state = led_log()
    for number in range(40):
        state = come(state, f"x{number}")
    assert len(state.replicas) == REPLICAS_MAX
    assert {"a", "b", "c", "x39"} <= {each.replica_id for each in state.replicas}


def test_registering_again_changes_nothing() -> None:
    state = led_log()
    assert come(state, "b", empty=False) is state
    facts = ReplicaFacts(copies=8)
    with pytest.raises(InvalidArgument, match="1 to 7"):
        registered(state, replica_node("b"), facts, is_new=False, name_exists=True)


def test_a_broker_that_knows_nothing_of_copies_has_its_log_for_itself() -> None:
    state = registered_without_replication(None, plain("a"))
    assert (state.epoch, state.leader, list(state.in_sync), state.quorum) == (1, "a", ["a"], 1)
    assert registered_without_replication(state, plain("a")) is state
    # An emptied disk replaces the former one, as usual; it is recorded.
    after = registered_without_replication(state, plain("b"))
    assert (after.epoch, after.leader, list(after.in_sync)) == (2, "b", ["b"])
    assert (after.losses, after.loss_epoch, after.version) == (1, 2, state.version + 1)
    # The same broker of a later version, and back.
    later = come(after, "b", empty=False, copies=1)
    assert (later.epoch, list(later.in_sync)) == (2, ["b"])
    assert registered_without_replication(later, plain("b")) is later


def test_a_broker_that_knows_nothing_of_copies_does_not_get_a_log_that_has_them() -> None:
    for who in ("a", "x"):
        with pytest.raises(NodeNameTaken, match="is a log with copies"):
            registered_without_replication(led_log(), plain(who))


def test_an_operator_asks_and_the_leader_makes_the_change() -> None:
    """The request itself does not change the set of replicas that count (A3)."""
    state = come(led_log(), "d")
    asked = Move(leaves="c", joins="d")
    state = move(state, asked, withdraw=False).state
    assert (list(state.moves), list(state.in_sync)) == ([asked], ["a", "b", "c"])
    assert move(state, asked, withdraw=False) == LogDecision(state, done=True)
    for odd in (Move(leaves="d", joins="c"), Move(leaves="b", joins="x"), Move(), asked):
        with pytest.raises(InvalidArgument):
            move(come(led_log(), "e") if odd == asked else state, odd, withdraw=False)
    with pytest.raises(InvalidArgument, match="another move"):
        move(come(state, "e"), Move(leaves="c", joins="e"), withdraw=False)
    done = elections.change_in_sync(state, call(state, "a"), ["a", "b", "d"], 2).state
    assert list(done.moves) == []
    assert list(move(state, asked, withdraw=True).state.moves) == []


def test_a_replica_with_a_lost_disk_is_removed_when_the_next_of_its_name_counts() -> None:
    state = come(led_log(), "d", name="broker-a-b")
    done = elections.change_in_sync(state, call(state, "a"), ["a", "c", "d"], 2).state
    assert [each.replica_id for each in done.replicas] == ["a", "c", "d"]
    with pytest.raises(NodeNameTaken, match="start it with an empty store"):
        come(done, "b", empty=False)
    # The set had shrunk before: the request to replace the lost replica is obsolete.
    state = elections.change_in_sync(state, call(state, "a"), ["a", "c"], 2).state
    assert (list(state.moves), len(state.replicas)) == ([], 4)
    done = elections.change_in_sync(state, call(state, "a"), ["a", "c", "d"], 2).state
    assert [each.replica_id for each in done.replicas] == ["a", "c", "d"]


def test_a_replica_that_another_name_has_replaced_stays_until_an_operator_removes_it() -> None:
    state = move(come(led_log(), "d"), Move(leaves="c", joins="d"), withdraw=False).state
    for voter in ("a", "c"):
        with pytest.raises(InvalidArgument, match="in sync"):
            remove(state, voter)
    state = elections.change_in_sync(state, call(state, "a"), ["a", "b", "d"], 2).state
    assert [each.replica_id for each in state.replicas] == ["a", "b", "c", "d"]
    removed = remove(state, "c")
    assert removed.done
    assert [each.replica_id for each in removed.state.replicas] == ["a", "b", "d"]
    assert removed.state.version == state.version + 1
    assert remove(removed.state, "c") == LogDecision(removed.state, done=True)
    # With it the request to let it replace another.
    state = move(state, Move(leaves="b", joins="c"), withdraw=False).state
    assert list(remove(state, "c").state.moves) == []
    with pytest.raises(LogFrozen):
        remove(log_membership.frozen(state, "etcd went back"), "c")
    with pytest.raises(InvalidArgument, match="has no leader"):
        remove(come(None, "a"), "a")


def test_an_operator_wishes_for_fewer_copies_and_the_leader_makes_the_change() -> None:
    """The request itself changes neither the replicas that count nor the commit quorum (A3)."""
    state = set_copies(led_log(), 1, "b").state
    assert (list(state.in_sync), state.quorum, state.copies) == (["a", "b", "c"], 2, 3)
    assert state.copies_wish == CopiesWish(copies=1, stays="b")
    assert set_copies(state, 1, "b").state is state
    # The settings of its replicas do not undo it.
    assert come(state, "c", empty=False) is state
    with pytest.raises(InvalidArgument, match="is to have 1"):
        elections.change_in_sync(state, call(state, "a"), ["a", "b"], 2)
    done = elections.change_in_sync(state, call(state, "a"), ["a"], 1).state
    assert (list(done.in_sync), done.quorum) == (["a"], 1)
    # Back to the number in their settings.
    assert not set_copies(done, 3, "").state.HasField("copies_wish")
    for copies, stays in ((0, ""), (8, ""), (1, "x")):
        with pytest.raises(InvalidArgument):
            set_copies(state, copies, stays)
    with pytest.raises(InvalidArgument, match="waits for its first"):
        set_copies(come(None, "a"), 1, "")
    with pytest.raises(InvalidArgument, match="ask for 1, or for 3"):
        set_copies(state, 2, "")
    # It would never be executed: the log accepts no followers.
    with pytest.raises(InvalidArgument, match="start it with copies = 3"):
        set_copies(registered_without_replication(None, plain("a")), 3, "")
    with pytest.raises(LogFrozen):
        set_copies(log_membership.frozen(state, "etcd went back"), 3, "")


def test_only_the_only_voter_goes_on_alone_in_an_epoch_of_its_own() -> None:
    """A learner may have records that a crash removed from the log (A7): it is not of the log any
    more."""
    state = set_copies(led_log(), 1, "").state
    assert go_on_alone(state, call(state, "a")) == LogDecision(state, done=False)
    state = elections.change_in_sync(state, call(state, "a"), ["a"], 1).state
    assert not go_on_alone(state, call(state, "b")).done
    state = move(state, Move(leaves="a", joins="b"), withdraw=False).state
    after = go_on_alone(state, call(state, "a")).state
    assert (after.epoch, after.version) == (state.epoch + 1, state.version + 1)
    assert (after.leader, list(after.in_sync), after.copies) == ("a", ["a"], 1)
    assert [each.replica_id for each in after.replicas] == ["a"]
    assert not after.HasField("copies_wish")
    assert not after.moves
    assert registered_without_replication(after, plain("a")) is after
    with pytest.raises(NodeNameTaken, match="not a copy"):
        come(after, "b", empty=False)


def test_replicas_that_wait_for_a_broker_of_one_copy_do_not_end_it() -> None:
    """They were started first, for a log of three."""
    state = come(registered_without_replication(None, plain("a")), "b", name_exists=True)
    assert [each.replica_id for each in state.replicas] == ["a", "b"]
    assert registered_without_replication(state, plain("a")) is state
    later = come(state, "a", empty=False, copies=3)
    assert (later.copies, list(later.in_sync)) == (3, ["a"])
    # Started as a broker of one copy again, before any copy counted.
    assert registered_without_replication(later, plain("a")).copies == 1


def test_a_replica_that_is_the_only_copy_is_taken_as_a_broker_of_one_copy_is() -> None:
    """It accepts no followers, so more copies cannot be requested: the leader could not make
    them."""
    state = come(None, "a", empty=False)
    state = come(state, "b")
    only = come(state, "a", empty=False, copies=1)
    assert (only.copies, only.version) == (1, state.version + 1)
    assert come(only, "a", empty=False, copies=1) is only
    # While others count it is one of them, whatever its settings.
    assert come(led_log(), "a", empty=False, copies=1).copies == 3


def knowing(state: LogState, who: str, later: LogState) -> Report:
    """Report of a replica that knows a later state than etcd."""
    return Report(
        rank=Rank(epoch=later.epoch, end=9),
        sound=True,
        promised=later.epoch,
        version=later.version,
        history=later.history,
        in_sync=later.in_sync,
        quorum=later.quorum,
    )


def restored() -> tuple[LogState, LogState]:
    """A log after etcd was restored, and its real last state: "d" has replaced "c"."""
    old = led_log()
    new = come(old, "d")
    return old, elections.change_in_sync(new, call(new, "a"), ["a", "b", "d"], 2).state


def test_a_replica_that_knows_more_than_etcd_freezes_the_log() -> None:
    """The old in-sync set may elect a replica that lacks commits of the new one (A6)."""
    old, new = restored()
    facts = {"version": new.version, "promised": new.epoch}
    state = come(old, "d", empty=False, **facts)
    assert f"knows version {new.version}" in state.frozen
    assert (state.version, list(state.in_sync)) == (old.version, ["a", "b", "c"])
    state = come(old, "b", empty=False, promised=7)
    assert "has come to epoch 7" in state.frozen
    # No replica with another state joins it, and nothing is asked of it.
    with pytest.raises(NotReady, match="frozen"):
        come(state, "x")
    with pytest.raises(LogFrozen):
        elections.elect(state, 0, accept_loss=True)
    with pytest.raises(LogFrozen):
        move(state, Move(), withdraw=False)


def test_a_log_that_etcd_lost_altogether_is_frozen_until_it_is_adopted() -> None:
    state = come(None, "a", empty=False, version=9, promised=4)
    assert "has lost its state" in state.frozen
    state = come(state, "b", empty=False, version=9, promised=4)
    lost = led_log()
    lost.version = 9
    state = log_membership.report_frozen(state, call(state, "a"), knowing(state, "a", lost)).state
    with pytest.raises(InvalidArgument, match="b, c of the in-sync set a, b, c"):
        log_membership.adopt(state, [], accept_loss=False)
    state = log_membership.report_frozen(state, call(state, "b"), knowing(state, "b", lost)).state
    state = log_membership.adopt(state, [], accept_loss=True).state
    assert (list(state.in_sync), state.quorum, state.leader) == (["a", "b", "c"], 2, "")


def test_a_log_is_adopted_with_the_newest_set_behind_every_epoch_that_is_known() -> None:
    old, new = restored()
    # One of them has promised a later epoch.
    later = depose(new)
    state = log_membership.frozen(old, "etcd went back")
    state = come(state, "d", empty=False, version=new.version)
    told = {"a": new, "b": later, "c": old, "d": new}
    for who in "abc":
        report = knowing(state, who, told[who])
        state = log_membership.report_frozen(state, call(state, who), report).state
    assert state.version == old.version
    with pytest.raises(InvalidArgument, match="d of the in-sync set a, b, d"):
        log_membership.adopt(state, [], accept_loss=False)
    report = knowing(state, "d", new)
    state = log_membership.report_frozen(state, call(state, "d"), report).state
    adopted = log_membership.adopt(state, [], accept_loss=False).state
    assert list(adopted.in_sync) == ["a", "b", "d"]
    assert adopted.epoch == later.epoch + log_membership.EPOCHS_LEFT_OUT
    assert (adopted.version, adopted.history) == (later.version + 1, 1)
    assert (adopted.leader, adopted.frozen, len(adopted.reports)) == ("", "", 0)
    # All of them are behind it now, so no report freezes it again, and it elects.
    assert come(adopted, "b", empty=False, version=later.version, promised=later.epoch) is adopted
    assert elect(adopted, d=3, a=9).leader == "a"


def test_when_nobody_remembers_the_newest_set_an_operator_names_it() -> None:
    old, new = restored()
    state = log_membership.frozen(old, "etcd went back")
    for who in "ab":
        report = knowing(state, who, new)
        del report.in_sync[:]
        state = log_membership.report_frozen(state, call(state, who), report).state
    with pytest.raises(InvalidArgument, match="name them"):
        log_membership.adopt(state, [], accept_loss=True)
    state = log_membership.adopt(state, ["a", "b", "d"], accept_loss=True).state
    assert list(state.in_sync) == ["a", "b", "d"]


def test_the_first_of_two_stores_with_messages_has_the_log() -> None:
    """Two masters of one name (RocketMQ 7017)."""
    state = come(None, "a", empty=False)
    with pytest.raises(NodeNameTaken):
        come(state, "b", empty=False)
    assert new_log(["a"]).leader == "a"
