"""A gateway beside a local cluster: in its one process, or a process of its own."""

import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from grpc import StatusCode, aio

import rockoon
from gateway.wire_client import WireClient, message
from rockoon.local.authority import GATEWAY, THIS_MACHINE, Authority, open_gateway_settings
from rockoon.local.cluster import LocalCluster
from rockoon_core.pem_files import try_certificate
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code
from rockoon_proto.v1.settings_pb2 import DescribeSettingsRequest
from rockoon_proto.v1.settings_pb2_grpc import SettingsStub


async def stored(cluster: LocalCluster, ca: Path | None = None) -> Code:
    """Return the reply to a send through the gateway."""
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
            # It waits for nameservers, and connects to them again.
            cluster.restart("gateway")
            assert await stored(cluster) == Code.OK
    async with LocalCluster(tmp_path / "data", single=single) as cluster:
        assert cluster.gateway is None
        assert "gateway" not in [node.name for node in cluster.nodes]


@pytest.mark.parametrize("single", [True, False], ids=["one process", "processes"])
async def test_its_clients_use_tls_or_not_at_the_same_port(tmp_path: Path, single: bool) -> None:
    tls = tmp_path / "tls"
    async with LocalCluster(tmp_path, single=single, gateway=0) as cluster:
        assert await stored(cluster, tls / "ca.pem") == Code.OK
        assert await stored(cluster) == Code.OK
    modes = {path.name: path.stat().st_mode & 0o777 for path in tls.glob("*.key")}
    assert modes == {"ca.key": 0o600, "gateway.key": 0o600}


@pytest.mark.parametrize("tls", ["off", "on"])
async def test_operators_use_tls_for_its_settings_if_the_cluster_has_tls(tls: str) -> None:
    """Its clients may connect without TLS at `listen` in both clusters."""
    chosen = {"plain_connections": True} if tls == "on" else {}
    async with LocalCluster(single=True, tls=tls, gateway=0, settings={"gateway": chosen}) as local:
        assert await stored(local) == Code.OK
        async with rockoon.connect(local.nameservers, tls=local.tls) as cluster:
            (found,) = await cluster.admin.settings.describe("gateway")
        assert found.error is None
        assert found.settings
        if tls == "on":
            async with aio.insecure_channel(found.address) as channel:
                with pytest.raises(aio.AioRpcError) as refused:
                    await SettingsStub(channel).DescribeSettings(DescribeSettingsRequest())
            assert refused.value.code() == StatusCode.UNAVAILABLE


def test_the_certificate_of_its_own_stays_until_it_is_of_no_use(tmp_path: Path) -> None:
    def certificate() -> bytes:
        shown = open_gateway_settings(tmp_path)["tls_certificate"]
        assert isinstance(shown, Path)
        return shown.read_bytes()

    first = certificate()
    assert certificate() == first
    authority, names = Authority(tmp_path / "tls"), (GATEWAY, *THIS_MACHINE, "::1")
    with_host = (*names, socket.gethostname())
    spoilt: list[Callable[[], object]] = [
        lambda: authority.issue(GATEWAY, hosts=with_host, valid=timedelta(days=-1)),
        lambda: authority.issue(GATEWAY, hosts=with_host, valid=timedelta(days=29)),
        lambda: authority.issue(GATEWAY, hosts=(*names, f"not-{socket.gethostname()}")),
        lambda: (tmp_path / "tls" / "gateway.key").write_text("half a k"),
        lambda: (tmp_path / "tls" / "gateway.pem").unlink(),
    ]
    for spoil in spoilt:
        spoil()
        renewed = certificate()
        assert renewed != first
        found = try_certificate(tmp_path / "tls" / "gateway.pem", tmp_path / "tls" / "gateway.key")
        assert found.seconds_left() > 300 * 86_400
        assert {"localhost", "127.0.0.1", socket.gethostname()} <= set(found.hosts)
        assert certificate() == renewed
        first = renewed


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
