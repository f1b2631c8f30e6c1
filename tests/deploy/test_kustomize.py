"""tests/support/kustomize.py builds the same objects as kustomize."""

import shutil
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from deploy.manifests import ROOT, overlays
from deploy.real_kustomize import build_as_real, by_name, real_builds

from deploy import crds
from support.kustomize import KustomizationError, build, load_all

SAMPLE = Path(__file__).parent / "kustomization"


def test_every_feature_known_here_does_what_kustomize_wrote_down() -> None:
    written = list(load_all((SAMPLE / "made.yaml").read_text()))
    assert by_name(build(SAMPLE)) == by_name(written)


@pytest.mark.parametrize(
    "directory", [SAMPLE, *(ROOT / "overlays" / name for name in overlays())], ids=lambda p: p.name
)
def test_real_kustomize_makes_the_same_object_by_object(directory: Path) -> None:
    builds = real_builds(directory)
    if not builds:
        pytest.skip("neither kustomize nor kubectl is on PATH: made.yaml stands for them")
    for theirs in builds:
        assert by_name(build(directory)) == theirs


def test_all_components_at_once_are_what_the_api_takes_and_what_kustomize_makes(
    tmp_path: Path,
) -> None:
    shutil.copytree(ROOT.parent, tmp_path / "deploy")
    # The two at the end are for the jobs of the earlier ones; dev has gateways.
    names = sorted(
        {path.name for path in (ROOT / "components").iterdir()} - {"gateway"},
        key=lambda name: (name in ("tls", "access"), name),
    )
    everything = tmp_path / "deploy/kubernetes/overlays/everything"
    everything.mkdir()
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../dev"],
        "components": [f"../../components/{name}" for name in names],
    }
    (everything / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    for document in build_as_real(everything).documents:
        if not crds.is_custom(document):
            latest = kubernetes_validate.latest_version()
            kubernetes_validate.validate(document, latest, strict=True)


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("namePrefix: a-", "does not know 'namePrefix'"),
        ("resources: [../outside.yaml]", "lies outside"),
        ("resources: [one.yaml, one.yaml]", "is there twice"),
        ("replicas: [{name: two, count: 2}]", "nothing is called two"),
        # Generators run before components, which have not made it yet.
        (
            "components: [../makes]\n"
            "configMapGenerator: [{name: c, behavior: merge, literals: [a=b]}]",
            "there is no ConfigMap c to merge",
        ),
        # kustomize itself says nothing about a target that selects nothing.
        (
            "resources: [one.yaml]\npatches: [{target: {kind: Pod}, patch: '[{}]'}]",
            "no object is the target",
        ),
        (
            "resources: [one.yaml]\n"
            "patches: [{target: {kind: Service}, patch: '[{op: remove, path: /spec/a}]'}]",
            "has no /spec/a",
        ),
        (
            "resources: [one.yaml]\npatches: [{patch: '{kind: Pod, metadata: {name: a}}'}]",
            "no object is the target",
        ),
    ],
)
def test_what_cannot_be_built_is_refused(written: str, reason: str, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "kustomization.yaml").write_text(written)
    service = "apiVersion: v1\nkind: Service\nmetadata: {name: one}\nspec: {ports: []}\n"
    (inside / "one.yaml").write_text(service)
    makes = tmp_path / "makes"
    makes.mkdir()
    (makes / "kustomization.yaml").write_text("configMapGenerator: [{name: c, literals: [a=a]}]")
    (tmp_path / "outside.yaml").write_text(service)
    with pytest.raises(KustomizationError, match=reason):
        build(inside)
