"""The component that makes three replicas of one log out of the brokers."""

from pathlib import Path

import grpc
import kubernetes_validate
import pytest
import yaml
from deploy.manifests import ROOT, Overlay, build, containers, name_of, pod_of
from deploy.network import lets_through, place_of
from deploy.pods import certificates, running
from grpc_health.v1 import health_pb2

from rockoon_proto.v1.logs_pb2 import DescribeLogRequest, Log
from rockoon_proto.v1.logs_pb2_grpc import LogsStub
from rockoon_proto.v1.nameserver_pb2 import BROKER
from rockoon_runtime.health import LIVENESS
from rockoon_runtime.node_identities import NodeIdentities
from support.waiting import DEADLINE_SECONDS, wait_until

SERVING = health_pb2.HealthCheckResponse.SERVING
LOG, COPIES = "rockoon-broker", 3


def overlay_with_copies(name: str, folder: Path) -> Overlay:
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [str(ROOT / "overlays" / name)],
        "components": [str(ROOT / "components/copies")],
    }
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return build(folder)


@pytest.fixture(params=["dev", "production"])
def overlay(request: pytest.FixtureRequest, tmp_path: Path) -> Overlay:
    return overlay_with_copies(request.param, tmp_path / "overlay")


def test_the_api_takes_every_manifest(overlay: Overlay) -> None:
    version = kubernetes_validate.latest_version()
    for document in overlay.documents:
        kubernetes_validate.validate(document, version, strict=True)


def test_each_pod_is_a_replica_of_one_log_under_a_name_that_stays(overlay: Overlay) -> None:
    workload = overlay.named("StatefulSet", LOG)
    (container,) = containers(workload)
    assert workload["spec"]["replicas"] == COPIES
    for index in range(COPIES):
        settings = overlay.settings(workload, container, index).value
        assert (settings.name, settings.replica) == (LOG, f"{LOG}-{index}")
        assert (settings.copies, settings.flush) == (COPIES, "sync")
        assert settings.advertise == f"{LOG}-{index}.{LOG}.{overlay.namespace}.svc:10911"
    service = overlay.named("Service", workload["spec"]["serviceName"])
    assert service["spec"]["publishNotReadyAddresses"], "replicas that elect are not ready"


def test_replicas_start_together_and_are_replaced_one_by_one(overlay: Overlay) -> None:
    workload = overlay.named("StatefulSet", LOG)
    assert workload["spec"]["podManagementPolicy"] == "Parallel"
    (container,) = containers(workload)
    # One that copies for hours is not killed for it, nor taken for one of two that are needed.
    assert container["startupProbe"]["grpc"]["service"] == LIVENESS
    assert container["readinessProbe"]["grpc"].get("service", "") == ""
    budget = overlay.named("PodDisruptionBudget", LOG)["spec"]
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (
        1,
        "IfHealthyBudget",
    )


def test_replicas_reach_each_other(overlay: Overlay) -> None:
    place = place_of(overlay.named("StatefulSet", LOG), overlay.namespace)
    assert lets_through(overlay, place, place, 10911)


def test_production_has_three_of_everything_that_votes(tmp_path: Path) -> None:
    production = overlay_with_copies("production", tmp_path / "overlay")
    (scaler,) = production.of_kind("HorizontalPodAutoscaler")
    assert scaler["spec"]["minReplicas"] == COPIES
    settings = {
        name_of(workload): production.settings(workload, container).value
        for workload, container in production.services()
    }
    assert len(settings["rockoon-nameserver"].etcd) == COPIES
    # No two replicas on one node, even if that leaves one waiting.
    affinity = pod_of(production.named("StatefulSet", LOG))["spec"]["affinity"]
    assert "requiredDuringSchedulingIgnoredDuringExecution" in affinity["podAntiAffinity"]
    # Replicas know each other, and nameservers know them, by the log's name.
    borne = tuple(certificates()["rockoon-broker-tls"][1])
    for service in ("rockoon-nameserver", LOG):
        NodeIdentities(settings[service].tls_node_name).check(LOG, borne)


def test_replicas_started_from_the_manifests_lead_and_follow(tmp_path: Path) -> None:
    overlay = overlay_with_copies("dev", tmp_path / "overlay")
    (tmp_path / "pods").mkdir()
    with running(overlay, tmp_path / "pods") as (pods, _):
        with grpc.insecure_channel(pods["nameserver"].node.address) as channel:
            stub = LogsStub(channel)

            def log() -> Log:
                request = DescribeLogRequest(kind=BROKER, log=LOG)
                return stub.DescribeLog(request, timeout=DEADLINE_SECONDS).log

            replicas = [pods[f"{LOG}-{index}"] for index in range(COPIES)]
            for pod in replicas:
                assert pod.probed("startupProbe") == SERVING
                wait_until(lambda pod=pod: pod.probed("readinessProbe") == SERVING, "readiness")
            state = log().state
        assert sorted(each.name for each in state.replicas) == [pod.node.name for pod in replicas]
        assert (len(state.in_sync), state.confirmed) == (COPIES, True)
