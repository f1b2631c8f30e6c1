"""Status of a log's copies, as reported by each copy: `cluster.admin.logs.ask_replicas`."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rockoon.errors import BrokerUnavailable, RockoonError
from rockoon_core.channels import Channels
from rockoon_proto.v1.replica_pb2 import DescribeReplicaReply, DescribeReplicaRequest
from rockoon_proto.v1.replica_pb2_grpc import ReplicationStub

if TYPE_CHECKING:
    from rockoon.net.connection import Connection
    from rockoon_proto.v1.replica_pb2_grpc import ReplicationAsyncStub

STANDING_SECONDS_MAX = 3.0


@dataclass(frozen=True, slots=True)
class ReplicaLag:
    """Lag of a copy, as its leader reports it.

    Attributes:
        connected: whether the copy is connected to the leader.
        bytes: bytes that the copy lacks; None until this leader has heard the copy.
        seconds: time since the copy last had all bytes; None until this leader has heard it.
    """

    connected: bool
    bytes: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class ReplicaStanding:
    """Status of a copy, as it reports itself.

    Attributes:
        leads: the copy is the leader and has committed a record in its epoch.
        epoch: highest epoch that the copy has promised.
        ready: the copy leads, or has all records of a leader that commits.
        trouble: why the copy is not ready; empty if it is.
        min_offset, end, durable_end, committed_end: physical offsets of its log.
        others: lag of each other copy, by id; empty if this copy is not the leader.
    """

    leads: bool
    epoch: int
    ready: bool
    trouble: str
    min_offset: int
    end: int
    durable_end: int
    committed_end: int
    others: Mapping[str, ReplicaLag]

    @classmethod
    def from_wire(cls, reply: DescribeReplicaReply) -> "ReplicaStanding":
        return cls(
            reply.leads,
            reply.epoch,
            reply.ready,
            reply.trouble,
            reply.min_offset,
            reply.end,
            reply.durable_end,
            reply.committed_end,
            {
                each.replica_id: ReplicaLag(
                    each.connected,
                    each.behind_bytes if each.heard else None,
                    each.behind_seconds if each.heard else None,
                )
                for each in reply.others
            },
        )


async def ask_standings(
    cluster: "Connection", log: str, addresses: Iterable[tuple[str, str]]
) -> Mapping[str, ReplicaStanding]:
    """Ask copies of a log in parallel, for at most three seconds; return the replies by id.

    Args:
        cluster: an open connection.
        log: name of the log.
        addresses: id and "host:port" of each copy.
    """
    channels = Channels(cluster.tls, cluster.access)

    async def ask(address: str) -> ReplicaStanding | None:
        stub: ReplicationAsyncStub = ReplicationStub(channels.get(address))
        try:
            reply = await cluster.call(
                stub.DescribeReplica,
                DescribeReplicaRequest(log=log),
                unavailable=BrokerUnavailable,
                timeout_seconds=STANDING_SECONDS_MAX,
                broker=address,
            )
        except RockoonError:
            return None
        return ReplicaStanding.from_wire(reply)

    try:
        async with asyncio.TaskGroup() as tasks:
            asked = {
                replica_id: tasks.create_task(ask(address)) for replica_id, address in addresses
            }
    finally:
        await channels.close()
    answers = ((replica_id, task.result()) for replica_id, task in asked.items())
    return {replica_id: standing for replica_id, standing in answers if standing is not None}
