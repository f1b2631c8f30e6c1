"""Waits until the nameservers list a node.

A broker is ready once one nameserver has registered it in etcd; the other nameservers follow a
moment later. `LocalCluster` waits until all nameservers list all nodes, so that the first call of a
client, at any nameserver, finds everything.
"""

import time
from collections.abc import Iterable, Iterator, Mapping

import grpc

from rockoon.local.process import LocalClusterError, Node
from rockoon_core.channels import Dialer, Tls
from rockoon_core.signature import AccessKey, Credentials
from rockoon_proto.v1 import nameserver_pb2 as pb
from rockoon_proto.v1.nameserver_pb2_grpc import NameServerStub

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
