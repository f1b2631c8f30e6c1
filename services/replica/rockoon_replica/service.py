"""gRPC service of replication: passes each stream to the replica of its log."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from grpc import aio

from rockoon_core.errors import Busy, InvalidArgument, NotReady
from rockoon_proto.v1 import replica_pb2 as pb
from rockoon_proto.v1.replica_pb2_grpc import (
    ReplicationServicer,
    add_ReplicationServicer_to_server,
)
from rockoon_replica.copy_check import RANGES_MAX
from rockoon_replica.member import Role
from rockoon_replica.replica import Replica
from rockoon_replica.standing import lagging, trouble
from rockoon_runtime.access.rules import SERVICES_ONLY, Rules, on_cluster
from rockoon_runtime.tls import NodeIdentities, peer_identity

SERVICE_NAME = "rockoon.v1.Replication"
RULES: Rules = {
    f"/{SERVICE_NAME}/Replicate": SERVICES_ONLY,
    f"/{SERVICE_NAME}/DescribeReplica": on_cluster("read"),
    f"/{SERVICE_NAME}/ReadCopy": SERVICES_ONLY,
    f"/{SERVICE_NAME}/CheckCopy": SERVICES_ONLY,
}


class ReplicationService(ReplicationServicer):
    """gRPC servicer of replication, for the replicas of all logs of a process.

    Args:
        node_identities: required certificates of followers; None if callers have none.
    """

    def __init__(self, node_identities: NodeIdentities | None = None) -> None:
        self._node_identities = node_identities
        self._replicas: dict[str, Replica] = {}

    def serve(self, log_name: str, replica: Replica) -> None:
        """Pass followers of a log to this replica, instead of a former one."""
        self._replicas[log_name] = replica

    def refuse(self, log_name: str) -> None:
        """Refuse followers of a log that no replica of this process serves any more."""
        self._replicas.pop(log_name, None)

    async def Replicate(
        self, request_iterator: Any, context: object
    ) -> AsyncIterator[pb.LeaderSays]:
        requests = aiter(request_iterator)
        first = await anext(requests, None)
        if first is None or first.WhichOneof("what") != "hello":
            raise InvalidArgument(reason="a follower must send Hello first")
        self._check_identity(first.hello.log, context)
        async for message in self._replica(first.hello.log).replicate(first.hello, requests):
            yield message

    async def DescribeReplica(
        self, request: pb.DescribeReplicaRequest, context: object
    ) -> pb.DescribeReplicaReply:
        del context
        return description_of(self._replica(request.log))

    async def ReadCopy(self, request: pb.ReadCopyRequest, context: object) -> pb.ReadCopyReply:
        self._check_identity(request.log, context)
        return await self._replica(request.log).read_copy(request.offset, request.bytes_max)

    async def CheckCopy(self, request: pb.CheckCopyRequest, context: object) -> pb.CheckCopyReply:
        self._check_identity(request.log, context)
        if not 0 <= request.begin < request.end:
            raise InvalidArgument(reason=f"range {request.begin} to {request.end} is empty")
        if not self._replica(request.log).check.add(request.begin, request.end):
            raise Busy(reason=f"{RANGES_MAX} ranges of log {request.log} are queued: try again")
        return pb.CheckCopyReply()

    def _check_identity(self, log_name: str, context: object) -> None:
        """Refuse callers that are no replicas of this log: they must not read or acknowledge."""
        if self._node_identities is not None:
            identity = peer_identity(context)
            names = identity.names if identity is not None else ()
            self._node_identities.check(log_name, names)

    def _replica(self, log_name: str) -> Replica:
        replica = self._replicas.get(log_name)
        if replica is None:
            raise NotReady(
                service="the replica", reason=f"it does not serve log {log_name!r} at present"
            )
        return replica


def description_of(replica: Replica) -> pb.DescribeReplicaReply:
    """Return the state of a replica, for operators."""
    replicated = replica.replicated
    return pb.DescribeReplicaReply(
        replica_id=replica.member.replica,
        leads=replica.role is Role.LEADING,
        epoch=replica.member.facts.promised,
        ready=replica.is_ready,
        trouble=trouble(replica),
        min_offset=replicated.min_offset,
        end=replicated.end,
        durable_end=replicated.durable_end,
        committed_end=replicated.committed_end,
        damaged_at=replica.member.facts.damaged,
        repaired=replica.record.checks.repaired_records,
        others=[
            pb.ReplicaLag(
                replica_id=each.replica,
                connected=each.connected,
                heard=each.bytes is not None,
                behind_bytes=each.bytes or 0,
                behind_seconds=each.seconds or 0.0,
            )
            for each in lagging(replica, asyncio.get_running_loop().time())
        ],
    )


def add_to_server(service: ReplicationService, server: aio.Server) -> None:
    add_ReplicationServicer_to_server(service, server)
