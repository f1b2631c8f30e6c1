"""Connection of one replica to the nameservers: watches the log's state, and makes the replica's
calls.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from grpc import aio

from rockoon_core.channels import Channels
from rockoon_core.errors import NotAuthenticated, RockoonError, WrongCluster, WrongIdentity
from rockoon_core.replication_rules import Config, Rank, Report
from rockoon_node.key_follower import Watching
from rockoon_node.nameservers import Nameservers
from rockoon_proto.v1 import logs_pb2 as pb
from rockoon_proto.v1.logs_pb2_grpc import LogsStub
from rockoon_replica import actions
from rockoon_replica.actions import ReportLog
from rockoon_replica.log_state import (
    AcceptedLoss,
    CopiesWish,
    LogState,
    Move,
    ProcessRun,
    StateVersion,
)
from rockoon_replica.replica import LogStateCall
from rockoon_runtime.process import Stop

if TYPE_CHECKING:
    from rockoon_proto.v1.logs_pb2_grpc import LogsAsyncStub
    from rockoon_proto.v1.nameserver_pb2 import NodeKind

logger = logging.getLogger(__name__)

CALL_SECONDS_MAX = 2.0
# A nameserver sends an update every 5 s.
SILENT_SECONDS_MAX = 12.0


class NameserverLink:
    """Watches a log's state at any nameserver, and makes its replica's calls; a `LogStateClient`.

    Args:
        channels: those to other replicas; they learn where the log's replicas listen.
        on_state: called with each state, in order of arrival.

    Attributes:
        addresses: addresses of each live replica, by its id.
        names: names of the replicas' processes, by id.
    """

    def __init__(
        self,
        nameservers: Nameservers,
        channels: Channels,
        kind: "NodeKind",
        log_name: str,
        replica_id: str,
        on_state: Callable[[LogState], None],
    ) -> None:
        self._nameservers = nameservers
        self._channels = channels
        self._kind = kind
        self._log_name = log_name
        self._replica_id = replica_id
        self._on_state = on_state
        self._watching = Watching(nameservers, f"log {log_name}")
        self.addresses: dict[str, str] = {}
        self.names: dict[str, str] = {}
        # Names of the replicas that have registered while the log has not started.
        self._waiting: list[str] = []

    async def run(self, stop: Stop) -> None:
        """Watch the log's state until cancelled.

        Args:
            stop: requests the end of the service; `run` calls `fail` if the nameservers refuse this
                replica finally.
        """
        await self._watching.run(self._follow, _is_final, stop)

    async def _follow(self, address: str) -> None:
        stub: LogsAsyncStub = LogsStub(self._nameservers.channel(address))
        request = pb.WatchLogsRequest(kind=self._kind, logs=[self._log_name])
        call: Any = stub.WatchLogs(request, metadata=self._nameservers.metadata)
        try:
            while True:
                async with asyncio.timeout(SILENT_SECONDS_MAX):
                    update = await call.read()
                if update is aio.EOF:
                    return
                self._watching.answered()
                for log in update.logs:
                    self._channels.learn(log.nodes)
                    self.addresses = {node.store_id: node.address for node in log.nodes}
                    self.names = {each.replica_id: each.name for each in log.state.replicas}
                    self._state_received(log.state)
        except TimeoutError:
            logger.info(
                "log %s: nameserver %s is silent, trying another one", self._log_name, address
            )
        finally:
            call.cancel()

    def _state_received(self, message: pb.LogState) -> None:
        if message.epoch > 0:
            self._on_state(state_from_wire(message))
            return
        # The log waits for its first replicas.
        names = sorted(each.name for each in message.replicas)
        if names != self._waiting:
            self._waiting = names
            logger.info(
                "log %s starts when all %d copies have registered; so far: %s",
                self._log_name, message.copies, ", ".join(names),
            )  # fmt: skip

    async def ask(self, call: LogStateCall) -> LogState | None:
        """Make a call to a nameserver; see `LogStateClient`."""
        method, request = self._request(call)

        async def asked(channel: aio.Channel) -> pb.LogReply:
            stub: Any = LogsStub(channel)
            reply: pb.LogReply = await getattr(stub, method)(
                request, timeout=CALL_SECONDS_MAX, metadata=self._nameservers.metadata
            )
            return reply

        reply = await self._nameservers.call_channel(asked)
        return state_from_wire(reply.state) if reply.state.epoch > 0 else None

    def _request(self, call: LogStateCall) -> tuple[str, Any]:
        def caller(seen: StateVersion) -> pb.ReplicaCall:
            return pb.ReplicaCall(
                kind=self._kind,
                log=self._log_name,
                replica_id=self._replica_id,
                epoch=call.epoch,
                version=seen.number,
                history=seen.history,
            )

        match call:
            case actions.ReportLog(_, _, facts):
                message = report_to_wire(call)
                return "ReportLog", pb.ReportLogRequest(
                    caller=caller(facts.version), report=message
                )
            case actions.SuspectLeader(_, seen):
                return "SuspectLeader", pb.SuspectLeaderRequest(caller=caller(seen))
            case actions.RetractSuspicion(_, seen):
                return "SuspectLeader", pb.SuspectLeaderRequest(caller=caller(seen), retract=True)
            case actions.Resign(_, seen):
                return "Resign", pb.ResignRequest(caller=caller(seen))
            case actions.ConfirmEpoch(_, seen):
                return "ConfirmEpoch", pb.ConfirmEpochRequest(caller=caller(seen))
            case actions.RecordCommittedEnd(_, seen, end):
                return "RecordCommittedEnd", pb.RecordCommittedEndRequest(
                    caller=caller(seen), end=end
                )
            case actions.ChangeInSync(_, version, config):
                return "ChangeInSync", pb.ChangeInSyncRequest(
                    caller=caller(version), in_sync=sorted(config.in_sync), quorum=config.quorum
                )
            case actions.HandOver(_, version, successor, rank):
                return "HandOver", pb.HandOverRequest(
                    caller=caller(version), successor=successor, rank=rank_to_wire(rank)
                )


def _is_final(reason: RockoonError) -> bool:
    return isinstance(reason, WrongCluster | NotAuthenticated | WrongIdentity)


def state_from_wire(message: pb.LogState) -> LogState:
    """Convert the state of a log that a nameserver sent."""
    return LogState(
        log=message.log,
        version=StateVersion(message.history, message.version),
        epoch=message.epoch,
        leader=message.leader or None,
        at_least=_rank(message.at_least),
        config=Config(frozenset(message.in_sync), message.quorum),
        replicas=tuple(each.replica_id for each in message.replicas),
        reports={
            who: Report(_rank(report.rank), report.sound, report.damaged)
            for who, report in message.reports.items()
        },
        copies=message.copies,
        wish=_wish(message.copies_wish),
        moves=tuple(Move(each.leaves, each.joins) for each in message.moves),
        confirmed=message.confirmed,
        vain_epochs=message.vain_epochs,
        loss=AcceptedLoss(message.loss_epoch, message.loss_end) if message.loss_epoch else None,
        frozen=bool(message.frozen),
        runs={each.replica_id: ProcessRun(each.starts, each.run) for each in message.replicas},
        held=message.held,
    )


def report_to_wire(action: ReportLog) -> pb.Report:
    """Convert a replica's report to the wire, for an election or for an operator."""
    rank, facts = action.report.rank, action.facts
    return pb.Report(
        rank=rank_to_wire(rank),
        sound=action.report.sound,
        damaged=action.report.damaged,
        promised=facts.promised,
        version=facts.version.number,
        history=facts.version.history,
        in_sync=sorted(facts.config.in_sync) if facts.config else (),
        quorum=facts.config.quorum if facts.config else 0,
    )


def rank_to_wire(rank: Rank) -> pb.Rank:
    return pb.Rank(epoch=rank.epoch, end=rank.end)


def _wish(message: pb.CopiesWish) -> CopiesWish | None:
    return CopiesWish(message.copies, message.stays or None) if message.copies else None


def _rank(message: pb.Rank) -> Rank:
    return Rank(message.epoch, message.end)
