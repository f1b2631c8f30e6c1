"""A helm for tests: it renders the chart with the real one, and applies objects with fake_kubectl.

python fake_helm.py STATE HELM ARGUMENTS...

STATE is the state of fake_kubectl. `releases` in it has the objects of each revision.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from deploy.fake_kubectl import Objects

from support import kustomize


def main(state: Path, helm: str, words: list[str]) -> None:
    made = argparse.ArgumentParser(allow_abbrev=False)
    made.add_argument("verb", choices=["install", "upgrade", "rollback", "uninstall"])
    made.add_argument("--namespace", required=True)
    made.add_argument("--create-namespace", action="store_true")
    options, rest = made.parse_known_args(words)
    revisions = state / "releases" / options.namespace
    revisions.mkdir(parents=True, exist_ok=True)
    objects, count = Objects(state), len(list(revisions.iterdir()))
    assert (count == 0) == (options.verb == "install"), "install comes first"
    manifests = revisions / f"{count:02}.yaml"
    if options.verb in ("install", "upgrade"):
        command = [
            helm,
            "template",
            *rest,
            "--kube-version=1.30.0",
            "--namespace",
            options.namespace,
        ]
        manifests.write_text(
            subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        )
    elif options.verb == "rollback":
        manifests.write_text((revisions / f"{count - 2:02}.yaml").read_text())
    else:
        manifests = revisions / f"{count - 1:02}.yaml"
    documents = [each for each in kustomize.load_all(manifests.read_text()) if each]
    if options.create_namespace:
        namespace = {"kind": "Namespace", "metadata": {"name": options.namespace}}
        objects.apply([namespace], options.namespace)
    if options.verb == "uninstall":
        objects.delete(documents, options.namespace)
    else:
        objects.apply(documents, options.namespace)
    objects.save()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
