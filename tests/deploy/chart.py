"""The Helm chart's objects, in a form that can be compared with those of kustomize."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from deploy.manifests import ROOT, Document, name_of

from support import kustomize

CHART = ROOT.parent / "helm/rockoon"
PRODUCTION = CHART / "values-production.yaml"
# `go install` puts programs there, and PATH does not always contain it.
HELM = shutil.which("helm", path=f"{os.environ['PATH']}:{Path.home()}/go/bin")
needs_helm = pytest.mark.skipif(
    HELM is None, reason="there is no helm: `make helm` compiles it and runs this test"
)
# Helm's own, which kustomize does not write.
CHECKSUM = "checksum/settings"
HELM_ONLY = {
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "helm.sh/chart",
    "helm.sh/resource-policy",
    CHECKSUM,
}
# Lists in which only the order of variables matters; `checked_variables` checks that.
NAMED = {"env": "name", "volumes": "name", "volumeMounts": "mountPath", "ports": "name"}


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    command = [HELM, *map(str, arguments)]
    if arguments[0] == "template":
        # A Helm 3 that `go install` compiled assumes Kubernetes 1.20.
        command.append("--kube-version=1.30.0")
    return subprocess.run(command, capture_output=True, text=True, check=False)


def template(*arguments: str | Path, namespace: str = "rockoon") -> list[Document]:
    """Return the objects of a release.

    Args:
        arguments: --values FILE, --set NAME=VALUE.
        namespace: where the release is installed.
    """
    made = helm("template", "rockoon", CHART, "--namespace", namespace, *arguments)
    assert made.returncode == 0, made.stderr
    return [each for each in kustomize.load_all(made.stdout) if each]


def kustomized(directory: Path) -> list[Document]:
    """Return the objects of an overlay, without the hashes in names of ConfigMaps."""
    objects = kustomize.Objects()
    kustomize.accumulate(directory.resolve(), objects)
    return [each for each in objects.documents if each["kind"] != "Namespace"]


def comparable(documents: list[Document]) -> dict[str, Document]:
    """Return objects by kind and name, without parts that only one of the two programs writes."""
    found = {}
    for document in documents:
        key = f"{document['kind']} {name_of(document)}"
        assert key not in found, f"{key} is there twice"
        document["metadata"].pop("namespace", None)
        if document["kind"] == "ConfigMap":
            data = document["data"].items()
            document["data"] = {
                name: tomllib.loads(text) if name.endswith(".toml") else text for name, text in data
            }
        found[key] = cleaned(document)
    return found


def cleaned(place: Any, key: str = "") -> Any:
    if isinstance(place, list):
        elements = [cleaned(each) for each in place]
        if key == "env":
            checked_variables(place)
        if key == "dnsNames":
            elements.sort()
        if key in NAMED and all(NAMED[key] in each for each in place):
            elements.sort(key=lambda each: str(each[NAMED[key]]))
        return elements
    if not isinstance(place, dict):
        return place
    made = {name: cleaned(each, name) for name, each in place.items()}
    for name in ("labels", "annotations"):
        if isinstance(made.get(name), dict):
            kept = {key: value for key, value in made[name].items() if key not in HELM_ONLY}
            made[name] = kept
            if not kept:
                del made[name]
    return made


def checked_variables(variables: list[Document]) -> None:
    """Kubernetes replaces $(NAME) only by a variable above."""
    known: set[str] = set()
    for variable in variables:
        assert set(re.findall(r"\$\((\w+)\)", variable.get("value", ""))) <= known
        known.add(variable["name"])
