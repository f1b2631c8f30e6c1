"""Logs with several copies, in etcd: each call decides on the state in a log's key and writes the
next one by compare-and-swap. This process keeps no state, so any nameserver can do the next step.

The decisions are in `elections` and `log_membership`.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from rockoon_core.errors import Busy, EtcdUnavailable, InvalidArgument, LogNotFound
from rockoon_nameserver import elections, log_membership
from rockoon_nameserver.elections import CommittedEnd, LogDecision, missing_records, next_record
from rockoon_nameserver.etcd_data import (
    KeyCondition,
    KeyValue,
    PutKey,
    absent,
    only,
    unchanged,
)
from rockoon_nameserver.follower import EtcdFollower
from rockoon_nameserver.keyspace import (
    KIND_FOLDERS,
    Keyspace,
    LogKey,
    ReplicaKey,
    UnreadableKey,
    committed_end_value,
    log_value,
    read_committed_end,
    read_log,
)
from rockoon_nameserver.route_store import RouteStore
from rockoon_proto.v1 import logs_pb2 as pb
from rockoon_proto.v1.nameserver_pb2 import NodeKind

log = logging.getLogger(__name__)

# All replicas of a log report when its leader is lost, so conflicts are frequent.
ATTEMPTS_MAX = 16
# Changes of a log's state that are counted.
CHANGES = ("election", "leader", "hold", "loss", "freeze", "adoption")

Decision = Callable[[pb.LogState], LogDecision]


class Logs:
    """Changes the states of logs in etcd, at the request of replicas and operators.

    Attributes:
        changes: number of changes that this nameserver has made, by `CHANGES`.
    """

    def __init__(self, etcd: RouteStore, keyspace: Keyspace) -> None:
        self._etcd = etcd
        self._keyspace = keyspace
        self.changes: Counter[str] = Counter()

    async def suspect(self, request: pb.SuspectLeaderRequest) -> pb.LogReply:
        return await self._call(
            request.caller,
            lambda state: elections.suspect(state, request.caller, retract=request.retract),
        )

    async def report(self, request: pb.ReportLogRequest) -> pb.LogReply:
        committed = await self._committed_end(checked(request.caller.kind, request.caller.log))

        def decide(state: pb.LogState) -> LogDecision:
            if state.frozen:
                return log_membership.report_frozen(state, request.caller, request.report)
            lacks = partial(missing_records, state, committed)
            return elections.report(state, request.caller, request.report, lacks)

        return await self._call(request.caller, decide, also_frozen=True)

    async def record_committed_end(self, request: pb.RecordCommittedEndRequest) -> pb.LogReply:
        """Write a log's committed end to its own key, if the caller leads the log."""
        caller = request.caller
        key = checked(caller.kind, caller.log)
        name = self._keyspace.committed_end(key)
        for _ in range(ATTEMPTS_MAX):
            states, records = await self._etcd.read_at_once(self._keyspace.one(key), only(name))
            if not states:
                raise LogNotFound(log=key.log)
            state, revision = read_log(key, states[0].value), states[0].mod_revision
            before = committed_in(records)
            record = next_record(state, before, caller, request.end)
            done = elections.leads(state, caller)
            if record is None:
                return pb.LogReply(state=state, done=done, revision=revision)
            # The state may change before the write. Committed records stay committed, and a loss
            # accepted before it makes the record invalid.
            written = await self._etcd.transaction(
                [unchanged(name, records[0].mod_revision if records else 0)],
                [PutKey(name, committed_end_value(record))],
            )
            if written.succeeded:
                return pb.LogReply(state=state, done=done, revision=revision)
        raise Busy(reason=f"the recorded committed end of log {key.log!r} keeps changing")

    async def _committed_end(self, key: LogKey) -> CommittedEnd | None:
        name = self._keyspace.committed_end(key)
        return committed_in((await self._etcd.read(only(name))).items)

    async def confirm(self, request: pb.ConfirmEpochRequest) -> pb.LogReply:
        return await self._call(
            request.caller, lambda state: elections.confirm(state, request.caller)
        )

    async def change_in_sync(self, request: pb.ChangeInSyncRequest) -> pb.LogReply:
        return await self._call(
            request.caller,
            lambda state: elections.change_in_sync(
                state, request.caller, request.in_sync, request.quorum
            ),
        )

    async def hand_over(self, request: pb.HandOverRequest) -> pb.LogReply:
        return await self._call(
            request.caller,
            lambda state: elections.hand_over(
                state, request.caller, request.successor, request.rank
            ),
        )

    async def resign(self, request: pb.ResignRequest) -> pb.LogReply:
        return await self._call(
            request.caller, lambda state: elections.resign(state, request.caller)
        )

    async def move(self, request: pb.MoveReplicaRequest) -> pb.LogReply:
        return await self._change(
            checked(request.kind, request.log),
            lambda state: log_membership.move(state, request.move, withdraw=request.withdraw),
        )

    async def remove(self, request: pb.RemoveReplicaRequest) -> pb.LogReply:
        key, who = checked(request.kind, request.log), request.replica_id
        process = self._keyspace.one(ReplicaKey(request.kind, request.log, who))
        if (await self._etcd.read(process)).items:
            raise InvalidArgument(
                reason=f"replica {who!r} runs, or its lease has not expired yet: stop its process, "
                "and repeat the call"
            )
        return await self._change(
            key, lambda state: log_membership.remove(state, who), [absent(process)]
        )

    async def set_copies(self, request: pb.SetCopiesRequest) -> pb.LogReply:
        return await self._change(
            checked(request.kind, request.log),
            lambda state: log_membership.set_copies(state, request.copies, request.stays),
        )

    async def go_on_alone(self, request: pb.GoOnAloneRequest) -> pb.LogReply:
        return await self._call(
            request.caller, lambda state: log_membership.go_on_alone(state, request.caller)
        )

    async def elect(self, request: pb.ElectLogRequest) -> pb.LogReply:
        return await self._change(
            checked(request.kind, request.log),
            lambda state: elections.elect(
                state, request.expected_version, accept_loss=request.accept_loss
            ),
        )

    async def adopt(self, request: pb.AdoptLogRequest) -> pb.LogReply:
        return await self._change(
            checked(request.kind, request.log),
            lambda state: log_membership.adopt(
                state, list(request.in_sync), accept_loss=request.accept_loss
            ),
        )

    async def freeze(self, key: LogKey, reason: str) -> pb.LogReply:
        """Freeze a log; no change if it is frozen."""

        def decide(state: pb.LogState) -> LogDecision:
            after = state if state.frozen else log_membership.frozen(state, reason)
            return LogDecision(after, done=True)

        return await self._change(key, decide)

    async def _call(
        self, caller: pb.ReplicaCall, decide: Decision, *, also_frozen: bool = False
    ) -> pb.LogReply:
        """Decide about a replica's call and write the next state of its log. If the call shows that
        etcd was restored, freeze the log.

        Raises:
            LogNotFound: the log does not exist.
            InvalidArgument: the caller is not its replica.
            Busy: concurrent changes won `ATTEMPTS_MAX` times.
        """

        def decide_checked(state: pb.LogState) -> LogDecision:
            if caller.replica_id not in {each.replica_id for each in state.replicas}:
                raise InvalidArgument(
                    reason=f"{caller.replica_id!r} is not registered as a replica of log "
                    f"{state.log!r}"
                )
            doubt = log_membership.newer_state_known(
                state, caller.replica_id, caller.epoch, caller.history, caller.version
            )
            if doubt and not state.frozen:
                return LogDecision(log_membership.frozen(state, doubt), done=False)
            if state.frozen and not also_frozen:
                return LogDecision(state, done=False)
            return decide(state)

        return await self._change(checked(caller.kind, caller.log), decide_checked)

    async def _change(
        self, key: LogKey, decide: Decision, conditions: Sequence[KeyCondition] = ()
    ) -> pb.LogReply:
        name = self._keyspace.key(key)
        for _ in range(ATTEMPTS_MAX):
            found = (await self._etcd.read(self._keyspace.one(key))).items
            if not found:
                raise LogNotFound(log=key.log)
            before, revision = read_log(key, found[0].value), found[0].mod_revision
            outcome = decide(before)
            if outcome.state == before:
                return pb.LogReply(state=before, done=outcome.done, revision=revision)
            committed = await self._etcd.transaction(
                [unchanged(name, revision), *conditions],
                [PutKey(name, log_value(outcome.state))],
            )
            if committed.succeeded:
                self._log_change(before, outcome.state)
                return pb.LogReply(
                    state=outcome.state, done=outcome.done, revision=committed.revision
                )
        raise Busy(reason=f"log {key.log!r} keeps changing: try again")

    def _log_change(self, before: pb.LogState, after: pb.LogState) -> None:
        """Count and log the changes that operators need to know."""
        name = f"log {after.log}, epoch {after.epoch}"
        if after.losses > before.losses:
            self.changes["loss"] += 1
            log.error(
                "%s: an operator accepted a loss: %s leads with a log that ends at %d",
                name, after.leader, after.loss_end,
            )  # fmt: skip
        if after.frozen and not before.frozen:
            self.changes["freeze"] += 1
            log.error("%s is frozen: %s", name, after.frozen)
        if before.frozen and not after.frozen:
            self.changes["adoption"] += 1
            log.warning("%s is adopted", name)
        if after.held and after.held != before.held:
            self.changes["hold"] += 1
            log.error(
                "%s: the election waits for an operator: %s. Start the replicas that are away, or "
                "accept the loss: rockoon log elect %s --accept-loss",
                name, after.held, after.log,
            )  # fmt: skip
        if after.epoch > before.epoch:
            self.changes["election"] += 1
        if after.leader and after.leader != before.leader:
            self.changes["leader"] += 1
            log.info("%s: %s leads; former leader: %s", name, after.leader, before.leader or "none")


async def freeze_when_etcd_goes_back(follower: EtcdFollower, logs: Logs) -> None:
    """Freeze all logs with copies after etcd went back; runs until the follower is closed.

    Their replicas would detect it too, but only when they call: replicas that newer in-sync sets
    have left out could be elected before.
    """
    table, history = follower.table, 0
    async for _ in follower.wakeups():
        if history in (0, table.history):
            history = table.history
            continue
        seen = table.history
        try:
            for key in table.logs.with_state():
                state = table.logs.state(key)
                if state is not None and len(state.replicas) > 1 and not state.frozen:
                    await logs.freeze(key, "etcd went back to an earlier state")
        except (EtcdUnavailable, Busy, LogNotFound) as failure:
            log.warning("logs are not frozen yet: %s; retrying after the next heartbeat", failure)
        else:
            history = seen


def committed_in(found: Sequence[KeyValue]) -> CommittedEnd | None:
    """Return the committed end from its key; None if missing or unreadable."""
    try:
        return read_committed_end(found[0].value) if found else None
    except UnreadableKey as failure:
        # Elections continue without the check.
        log.warning("a recorded committed end is ignored: %s", failure)
        return None


def checked(kind: NodeKind, name: str) -> LogKey:
    """Return the key of a log. Raises LogNotFound for an impossible name."""
    if kind not in KIND_FOLDERS or not name or "/" in name:
        raise LogNotFound(log=name)
    return LogKey(kind, name)
