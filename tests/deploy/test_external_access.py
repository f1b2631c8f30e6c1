"""The component for clients from another network: what nodes advertise leads to them."""

from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from deploy.manifests import ROOT, Overlay, build, name_of
from deploy.network import Place, lets_through, place_of

DOMAIN = "queues.example.org"
CHOOSE_DOMAIN = [{"op": "replace", "path": "/data/domain", "value": DOMAIN}]


@pytest.fixture
def overlay(tmp_path: Path) -> Overlay:
    """Production with the component and a domain of one's own."""
    patch = {
        "target": {"kind": "ConfigMap", "name": "rockoon-external"},
        "patch": yaml.safe_dump(CHOOSE_DOMAIN),
    }
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [str(ROOT / "overlays/production")],
        "components": [str(ROOT / "components/external-access")],
        "patches": [patch],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return build(tmp_path)


def test_the_api_takes_every_manifest(overlay: Overlay) -> None:
    version = kubernetes_validate.latest_version()
    for document in overlay.documents:
        kubernetes_validate.validate(document, version, strict=True)


def test_every_node_advertises_a_name_whose_load_balancer_leads_to_it(overlay: Overlay) -> None:
    advertised = set()
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
            assert service["publishNotReadyAddresses"], "one that leaves is still needed"
            (port,) = service["ports"]
            assert settings.advertise_external == f"{pod}.{DOMAIN}:{port['port']}"
            assert settings.listen == f"0.0.0.0:{ports[port['targetPort']]}"
            advertised.add(settings.advertise_external)
    assert len(advertised) == 4, "three brokers and the offset service, each by a name of its own"


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


def test_who_is_outside_gets_to_what_is_for_them_and_no_further(overlay: Overlay) -> None:
    outside = Place()
    open_ports = {
        (name_of(workload), port)
        for workload, _ in overlay.services()
        for target in [place_of(workload, overlay.namespace)]
        for port in target.ports.values()
        if lets_through(overlay, outside, target, port)
    }
    assert open_ports == {
        ("rockoon-nameserver", 9877),
        ("rockoon-broker", 10911),
        ("rockoon-offset", 10912),
    }
