"""Elections: the next state of a log when one of its replicas calls. Pure.

Invariants, of all functions that change a LogState (here, in `log_membership` and `log_adoption`):

1. A change makes `version` greater by one, and nothing else does. Who is out of date changes
   nothing. A frozen log keeps the version that etcd went back to; replicas compare theirs with it.
2. An epoch has one leader: it is put in once, and taking it away begins another epoch.
3. Who counts (`in_sync`, `quorum`) changes by the leader's proposal alone, or where an operator
   accepts a loss.
4. A frozen log changes by reports and adoption alone.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rockoon_core.errors import InvalidArgument, LogChanged, LogFrozen
from rockoon_core.replication_rules import Config, elected, election_size, quorum_of
from rockoon_core.replication_rules import Rank as RuleRank
from rockoon_core.replication_rules import Report as RuleReport
from rockoon_proto.v1.logs_pb2 import (
    LogState,
    Rank,
    ReplicaCall,
    Report,
)

# What a confused caller says must not overflow what epochs are kept in.
EPOCH_MAX = (1 << 31) - 1


class Outcome(NamedTuple):
    """What becomes of a call.

    Attributes:
        state: the next one; the very same where nothing changes.
        done: it is what the call asked for.
    """

    state: LogState
    done: bool


def suspect(state: LogState, caller: ReplicaCall, *, retract: bool = False) -> Outcome:
    """A follower has lost its leader, or found it again.

    As many suspects as elect end the epoch: a leader that fewer cannot reach may still commit.
    """
    if caller.epoch != state.epoch or caller.replica_id not in state.in_sync:
        return Outcome(state, done=False)
    if not state.leader:
        return Outcome(state, done=not retract)
    if caller.replica_id == state.leader:
        raise InvalidArgument(reason="a leader does not suspect itself: it resigns")
    if (caller.replica_id in state.suspects) != retract:
        return Outcome(state, done=True)
    after = changed(state)
    if retract:
        after.suspects.remove(caller.replica_id)
        return Outcome(after, done=True)
    after.suspects.append(caller.replica_id)
    if len(after.suspects) >= election_size(config_of(after)):
        begin_election(after)
    return Outcome(after, done=True)


def report(
    state: LogState,
    caller: ReplicaCall,
    told: Report,
    lacks: Callable[[str, Rank], str] = lambda _winner, _rank: "",
) -> Outcome:
    """A replica has promised the epoch, and says what it has; the last one needed elects.

    Reports of replicas that do not vote are kept for an operator who has nobody else.

    Args:
        state: the log's.
        caller, told: the replica, and its report.
        lacks: says why a winner with a rank must not lead; see `committed_ends.lacking`.
    """
    if not (0 <= told.rank.epoch < max(caller.epoch, 1) and told.rank.end >= 0):
        raise InvalidArgument(reason="the rank is that of no log before this epoch")
    if caller.epoch != state.epoch or state.leader or not state.epoch:
        return Outcome(state, done=state.leader == caller.replica_id)
    if state.reports.get(caller.replica_id) == told:
        return Outcome(state, done=True)
    after = changed(state)
    after.reports[caller.replica_id].CopyFrom(told)
    winner = elected(
        config_of(after),
        {who: rule_report(each) for who, each in after.reports.items()},
        preference(after),
    )
    if winner is not None:
        after.held = lacks(winner, after.reports[winner].rank)
        if not after.held:
            put_in(after, winner, after.reports[winner].rank)
    return Outcome(after, done=True)


def confirm(state: LogState, caller: ReplicaCall) -> Outcome:
    """The leader's first record is committed: the epoch is not in vain."""
    if not leads(state, caller):
        return Outcome(state, done=False)
    if state.confirmed:
        return Outcome(state, done=True)
    after = changed(state)
    after.confirmed, after.vain_epochs = True, 0
    return Outcome(after, done=True)


def resign(state: LogState, caller: ReplicaCall) -> Outcome:
    """The leader gives its epoch up."""
    if not leads(state, caller):
        return Outcome(state, done=caller.epoch < state.epoch)
    after = changed(state)
    begin_election(after)
    return Outcome(after, done=True)


def hand_over(state: LogState, caller: ReplicaCall, successor: str, rank: Rank) -> Outcome:
    """The leader, which is at rest, names who leads next.

    Only if it knows all that has changed: it may have given up waiting for a call that arrives now,
    and committed messages since that its successor does not have.
    """
    if successor == caller.replica_id or (leads(state, caller) and successor not in state.in_sync):
        raise InvalidArgument(reason=f"{successor!r} is no other member of the in-sync set")
    if not leads(state, caller) or not knows(state, caller):
        done = state.epoch == caller.epoch + 1 and state.leader == successor
        return Outcome(state, done=done)
    after = changed(state)
    begin_election(after)
    put_in(after, successor, rank)
    return Outcome(after, done=True)


def change_in_sync(
    state: LogState, caller: ReplicaCall, in_sync: Sequence[str], quorum: int
) -> Outcome:
    """The leader proposes another in-sync set; what it may propose is for it to know.

    Raises:
        InvalidArgument: it can be no in-sync set of this log.
    """
    proposed = sorted(in_sync)
    if leads(state, caller) and proposed == list(state.in_sync) and quorum == state.quorum:
        return Outcome(state, done=True)
    if not leads(state, caller) or not knows(state, caller):
        return Outcome(state, done=False)
    known = {each.replica_id for each in state.replicas}
    if len(set(proposed)) < len(proposed) or not set(proposed) <= known:
        raise InvalidArgument(reason="each member of an in-sync set is another registered replica")
    if caller.replica_id not in proposed:
        raise InvalidArgument(reason="a leader stays in its in-sync set: it hands over first")
    copies = copies_of(state)
    # Fewer while one is away for longer than the log can wait for it.
    if len(proposed) not in (len(state.in_sync), *range(2, copies), copies):
        raise InvalidArgument(
            reason=f"{len(proposed)} replicas: log {state.log!r} has {len(state.in_sync)} in sync, "
            f"and is to have {copies}"
        )
    if quorum != quorum_of(len(proposed), 1):
        raise InvalidArgument(reason=f"{quorum} of {len(proposed)} replicas are not their majority")
    after = changed(state)
    put_in_sync(after, proposed)
    return Outcome(after, done=True)


def elect(state: LogState, expected_version: int, *, accept_loss: bool) -> Outcome:
    """An operator begins an election, or ends one that cannot end by itself.

    Raises:
        LogFrozen, LogChanged: as the names say.
        InvalidArgument: there is nobody to elect.
    """
    if state.frozen:
        raise LogFrozen(log=state.log, reason=state.frozen)
    if expected_version not in (0, state.version):
        raise LogChanged(log=state.log)
    if not state.epoch:
        raise InvalidArgument(reason=f"log {state.log!r} still waits for its first replicas")
    after = changed(state)
    if not accept_loss:
        if not state.leader:
            return Outcome(state, done=True)
        begin_election(after)
        return Outcome(after, done=True)
    if state.leader:
        raise InvalidArgument(reason=f"log {state.log!r} has a leader: begin an election first")
    if not state.reports:
        raise InvalidArgument(reason=f"no replica of log {state.log!r} has said what it has")
    voters = [who for who in state.reports if who in state.in_sync]
    told = {who: rule_report(state.reports[who]) for who in voters or state.reports}

    def order(who: str) -> tuple[bool, RuleRank, bool]:
        return not told[who].damaged, told[who].rank, told[who].sound

    # An undamaged copy first: a damaged one may have no other to be repaired from. The former
    # leader counts as any copy.
    winner = max(sorted(told), key=order)
    after.losses += 1
    after.loss_epoch, after.loss_end = after.epoch, told[winner].rank.end
    if winner not in after.in_sync:
        # Nobody of the set has said anything: the first of them makes room.
        put_in_sync(after, [winner, *after.in_sync[1:]])
    put_in(after, winner, state.reports[winner].rank)
    return Outcome(after, done=True)


def changed(state: LogState) -> LogState:
    """A copy, of the next version."""
    after = LogState()
    after.CopyFrom(state)
    if not state.frozen:
        after.version += 1
    return after


def begin_election(after: LogState) -> None:
    """End the epoch. Whoever leads the next one is put in by `put_in`, once."""
    if after.epoch >= EPOCH_MAX:
        raise InvalidArgument(reason=f"log {after.log!r} has no epoch left")
    if after.leader:
        # An election that is begun once more has the leader before it still in mind.
        after.former_leader, after.former_epoch = after.leader, after.epoch
    if not after.confirmed:
        after.vain_epochs += 1
    after.epoch += 1
    after.leader, after.confirmed, after.held = "", False, ""
    after.reports.clear()
    del after.suspects[:]


def put_in(after: LogState, leader: str, rank: Rank) -> None:
    assert not after.leader, "an epoch has one leader"
    after.leader, after.held = leader, ""
    after.at_least.CopyFrom(rank)
    after.reports.clear()


def put_in_sync(after: LogState, in_sync: Sequence[str]) -> None:
    """Have these vote, with what follows from that."""
    after.in_sync[:] = sorted(in_sync)
    after.quorum = quorum_of(len(in_sync), 1)
    suspects = [each for each in after.suspects if each in in_sync]
    after.suspects[:] = suspects
    moves = [each for each in after.moves if each.leaves in in_sync and each.joins not in in_sync]
    del after.moves[:]
    after.moves.extend(moves)


def copies_of(state: LogState) -> int:
    """How many copies a log is to have: as an operator wishes, or as its replicas were told."""
    return state.copies_wish.copies or state.copies


def leads(state: LogState, caller: ReplicaCall) -> bool:
    return caller.epoch == state.epoch and caller.replica_id == state.leader


def knows(state: LogState, caller: ReplicaCall) -> bool:
    """Whether the caller knows this very state."""
    return (caller.history, caller.version) == (state.history, state.version)


def preference(state: LogState) -> list[str]:
    """Among equals the first replica of the log leads, and the one that was lost comes last."""
    former = state.former_leader
    others = [each.replica_id for each in state.replicas if each.replica_id != former]
    return [*others, former]


def config_of(state: LogState) -> Config:
    return Config(frozenset(state.in_sync), state.quorum)


def rank_of(told: Report) -> RuleRank:
    return RuleRank(told.rank.epoch, told.rank.end)


def rule_report(told: Report) -> RuleReport:
    return RuleReport(rank_of(told), told.sound, told.damaged)
