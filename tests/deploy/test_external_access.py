"""Components for clients of another network: an advertised address leads to its own pod."""

from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from deploy.manifests import ROOT, Overlay, build, name_of
from deploy.network import Place, lets_through, place_of
from deploy.page_runs import REPOSITORY, write_files
from deploy.pages import kustomizations
from deploy.real_kustomize import build_as_real

from support.kustomize import CLUSTER_KINDS

PAGE = "operate/external-access.md"
DOMAIN = "rockoon.your.domain"


def overlay_of(directory: Path, components: list[str], *resources: str) -> Overlay:
    """Production with components, and the domain of this test."""
    patch = [{"op": "replace", "path": "/data/domain", "value": DOMAIN}]
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [str(ROOT / each) for each in ("overlays/production", *resources)],
        "components": [str(ROOT / "components" / each) for each in components],
        "patches": [
            {
                "target": {"kind": "ConfigMap", "name": "rockoon-external"},
                "patch": yaml.safe_dump(patch),
            }
        ],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return build(directory)


COPIES = ["copies", "offset-copies", "external-offset-copies"]


@pytest.fixture(params=["one copy", "three copies", "three copies, named after"])
def overlay(request: pytest.FixtureRequest, tmp_path: Path) -> Overlay:
    if request.param == "one copy":
        return overlay_of(tmp_path, ["external-access"])
    components = ["external-access", *COPIES]
    if request.param == "three copies":
        components = [*COPIES, "external-access"]
    return overlay_of(tmp_path, components, "logs/b", "logs/b/external")


def external_names(overlay: Overlay) -> dict[str, str]:
    """The external address of each pod of brokers and offset service, by the pod's name.

    Asserts that each address leads to the Service of that pod alone, and each Service has a pod.
    """
    found = {}
    for workload, container in overlay.services():
        if workload["kind"] != "StatefulSet":
            continue
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        for index in range(workload["spec"]["replicas"]):
            settings = overlay.settings(workload, container, index).value
            pod = f"{name_of(workload)}-{index}"
            service = overlay.named("Service", f"{pod}-external")["spec"]
            assert service["type"] == "LoadBalancer"
            assert service["selector"] == {"statefulset.kubernetes.io/pod-name": pod}
            assert service["publishNotReadyAddresses"], "a pod that stops is still called"
            (port,) = service["ports"]
            assert settings.advertise_external == f"{pod}.{DOMAIN}:{port['port']}"
            assert settings.listen == f"0.0.0.0:{ports[port['targetPort']]}"
            found[pod] = settings.advertise_external
    of_pods = {
        each["spec"]["selector"].get("statefulset.kubernetes.io/pod-name")
        for each in overlay.of_kind("Service")
    }
    assert of_pods - {None} == found.keys()
    return found


def test_the_api_takes_every_manifest(overlay: Overlay) -> None:
    version = kubernetes_validate.latest_version()
    for document in overlay.documents:
        kubernetes_validate.validate(document, version, strict=True)


def test_every_pod_advertises_an_address_whose_load_balancer_leads_to_it_alone(
    overlay: Overlay,
) -> None:
    advertised = external_names(overlay)
    assert len(set(advertised.values())) == len(advertised)
    assert len(advertised) == (9 if "rockoon-broker-b-0" in advertised else 4)


def test_the_nameservers_external_listener_is_what_the_load_balancer_leads_to(
    overlay: Overlay,
) -> None:
    ((workload, container),) = [
        each for each in overlay.services() if name_of(each[0]) == "rockoon-nameserver"
    ]
    settings = overlay.settings(workload, container).value
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    service = overlay.named("Service", "rockoon-nameserver-external")["spec"]
    assert service["selector"].items() <= place_of(workload, "").labels.items()
    (port,) = service["ports"]
    assert settings.external_listen == f"0.0.0.0:{ports[port['targetPort']]}"
    assert settings.external_listen != settings.listen
    # Inside, nothing is different.
    (inner,) = overlay.named("Service", "rockoon-nameserver")["spec"]["ports"]
    assert settings.listen == f"0.0.0.0:{ports[inner['targetPort']]}"


def open_ports(overlay: Overlay) -> set[tuple[str, int]]:
    """Workloads and ports that a client outside of the cluster reaches."""
    outside = Place()
    return {
        (name_of(workload), port)
        for workload, _ in overlay.services()
        for target in [place_of(workload, overlay.namespace)]
        for port in target.ports.values()
        if lets_through(overlay, outside, target, port)
    }


OPEN = {("rockoon-nameserver", 9877), ("rockoon-broker", 10911), ("rockoon-offset", 10912)}


def test_clients_outside_reach_their_ports_and_no_others(overlay: Overlay) -> None:
    assert open_ports(overlay) - {("rockoon-broker-b", 10911)} == OPEN


def test_the_page_s_overlay_and_certificates_are_complete(tmp_path: Path) -> None:
    # The page's overlay extends that of the page about the installation.
    write_files(REPOSITORY / "docs/operate/deploy.md", tmp_path)
    written, certificates = map(build_as_real, kustomizations(PAGE, tmp_path))
    for each in written.documents + certificates.documents:
        is_namespaced = each["kind"] not in CLUSTER_KINDS
        assert each["metadata"].get("namespace") == (written.namespace if is_namespaced else None)
    advertised = external_names(written)
    assert len(advertised) == 6
    assert open_ports(written) == OPEN | {("rockoon-gateway", 8081)}
    gateway = written.named("Service", "rockoon-gateway-external")["spec"]
    labels = place_of(written.named("Deployment", "rockoon-gateway"), "").labels
    assert gateway["selector"].items() <= labels.items()
    (port,) = gateway["ports"]
    # KEDA's scaler, if there is one, stays inside.
    assert (port["port"], port["targetPort"]) == (8081, "grpc")
    named = {
        name_of(each): {name for name in each["spec"].get("dnsNames", []) if DOMAIN in name}
        for each in certificates.of_kind("Certificate")
    }
    hosts = {address.partition(":")[0] for address in advertised.values()}
    for service, expected in {
        "broker": {host for host in hosts if "broker" in host},
        "offset": {host for host in hosts if "offset" in host},
        "nameserver": {f"nameserver.{DOMAIN}"},
        "gateway": {f"gateway.{DOMAIN}"},
        "client": set(),
    }.items():
        assert named[f"rockoon-{service}-tls"] == expected
