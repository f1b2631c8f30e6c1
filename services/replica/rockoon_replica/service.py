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

SERVICE_NAME = "rockoon.v1.Replication"
RULES: Rules = {f"/{SERVICE_NAME}/Replicate": SERVICES_ONLY}


class ReplicationService(ReplicationServicer):
    """The servicer, for all logs of a process."""

    def __init__(self) -> None:
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
        del context
        requests = aiter(request_iterator)
        first = await anext(requests, None)
        if first is None or first.WhichOneof("what") != "hello":
            raise InvalidArgument(reason="a follower says Hello first")
        replica = self._replicas.get(first.hello.log)
        if replica is None:
            raise NotReady(
                service="the replica", reason=f"it serves no log {first.hello.log!r} at present"
            )
        async for said in replica.replicate(first.hello, requests):
            yield said


def add_to_server(service: ReplicationService, server: aio.Server) -> None:
    add_ReplicationServicer_to_server(service, server)
