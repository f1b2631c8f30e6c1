"""The Helm chart: its objects are those of kustomize."""

import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from deploy.chart import CHART, PRODUCTION, comparable, helm, kustomized, needs_helm, template
from deploy.manifests import ROOT

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
    "production-copies": (
        "production",
        ["copies", "offset-copies"],
        [],
        {"broker.copies": "true", "offset.copies": "true"},
    ),
}


@needs_helm
@pytest.mark.parametrize("name", COMBINATIONS)
def test_helm_and_kustomize_make_the_same_objects(name: str, tmp_path: Path) -> None:
    overlay, components, resources, values = COMBINATIONS[name]
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
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
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


def test_the_templates_are_current() -> None:
    """Change deploy/kubernetes, and run `make chart`."""
    command = [sys.executable, "-m", "tools.generate_chart", "--check"]
    environment = {"PYTHONPATH": "tests:."}
    checked = subprocess.run(
        command, cwd=ROOT.parents[1], env=environment, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
