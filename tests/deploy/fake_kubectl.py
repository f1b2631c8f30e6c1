"""A kubectl for tests: objects, Secrets and pods of a cluster without nodes, in a directory.

python fake_kubectl.py STATE ARGUMENTS...

STATE has `namespace` (of the production overlay), optionally `pods.json` (the list that the API
would return), and a file `secrets/NAME.json` for each Secret. `history` gets a line with the
content of every Secret written. A pod reads a changed Secret at the second look. `rockoon.json`
names clusters on this machine: `exec POD -- rockoon ...` calls the one of the pod's namespace.
"""

import argparse
import base64
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ORDINALS = 3
KINDS = {"pod": "Pod", "pvc": "PersistentVolumeClaim", "statefulset": "StatefulSet"}
KINDS |= {"deployment": "Deployment", "job": "Job"}
# A cluster on this machine has other names for its logs.
NAMES_HERE = {"rockoon-broker": "broker-a"}


def fail(reason: str) -> None:
    sys.exit(f"Error from server {reason}")


class Objects:
    """Objects that were applied: namespace/kind/name to the manifest."""

    def __init__(self, state: Path) -> None:
        self._file = state / "objects.json"
        self.all: dict[str, Any] = json.loads(self._file.read_text()) if self._file.exists() else {}

    def save(self) -> None:
        self._file.write_text(json.dumps(self.all))

    def find(self, namespace: str, kind: str, name: str) -> str:
        key = f"{namespace}/{KINDS[kind]}/{name}"
        if key not in self.all:
            fail(f'(NotFound): {kind}s "{name}" not found')
        return key

    def apply(self, documents: Iterable[Any], namespace: str) -> None:
        for each in documents:
            name = each["metadata"]["name"]
            place = each["metadata"].get("namespace", namespace)
            if each["kind"] == "Namespace":
                place = name
            elif place != "default" and f"{place}/Namespace/{place}" not in self.all:
                fail(f'(NotFound): namespaces "{place}" not found')
            self.all[f"{place}/{each['kind']}/{name}"] = each
            for ordinal in range(ORDINALS if each["kind"] == "StatefulSet" else 0):
                pod = f"{name}-{ordinal}"
                self.all[f"{place}/Pod/{pod}"] = {"spec": {"nodeName": f"node-{ordinal}"}}
                self.all[f"{place}/PersistentVolumeClaim/data-{pod}"] = {}
            print(f"{each['kind']}/{name} applied")

    def delete(self, documents: Iterable[Any], namespace: str) -> None:
        for each in documents:
            name = each["metadata"]["name"]
            place = each["metadata"].get("namespace", namespace)
            if each["kind"] == "Namespace":
                self.all = {key: self.all[key] for key in self.all if key.partition("/")[0] != name}
            else:
                self.all.pop(f"{place}/{each['kind']}/{name}", None)


def parser() -> argparse.ArgumentParser:
    """Return the options that scripts and pages use, at any position."""
    made = argparse.ArgumentParser(allow_abbrev=False)
    made.add_argument("-n", dest="namespace", default="default")
    made.add_argument("-f", dest="file")
    made.add_argument("-k", dest="directory")
    made.add_argument("-o", dest="output", default="")
    made.add_argument("-l", dest="selector")
    made.add_argument("-p", dest="patch", type=json.loads)
    for name in (
        "--for",
        "--timeout",
        "--cascade",
        "--replicas",
        "--field-selector",
        "--from-literal",
        "--from-file",
    ):
        made.add_argument(name)
    for name in ("--ignore-not-found", "--ignore-daemonsets", "--delete-emptydir-data", "--force"):
        made.add_argument(name, action="store_true")
    made.add_argument("words", nargs="+")
    return made


def documents_of(options: argparse.Namespace) -> list[Any]:
    # Imported here, because most commands are for Secrets and pods, and do not need it.
    from support import kustomize

    if options.directory:
        return kustomize.build(Path(options.directory))
    return list(kustomize.load_all(Path(options.file).read_text()))


def get(state: Path, options: argparse.Namespace) -> None:
    kind, *names = options.words[1:]
    if kind == "namespace":
        assert options.ignore_not_found
        objects = Objects(state)
        known = {(state / "namespace").read_text()} if not objects.all else set()
        known |= {key.partition("/")[0] for key in objects.all}
        if set(names) <= known:
            print(f"namespace/{names[0]}")
    elif kind == "secret":
        assert options.ignore_not_found
        files = [state / "secrets" / f"{name}.json" for name in names]
        found = [json.loads(each.read_text()) for each in files if each.exists()]
        # As kubectl: one object for one name, nothing for none.
        if found:
            print(json.dumps(found[0] if len(names) == 1 else {"kind": "List", "items": found}))
    elif kind == "pods" and options.output == "json":
        listed = state / "pods.json"
        print(listed.read_text() if listed.exists() else json.dumps({"items": []}))
    elif kind == "pod":
        objects = Objects(state)
        assert options.output == "jsonpath={.spec.nodeName}"
        print(objects.all[objects.find(options.namespace, kind, names[0])]["spec"]["nodeName"])
    else:
        assert kind in ("pods", "events", "service"), kind


def write(state: Path, verb: str) -> None:
    for made in json.load(sys.stdin)["items"]:
        name = made["metadata"]["name"]
        file = state / "secrets" / f"{name}.json"
        former: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        if verb == "create" and former:
            fail(f'(AlreadyExists): secrets "{name}" already exists')
        version = former["metadata"]["resourceVersion"] if former else 0
        if verb == "replace" and made["metadata"]["resourceVersion"] != version:
            fail(f"(Conflict): secrets {name!r}: the object has been modified")
        if former and made["type"] != former["type"]:
            fail(f'Secret "{name}" is invalid: type: field is immutable')
        made["metadata"]["resourceVersion"] = version + 1
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(made))
        with (state / "history").open("a") as history:
            history.write(json.dumps({name: made["data"]}) + "\n")


def secret_data(state: Path, name: str) -> dict[str, bytes]:
    data = json.loads((state / "secrets" / f"{name}.json").read_text())["data"]
    return {key: base64.b64decode(content) for key, content in data.items()}


def look_at_cluster_secret(state: Path, pod: str, words: list[str]) -> None:
    current = secret_data(state, "rockoon-cluster")[words[-1].rpartition("/")[2]]
    read = state / f"{pod}.read"
    if read.exists() and read.read_bytes() == current:
        print(hashlib.sha256(current).hexdigest())
    else:
        print("0" * 64)
        read.write_bytes(current)


def execute(state: Path, words: list[str]) -> None:
    """`exec [-i] POD [-c main] -- COMMAND`."""
    namespace = words[1] if words[0] == "-n" else "default"
    words = words[2:] if words[0] == "-n" else words
    before, command = words[: words.index("--")], words[words.index("--") + 1 :]
    pod = next(word for word in before if not word.startswith("-"))
    if command[0] == "python":
        look_at_cluster_secret(state, pod, command)
        return
    assert command[0] == "rockoon", command
    objects = Objects(state)
    (container,) = objects.all[objects.find(namespace, "pod", pod)]["spec"]["containers"]
    known = {each["name"]: each.get("value", "") for each in container["env"]}
    own = json.loads((state / "rockoon.json").read_text())
    host = known["ROCKOON_NAMESERVERS"].split(".")[1]
    environment = os.environ | own[host]
    if "ROCKOON_ACCESS_KEY" in known and not known["ROCKOON_ACCESS_KEY"]:
        key = secret_data(state, "rockoon-access-client")
        environment["ROCKOON_ACCESS_KEY"] = key["key"].decode()
        environment["ROCKOON_ACCESS_SECRET"] = key["secret"].decode()
    program = Path(sys.executable).with_name("rockoon")
    arguments = [NAMES_HERE.get(word, word) for word in command[1:]]
    sys.exit(subprocess.run([program, *arguments], env=environment).returncode)


def change(state: Path, options: argparse.Namespace) -> None:
    """Commands that change objects, or wait for them."""
    objects, (verb, *words) = Objects(state), options.words
    if verb in ("apply", "delete") and (options.directory or options.file):
        getattr(objects, verb)(documents_of(options), options.namespace)
    elif verb == "create":
        # `create secret generic NAME` has a type.
        kind, *_, name = words
        objects.apply([{"kind": kind, "metadata": {"name": name}}], options.namespace)
    elif verb in ("rollout", "wait", "delete", "scale", "patch", "logs"):
        if verb == "rollout":
            assert words.pop(0) in ("status", "restart")
        if words[0] in KINDS:
            words = [
                f"{words[0]}/{name}" for name in words[1:] or ["" if options.selector else "?"]
            ]
        for each in words:
            kind, _, name = each.partition("/")
            if not options.selector:
                key = objects.find(options.namespace, kind, name)
                if verb == "delete" and kind != "pod":
                    del objects.all[key]
                if verb == "delete" and kind == "pod" and "containers" in objects.all[key]["spec"]:
                    del objects.all[key]
    else:
        assert verb in ("drain", "uncordon"), verb
        assert words[0] in {f"node-{ordinal}" for ordinal in range(ORDINALS)}, words
    objects.save()


def main(state: Path, words: list[str]) -> None:
    if "--" in words:
        at = words.index("exec")
        execute(state, words[:at] + words[at + 1 :])
        return
    options = parser().parse_intermixed_args(words)
    verb = options.words[0]
    if verb == "get":
        get(state, options)
    elif options.file == "-":
        write(state, verb)
    else:
        change(state, options)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
