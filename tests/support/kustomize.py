"""Builds kustomizations as far as those of this repository need it, without another program.

If the real program is installed, tests/deploy compares its output with this one object by object. A
field that is not known here is refused, so that no part of a kustomization is silently ignored.

Rules and their order are kustomize's: resources, generators, components (which change the objects
of both), patches, namespace, suffix of names, labels, counts, images. Names of generated ConfigMaps
and all references to them get the hash of their content last.
"""

import copy
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]

CLUSTER_KINDS = frozenset(
    {
        "ClusterRole",
        "ClusterRoleBinding",
        "CustomResourceDefinition",
        "Namespace",
        "PersistentVolume",
        "PriorityClass",
        "StorageClass",
    }
)
# A further log needs its own copies of these objects.
SUFFIXED_KINDS = frozenset({"PodDisruptionBudget", "Service", "StatefulSet"})
# Fields that identify elements of a list; lists not named here are replaced as a whole.
MERGE_KEYS = {
    "containers": "name",
    "env": "name",
    "initContainers": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
NAMES_CONFIG_MAP = frozenset({"configMap", "configMapKeyRef", "configMapRef"})
# kustomize writes ten digits of the hash, and leaves out digits that could form words.
HASH_LETTERS = str.maketrans("013ae", "ghkmt")
HASH_DIGITS = 10


# The loader in C, if PyYAML has it: overlays are built for many tests.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class KustomizationError(ValueError):
    """The kustomization requests something impossible, or a feature that is not known here."""


def load_all(text: str | bytes) -> Iterator[Any]:
    """Yield the documents of a YAML text."""
    return iter(yaml.load_all(text, LOADER))


@dataclass
class Objects:
    """Objects that were built so far.

    Attributes:
        documents: in the order in which they were added.
        hashed: names of the ConfigMaps that get a hash.
    """

    documents: list[Document] = field(default_factory=list)
    hashed: set[str] = field(default_factory=set)

    def add(self, document: Document) -> None:
        if self.find(document["kind"], document["metadata"]["name"]):
            raise KustomizationError(f"{described(document)} is there twice")
        self.documents.append(document)

    def find(self, kind: str, name: str) -> list[Document]:
        return self.matching({"kind": re.escape(kind), "name": re.escape(name)})

    def matching(self, target: Document) -> list[Document]:
        """Return objects whose kind, name and labels match a patch's target."""
        refuse_unknown(target, {"kind", "name", "labelSelector", "group", "version"}, "target")
        wanted = dict(
            pair.split("=", 1) for pair in target.get("labelSelector", "").split(",") if pair
        )
        return [
            each
            for each in self.documents
            if re.fullmatch(target.get("kind", ".*"), each["kind"])
            and re.fullmatch(target.get("name", ".*"), each["metadata"]["name"])
            and wanted.items() <= each["metadata"].get("labels", {}).items()
        ]


def build(directory: Path) -> list[Document]:
    """Return all objects that `kustomize build` would print.

    Args:
        directory: has a kustomization.yaml.

    Raises:
        KustomizationError: see the class.
    """
    objects = Objects()
    accumulate(directory.resolve(), objects)
    hash_names(objects)
    return objects.documents


def accumulate(directory: Path, objects: Objects) -> None:
    kustomization = next(load_all((directory / "kustomization.yaml").read_text()))
    refuse_unknown(kustomization, {"apiVersion", "kind", *STEPS}, str(directory))
    for name, step in STEPS.items():
        if name in kustomization:
            step(kustomization[name], directory, objects)


def refuse_unknown(given: Document, known: set[str], place: str) -> None:
    for name in given.keys() - known:
        raise KustomizationError(f"{place}: tests/support/kustomize.py does not know {name!r}")


def read(directory: Path, file: str) -> str:
    """Return a file of a kustomization: kustomize reads no file outside its directory."""
    path = (directory / file).resolve()
    if not path.is_relative_to(directory):
        raise KustomizationError(f"{file} lies outside {directory}: kustomize would not read it")
    return path.read_text()


def add_resources(resources: list[str], directory: Path, objects: Objects) -> None:
    for resource in resources:
        path = (directory / resource).resolve()
        if path.is_dir():
            below = Objects()
            accumulate(path, below)
            objects.hashed |= below.hashed
            documents = below.documents
        else:
            documents = list(load_all(read(directory, resource)))
        for document in documents:
            objects.add(document)


def apply_components(components: list[str], directory: Path, objects: Objects) -> None:
    for component in components:
        accumulate((directory / component).resolve(), objects)


def generate(generators: list[Document], directory: Path, objects: Objects) -> None:
    for generator in generators:
        known = {"name", "files", "literals", "behavior", "options"}
        refuse_unknown(generator, known, "configMapGenerator")
        options = generator.get("options", {})
        known = {"labels", "annotations", "disableNameSuffixHash"}
        refuse_unknown(options, known, "options")
        data = dict(each.split("=", 1) for each in generator.get("literals", []))
        for each in generator.get("files", []):
            name, _, file = each.rpartition("=")
            data[name or Path(file).name] = read(directory, file)
        name = generator["name"]
        metadata = {"name": name}
        metadata |= {key: options[key] for key in ("labels", "annotations") if key in options}
        made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        behavior = generator.get("behavior", "create")
        if behavior == "create":
            objects.add(made)
            if not options.get("disableNameSuffixHash"):
                objects.hashed.add(name)
            continue
        if not (found := objects.find("ConfigMap", name)):
            raise KustomizationError(f"there is no ConfigMap {name} to {behavior}")
        (former,) = found
        former["data"] = data if behavior == "replace" else former["data"] | data
        for key in ("labels", "annotations"):
            if key in options:
                former["metadata"][key] = former["metadata"].get(key, {}) | options[key]


def apply_patches(patches: list[Document], directory: Path, objects: Objects) -> None:
    for patch in patches:
        refuse_unknown(patch, {"path", "patch", "target"}, "patches")
        text = patch["patch"] if "patch" in patch else read(directory, patch["path"])
        for change in load_all(text):
            target = patch.get("target") or {
                "kind": change["kind"],
                "name": change["metadata"]["name"],
            }
            found = objects.matching(target)
            # A patch with labels only applies to all matching objects, also to none.
            if not found and ("name" in target or "labelSelector" not in target):
                raise KustomizationError(f"no object is the target {target} of a patch")
            for document in found:
                if isinstance(change, list):
                    for operation in change:
                        apply_operation(document, operation)
                    continue
                name = document["metadata"]["name"]
                merge(document, change)
                document["metadata"]["name"] = name


def apply_operation(document: Any, operation: Document) -> None:
    """Apply an operation of a JSON patch (RFC 6902), in place."""
    kind = operation["op"]
    if kind == "move":
        place, last = place_at(document, operation["from"])
        moved = {"op": "add", "path": operation["path"], "value": place[last]}
        apply_operation(document, {"op": "remove", "path": operation["from"]})
        apply_operation(document, moved)
        return
    place, last = place_at(document, operation["path"])
    value = copy.deepcopy(operation.get("value"))
    if kind not in ("add", "replace", "remove"):
        raise KustomizationError(f"tests/support/kustomize.py does not know the operation {kind}")
    if isinstance(place, list):
        index = len(place) if last == "-" else int(last)
        if kind != "add":
            del place[index]
        if kind != "remove":
            place.insert(index, value)
        return
    if kind != "add" and last not in place:
        raise KustomizationError(f"{described(document)} has no {operation['path']} to {kind}")
    if kind == "remove":
        del place[last]
    else:
        place[last] = value


def place_at(document: Any, path: str) -> tuple[Any, str]:
    """Return the list or mapping of a path's last part, and that part."""
    *steps, last = [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]]
    for step in steps:
        document = document[int(step) if isinstance(document, list) else step]
    return document, last


def merge(place: Document, change: Document) -> None:
    """Apply a strategic merge patch, in place: null removes; lists with a merge key are merged by
    it."""
    for name, value in change.items():
        former = place.get(name)
        if value is None:
            place.pop(name, None)
        elif isinstance(value, dict) and value.get("$patch") == "replace":
            place[name] = {key: each for key, each in value.items() if key != "$patch"}
        elif isinstance(value, dict) and isinstance(former, dict):
            merge(former, value)
        elif isinstance(value, list) and isinstance(former, list) and merge_key(name, value):
            place[name] = merged_list(former, value, merge_key(name, value))
        else:
            place[name] = copy.deepcopy(value)


def merge_key(name: str, value: list[Any]) -> str:
    if name == "ports" and all(isinstance(each, dict) for each in value):
        for key in ("containerPort", "port"):
            if all(key in each for each in value):
                return key
    return MERGE_KEYS.get(name, "")


def merged_list(former: list[Document], change: list[Document], key: str) -> list[Document]:
    """Return the merged list. The patch's elements come first, in its order, as in kustomize: the
    order of variables matters."""
    found = {each[key]: each for each in former}
    named: list[Document] = []
    for element in change:
        known = found.pop(element[key], None)
        if element.get("$patch") == "delete":
            continue
        if known is None:
            known = copy.deepcopy(element)
        else:
            merge(known, element)
        named.append(known)
    return [*named, *found.values()]


def set_namespace(namespace: str, _directory: Path, objects: Objects) -> None:
    accounts = {each["metadata"]["name"] for each in objects.matching({"kind": "ServiceAccount"})}
    for document in objects.documents:
        if document["kind"] == "Namespace":
            document["metadata"]["name"] = namespace
        elif document["kind"] not in CLUSTER_KINDS:
            document["metadata"]["namespace"] = namespace
        for subject in document.get("subjects", []):
            if subject["kind"] == "ServiceAccount" and subject["name"] in {*accounts, "default"}:
                subject["namespace"] = namespace


def add_suffix(suffix: str, _directory: Path, objects: Objects) -> None:
    """Add a suffix to the names of objects, and to the references between the renamed objects."""
    services = {name: f"{name}{suffix}" for name in names_of(objects, "Service")}
    for document in objects.documents:
        if document["kind"] not in SUFFIXED_KINDS:
            raise KustomizationError(f"{described(document)}: who names it is not known here")
        document["metadata"]["name"] += suffix
        service = document.get("spec", {}).get("serviceName")
        if service in services:
            document["spec"]["serviceName"] = services[service]


def names_of(objects: Objects, kind: str) -> list[str]:
    return [each["metadata"]["name"] for each in objects.matching({"kind": kind})]


def add_labels(labels: list[Document], _directory: Path, objects: Objects) -> None:
    for each in labels:
        refuse_unknown(each, {"pairs", "includeTemplates", "includeSelectors"}, "labels")
        for document in objects.documents:
            places = [document]
            if each.get("includeTemplates") or each.get("includeSelectors"):
                places += templates(document)
                places += document.get("spec", {}).get("volumeClaimTemplates", [])
            if each.get("includeSelectors"):
                for selector in selectors(document):
                    selector |= each["pairs"]
            for place in places:
                metadata = place.setdefault("metadata", {})
                metadata["labels"] = metadata.get("labels", {}) | each["pairs"]


def selectors(document: Document) -> Iterator[Document]:
    """Yield the labels by which an object selects pods."""
    kind, spec = document["kind"], document.get("spec", {})
    if kind == "Service":
        yield spec["selector"]
    elif kind in ("Deployment", "PodDisruptionBudget", "StatefulSet"):
        yield spec["selector"]["matchLabels"]
    elif kind not in CLUSTER_KINDS | {"ConfigMap"}:
        raise KustomizationError(f"{described(document)}: what it selects is not known here")
    for template in templates(document):
        yield from selected_pods(template["spec"])


def selected_pods(pod: Document) -> Iterator[Document]:
    """Yield the labels by which (anti-)affinity and spread constraints of a pod select pods."""
    for affinity in ("podAffinity", "podAntiAffinity"):
        terms = pod.get("affinity", {}).get(affinity, {})
        required = terms.get("requiredDuringSchedulingIgnoredDuringExecution", [])
        preferred = terms.get("preferredDuringSchedulingIgnoredDuringExecution", [])
        for term in [*required, *(each["podAffinityTerm"] for each in preferred)]:
            yield term["labelSelector"]["matchLabels"]
    for spread in pod.get("topologySpreadConstraints", []):
        yield spread["labelSelector"]["matchLabels"]


def templates(document: Document) -> list[Document]:
    """Return the templates of pods (and jobs) in an object."""
    spec = document.get("spec", {})
    if document["kind"] in ("DaemonSet", "Deployment", "Job", "StatefulSet"):
        return [spec["template"]]
    if document["kind"] == "CronJob":
        return [spec["jobTemplate"], spec["jobTemplate"]["spec"]["template"]]
    return []


def set_counts(counts: list[Document], _directory: Path, objects: Objects) -> None:
    for count in counts:
        target = {"kind": "Deployment|StatefulSet|ReplicaSet", "name": count["name"]}
        for document in objects.matching(target) or [{}]:
            if not document:
                raise KustomizationError(f"nothing is called {count['name']} that could be scaled")
            document["spec"]["replicas"] = count["count"]


def set_images(images: list[Document], _directory: Path, objects: Objects) -> None:
    for image in images:
        refuse_unknown(image, {"name", "newName", "newTag", "digest"}, "images")
        for container in containers_of(objects.documents):
            name, _, former = container["image"].partition(":")
            if name != image["name"]:
                continue
            tag = image.get("newTag", former)
            container["image"] = image.get("newName", name)
            if "digest" in image:
                container["image"] += f"@{image['digest']}"
            elif tag:
                container["image"] += f":{tag}"


def containers_of(documents: list[Document]) -> Iterator[Document]:
    for document in documents:
        for template in templates(document)[-1:]:
            yield from template["spec"].get("initContainers", [])
            yield from template["spec"]["containers"]


STEPS: dict[str, Callable[[Any, Path, Objects], None]] = {
    "resources": add_resources,
    "configMapGenerator": generate,
    "components": apply_components,
    "patches": apply_patches,
    "namespace": set_namespace,
    "nameSuffix": add_suffix,
    "labels": add_labels,
    "replicas": set_counts,
    "images": set_images,
}


def hash_names(objects: Objects) -> None:
    names = {}
    for document in objects.matching({"kind": "ConfigMap"}):
        name = document["metadata"]["name"]
        if name in objects.hashed:
            names[name] = document["metadata"]["name"] = f"{name}-{content_hash(document)}"
    for document in objects.documents:
        rename(document, names)


def content_hash(config_map: Document) -> str:
    """Return the hash that kustomize appends to a generated ConfigMap's name."""
    # kustomize reads the name from a field that does not exist: the hashed name is empty.
    hashed = {"data": config_map["data"], "kind": "ConfigMap", "name": ""}
    text = json.dumps(hashed, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS].translate(HASH_LETTERS)


def rename(place: Any, names: dict[str, str]) -> None:
    """Replace all references to ConfigMaps by their new names, in place."""
    if isinstance(place, list):
        for each in place:
            rename(each, names)
    elif isinstance(place, dict):
        for key, value in place.items():
            if key in NAMES_CONFIG_MAP and isinstance(value, dict) and "name" in value:
                value["name"] = names.get(value["name"], value["name"])
            rename(value, names)


def described(document: Document) -> str:
    return f"{document['kind']} {document['metadata']['name']}"
