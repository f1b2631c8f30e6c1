"""Standings of copies of a log, as each says itself: `cluster.admin.logs.ask_replicas`."""

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
    """How far a copy is behind, as its leader knows.

    Attributes:
        connected: to the leader, now.
        bytes, seconds: what it has not got, and for how long it has not had everything; None when
            this leader has not heard it yet.
    """

    connected: bool
    bytes: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class ReplicaStanding:
    """One copy, as it says itself.

    Attributes:
        leads: it leads, and has committed something in its epoch.
        epoch: the highest that it has promised.
        ready: it leads, or is level with a leader that commits.
        trouble: why it is not ready; empty when it is.
        min_offset, end, durable_end, committed_end: of its log, bytes.
        others: how far the others are behind, by their ids; empty while it does not lead.
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
    def from_wire(cls, told: DescribeReplicaReply) -> "ReplicaStanding":
        return cls(
            told.leads,
            told.epoch,
            told.ready,
            told.trouble,
            told.min_offset,
            told.end,
            told.durable_end,
            told.committed_end,
            {
                each.replica_id: ReplicaLag(
                    each.connected,
                    each.behind_bytes if each.heard else None,
                    each.behind_seconds if each.heard else None,
                )
                for each in told.others
            },
        )


async def ask_standings(
    cluster: "Connection", log: str, addresses: Iterable[tuple[str, str]]
) -> Mapping[str, ReplicaStanding]:
    """Ask copies of a log, all at once, three seconds at most; by id, those that answered.

    Args:
        cluster: an open connection.
        log: its name.
        addresses: id and "host:port" of each.
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
            asked = {who: tasks.create_task(ask(address)) for who, address in addresses}
    finally:
        await channels.close()
    answers = ((who, task.result()) for who, task in asked.items())
    return {who: standing for who, standing in answers if standing is not None}
