"""Components for logs with copies of brokers and offset service, and for a further log."""

import shutil
from pathlib import Path

import grpc
import kubernetes_validate
import pytest
import yaml
from deploy.manifests import ROOT, Document, Overlay, build, name_of, pod_of, service_of
from deploy.network import lets_through, place_of, selects
from deploy.pods import CA, CERTIFICATE, KEY, Secrets, certificates, running
from grpc_health.v1 import health_pb2

from rockoon_core.signature import Credentials
from rockoon_proto.v1.logs_pb2 import ListLogsRequest, Log
from rockoon_proto.v1.logs_pb2_grpc import LogsStub
from rockoon_runtime.tls import NodeIdentities
from rockoon_runtime.wire import LIVENESS
from support.waiting import DEADLINE_SECONDS, wait_until

SERVING = health_pb2.HealthCheckResponse.SERVING
COPIES = 3
# Of each log: its StatefulSet, and the port of its pods.
LOGS = {"rockoon-broker": 10911, "rockoon-broker-b": 10911, "rockoon-offset": 10912}


def overlay_with_copies(name: str, folder: Path, *more: str) -> Overlay:
    """An overlay that a user has copied and completed, with other logs as resources."""
    shutil.copytree(ROOT.parent, folder / "deploy")
    place = folder / "deploy/kubernetes/overlays" / name
    kustomization = yaml.safe_load((place / "kustomization.yaml").read_text())
    kustomization["resources"] += more
    kustomization["components"] = [
        *kustomization.get("components", []),
        "../../components/copies",
        "../../components/offset-copies",
    ]
    (place / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return build(place)


@pytest.fixture(params=["dev", "production"])
def overlay(request: pytest.FixtureRequest, tmp_path: Path) -> Overlay:
    return overlay_with_copies(request.param, tmp_path / "overlay", "../../logs/b")


def logs_of(overlay: Overlay) -> list[tuple[Document, Document]]:
    """Workload and container of each log."""
    found = [each for each in overlay.services() if each[0]["kind"] == "StatefulSet"]
    assert [name_of(workload) for workload, _ in found if name_of(workload) in LOGS] == [
        name_of(workload) for workload, _ in found
    ]
    return found


def test_the_api_takes_every_manifest(overlay: Overlay) -> None:
    version = kubernetes_validate.latest_version()
    for document in overlay.documents:
        kubernetes_validate.validate(document, version, strict=True)


def test_each_pod_is_a_replica_of_its_log_under_a_name_that_stays(overlay: Overlay) -> None:
    assert {name_of(workload) for workload, _ in logs_of(overlay)} == set(LOGS)
    for workload, container in logs_of(overlay):
        log = name_of(workload)
        assert workload["spec"]["replicas"] == COPIES
        for index in range(COPIES):
            settings = overlay.settings(workload, container, index).value
            assert (settings.name, settings.replica) == (log, f"{log}-{index}")
            assert (settings.copies, getattr(settings, "flush", "sync")) == (COPIES, "sync")
            assert settings.advertise == (
                f"{log}-{index}.{log}.{overlay.namespace}.svc:{LOGS[log]}"
            )
        service = overlay.named("Service", workload["spec"]["serviceName"])
        assert service["spec"]["publishNotReadyAddresses"], "replicas that elect are not ready"
        labels = pod_of(workload)["metadata"]["labels"]
        others = [pod_of(each)["metadata"]["labels"] for each in overlay.workloads]
        for selector in (service["spec"]["selector"], workload["spec"]["selector"]["matchLabels"]):
            assert [each for each in others if selector.items() <= each.items()] == [labels]


def test_replicas_start_together_and_are_replaced_one_by_one(overlay: Overlay) -> None:
    for workload, container in logs_of(overlay):
        assert workload["spec"]["podManagementPolicy"] == "Parallel"
        probe = container["readinessProbe"]
        assert workload["spec"]["minReadySeconds"] >= probe["periodSeconds"]
        # A pod that copies for hours is not killed for it, and does not count as one of two needed
        # ones.
        assert container["startupProbe"]["grpc"]["service"] == LIVENESS
        assert probe["grpc"].get("service", "") == ""
        budget = overlay.named("PodDisruptionBudget", name_of(workload))["spec"]
        assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (
            1,
            "IfHealthyBudget",
        )
        selected = budget["selector"]["matchLabels"].items()
        assert selected <= pod_of(workload)["metadata"]["labels"].items()


def test_replicas_reach_each_other(overlay: Overlay) -> None:
    for workload, _ in logs_of(overlay):
        place = place_of(workload, overlay.namespace)
        assert lets_through(overlay, place, place, LOGS[name_of(workload)])


def test_what_an_overlay_gives_to_services_the_other_log_has_too(tmp_path: Path) -> None:
    production = overlay_with_copies("production", tmp_path / "overlay", "../../logs/b")
    first, other = (
        pod_of(production.named("StatefulSet", f"rockoon-broker{end}")) for end in ("", "-b")
    )
    assert first["metadata"]["annotations"] == other["metadata"]["annotations"]
    for spec in (first["spec"], other["spec"]):
        for document in (spec, *spec["containers"]):
            document.pop("affinity", None)
            document.pop("topologySpreadConstraints", None)
    assert first["spec"] == other["spec"]


def test_production_has_a_node_for_each_copy_of_a_log(tmp_path: Path) -> None:
    """Copies of two logs may share a node, so three nodes are enough for any number of logs."""
    production = overlay_with_copies("production", tmp_path / "overlay", "../../logs/b")
    for workload, _ in logs_of(production):
        affinity = pod_of(workload)["spec"]["affinity"]["podAntiAffinity"]
        (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        avoided = [
            name_of(each)
            for each in production.workloads
            if selects(term["labelSelector"], pod_of(each)["metadata"]["labels"])
        ]
        assert avoided == [name_of(workload)]


def test_production_has_three_of_everything_that_votes(tmp_path: Path) -> None:
    production = overlay_with_copies("production", tmp_path / "overlay")
    scaler = production.named("HorizontalPodAutoscaler", "rockoon-nameserver")
    assert scaler["spec"]["minReplicas"] == COPIES
    ((nameserver, program),) = [
        each for each in production.services() if service_of(each[1]) == "nameserver"
    ]
    of_nameserver = production.settings(nameserver, program).value
    assert len(of_nameserver.etcd) == COPIES
    for workload, container in logs_of(production):
        # Replicas know each other, and nameservers know them, by the log's name.
        log = name_of(workload)
        borne = tuple(certificates()[f"{log}-tls"][1])
        settings = production.settings(workload, container).value
        for pattern in (of_nameserver.tls_node_name, settings.tls_node_name):
            NodeIdentities(pattern).check(log, borne)


def logs(nameserver: str, secrets: Secrets | None) -> list[Log]:
    """Return the logs by a nameserver."""
    metadata = []
    channel = grpc.insecure_channel(nameserver)
    if secrets is not None:
        client = secrets.directory("rockoon-client-tls")
        files = [(client / name).read_bytes() for name in (CA, KEY, CERTIFICATE)]
        channel = grpc.secure_channel(nameserver, grpc.ssl_channel_credentials(*files))
        signer = Credentials(secrets.cluster_key).signer(nameserver)
        request = ListLogsRequest().SerializeToString()
        metadata = [signer.entry("/rockoon.v1.Logs/ListLogs", request)]
    with channel:
        reply = LogsStub(channel).ListLogs(
            ListLogsRequest(), timeout=DEADLINE_SECONDS, metadata=metadata
        )
    return list(reply.logs)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        pytest.param("dev", ("../../logs/b",), marks=pytest.mark.soak),
        ("production", ()),
    ],
)
def test_replicas_started_from_the_manifests_lead_and_follow(
    name: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    overlay = overlay_with_copies(name, tmp_path / "overlay", *more)
    (tmp_path / "pods").mkdir()
    with running(overlay, tmp_path / "pods") as (pods, secrets):
        for workload, _ in logs_of(overlay):
            for index in range(COPIES):
                pod = pods[f"{name_of(workload)}-{index}"]
                assert pod.probed("startupProbe") == SERVING
                wait_until(lambda pod=pod: pod.probed("readinessProbe") == SERVING, "readiness")
        client = secrets if name == "production" else None
        found = logs(pods["nameserver"].node.address, client)
    expected = {name_of(workload) for workload, _ in logs_of(overlay)}
    assert {each.state.log for each in found} == expected
    for each in found:
        names = [f"{each.state.log}-{index}" for index in range(COPIES)]
        assert sorted(replica.name for replica in each.state.replicas) == names
        assert (len(each.state.in_sync), each.state.confirmed) == (COPIES, True)
