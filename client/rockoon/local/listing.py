"""Waits until the nameservers list new nodes, and until logs have a changed number of copies.

A broker is ready once one nameserver has registered it in etcd; the other nameservers follow a
moment later. `LocalCluster` waits until all nameservers list all nodes, so that the first call of a
client, at any nameserver, finds everything.

The leader of each log changes the in-sync set once no message is lost by it. Until then all
replicas run.
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import grpc

from rockoon.errors import InvalidArgument, RockoonError
from rockoon.local.process import LocalClusterError, Node
from rockoon_core.channels import Dialer, Tls
from rockoon_core.signature import AccessKey, Credentials
from rockoon_proto.v1 import nameserver_pb2 as pb
from rockoon_proto.v1.nameserver_pb2_grpc import NameServerStub

if TYPE_CHECKING:
    from rockoon.cluster import Cluster

CALL_SECONDS_MAX = 1.0
LOOK_SECONDS = 0.005


def listed(nodes: Iterable[pb.Node]) -> Iterator[str]:
    """Yield the names of nodes, and of the replicas of logs."""
    for node in nodes:
        yield node.name
        yield from (replica.name for replica in node.replicas)


def wait_listed(
    nameserver: Node,
    nodes: Mapping[str, Node],
    deadline: float,
    tls: Tls | None = None,
    access: AccessKey | None = None,
) -> None:
    """Wait until a nameserver lists these nodes, or has ended.

    Args:
        nameserver: a nameserver that has been ready.
        nodes: brokers and offset services, by the names under which they are listed.
        deadline: on `time.monotonic`'s clock.
        tls: TLS of the calls; None for plain connections.
        access: key that signs the calls; None for unsigned calls.

    Raises:
        LocalClusterError: it does not list them in time, or a missing node has ended.
    """
    missing = set(nodes)
    signing = None if access is None else Credentials(access)
    with Dialer(tls, signing).blocking_channel(nameserver.address) as channel:
        describe = NameServerStub(channel).DescribeCluster
        while missing and nameserver.ready:
            try:
                reply = describe(pb.DescribeClusterRequest(), timeout=CALL_SECONDS_MAX)
                missing = set(nodes) - set(listed(reply.nodes))
            except grpc.RpcError:
                # The nameserver may be ending or restarting.
                pass
            for name in missing:
                # A replica may report ready before it learns that the nameservers refuse it.
                nodes[name].wait_ready(deadline)
            if missing:
                if time.monotonic() > deadline:
                    raise LocalClusterError(
                        f"{nameserver.name} does not list {', '.join(sorted(missing))}"
                    )
                time.sleep(LOOK_SECONDS)


COPIES_LOOK_SECONDS = 0.1


def settle_copies(
    nameservers: Sequence[str],
    logs: Mapping[str, Collection[str]],
    wanted: int,
    seconds_max: float,
    tls: "Tls | None" = None,
    access: "AccessKey | None" = None,
) -> Mapping[str, Collection[str]]:
    """Change logs to a number of copies; wait for the logs that have more.

    Args:
        nameservers, tls, access: for the connection to the cluster.
        logs: log → names of its running replicas.
        wanted: number of copies of each log.

    Returns:
        For each log with more replicas: the names of its replicas in sync.

    Raises:
        LocalClusterError: the request was refused, or timed out. The change may still happen
            later: all replicas keep running.
    """
    # Imported here: waiting for nodes does not need it.
    from rockoon import sync

    deadline = time.monotonic() + seconds_max
    fewer = [log for log, replicas in logs.items() if len(replicas) > wanted]
    with sync.connect(nameservers, tls=tls, access=access) as cluster:
        try:
            cluster.call(ask_for(cluster.asyncio, logs, wanted, deadline))
            return {
                log: cluster.call(_counting(cluster.asyncio, log, wanted, deadline))
                for log in fewer
            }
        except RockoonError as failure:
            raise LocalClusterError(f"not all logs have {wanted} copies: {failure}") from failure


async def ask_for(cluster: "Cluster", logs: Collection[str], wanted: int, deadline: float) -> None:
    """Request a number of copies for each log; retry refusals until a monotonic deadline. Raises
    RockoonError: the last refusal."""
    for log in logs:
        while True:
            found = await cluster.admin.logs.describe(log)
            # A new log waits for its first replicas.
            if not found.epoch or found.copies == wanted:
                break
            try:
                await cluster.admin.logs.set_copies(log, wanted)
                break
            except InvalidArgument:
                # A killed process that was the log's only copy is listed until its lease ends; then
                # a replica that was started now replaces it.
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(COPIES_LOOK_SECONDS)


async def _counting(cluster: "Cluster", log: str, wanted: int, deadline: float) -> list[str]:
    while True:
        found = await cluster.admin.logs.describe(log)
        if found.leader is not None and found.confirmed and len(found.in_sync) == wanted:
            return [each.name for each in found.in_sync]
        if time.monotonic() > deadline:
            raise LocalClusterError(
                f"log {log} still has {len(found.in_sync)} copies in sync instead of "
                f"{wanted}: see `rockoon log describe {log}` while all of them run"
            )
        await asyncio.sleep(COPIES_LOOK_SECONDS)
