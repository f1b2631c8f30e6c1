"""Services started from the manifests: they serve, probes are answered, certificates fit."""

from pathlib import Path

import grpc
import pytest
from deploy.manifests import ROOT, build, overlays
from deploy.pods import CA, CERTIFICATE, KEY, Secrets, running
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rockoon_core.signature import Credentials
from rockoon_proto.v1.nameserver_pb2 import DescribeClusterRequest
from rockoon_proto.v1.nameserver_pb2_grpc import NameServerStub
from support.waiting import DEADLINE_SECONDS

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def channel(address: str, called: str, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
    """Return a channel of a client; a server's certificate must have the called name."""
    if credentials is None:
        return grpc.insecure_channel(address)
    return grpc.secure_channel(
        address, credentials, [("grpc.ssl_target_name_override", called.rpartition(":")[0])]
    )


def client_credentials(secrets: Secrets) -> grpc.ChannelCredentials:
    place = secrets.directory("rockoon-client-tls")
    return grpc.ssl_channel_credentials(
        (place / CA).read_bytes(), (place / KEY).read_bytes(), (place / CERTIFICATE).read_bytes()
    )


@pytest.mark.parametrize("name", overlays())
def test_services_started_from_the_manifests_find_each_other_and_answer_probes(
    name: str, tmp_path: Path
) -> None:
    overlay = build(ROOT / "overlays" / name)
    with running(overlay, tmp_path) as (pods, secrets):
        for pod in pods.values():
            for probe in PROBES:
                assert pod.probed(probe) == health_pb2.HealthCheckResponse.SERVING
        encrypted = any(
            overlay.settings(*each).value.tls == "mutual" for each in overlay.services()
        )
        assert encrypted == (name == "production")
        credentials = client_credentials(secrets) if encrypted else None
        nameserver = pods["nameserver"].node.address
        signed = []
        if encrypted:
            signer = Credentials(secrets.cluster_key).signer(nameserver)
            request = DescribeClusterRequest().SerializeToString()
            signed = [signer.entry("/rockoon.v1.NameServer/DescribeCluster", request)]
        with channel(nameserver, "rockoon-nameserver:9876", credentials) as called:
            stub = NameServerStub(called)
            known = stub.DescribeCluster(
                DescribeClusterRequest(), timeout=DEADLINE_SECONDS, metadata=signed
            )
            if encrypted:
                with pytest.raises(grpc.RpcError) as refused:
                    stub.DescribeCluster(DescribeClusterRequest(), timeout=DEADLINE_SECONDS)
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        # With TLS this also shows that each certificate allows its pod's name.
        assert {node.address for node in known.nodes} == {
            pods["broker"].advertised,
            pods["offset"].advertised,
        }
        for service in ("broker", "offset"):
            with channel(
                pods[service].node.address, pods[service].advertised, credentials
            ) as called:
                request = health_pb2.HealthCheckRequest()
                reply = health_pb2_grpc.HealthStub(called).Check(request, timeout=DEADLINE_SECONDS)
                assert reply.status == health_pb2.HealthCheckResponse.SERVING
        if encrypted:
            with channel(nameserver, "", None) as called, pytest.raises(grpc.RpcError) as refused:
                NameServerStub(called).DescribeCluster(
                    DescribeClusterRequest(), timeout=DEADLINE_SECONDS
                )
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
