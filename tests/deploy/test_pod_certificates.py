"""The component that gives each pod a separate certificate."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from deploy.manifests import ROOT, Document, Overlay, build, name_of, pod_of, service_of
from deploy.pods import CA, CERTIFICATE, KEY, certificates

from rockoon_core.errors import WrongIdentity
from rockoon_runtime.tls import NodeIdentities

DRIVER = "csi.cert-manager.io"


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Overlay:
    """Production with the component."""
    folder: Path = tmp_path_factory.mktemp("overlay")
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [str(ROOT / "overlays/production")],
        "components": [str(ROOT / "components/pod-certificates")],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return build(folder)


def nodes(overlay: Overlay) -> list[tuple[Document, Document]]:
    return [each for each in overlay.services() if each[0]["kind"] == "StatefulSet"]


def volume(workload: Document) -> dict[str, Any]:
    (found,) = [each for each in pod_of(workload)["spec"]["volumes"] if each["name"] == "tls"]
    return found


def names(overlay: Overlay, workload: Document, pod: int) -> list[str]:
    """Return the driver's request in the name of a pod, by its documentation."""
    asked = volume(workload)["csi"]["volumeAttributes"][f"{DRIVER}/dns-names"]
    filled = asked.replace("${POD_NAME}", f"{name_of(workload)}-{pod}")
    return filled.replace("${POD_NAMESPACE}", overlay.namespace).split(",")


def test_the_api_takes_every_manifest(overlay: Overlay) -> None:
    version = kubernetes_validate.latest_version()
    for document in overlay.documents:
        kubernetes_validate.validate(document, version, strict=True)


def test_a_pod_reads_what_the_driver_writes_and_no_secret_that_others_have(
    overlay: Overlay,
) -> None:
    made = {each["metadata"]["name"] for each in build(ROOT / "cert-manager").of_kind("Issuer")}
    assert len(nodes(overlay)) == 2
    for workload, container in nodes(overlay):
        assert volume(workload).keys() == {"name", "csi"}
        given = volume(workload)["csi"]["volumeAttributes"]
        assert given[f"{DRIVER}/issuer-name"] in made
        group = pod_of(workload)["spec"]["securityContext"]["fsGroup"]
        assert given[f"{DRIVER}/fs-group"] == str(group)
        (mount,) = [each for each in container["volumeMounts"] if each["name"] == "tls"]
        settings = overlay.settings(workload, container, 0).value
        place = mount["mountPath"]
        named = [settings.tls_certificate, settings.tls_key, settings.tls_ca]
        assert [str(each) for each in named] == [
            f"{place}/{name}" for name in (CERTIFICATE, KEY, CA)
        ]


def test_a_certificate_bears_what_its_pod_advertises_and_lets_it_register_as_nobody_else(
    overlay: Overlay,
) -> None:
    (nameserver,) = [each for each in overlay.services() if service_of(each[1]) == "nameserver"]
    identities = NodeIdentities(overlay.settings(*nameserver).value.tls_node_name)
    pods = {
        overlay.settings(workload, container, pod).value.name: (
            names(overlay, workload, pod),
            overlay.settings(workload, container, pod).value.advertise,
        )
        for workload, container in nodes(overlay)
        for pod in range(workload["spec"]["replicas"])
    }
    assert len(pods) == 4
    for name, (borne, advertised) in pods.items():
        assert borne == [advertised.rpartition(":")[0]]
        for other in pods:
            if other == name:
                identities.check(other, borne)
            else:
                with pytest.raises(WrongIdentity):
                    identities.check(other, borne)


def test_it_lasts_as_long_as_the_shared_one_and_is_for_the_same_uses(overlay: Overlay) -> None:
    shared = {
        each["spec"]["secretName"]: each["spec"]
        for each in build(ROOT / "cert-manager").of_kind("Certificate")
    }
    assert shared.keys() == certificates().keys()
    for workload, _ in nodes(overlay):
        given = volume(workload)["csi"]["volumeAttributes"]
        former = shared[f"{name_of(workload)}-tls"]
        assert given[f"{DRIVER}/duration"] == former["duration"]
        assert given[f"{DRIVER}/renew-before"] == former["renewBefore"]
        assert given[f"{DRIVER}/key-usages"].split(",") == former["usages"]
        assert given[f"{DRIVER}/key-encoding"] == former["privateKey"]["encoding"]
