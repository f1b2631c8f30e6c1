"""The Logs service: reads from the follower's table, writes to etcd."""
# ruff: noqa: ARG002 - gRPC hands every method a request and a context

from collections.abc import AsyncIterator
from typing import Any

from rockoon_core.errors import InvalidArgument, LogNotFound
from rockoon_nameserver.follower import EtcdFollower, served
from rockoon_nameserver.keyspace import KIND_FOLDERS, LogKey
from rockoon_nameserver.logs import Logs
from rockoon_nameserver.servicer import set_addresses
from rockoon_proto.v1 import logs_pb2 as pb
from rockoon_proto.v1.logs_pb2_grpc import LogsServicer
from rockoon_runtime.tls import NodeIdentities, peer_identity


def from_replica(method: str) -> Any:
    """Return a method of the service that passes a replica's call to a method of `Logs`."""

    async def call(service: "LogStateService", request: Any, context: Any) -> Any:
        service._check_replica([request.caller.log], context)
        return await getattr(service._logs, method)(request)

    return call


class LogStateService(LogsServicer):
    """The gRPC service Logs (logs.proto): returns states of logs, and changes them for replicas and
    operators.

    Args:
        node_identities: required certificates of replicas; None if callers have none.
        external: whether its callers are in another network, which replicas never are.
    """

    def __init__(
        self,
        logs: Logs,
        follower: EtcdFollower,
        node_identities: NodeIdentities | None = None,
        *,
        external: bool = False,
    ) -> None:
        self._logs = logs
        self._follower = follower
        self._node_identities = node_identities
        self._external = external

    async def WatchLogs(
        self, request: pb.WatchLogsRequest, context: Any
    ) -> AsyncIterator[pb.LogUpdate]:
        self._check_replica(request.logs, context)
        if request.kind not in KIND_FOLDERS:
            raise InvalidArgument(reason="a log is a broker's or an offset service's")
        table, names = self._follower.table, frozenset(request.logs)
        position, history, sent_reachable = 0, table.history, False
        async for is_due in self._follower.wakeups():
            if table.history != history:
                # The watcher's logs are of another etcd, and may have had later revisions.
                position, history = 0, table.history
            update = pb.LogUpdate(
                logs=table.logs.changed_since(request.kind, names, position),
                revision=table.revision,
                etcd_reachable=self._follower.reachable,
            )
            position = update.revision
            if update.logs or is_due or sent_reachable != update.etcd_reachable:
                sent_reachable = update.etcd_reachable
                yield update

    SuspectLeader = from_replica("suspect")
    ReportLog = from_replica("report")
    ConfirmEpoch = from_replica("confirm")
    RecordCommittedEnd = from_replica("record_committed_end")
    ChangeInSync = from_replica("change_in_sync")
    HandOver = from_replica("hand_over")
    Resign = from_replica("resign")
    GoOnAlone = from_replica("go_on_alone")

    async def ListLogs(self, request: pb.ListLogsRequest, context: Any) -> pb.ListLogsReply:
        self._follower.refuse_unloaded()
        table = self._follower.table
        found = [log for key in table.logs.with_state() if (log := self._log(key)) is not None]
        return pb.ListLogsReply(
            logs=found, revision=table.revision, etcd_reachable=self._follower.reachable
        )

    async def DescribeLog(
        self, request: pb.DescribeLogRequest, context: Any
    ) -> pb.DescribeLogReply:
        self._follower.refuse_unloaded()
        log = self._log(LogKey(request.kind, request.log))
        if log is None:
            raise LogNotFound(log=request.log)
        return pb.DescribeLogReply(
            log=log,
            revision=self._follower.table.revision,
            etcd_reachable=self._follower.reachable,
        )

    MoveReplica = served("_logs.move")
    RemoveReplica = served("_logs.remove")
    SetCopies = served("_logs.set_copies")
    ElectLog = served("_logs.elect")
    AdoptLog = served("_logs.adopt")

    def _log(self, key: LogKey) -> pb.Log | None:
        log = self._follower.table.log(key)
        if log is not None:
            set_addresses(log.nodes, external=self._external)
        return log

    def _check_replica(self, logs: Any, context: Any) -> None:
        """Refuse a caller that is no replica of its logs. Raises InvalidArgument, WrongIdentity."""
        if self._external:
            raise InvalidArgument(
                reason="this is the nameserver's external listener, which is for clients"
            )
        if self._node_identities is not None:
            identity = peer_identity(context)
            if not logs:
                raise InvalidArgument(reason="a replica must name the logs that it watches")
            for log in logs:
                self._node_identities.check(log, identity.names if identity is not None else ())
