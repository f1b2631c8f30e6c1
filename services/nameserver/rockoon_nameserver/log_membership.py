"""Membership of logs: the next state of a log when a replica registers or an operator asks, and
adoption of a log after etcd was restored from a backup. Pure.

See the invariants of `elections`. A replica that registers becomes a voter only in a new log.
"""

from rockoon_core.errors import InvalidArgument, LogFrozen, NodeNameTaken, NotReady
from rockoon_nameserver.elections import EPOCH_MAX, LogDecision, changed, set_voters
from rockoon_proto.v1.logs_pb2 import CopiesWish, LogState, Move, Replica, ReplicaCall, Report
from rockoon_proto.v1.nameserver_pb2 import Node, ReplicaFacts

COPIES_MAX = 7
# Voters, and former or possible ones; the oldest of the latter are removed.
REPLICAS_MAX = 16


def registered(
    state: LogState | None,
    node: Node,
    facts: ReplicaFacts,
    *,
    is_new: bool,
    name_exists: bool,
) -> LogState:
    """Return the state of a log after a replica registered; the same object if nothing changes.

    Args:
        state: None if etcd has none.
        facts: report of the replica about its store.
        is_new: the node was not registered before: a process that has just started suspects no
            leader.
        name_exists: the log is older than its state: topics have queues on it, or a node of its
            name is live.

    Raises:
        InvalidArgument: the facts are impossible.
        NodeNameTaken: its store has other messages, and cannot become a copy of the log.
        NotReady: its store is empty, and the replica with the log's messages must register first.
    """
    if not 0 <= facts.copies <= COPIES_MAX:
        raise InvalidArgument(reason=f"{facts.copies} copies: a log has 1 to {COPIES_MAX}")
    who = node.store_id
    if state is None:
        first = first_state(node, facts, name_exists=name_exists)
        first.replicas[0].CopyFrom(entry_of(first.replicas[0], node, facts))
        return first
    doubt = newer_state_known(state, who, facts.promised, facts.history, facts.version)
    after = frozen(state, doubt) if doubt and not state.frozen else state
    if who not in {each.replica_id for each in state.replicas}:
        after = joined(state, after, node, facts)
    elif is_new and (who in after.suspects or obsolete_moves(after, who)):
        after = changed(after)
        suspects = [each for each in after.suspects if each != who]
        moves = [each for each in after.moves if each not in obsolete_moves(after, who)]
        del after.suspects[:], after.moves[:]
        after.suspects.extend(suspects)
        after.moves.extend(moves)
    if who in after.in_sync and facts.copies > after.copies and not after.frozen:
        after = changed(after)
        after.copies = facts.copies
    elif facts.copies == 1 and is_only_voter(after, who):
        after = of_one_copy(after)
    at = [each.replica_id for each in after.replicas].index(who)
    entry = entry_of(after.replicas[at], node, facts)
    if after.replicas[at] != entry:
        after = changed(after)
        after.replicas[at].CopyFrom(entry)
    if after.version > state.version:
        # Several changes in one call are one version.
        after.version = state.version + 1
    return after


def entry_of(known: Replica, node: Node, facts: ReplicaFacts) -> Replica:
    """Return a replica's entry in the log's state. The known start stays unless the reported one is
    later: a store with no more starts than etcd knows is an older snapshot, and its replica detects
    that by the entry (rule 13 in docs/understand/replication.md).
    """
    is_later = facts.starts > known.starts
    return Replica(
        replica_id=node.store_id,
        name=node.replica,
        rack=node.rack,
        starts=facts.starts if is_later else known.starts,
        run=facts.run if is_later else known.run,
        halted=facts.halted,
    )


def registered_without_replication(state: LogState | None, node: Node) -> LogState:
    """Return the state of a log after a broker without replication registered: its only copy.
    Raises NodeNameTaken: the log has other copies."""
    if state is None:
        return make_only_replica(LogState(kind=node.kind, log=node.name), node)
    if is_only_voter(state, node.store_id):
        return of_one_copy(state)
    if [each.replica_id for each in state.replicas] == [node.store_id]:
        return state
    if len(state.replicas) == 1 and state.copies == 1 and not state.frozen:
        # An emptied store may replace the only copy; the loss is recorded here.
        after = make_only_replica(changed(state), node)
        after.losses += 1
        after.loss_epoch, after.loss_end = after.epoch, 0
        return after
    raise NodeNameTaken(
        f"{node.name!r} is a log with copies: this broker is started as none of its replicas",
        name=node.name,
        address=node.address,
    )


def of_one_copy(state: LogState) -> LogState:
    """Return the state of a log whose only voter was started as its only copy: it accepts no
    followers.

    Other registered replicas may become copies when it is started as one of several.
    """
    if state.copies == 1 and not state.copies_wish.copies:
        return state
    after = changed(state)
    after.copies = 1
    after.ClearField("copies_wish")
    return after


def is_only_voter(state: LogState, replica_id: str) -> bool:
    """True if the replica is the only voter of a log that is not frozen."""
    return list(state.in_sync) == [replica_id] and not state.frozen


def move(state: LogState, asked: Move, *, withdraw: bool) -> LogDecision:
    """Store (or withdraw) an operator's request to replace one replica by another; the leader
    carries it out.

    Raises:
        LogFrozen: the log waits for its adoption.
        InvalidArgument: the move is impossible, or contradicts another one.
    """
    if state.frozen:
        raise LogFrozen(log=state.log, reason=state.frozen)
    if (asked in state.moves) != withdraw:
        return LogDecision(state, done=True)
    after = changed(state)
    if withdraw:
        after.moves.remove(asked)
        return LogDecision(after, done=True)
    known = {each.replica_id for each in state.replicas}
    if asked.leaves not in state.in_sync:
        raise InvalidArgument(reason=f"{asked.leaves!r} is not in sync: it cannot be replaced")
    if asked.joins not in known or asked.joins in state.in_sync:
        raise InvalidArgument(reason=f"{asked.joins!r} is not a registered replica out of sync")
    if {asked.leaves, asked.joins} & {who for each in state.moves for who in move_replicas(each)}:
        raise InvalidArgument(reason="another move of one of the two is requested: withdraw it")
    after.moves.append(asked)
    return LogDecision(after, done=True)


def remove(state: LogState, replica_id: str) -> LogDecision:
    """Remove a replica that is not in sync, at an operator's request. Its store is refused from
    then on.

    Raises:
        LogFrozen: the log waits for its adoption, which may need the replica.
        InvalidArgument: the replica votes, or its records may be needed.
    """
    if state.frozen:
        raise LogFrozen(log=state.log, reason=state.frozen)
    if not state.leader:
        raise InvalidArgument(
            reason=f"log {state.log!r} has no leader: it may need the records of each replica"
        )
    if replica_id in state.in_sync:
        raise InvalidArgument(
            reason=f"{replica_id!r} is in sync: start it with an empty store, or request its "
            "replacement by another replica"
        )
    kept = [each for each in state.replicas if each.replica_id != replica_id]
    if len(kept) == len(state.replicas):
        return LogDecision(state, done=True)
    after = changed(state)
    moves = [each for each in after.moves if each.joins != replica_id]
    del after.replicas[:], after.moves[:]
    after.replicas.extend(kept)
    after.moves.extend(moves)
    return LogDecision(after, done=True)


def set_copies(state: LogState, copies: int, stays: str) -> LogDecision:
    """Store an operator's request for more or fewer copies; the leader carries it out.

    Raises:
        LogFrozen: the log waits for its adoption.
        InvalidArgument: the number is impossible, or `stays` is not in sync.
    """
    if state.frozen:
        raise LogFrozen(log=state.log, reason=state.frozen)
    if not 1 <= copies <= COPIES_MAX:
        raise InvalidArgument(reason=f"{copies} copies: a log has 1 to {COPIES_MAX}")
    if copies == 2:
        raise InvalidArgument(
            reason="2 copies: if either fails, the log accepts no messages; ask for 1, or for 3"
        )
    if not state.epoch:
        raise InvalidArgument(reason=f"log {state.log!r} still waits for its first replicas")
    if copies > 1 and state.copies == 1:
        raise InvalidArgument(
            reason=f"the process of log {state.log!r} is started as its only copy: start it with "
            f"copies = {copies}, and the others with empty stores"
        )
    if stays and stays not in state.in_sync:
        raise InvalidArgument(reason=f"{stays!r} is not in sync: it cannot be the one that stays")
    after = changed(state)
    after.ClearField("copies_wish")
    if copies != state.copies:
        after.copies_wish.CopyFrom(CopiesWish(copies=copies, stays=stays))
    same = after.copies_wish == state.copies_wish
    return LogDecision(state if same else after, done=True)


def go_on_alone(state: LogState, caller: ReplicaCall) -> LogDecision:
    """Turn a log into one without replication, at the request of its only voter.

    The epoch ends and the other replicas are removed: a learner may have bytes of this epoch that
    the caller lost in a crash and will write differently. The learner is refused when it registers.
    """
    if not is_only_voter(state, caller.replica_id):
        return LogDecision(state, done=False)
    (itself,) = [each for each in state.replicas if each.replica_id == caller.replica_id]
    node = Node(kind=state.kind, store_id=itself.replica_id, replica=itself.name, rack=itself.rack)
    after = make_only_replica(changed(state), node)
    after.copies = 1
    after.ClearField("copies_wish")
    del after.moves[:], after.suspects[:]
    return LogDecision(after, done=True)


def first_state(node: Node, facts: ReplicaFacts, *, name_exists: bool) -> LogState:
    """Return the first state of a log that has no state in etcd."""
    who, copies = node.store_id, facts.copies or 1
    state = LogState(kind=node.kind, log=node.name, copies=copies)
    if facts.promised or facts.version:
        state.epoch, state.history, state.version = facts.promised, facts.history, facts.version
        state.replicas.add(replica_id=who, name=node.replica, rack=node.rack)
        return frozen(
            state, f"etcd has lost its state, which {node.replica!r} knows to have existed"
        )
    if not facts.empty or (copies == 1 and not name_exists):
        return make_only_replica(state, node)
    if name_exists:
        raise NotReady(
            service=f"log {node.name!r}",
            reason=f"it exists, and the store of {node.replica!r} is empty: first start the "
            "replica that has its messages",
        )
    state.version = 1
    state.replicas.add(replica_id=who, name=node.replica, rack=node.rack)
    return state


def make_only_replica(state: LogState, node: Node) -> LogState:
    """Make a replica the only copy; its records before the next epoch are committed."""
    state.version = max(1, state.version)
    state.epoch += 1
    state.leader, state.former_leader, state.confirmed = node.store_id, "", True
    state.vain_epochs, state.copies = 0, max(1, state.copies)
    state.at_least.Clear()
    state.reports.clear()
    del state.replicas[:]
    state.replicas.add(replica_id=node.store_id, name=node.replica or node.name, rack=node.rack)
    set_voters(state, [node.store_id])
    return state


def joined(state: LogState, frozen_or_same: LogState, node: Node, facts: ReplicaFacts) -> LogState:
    """Add a new replica to the log; it does not vote yet."""
    # If it reported a later version than etcd's, the caller has frozen the log.
    is_known = frozen_or_same.frozen and (facts.version or facts.promised)
    if state.frozen and not is_known:
        raise NotReady(service=f"log {state.log!r}", reason=f"it is frozen: {state.frozen}")
    if not facts.empty and not is_known:
        if not state.epoch:
            # The other replicas are empty and wait for more: they copy this one.
            after = make_only_replica(changed(state), node)
            after.replicas.extend(state.replicas)
            return after
        raise NodeNameTaken(
            f"the store of {node.replica!r} has other messages and is not a copy of log "
            f"{state.log!r}: start it with an empty store to make it one",
            name=state.log,
            address=node.address,
        )
    after = changed(frozen_or_same)
    remove_former(after, node)
    after.replicas.add(replica_id=node.store_id, name=node.replica, rack=node.rack)
    if not after.epoch and not after.frozen and len(after.replicas) >= after.copies:
        after.epoch = 1
        set_voters(after, [each.replica_id for each in after.replicas])
    elif not after.frozen:
        request_replacement(after, node)
    return after


def request_replacement(after: LogState, node: Node) -> None:
    """Request that a replica with an emptied disk replaces the voter of the same name, unless the
    voter already leaves. The leader changes the voters when the replica has copied the log.
    """
    moving = {who for each in after.moves for who in move_replicas(each)}
    for each in after.replicas:
        if each.name == node.replica and each.replica_id in set(after.in_sync) - moving:
            after.moves.add(leaves=each.replica_id, joins=node.store_id)
            return


def obsolete_moves(state: LogState, who: str) -> list[Move]:
    """Return the moves that replace a replica by a new replica of the same name. They are obsolete,
    because the replica has returned with its disk."""
    names = {each.replica_id: each.name for each in state.replicas}
    return [
        each
        for each in state.moves
        if not state.frozen and each.leaves == who and names.get(each.joins) == names.get(who)
    ]


def remove_former(after: LogState, node: Node) -> None:
    """Remove the former replica of a new replica's name, unless the former one votes.

    Moves to the former one become moves to this one, because the operator meant the process.
    """
    kept, former = list[Replica](), set[str]()
    for each in after.replicas:
        if each.replica_id in after.in_sync or each.name != node.replica:
            kept.append(each)
        else:
            former.add(each.replica_id)
    for asked in after.moves:
        if asked.joins in former:
            asked.joins = node.store_id
    while len(kept) >= REPLICAS_MAX:
        kept.remove(next(each for each in kept if each.replica_id not in after.in_sync))
    known = {node.store_id, *(each.replica_id for each in kept)}
    moves = [each for each in after.moves if each.joins in known]
    del after.replicas[:], after.moves[:]
    after.replicas.extend(kept)
    after.moves.extend(moves)


def move_replicas(asked: Move) -> set[str]:
    return {asked.leaves, asked.joins}


# Epochs that may have been used after the latest one that a replica reports.
EPOCHS_LEFT_OUT = 65_536


def newer_state_known(state: LogState, who: str, epoch: int, history: int, version: int) -> str:
    """Return the evidence that etcd was restored: the replica knows a newer state than etcd. Empty
    without evidence.

    Args:
        epoch: which it has promised, or calls about.
        history, version: history and version of the latest state that it knows.
    """
    if (history, version) > (state.history, state.version):
        return (
            f"replica {who!r} knows version {version} of history {history}, and etcd has "
            f"{state.version} of {state.history}"
        )
    if epoch > state.epoch:
        return f"replica {who!r} has come to epoch {epoch}, and etcd to {state.epoch}"
    return ""


def frozen(state: LogState, reason: str) -> LogState:
    """Return the state of the log as frozen, without the reports of an election.

    After a restore of etcd, replicas know a later state than etcd. The in-sync set in etcd may be
    one that lacks committed messages, and must elect no leader. The leader continues, the replicas
    report their state, and an operator adopts the log.
    """
    after = LogState()
    after.CopyFrom(state)
    after.frozen = reason
    after.reports.clear()
    return after


def report_frozen(state: LogState, caller: ReplicaCall, reported: Report) -> LogDecision:
    """Store the report of a replica of a frozen log; the operator who adopts the log needs it."""
    if state.reports.get(caller.replica_id) == reported:
        return LogDecision(state, done=True)
    after = changed(state)
    after.reports[caller.replica_id].CopyFrom(reported)
    return LogDecision(after, done=True)


def adopt(state: LogState, in_sync: list[str], *, accept_loss: bool) -> LogDecision:
    """Unfreeze a log for an operator: an election begins in an epoch that no replica has used.

    Args:
        state: state of the log, with the reports of its replicas.
        in_sync: voters; empty for the newest set that a replica knows.
        accept_loss: proceed although some voters have not reported.

    Raises:
        InvalidArgument: the log is not frozen, no replica knows the in-sync set, or a member
            has not reported.
    """
    if not state.frozen:
        raise InvalidArgument(reason=f"log {state.log!r} is not frozen")
    chosen = sorted(set(in_sync or newest_in_sync(state)))
    missing = [who for who in chosen if who not in state.reports]
    if missing and (len(missing) == len(chosen) or not accept_loss):
        raise InvalidArgument(
            reason=f"{', '.join(missing)} of the in-sync set {', '.join(chosen)} of log "
            f"{state.log!r} did not report yet"
        )
    reports = state.reports.values()
    epoch = max(state.epoch, *(each.promised for each in reports)) + EPOCHS_LEFT_OUT
    if epoch > EPOCH_MAX:
        raise InvalidArgument(reason=f"log {state.log!r} has no epoch left")
    after = changed(state)
    after.version = max(state.version, *(each.version for each in reports)) + 1
    after.history = max(state.history, *(each.history for each in reports)) + 1
    after.epoch, after.leader, after.former_leader, after.confirmed = epoch, "", "", False
    after.held = ""
    after.frozen, after.copies = "", max(state.copies, len(chosen))
    after.reports.clear()
    del after.moves[:], after.suspects[:]
    known = {each.replica_id for each in after.replicas}
    for who in chosen:
        if who not in known:
            after.replicas.add(replica_id=who)
    set_voters(after, chosen)
    return LogDecision(after, done=True)


def newest_in_sync(state: LogState) -> list[str]:
    """Return the in-sync set of the newest state that any replica knows. Raises InvalidArgument:
    the replicas that know that version have lost its set."""
    known = [((each.history, each.version), list(each.in_sync)) for each in state.reports.values()]
    known.append(((state.history, state.version), list(state.in_sync)))
    newest = max(version for version, _ in known)
    for version, in_sync in known:
        if version == newest and in_sync:
            return in_sync
    raise InvalidArgument(
        reason=f"no replica of log {state.log!r} remembers who was in sync: name them"
    )
