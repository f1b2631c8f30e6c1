"""Cluster status, as reported by each node."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rockoon.admin.descriptions import ClusterStatus, NodeStatus
from rockoon.admin.logs import LogStatus, ask_log_status
from rockoon.errors import (
    BrokerNotFound,
    NameserverUnavailable,
    NotPermitted,
    OffsetServiceUnavailable,
    RockoonError,
)
from rockoon_core.channels import Channels
from rockoon_core.clock import wall_clock_ms
from rockoon_proto.v1.broker_pb2 import DescribeBrokerReply, DescribeBrokerRequest
from rockoon_proto.v1.nameserver_pb2 import BROKER, OFFSET_SERVICE, DescribeClusterRequest, Node
from rockoon_proto.v1.nameserver_pb2_grpc import NameServerStub
from rockoon_proto.v1.offset_pb2 import ListMembersRequest

if TYPE_CHECKING:
    from rockoon.net.connection import Connection
    from rockoon_proto.v1.nameserver_pb2_grpc import NameServerAsyncStub

STATUS_SECONDS_MAX = 3.0


async def ask_status(cluster: "Connection") -> ClusterStatus:
    """Return the status of every node; see `Admin.status`."""
    nodes = cluster.routes.nodes
    channels = Channels(cluster.tls, cluster.access)
    try:
        async with asyncio.TaskGroup() as tasks:
            nameservers = [
                tasks.create_task(_nameserver_status(cluster, channels, address))
                for address in cluster.nameservers
            ]
            brokers = [
                tasks.create_task(_broker_status(cluster, node))
                for node in nodes
                if node.kind == BROKER
            ]
            offset_services = [
                tasks.create_task(_offset_status(cluster, node))
                for node in nodes
                if node.kind == OFFSET_SERVICE
            ]
            logs = tasks.create_task(_log_status(cluster))
    finally:
        await channels.close()
    for task in (*nameservers, *brokers, *offset_services):
        error = task.result().error
        if isinstance(error, NotPermitted):
            raise error
    if isinstance(found := logs.result(), NotPermitted):
        raise found
    return ClusterStatus(
        cluster=cluster.routes.cluster,
        nameservers=[task.result() for task in nameservers],
        brokers=[task.result() for task in brokers],
        offset_services=[task.result() for task in offset_services],
        logs=found,
    )


async def _log_status(cluster: "Connection") -> Sequence[LogStatus] | NotPermitted:
    try:
        return await ask_log_status(cluster, STATUS_SECONDS_MAX)
    except NotPermitted as refused:
        # Returned instead of raised: a TaskGroup would wrap it in an exception group.
        return refused


async def ask_broker(cluster: "Connection", name: str) -> NodeStatus:
    """Return the status of one broker; see `Admin.describe_broker`."""
    node = cluster.routes.broker(name)
    if node is None:
        raise BrokerNotFound(broker=name)
    found = await _broker_status(cluster, node)
    if found.error is not None:
        raise found.error
    return found


async def _nameserver_status(cluster: "Connection", channels: Channels, address: str) -> NodeStatus:
    stub: NameServerAsyncStub = NameServerStub(channels.get(address))
    sent_ms = wall_clock_ms()
    try:
        reply = await cluster.call(
            stub.DescribeCluster,
            DescribeClusterRequest(),
            unavailable=NameserverUnavailable,
            timeout_seconds=STATUS_SECONDS_MAX,
            address=address,
        )
    except RockoonError as error:
        return NodeStatus(name="", address=address, error=error)
    ahead_ms = clock_ahead_ms(sent_ms, reply.clock_ms)
    return NodeStatus(
        name=reply.nameserver, address=address, cluster=reply, clock_ahead_ms=ahead_ms
    )


def clock_ahead_ms(sent_ms: int, clock_ms: int) -> int | None:
    """Return how far a node's clock is certainly ahead of this machine's; None: unknown.

    Args:
        sent_ms: time of the call.
        clock_ms: the node's clock in the reply, which has just arrived; 0: not in the reply.
    """
    if not clock_ms:
        return None
    # The node read its clock between both times.
    return max(0, clock_ms - wall_clock_ms()) or min(0, clock_ms - sent_ms)


async def _broker_status(cluster: "Connection", node: Node) -> NodeStatus:
    sent_ms = wall_clock_ms()
    try:
        reply = await cluster.call_broker(
            node.name, "DescribeBroker", DescribeBrokerRequest(), STATUS_SECONDS_MAX
        )
    except RockoonError as error:
        return NodeStatus(name=node.name, address=node.address, node=node, error=error)
    return NodeStatus(
        name=node.name,
        address=node.address,
        node=node,
        broker=reply,
        problems=tuple(broker_problems(reply, drained=node.drained)),
        clock_ahead_ms=clock_ahead_ms(sent_ms, reply.clock_ms),
    )


def broker_problems(reply: DescribeBrokerReply, *, drained: bool) -> Iterable[str]:
    """Return the problems that a broker reports. A former version reports only one, elsewhere."""
    if not reply.problems and not reply.writable and not drained:
        return (f"it takes no messages: {reply.not_writable_reason}",)
    return reply.problems


async def _offset_status(cluster: "Connection", node: Node) -> NodeStatus:
    sent_ms = wall_clock_ms()
    try:
        reply = await cluster.call(
            cluster.offset_service().ListMembers,
            ListMembersRequest(),
            unavailable=OffsetServiceUnavailable,
            timeout_seconds=STATUS_SECONDS_MAX,
        )
    except RockoonError as error:
        return NodeStatus(name=node.name, address=node.address, node=node, error=error)
    members = sum(len(group.members) for group in reply.groups)
    return NodeStatus(
        name=node.name,
        address=node.address,
        node=node,
        members=members,
        problems=tuple(reply.problems),
        clock_ahead_ms=clock_ahead_ms(sent_ms, reply.clock_ms),
    )
