"""The cluster's feature level: raised by an operator, after the last service was upgraded."""

import asyncio
import sys
from pathlib import Path

import pytest

from rockoon_core.errors import InvalidArgument, WrongCluster
from rockoon_core.protocol import LEVEL
from rockoon_nameserver.etcd import Etcd
from rockoon_nameserver.etcd_data import KeyValue, PutKey, only
from rockoon_nameserver.keyspace import Keyspace, identity_value, read_identity
from rockoon_proto.v1.nameserver_pb2 import (
    DescribeClusterReply,
    DescribeClusterRequest,
    FinishUpgradeRequest,
    GetRouteRequest,
    Node,
    RegisterNodeRequest,
)
from rockoon_runtime.process import ExitStatus
from support.etcd import EtcdServer
from support.eventually import answered
from support.nameserver import Nameserver, broker_node, running_nameserver
from support.waiting import DEADLINE_SECONDS

KEYSPACE = Keyspace("rockoon")


async def written(etcd: EtcdServer, level: int) -> KeyValue:
    """Write a level into the identity's key, as nameservers do; return the key."""
    async with Etcd((etcd.endpoint,)) as client:
        (found,) = (await client.read(only(KEYSPACE.identity))).items
        value = identity_value(read_identity(found.value), level)
        await client.transaction([], [PutKey(KEYSPACE.identity, value)])
        (found,) = (await client.read(only(KEYSPACE.identity))).items
        return found


async def register(nameserver: Nameserver, node: Node) -> None:
    await nameserver.call("RegisterNode", RegisterNodeRequest(node=node))


async def described(nameserver: Nameserver) -> DescribeClusterReply:
    reply: DescribeClusterReply = await nameserver.call("DescribeCluster", DescribeClusterRequest())
    return reply


async def test_an_upgrade_is_finished_when_no_service_of_a_former_version_is_registered(
    own_etcd: EtcdServer,
) -> None:
    async with running_nameserver(etcd=(own_etcd.endpoint,)) as first:
        assert (await described(first)).level == LEVEL, "a new cluster has no former services"
    # The cluster of a former version.
    await written(own_etcd, 0)
    async with (
        running_nameserver(etcd=(own_etcd.endpoint,)) as one,
        running_nameserver(etcd=(own_etcd.endpoint,)) as two,
    ):
        identity = (await one.call("GetRoute", GetRouteRequest())).cluster_id
        former = broker_node("broker-b", level=0)
        await register(one, broker_node())
        await register(one, former)
        await answered(
            lambda: described(two), lambda reply: list(reply.level_lacking) == ["broker-b"]
        )
        with pytest.raises(InvalidArgument, match=r"are registered: broker-b\. Upgrade"):
            await two.call("FinishUpgrade", FinishUpgradeRequest())
        await register(two, broker_node("broker-b"))
        for _ in range(2):
            reply = await two.call("FinishUpgrade", FinishUpgradeRequest())
            assert reply.level == LEVEL
        route = await one.call("GetRoute", GetRouteRequest(min_revision=reply.revision))
        assert (route.level, route.cluster_id) == (LEVEL, identity)
        with pytest.raises(WrongCluster, match="'broker-b' is of a former version"):
            await register(one, former)


async def test_a_nameserver_refuses_a_cluster_of_a_newer_level_and_changes_nothing(
    own_etcd: EtcdServer,
) -> None:
    async with running_nameserver(etcd=(own_etcd.endpoint,)):
        pass
    before = await written(own_etcd, LEVEL + 1)
    command = ["-m", "rockoon_nameserver", "--etcd", own_etcd.endpoint, "--listen", "127.0.0.1:0"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await asyncio.wait_for(process.communicate(), DEADLINE_SECONDS)
    assert process.returncode == ExitStatus.CONFIGURATION
    reason = f"feature level {LEVEL + 1}, and this nameserver supports {LEVEL}"
    assert reason in errors.decode()
    async with Etcd((own_etcd.endpoint,)) as client:
        assert (await client.read(only(KEYSPACE.identity))).items == [before]


async def test_the_level_survives_a_restart_on_a_file(tmp_path: Path) -> None:
    for _ in range(2):
        async with running_nameserver(routes_path=tmp_path / "routes") as nameserver:
            assert (await described(nameserver)).level == LEVEL
