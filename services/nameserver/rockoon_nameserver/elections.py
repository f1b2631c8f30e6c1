"""Elections: the next state of a log after a call from one of its replicas. Pure.

Invariants, of all functions that change a LogState (here, and in `log_membership`):

1. Each change increments `version`, and nothing else does. A caller with an old state changes
   nothing. A frozen log keeps the version that etcd went back to; replicas compare theirs with it.
2. An epoch has one leader: it is set once, and removing it starts another epoch.
3. The voters (`in_sync`, `quorum`) change by the leader's proposal alone, or when an operator
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

# Epochs are stored in 32 bits; a faulty caller must not overflow them.
EPOCH_MAX = (1 << 31) - 1


class LogDecision(NamedTuple):
    """Decision about the state of a log, after a call from a replica or an operator.

    Attributes:
        state: the next state; the same object if nothing changes.
        done: whether the state is now as the call requested.
    """

    state: LogState
    done: bool


def suspect(state: LogState, caller: ReplicaCall, *, retract: bool = False) -> LogDecision:
    """Record that a follower has lost its leader, or (`retract`) has found it again.

    The epoch ends when enough followers suspect the leader to elect another one: a leader that
    fewer followers cannot reach may still commit.
    """
    if caller.epoch != state.epoch or caller.replica_id not in state.in_sync:
        return LogDecision(state, done=False)
    if not state.leader:
        return LogDecision(state, done=not retract)
    if caller.replica_id == state.leader:
        raise InvalidArgument(reason="a leader does not suspect itself: it resigns")
    if (caller.replica_id in state.suspects) != retract:
        return LogDecision(state, done=True)
    after = changed(state)
    if retract:
        after.suspects.remove(caller.replica_id)
        return LogDecision(after, done=True)
    after.suspects.append(caller.replica_id)
    if len(after.suspects) >= election_size(config_of(after)):
        begin_election(after)
    return LogDecision(after, done=True)


def report(
    state: LogState,
    caller: ReplicaCall,
    reported: Report,
    lacks: Callable[[str, Rank], str] = lambda _winner, _rank: "",
) -> LogDecision:
    """Record the rank of a replica that has promised the epoch. If no further report is needed,
    elect the leader.

    Reports of replicas that do not vote are kept: an operator may have to elect one.

    Args:
        caller, reported: the replica, and its report.
        lacks: returns why a winner with a rank must not lead; see `missing_records`.
    """
    if not (0 <= reported.rank.epoch < max(caller.epoch, 1) and reported.rank.end >= 0):
        raise InvalidArgument(reason="the rank is not one of a log before this epoch")
    if caller.epoch != state.epoch or state.leader or not state.epoch:
        return LogDecision(state, done=state.leader == caller.replica_id)
    if state.reports.get(caller.replica_id) == reported:
        return LogDecision(state, done=True)
    after = changed(state)
    after.reports[caller.replica_id].CopyFrom(reported)
    winner = elected(
        config_of(after),
        {who: rule_report(each) for who, each in after.reports.items()},
        preference(after),
    )
    if winner is not None:
        after.held = lacks(winner, after.reports[winner].rank)
        if not after.held:
            install_leader(after, winner, after.reports[winner].rank)
    return LogDecision(after, done=True)


def confirm(state: LogState, caller: ReplicaCall) -> LogDecision:
    """Record that the first record of the leader is committed: this epoch was not in vain."""
    if not leads(state, caller):
        return LogDecision(state, done=False)
    if state.confirmed:
        return LogDecision(state, done=True)
    after = changed(state)
    after.confirmed, after.vain_epochs = True, 0
    return LogDecision(after, done=True)


def resign(state: LogState, caller: ReplicaCall) -> LogDecision:
    """Remove the leader at its own request, and begin an election."""
    if not leads(state, caller):
        return LogDecision(state, done=caller.epoch < state.epoch)
    after = changed(state)
    begin_election(after)
    return LogDecision(after, done=True)


def hand_over(state: LogState, caller: ReplicaCall, successor: str, rank: Rank) -> LogDecision:
    """Hand over the log from its leader to the successor that the leader named. The former leader
    accepts no records.

    The leader must know the current state of the log: this call may arrive after the leader stopped
    waiting for its reply and committed records that the successor does not have.
    """
    if successor == caller.replica_id or (leads(state, caller) and successor not in state.in_sync):
        raise InvalidArgument(reason=f"{successor!r} is not another member of the in-sync set")
    if not leads(state, caller) or not knows(state, caller):
        done = state.epoch == caller.epoch + 1 and state.leader == successor
        return LogDecision(state, done=done)
    after = changed(state)
    begin_election(after)
    install_leader(after, successor, rank)
    return LogDecision(after, done=True)


def change_in_sync(
    state: LogState, caller: ReplicaCall, in_sync: Sequence[str], quorum: int
) -> LogDecision:
    """Store the in-sync set that the leader proposes; the leader decides which sets are safe.
    Raises InvalidArgument: this log cannot have this in-sync set."""
    proposed = sorted(in_sync)
    if leads(state, caller) and proposed == list(state.in_sync) and quorum == state.quorum:
        return LogDecision(state, done=True)
    if not leads(state, caller) or not knows(state, caller):
        return LogDecision(state, done=False)
    known = {each.replica_id for each in state.replicas}
    if len(set(proposed)) < len(proposed) or not set(proposed) <= known:
        raise InvalidArgument(reason="an in-sync set has distinct registered replicas as members")
    if caller.replica_id not in proposed:
        raise InvalidArgument(reason="a leader stays in its in-sync set: it hands over first")
    copies = copies_of(state)
    # Fewer than `copies` while a replica is away for longer than the log can wait for it.
    if len(proposed) not in (len(state.in_sync), *range(2, copies), copies):
        raise InvalidArgument(
            reason=f"{len(proposed)} replicas: log {state.log!r} has {len(state.in_sync)} in sync, "
            f"and is to have {copies}"
        )
    if quorum != quorum_of(len(proposed), 1):
        raise InvalidArgument(reason=f"{quorum} of {len(proposed)} replicas are not their majority")
    after = changed(state)
    remove_replaced(after, proposed)
    set_voters(after, proposed)
    return LogDecision(after, done=True)


def remove_replaced(after: LogState, proposed: Sequence[str]) -> None:
    """Remove the replicas that others of their names replace in a proposed in-sync set. Their disks
    are lost: a process has one store.
    """
    joins = set(proposed) - set(after.in_sync)
    names = {each.name for each in after.replicas if each.replica_id in joins}
    kept = [e for e in after.replicas if e.replica_id in proposed or e.name not in names]
    del after.replicas[:]
    after.replicas.extend(kept)


def elect(state: LogState, expected_version: int, *, accept_loss: bool) -> LogDecision:
    """Start an election for an operator, or (`accept_loss`) end an election that cannot finish.

    Raises:
        LogFrozen: the log is frozen.
        LogChanged: its version is not the expected one.
        InvalidArgument: no replica can be elected.
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
            return LogDecision(state, done=True)
        begin_election(after)
        return LogDecision(after, done=True)
    if state.leader:
        raise InvalidArgument(reason=f"log {state.log!r} has a leader: begin an election first")
    if not state.reports:
        raise InvalidArgument(reason=f"no replica of log {state.log!r} has reported its rank")
    voters = [who for who in state.reports if who in state.in_sync]
    reported = {who: rule_report(state.reports[who]) for who in voters or state.reports}

    def order(who: str) -> tuple[bool, RuleRank, bool]:
        return not reported[who].damaged, reported[who].rank, reported[who].sound

    # Undamaged copies first: a damaged one may have no other to be repaired from. The former
    # leader counts like any copy.
    winner = max(sorted(reported), key=order)
    after.losses += 1
    after.loss_epoch, after.loss_end = after.epoch, reported[winner].rank.end
    if winner not in after.in_sync:
        # No member of the set has reported: the winner replaces the first member.
        set_voters(after, [winner, *after.in_sync[1:]])
    install_leader(after, winner, state.reports[winner].rank)
    return LogDecision(after, done=True)


def changed(state: LogState) -> LogState:
    """Return a copy with the next version."""
    after = LogState()
    after.CopyFrom(state)
    if not state.frozen:
        after.version += 1
    return after


def begin_election(after: LogState) -> None:
    """End the epoch. `install_leader` sets the leader of the next one, once."""
    if after.epoch >= EPOCH_MAX:
        raise InvalidArgument(reason=f"log {after.log!r} has no epoch left")
    if after.leader:
        # A repeated election has no leader: `former_leader` stays the last one.
        after.former_leader, after.former_epoch = after.leader, after.epoch
    if not after.confirmed:
        after.vain_epochs += 1
    after.epoch += 1
    after.leader, after.confirmed, after.held = "", False, ""
    after.reports.clear()
    del after.suspects[:]


def install_leader(after: LogState, leader: str, rank: Rank) -> None:
    assert not after.leader, "an epoch has one leader"
    after.leader, after.held = leader, ""
    after.at_least.CopyFrom(rank)
    after.reports.clear()


def set_voters(after: LogState, in_sync: Sequence[str]) -> None:
    """Set a log's voters and quorum; remove suspicions and moves that no longer apply."""
    after.in_sync[:] = sorted(in_sync)
    after.quorum = quorum_of(len(in_sync), 1)
    suspects = [each for each in after.suspects if each in in_sync]
    after.suspects[:] = suspects
    moves = [each for each in after.moves if each.leaves in in_sync and each.joins not in in_sync]
    del after.moves[:]
    after.moves.extend(moves)


def copies_of(state: LogState) -> int:
    """Number of copies that a log should have: the operator's request, or the replicas' setting."""
    return state.copies_wish.copies or state.copies


def leads(state: LogState, caller: ReplicaCall) -> bool:
    return caller.epoch == state.epoch and caller.replica_id == state.leader


def knows(state: LogState, caller: ReplicaCall) -> bool:
    """True if the caller knows the latest state of the log."""
    return (caller.history, caller.version) == (state.history, state.version)


def preference(state: LogState) -> list[str]:
    """Return replicas in the order of preference at equal ranks; the former leader is last."""
    former = state.former_leader
    others = [each.replica_id for each in state.replicas if each.replica_id != former]
    return [*others, former]


def config_of(state: LogState) -> Config:
    return Config(frozenset(state.in_sync), state.quorum)


def rank_of(reported: Report) -> RuleRank:
    return RuleRank(reported.rank.epoch, reported.rank.end)


def rule_report(reported: Report) -> RuleReport:
    return RuleReport(rank_of(reported), reported.sound, reported.damaged)


class CommittedEnd(NamedTuple):
    """A log's committed end, as its leader recorded it.

    Committed records are on a quorum of the voters, and each set of voters that elects a leader
    overlaps each quorum. So the winner of a regular election has at least the recorded end, in the
    recorded epoch or a later one. A winner with less shows that voters lost acknowledged records
    without detecting it, for example because a disk was restored from an older snapshot. After an
    accepted loss, the log may end before the recorded end.

    Attributes:
        epoch: epoch of the leader that recorded it.
        end: position in the log.
        losses: `LogState.losses` at that time.
    """

    epoch: int
    end: int
    losses: int


def next_record(
    state: LogState, before: CommittedEnd | None, caller: ReplicaCall, end: int
) -> CommittedEnd | None:
    """Return the record to write for a leader's call; None if it changes nothing.

    Args:
        before: the record so far; None: there is none.
        caller: the replica that calls as the leader, with its epoch.
        end: position up to which its log is committed.
    """
    if not leads(state, caller) or state.frozen or end <= 0:
        return None
    record = CommittedEnd(caller.epoch, end, state.losses)
    if before is not None and before.losses == state.losses:
        # Both ends were committed.
        record = record._replace(end=max(before.end, end))
    return None if record == before else record


def missing_records(state: LogState, record: CommittedEnd | None, winner: str, rank: Rank) -> str:
    """Return why the winner of an election must not lead: its log ends before the committed end.
    Empty if it may lead.

    Args:
        record: the committed end; None: no leader has recorded one.
        winner, rank: id and rank of the best replica that reported.
    """
    if record is None or record.losses != state.losses:
        return ""
    if rank.epoch >= record.epoch and rank.end >= record.end:
        return ""
    names = {each.replica_id: each.name for each in state.replicas}
    return (
        f"of the replicas that reported, {names.get(winner) or winner} has the most records: up to "
        f"{rank.end} in epoch {rank.epoch}. But the log was committed up to {record.end} in epoch "
        f"{record.epoch}, as its leader recorded: acknowledged records are missing"
    )
