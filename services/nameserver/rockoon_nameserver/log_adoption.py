"""Adoption of logs: repairs of a log's state after etcd was restored from a backup. Pure.

Replicas then know a later state than etcd. Its in-sync set may be one that lacks committed
messages, and must elect no leader: the log is frozen, its leader continues, its replicas report
their state, and an operator adopts it. See the invariants of `elections`.
"""

from rockoon_core.errors import InvalidArgument
from rockoon_nameserver.elections import EPOCH_MAX, LogDecision, changed, set_voters
from rockoon_proto.v1.logs_pb2 import LogState, ReplicaCall, Report

# Epochs that may have been used after the latest one that a replica reports.
EPOCHS_LEFT_OUT = 65_536


def newer_state_known(state: LogState, who: str, epoch: int, history: int, version: int) -> str:
    """Return the evidence that etcd was restored: the replica knows a newer state than etcd. Empty
    without evidence.

    Args:
        state: of the log in etcd.
        who: the replica.
        epoch: which it has promised, or calls about.
        history, version: of the latest state that it knows.
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
    """Return the state of the log as frozen, without the reports of an election."""
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
        state: of the log, with the reports of its replicas.
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
    """Return the in-sync set of the newest state that any replica knows.

    Raises:
        InvalidArgument: the replicas that know that version have lost its set.
    """
    known = [((each.history, each.version), list(each.in_sync)) for each in state.reports.values()]
    known.append(((state.history, state.version), list(state.in_sync)))
    newest = max(version for version, _ in known)
    for version, in_sync in known:
        if version == newest and in_sync:
            return in_sync
    raise InvalidArgument(
        reason=f"no replica of log {state.log!r} remembers who was in sync: name them"
    )
