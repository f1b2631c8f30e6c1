"""A gateway beside a local cluster: in its one process, or a process of its own."""

from pathlib import Path

import pytest

import rockoon
from gateway.wire_client import WireClient, message
from rockoon.local.cluster import LocalCluster
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code


async def stored(cluster: LocalCluster, ca: Path | None = None) -> Code:
    """What a send through the gateway is answered."""
    assert cluster.gateway is not None
    async with (
        rockoon.connect(cluster.nameservers, tls=cluster.tls, access=cluster.access) as connected,
        WireClient(cluster.gateway, ca=ca) as client,
    ):
        await connected.admin.create_topic("orders", if_absent=True)
        answer = await client.send(message("orders"))
        return answer.status.code


@pytest.mark.parametrize("single", [True, False], ids=["one process", "processes"])
async def test_it_is_there_when_it_is_asked_for_and_keeps_nothing(
    tmp_path: Path, single: bool
) -> None:
    async with LocalCluster(tmp_path / "data", single=single, gateway=0) as cluster:
        assert await stored(cluster) == Code.OK
        if not single:
            # It waits for nameservers, and finds them again.
            cluster.restart("gateway")
            assert await stored(cluster) == Code.OK
    async with LocalCluster(tmp_path / "data", single=single) as cluster:
        assert cluster.gateway is None
        assert "gateway" not in [node.name for node in cluster.nodes]


async def test_an_encrypted_cluster_has_an_encrypted_one(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, single=True, tls="mutual", gateway=0) as cluster:
        assert await stored(cluster, tmp_path / "tls" / "ca.pem") == Code.OK


async def test_with_access_keys_its_clients_sign_with_those_that_are_written_down(
    tmp_path: Path,
) -> None:
    async with LocalCluster(tmp_path, single=True, access=True, gateway=0) as cluster:
        assert await stored(cluster) == Code.UNAUTHORIZED
        secrets = tmp_path / "access" / "client-secrets"
        assert secrets.read_text().startswith("#")
        assert secrets.stat().st_mode & 0o777 == 0o600
