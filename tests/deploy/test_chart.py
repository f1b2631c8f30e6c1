"""The Helm chart: its objects are those of kustomize."""

import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from deploy.chart import (
    CHART,
    CHECKSUM,
    PRODUCTION,
    comparable,
    helm,
    kustomized,
    needs_helm,
    template,
)
from deploy.manifests import ROOT, Document, Overlay, name_of, pod_of, service_of

from deploy import crds

# Overlay, components and resources added to it, and the values that do the same.
COMBINATIONS: dict[str, tuple[str, list[str], list[str], dict[str, str]]] = {
    "dev": ("dev", [], [], {}),
    "dev-logs": (
        "dev",
        ["gateway-scaler", "copies", "offset-copies"],
        ["../../logs/b"],
        {
            "gateway.scaler": "true",
            "broker.copies": "true",
            "broker.logs": "{b}",
            "offset.copies": "true",
        },
    ),
    "dev-secured": (
        "dev",
        ["monitoring", "tls", "pod-certificates", "access"],
        [],
        {
            "monitoring.annotations": "true",
            "monitoring.configMaps": "true",
            "tls.enabled": "true",
            "tls.podCertificates": "true",
            "access.enabled": "true",
        },
    ),
    "production": ("production", [], [], {}),
    "production-certificates": (
        "production",
        ["copies", "offset-copies"],
        ["../../cert-manager"],
        {"tls.certManager": "true", "broker.copies": "true", "offset.copies": "true"},
    ),
    "production-copies-outside": (
        "production",
        [
            "copies",
            "offset-copies",
            "external-access",
            "external-offset-copies",
            "external-gateway",
            "gateway-scaler",
            "prometheus-operator",
        ],
        ["../../logs/b", "../../logs/b/external"],
        {
            "broker.copies": "true",
            "broker.logs": "{b}",
            "offset.copies": "true",
            "externalAccess.enabled": "true",
            "gateway.external": "true",
            "gateway.scaler": "true",
            "monitoring.podMonitor": "true",
            "monitoring.prometheusRule": "true",
        },
    ),
}


@needs_helm
@pytest.mark.parametrize("name", COMBINATIONS)
def test_helm_and_kustomize_make_the_same_objects(name: str, tmp_path: Path) -> None:
    overlay, components, resources, values = COMBINATIONS[name]
    version = kubernetes_validate.latest_version()
    shutil.copytree(ROOT.parent, tmp_path / "deploy", symlinks=True)
    place = tmp_path / "deploy/kubernetes/overlays" / overlay
    written = yaml.safe_load((place / "kustomization.yaml").read_text())
    written["resources"] += resources
    # Before one-per-node, which is the last of production.
    at = -1 if overlay == "production" else len(written["components"])
    written["components"][at:at] = [f"../../components/{each}" for each in components]
    (place / "kustomization.yaml").write_text(yaml.safe_dump(written))
    arguments = [f"--set={key}={value}" for key, value in values.items()]
    arguments += [f"--values={PRODUCTION}"] if overlay == "production" else []
    made = template(*arguments)
    for document in made:
        if not crds.is_custom(document):
            kubernetes_validate.validate(document, version, strict=True)
    ours, theirs = comparable(made), comparable(kustomized(place))
    assert ours.keys() == theirs.keys()
    for key, document in theirs.items():
        assert ours[key] == document


@needs_helm
def test_a_cluster_without_gateways_has_no_object_for_them() -> None:
    made = template("--values", PRODUCTION, "--set=gateway.enabled=false,gateway.scaler=true")
    named = [key for key in comparable(made) if key.endswith("gateway")]
    assert named == ["ConfigMap rockoon-dashboard-gateway"]


@needs_helm
@pytest.mark.parametrize("arguments", [(), ("--values", PRODUCTION)], ids=["dev", "production"])
def test_helm_finds_no_fault(arguments: tuple[str | Path, ...]) -> None:
    found = helm("lint", "--strict", CHART, *arguments)
    assert found.returncode == 0, found.stdout


@needs_helm
@pytest.mark.skipif(
    not all(crds.folder(group) for group in crds.MODULES),
    reason="Go's module cache has no CustomResourceDefinitions: `make helm` downloads them",
)
def test_operators_take_the_custom_resources() -> None:
    made = template(
        "--values", PRODUCTION,
        "--set=monitoring.podMonitor=true,monitoring.prometheusRule=true,gateway.external=true",
        "--set=externalAccess.enabled=true,externalAccess.serviceType=ClusterIP",
        "--set=externalAccess.tlsRoute.enabled=true",
        "--set=externalAccess.tlsRoute.parentRefs[0].name=edge",
        "--set=monitoring.labels.release=prometheus",
    )  # fmt: skip
    custom = [each for each in made if crds.is_custom(each)]
    assert {each["kind"] for each in custom} == {"PodMonitor", "PrometheusRule", "TLSRoute"}
    for document in custom:
        crds.validate(document)
    (monitor,) = (each for each in custom if each["kind"] == "PodMonitor")
    monitor["spec"]["podMetricsEndpoints"][0]["prot"] = "metrics"
    with pytest.raises(jsonschema.ValidationError, match="'prot' was unexpected"):
        crds.validate(monitor)


@needs_helm
def test_each_name_of_the_external_listener_has_a_route_to_its_pod() -> None:
    made = template(
        "--values", PRODUCTION,
        "--set=broker.copies=true,broker.logs={b},offset.copies=true,gateway.external=true",
        "--set=externalAccess.enabled=true,externalAccess.domain=mq.example.net",
        "--set=externalAccess.tlsRoute.enabled=true,externalAccess.tlsRoute.port=9443",
        "--set=tls.certManager=true",
        "--set=externalAccess.tlsRoute.parentRefs[0].name=edge",
    )  # fmt: skip
    services = {name_of(each): each["spec"] for each in made if each["kind"] == "Service"}
    pods = {
        f"rockoon-{log}-{index}" for log in ("broker", "broker-b", "offset") for index in range(3)
    }
    certified = {
        name
        for each in made
        if each["kind"] == "Certificate"
        for name in each["spec"].get("dnsNames", [])
    }
    assert "rockoon-broker-b.rockoon-broker-b.rockoon.svc" in certified
    found = set()
    for route in (each["spec"] for each in made if each["kind"] == "TLSRoute"):
        (hostname,), (rule,) = route["hostnames"], route["rules"]
        (backend,) = rule["backendRefs"]
        service = services[backend["name"]]
        assert [port["port"] for port in service["ports"]] == [backend["port"]]
        assert hostname in certified
        name, _, domain = hostname.partition(".")
        assert domain == "mq.example.net"
        selected = service["selector"].get("statefulset.kubernetes.io/pod-name", name)
        assert selected == name
        found.add(name)
    assert found == pods | {"nameserver", "gateway"}
    advertised = {
        variable["value"]
        for workload in made
        if workload["kind"] == "StatefulSet"
        for variable in workload["spec"]["template"]["spec"]["containers"][0]["env"]
        if variable["name"].endswith("ADVERTISE_EXTERNAL")
    }
    assert advertised == {"$(POD_NAME).$(EXTERNAL_DOMAIN):9443"}


@needs_helm
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("broker.replica=3", "additional properties 'replica' not allowed"),
        ("broker.replicas=0", "minimum"),
        ("gateway.enabled=maybe", "want boolean"),
        ("broker.settings.flash=sync", "additional properties 'flash' not allowed"),
        ("broker.settings.flush=never", "must be one of"),
        ("offset.settings.commit_seconds_max=1", "additional properties"),
        ("image.pullPolicy=Sometimes", "must be one of"),
    ],
)
def test_wrong_values_are_refused(value: str, reason: str) -> None:
    refused = helm("template", CHART, "--set", value)
    assert refused.returncode != 0
    assert reason in refused.stderr


@needs_helm
def test_a_second_release_does_not_create_the_priority_class_again() -> None:
    made = template("--values", PRODUCTION, "--set=priorityClass.create=false")
    assert not [each for each in made if each["kind"] == "PriorityClass"]
    (broker,) = (
        pod_of(each)
        for each in made
        if name_of(each) == "rockoon-broker" and each["kind"] == "StatefulSet"
    )
    assert broker["spec"]["priorityClassName"] == "rockoon"


@needs_helm
def test_services_load_the_settings_of_the_values(tmp_path: Path) -> None:
    values = {
        "cluster": "orders",
        "nameserver": {"settings": {"etcd_version_check": "refuse"}},
        "broker": {
            "settings": {
                "flush": "sync",
                "drain_seconds_max": 5,
                "unread_answers_bytes_max": "8MiB",
            }
        },
        "etcd": {"endpoints": ["etcd-0.etcd:2379", "etcd-1.etcd:2379"]},
    }
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    namespace = {"kind": "Namespace", "metadata": {"name": "rockoon"}}
    made = Overlay([*template("--values", tmp_path / "values.yaml"), namespace])
    found = {
        service_of(container): made.settings(workload, container).value
        for workload, container in made.services()
    }
    assert {settings.cluster for settings in found.values()} == {"orders"}
    assert found["nameserver"].etcd == ("etcd-0.etcd:2379", "etcd-1.etcd:2379")
    assert found["nameserver"].etcd_version_check == "refuse"
    assert (found["broker"].flush, found["broker"].drain_seconds_max) == ("sync", 5.0)
    assert found["broker"].unread_answers_bytes_max == 8 << 20


@needs_helm
def test_pods_restart_if_their_own_settings_change() -> None:
    before, after = template(), template("--set=broker.settings.flush=sync")

    def checksums(made: list[Document]) -> dict[str, str]:
        return {
            name_of(each): pod_of(each)["metadata"]["annotations"][CHECKSUM]
            for each in made
            if each["kind"] in ("Deployment", "StatefulSet") and name_of(each) != "rockoon-etcd"
        }

    former, current = checksums(before), checksums(after)
    assert [name for name in former if former[name] != current[name]] == ["rockoon-broker"]


@needs_helm
def test_routes_by_name_need_tls() -> None:
    refused = helm("template", CHART, "--set=externalAccess.tlsRoute.enabled=true")
    assert "needs tls.enabled" in refused.stderr


def test_the_templates_are_current() -> None:
    """Change deploy/kubernetes, and run `make chart`."""
    command = [sys.executable, "-m", "tools.generate_chart", "--check"]
    environment = {"PYTHONPATH": "tests:."}
    checked = subprocess.run(
        command, cwd=ROOT.parents[1], env=environment, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
