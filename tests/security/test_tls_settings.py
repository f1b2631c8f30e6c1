"""TLS settings of services and clients, and refusals before the start."""

import grpc
import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rockoon.errors import InvalidArgument
from rockoon.local.authority import Authority
from rockoon.net.tls import TROUBLE_SECONDS, TlsTroubles, from_environment
from rockoon_core.channels import Channels, Tls
from rockoon_core.errors import WrongIdentity
from rockoon_core.pem_files import PemError
from rockoon_nameserver.server import etcd_tls
from rockoon_nameserver.settings import NameserverSettings
from rockoon_runtime.settings import SettingsError
from rockoon_runtime.tls import NodeIdentities, TlsSettings, client_tls, server_tls
from rockoon_runtime.wire import GrpcServer
from support.tls_server import serving, who_am_i


def test_without_tls_there_is_nothing_to_give() -> None:
    assert server_tls(TlsSettings()) is None
    assert client_tls(TlsSettings()) is None


def test_a_certificate_that_would_not_be_used_is_refused(authority: Authority) -> None:
    issued = authority.issue("server")
    with pytest.raises(SettingsError, match="tls_certificate is set, but tls = off"):
        server_tls(TlsSettings(tls_certificate=issued.certificate))
    with pytest.raises(SettingsError, match="etcd_tls = off"):
        etcd_tls(NameserverSettings(etcd_tls_ca=authority.ca))


def test_files_that_are_missing_or_do_not_fit_are_refused_at_start(authority: Authority) -> None:
    issued, other = authority.issue("server"), authority.issue("other")
    with pytest.raises(SettingsError, match="tls = on needs tls_certificate"):
        server_tls(TlsSettings(tls="on"))
    with pytest.raises(SettingsError, match="tls = mutual needs tls_ca"):
        server_tls(
            TlsSettings(tls="mutual", tls_certificate=issued.certificate, tls_key=issued.key)
        )
    with pytest.raises(SettingsError, match="values mismatch"):
        server_tls(TlsSettings(tls="on", tls_certificate=issued.certificate, tls_key=other.key))
    absent = issued.key.with_name("none.key")
    with pytest.raises(SettingsError, match="No such file"):
        server_tls(TlsSettings(tls="on", tls_certificate=issued.certificate, tls_key=absent))


async def test_a_certificate_for_clients_alone_is_good_for_clients_alone(
    authority: Authority,
) -> None:
    own = authority.issue("client", usage=ExtendedKeyUsageOID.CLIENT_AUTH)
    with pytest.raises(SettingsError, match="purpose"):
        server_tls(TlsSettings(tls="on", tls_certificate=own.certificate, tls_key=own.key))
    only_server = authority.issue("server", usage=ExtendedKeyUsageOID.SERVER_AUTH)
    with pytest.raises(PemError, match="purpose"):
        Channels(Tls(authority.ca, only_server.certificate, only_server.key))
    async with serving(only_server, authority.ca) as address:
        channels = Channels(Tls(authority.ca, own.certificate, own.key))
        assert (await who_am_i(channels.get(address))).startswith("client")
        await channels.close()


async def test_probes_that_know_no_tls_are_told_the_health_and_nothing_else(
    authority: Authority,
) -> None:
    own = authority.issue("server")
    tls = server_tls(
        TlsSettings(
            tls="mutual",
            tls_certificate=own.certificate,
            tls_key=own.key,
            tls_ca=authority.ca,
        )
    )
    anywhere = "127.0.0.1:0"
    server = GrpcServer(
        "test", "rockoon", anywhere, lambda _: None, ["a.Service"], tls=tls, health_listen=anywhere
    )
    async with server:
        address = f"127.0.0.1:{server.health_port}"
        async with aio.insecure_channel(address) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            for serving in (True, False):
                await server.set_serving(serving)
                reply = await check(health_pb2.HealthCheckRequest(service="a.Service"))
                assert (reply.status == health_pb2.HealthCheckResponse.SERVING) == serving
            with pytest.raises(grpc.RpcError) as refused:
                await who_am_i(channel)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_client_reads_the_environment() -> None:
    assert from_environment({}) is None
    assert from_environment({"ROCKOON_TLS_CA": ""}) is None
    assert from_environment({"ROCKOON_TLS_CA": "ca.pem", "ROCKOON_TLS": "off"}) is None
    assert from_environment({"ROCKOON_TLS": "on"}) is not None
    mutual = {
        "ROCKOON_TLS_CA": "ca.pem",
        "ROCKOON_TLS_CERTIFICATE": "own.pem",
        "ROCKOON_TLS_KEY": "own.key",
        "ROCKOON_TLS_SERVER_NAME": "name",
    }
    assert from_environment(mutual) == Tls("ca.pem", "own.pem", "own.key", "name")
    with pytest.raises(InvalidArgument, match="not on or off"):
        from_environment({"ROCKOON_TLS": "maybe"})


@pytest.mark.parametrize(
    ("pattern", "name", "certificate", "allowed"),
    [
        ("{name}", "broker-a", ["broker-a"], True),
        ("{name}", "broker-a", ["client", "broker-a"], True),
        ("{name}", "broker-a", ["broker-b"], False),
        ("{name}", "broker-a", ["broker-a.example"], False),
        ("{name}", "broker-a", [], False),
        ("{name}", "b.oker", ["broker"], False),
        ("{name}", ".*", ["broker-a"], False),
        ("{name}", "*", ["broker-a"], False),
        ("{name}.broker.*", "broker-0", ["broker-0.broker.default.svc"], True),
        ("{name}.broker.*", "broker-0", ["broker-1.broker.default.svc"], False),
        ("{name}.broker.*", "broker-0", ["broker-0xbroker.default.svc"], False),
    ],
)
def test_a_node_bears_a_name_of_its_certificate(
    pattern: str, name: str, certificate: list[str], allowed: bool
) -> None:
    identities = NodeIdentities(pattern)
    if allowed:
        identities.check(name, certificate)
        return
    with pytest.raises(WrongIdentity) as refused:
        identities.check(name, certificate)
    assert refused.value.details["identity"] == (", ".join(certificate) or "nobody")


def test_a_pattern_that_allows_any_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must contain \{name\}"):
        NodeIdentities("*")


def test_trouble_counts_when_it_lasts_and_is_everywhere() -> None:
    troubles = TlsTroubles()
    both = ["a:1", "b:1"]
    troubles.record("a:1", "expired", 0.0)
    troubles.record("b:1", "", 0.0)
    assert not troubles.lasting(both, 10.0), "the other one may be only away"
    assert troubles.first == ("a:1", "expired")
    troubles.record("b:1", "expired", 1.0)
    assert not troubles.lasting(both, 1.0)
    troubles.record("a:1", "expired", 1.1)
    assert troubles.lasting(both, 1.0 + TROUBLE_SECONDS)
    troubles.record("b:1", "", 2.0)
    assert not troubles.lasting(both, 9.0)
