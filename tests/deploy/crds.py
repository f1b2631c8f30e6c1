"""Custom resources, checked by the CustomResourceDefinitions in their operators' Go modules."""

import functools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
from deploy.manifests import Document

from support import kustomize

# API group: module with its CustomResourceDefinitions, and their folder.
MODULES = {
    "gateway.networking.k8s.io": ("sigs.k8s.io/gateway-api@v1.6.3", "config/crd/standard"),
    "monitoring.coreos.com": (
        "github.com/prometheus-operator/prometheus-operator@v0.85.0",
        "example/prometheus-operator-crd",
    ),
    "keda.sh": ("github.com/kedacore/keda/v2@v2.18.0", "config/crd/bases"),
}


def is_custom(document: Document) -> bool:
    return document["apiVersion"].partition("/")[0] in {*MODULES, "cert-manager.io"}


@functools.cache
def folder(group: str) -> Path | None:
    """The folder with the definitions of an API group, if Go's module cache has it."""
    if shutil.which("go") is None:
        return None
    module, place = MODULES[group]
    found = subprocess.run(
        ["go", "mod", "download", "-json", module],
        env=os.environ | {"GOPROXY": "off", "GOFLAGS": "-mod=mod"},
        capture_output=True,
        text=True,
        check=False,
    )
    return Path(json.loads(found.stdout)["Dir"]) / place if found.returncode == 0 else None


@functools.cache
def schema(group: str, version: str, kind: str) -> Document:
    """The schema of a kind in a version that is served."""
    place = folder(group)
    assert place is not None
    (path,) = place.glob(f"*_{kind.lower()}s.yaml")
    (definition,) = (each for each in kustomize.load_all(path.read_text()) if each)
    versions = {each["name"]: each for each in definition["spec"]["versions"]}
    assert versions[version]["served"]
    found: Document = strict(versions[version]["schema"]["openAPIV3Schema"])
    # The definition leaves the metadata to Kubernetes.
    found["properties"]["metadata"] = {"type": "object"}
    return found


def strict(place: Any) -> Any:
    """Refuse unknown fields, as `kubectl --validate=strict` does."""
    if isinstance(place, list):
        return [strict(each) for each in place]
    if not isinstance(place, dict):
        return place
    made = {name: strict(each) for name, each in place.items()}
    if isinstance(made.get("pattern"), str) and "(?i)" in made["pattern"]:
        # Go allows this flag anywhere, Python at the beginning.
        made["pattern"] = "(?i)" + made["pattern"].replace("(?i)", "")
    if made.get("type") == "object" and isinstance(made.get("properties"), dict):
        made.setdefault("additionalProperties", False)
    return made


def validate(document: Document) -> None:
    """Check a custom resource.

    Raises:
        jsonschema.ValidationError: its definition refuses it.
    """
    group, _, version = document["apiVersion"].partition("/")
    jsonschema.validate(document, schema(group, version, document["kind"]))
