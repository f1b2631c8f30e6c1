"""Waiting until the nameservers list a node.

A broker is ready when one nameserver has put it into etcd; the others learn of it a moment later.
A cluster is handed over when all of them know all of it, so that whatever is done first, by way of
whichever nameserver, finds everything there.
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
    """Names of nodes, and of the replicas of logs."""
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
    """Wait until a nameserver lists these nodes, or is not up any more.

    Args:
        nameserver: one that has been ready.
        nodes: brokers and offset services, by the names under which they are listed.
        deadline: on `time.monotonic`'s clock.
        tls: how it is called; None means plainly.
        access: signs the calls; None means that they are not signed.

    Raises:
        LocalClusterError: it does not list them in time, or one that it does not list has ended.
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
                # It may be ending, or just starting again.
                pass
            for name in missing:
                # A replica that the nameservers refuse was ready before it heard of that.
                nodes[name].wait_ready(deadline)
            if missing:
                if time.monotonic() > deadline:
                    raise LocalClusterError(
                        f"{nameserver.name} does not list {', '.join(sorted(missing))}"
                    )
                time.sleep(LOOK_SECONDS)
