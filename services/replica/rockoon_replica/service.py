"""Service of the streams: finds the replica of the log that a follower names."""

from collections.abc import AsyncIterator
from typing import Any

from grpc import aio

from rockoon_core.errors import InvalidArgument, NotReady
from rockoon_proto.v1 import replica_pb2 as pb
from rockoon_proto.v1.replica_pb2_grpc import (
    ReplicationServicer,
    add_ReplicationServicer_to_server,
)
from rockoon_replica.replica import Replica
from rockoon_runtime.access.rules import SERVICES_ONLY, Rules
from rockoon_runtime.node_identities import NodeIdentities
from rockoon_runtime.tls import peer_identity

SERVICE_NAME = "rockoon.v1.Replication"
RULES: Rules = {f"/{SERVICE_NAME}/Replicate": SERVICES_ONLY}


class ReplicationService(ReplicationServicer):
    """The servicer, for all logs of a process.

    Args:
        node_identities: which certificates followers must show; None where callers show none.
    """

    def __init__(self, node_identities: NodeIdentities | None = None) -> None:
        self._node_identities = node_identities
        self._replicas: dict[str, Replica] = {}

    def serve(self, log_name: str, replica: Replica) -> None:
        """Have followers of a log answered by this replica, and by no former one."""
        self._replicas[log_name] = replica

    def refuse(self, log_name: str) -> None:
        """Answer no follower of this log."""
        self._replicas.pop(log_name, None)

    async def Replicate(
        self, request_iterator: Any, context: object
    ) -> AsyncIterator[pb.LeaderSays]:
        requests = aiter(request_iterator)
        first = await anext(requests, None)
        if first is None or first.WhichOneof("what") != "hello":
            raise InvalidArgument(reason="a follower says Hello first")
        if self._node_identities is not None:
            # Who may be a replica of this log may confirm what is in it.
            identity = peer_identity(context)
            names = identity.names if identity is not None else ()
            self._node_identities.check(first.hello.log, names)
        replica = self._replicas.get(first.hello.log)
        if replica is None:
            raise NotReady(
                service="the replica", reason=f"it serves no log {first.hello.log!r} at present"
            )
        async for said in replica.replicate(first.hello, requests):
            yield said


def add_to_server(service: ReplicationService, server: aio.Server) -> None:
    add_ReplicationServicer_to_server(service, server)
