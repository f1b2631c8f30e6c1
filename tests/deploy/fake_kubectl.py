"""A kubectl for tests: Secrets and pods of one namespace, in a directory.

python fake_kubectl.py STATE ARGUMENTS...

STATE has `namespace`, optionally `pods.json` (the list that the API would return), and a file
`secrets/NAME.json` for each Secret. `history` gets a line with the content of every Secret written.
A pod reads a changed Secret at the second look.
"""

import base64
import hashlib
import json
import sys
from pathlib import Path
from typing import Any


def fail(reason: str) -> None:
    sys.exit(f"Error from server: {reason}")


def get(state: Path, words: list[str]) -> None:
    kind, names = words[0], [each for each in words[1:] if not each.startswith("-")]
    output = words[words.index("-o") + 1]
    names = [each for each in names if each != output]
    if kind == "namespace":
        assert "--ignore-not-found" in words
        if names == [(state / "namespace").read_text()]:
            print(f"namespace/{names[0]}")
    elif kind == "pods":
        print((state / "pods.json").read_text())
    else:
        assert kind == "secret", kind
        assert "--ignore-not-found" in words
        files = [state / "secrets" / f"{name}.json" for name in names]
        found = [json.loads(each.read_text()) for each in files if each.exists()]
        # As kubectl: one object for one name, nothing for none.
        if found:
            print(json.dumps(found[0] if len(names) == 1 else {"kind": "List", "items": found}))


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


def execute(state: Path, words: list[str]) -> None:
    pod, path = words[0], words[-1]
    assert words[1:5] == ["-c", "main", "--", "python"], words
    (secret,) = (state / "secrets").glob("rockoon-cluster.json")
    key = path.rpartition("/")[2]
    current = base64.b64decode(json.loads(secret.read_text())["data"][key])
    read = state / f"{pod}.read"
    if read.exists() and read.read_bytes() == current:
        print(hashlib.sha256(current).hexdigest())
    else:
        print("0" * 64)
        read.write_bytes(current)


def main(state: Path, words: list[str]) -> None:
    assert words[:1] == ["-n"], words
    if words[1] != (state / "namespace").read_text() and words[2] != "get":
        fail(f"namespaces {words[1]!r} not found")
    verb = words[2]
    if verb == "get":
        get(state, words[3:])
    elif verb in ("create", "replace"):
        assert words[3:] == ["-f", "-"], words
        write(state, verb)
    else:
        assert verb == "exec", verb
        execute(state, words[3:])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
