"""Print the software bill of materials of an image: CycloneDX 1.5, in JSON, the same each time.

    sbom.py NAME --debian var/lib/dpkg/status --packages FOLDER --jars FOLDER --go FILE

Names packages of Debian, distributions of Python, jars, the modules of a program in Go (FILE is
the output of `go version -m`), and the components that wheels name in bills of their own (PEP 770).
"""

import argparse
import json
import platform
import re
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

Component = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the bill of materials of an image.")
    parser.add_argument("name", help="name of the image")
    parser.add_argument("--debian", type=Path, help="Debian's list of installed packages")
    parser.add_argument("--packages", type=Path, action="append", default=[], help="site-packages")
    parser.add_argument("--jars", type=Path, help="folder of jars")
    parser.add_argument("--go", type=Path, help="output of `go version -m`")
    options = parser.parse_args()
    found: list[Component] = []
    if options.debian:
        found += debian(options.debian)
    if options.packages:
        found.append(component("generic", "python", platform.python_version()))
        found += python([str(folder) for folder in options.packages])
    if options.jars:
        found += jars(options.jars)
    if options.go:
        found += go(options.go)
    components = {each["bom-ref"]: each for each in found}
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": options.name}},
        "components": [components[reference] for reference in sorted(components)],
    }
    json.dump(bill, sys.stdout, indent=1)


def component(kind: str, name: str, version: str, licence: str = "") -> Component:
    """Return a component.

    Args:
        kind: type of the package URL, with the namespace: `pypi`, `deb/debian`.
        licence: an SPDX expression, or "" if the package does not give one.
    """
    reference = f"pkg:{kind}/{quote(name)}@{quote(version, safe='')}"
    made: Component = {"type": "library", "bom-ref": reference, "name": name}
    made |= {"version": version, "purl": reference}
    if licence:
        made["licenses"] = [{"expression": licence}]
    return made


def debian(status: Path) -> Iterator[Component]:
    for paragraph in status.read_text().split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Status): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status") == "install ok installed":
            yield component("deb/debian", fields["Package"], fields["Version"])


def python(folders: list[str]) -> Iterator[Component]:
    for each in distributions(path=folders):
        licence = str(each.metadata.json.get("license_expression", ""))
        yield component("pypi", each.name.lower().replace("_", "-"), each.version, licence)
        yield from embedded(each)


def embedded(distribution: Distribution) -> Iterator[Component]:
    """Components that are compiled into a wheel, by the bills in its `dist-info/sboms`."""
    for file in distribution.files or []:
        if file.parent.name == "sboms" and file.suffix == ".json":
            for each in json.loads(file.read_text()).get("components", []):
                if "purl" in each:
                    kept = {"type", "name", "version", "purl"} & each.keys()
                    yield {"bom-ref": each["purl"], **{key: each[key] for key in sorted(kept)}}


def jars(folder: Path) -> Iterator[Component]:
    """What each jar says of itself and of the jars that are merged into it."""
    for path in sorted(folder.glob("*.jar")):
        with zipfile.ZipFile(path) as jar:
            pages = [jar.read(name).decode() for name in jar.namelist() if is_description(name)]
        for page in pages:
            fields = dict(re.findall(r"^(groupId|artifactId|version)=(\S+)", page, re.MULTILINE))
            yield component(f"maven/{fields['groupId']}", fields["artifactId"], fields["version"])
        named = re.fullmatch(r"(.+?)-(\d.*)", path.stem)
        if named and not pages:
            yield component("generic", *named.groups())


def is_description(name: str) -> bool:
    return name.startswith("META-INF/maven/") and name.endswith("/pom.properties")


def go(listing: Path) -> Iterator[Component]:
    text = listing.read_text()
    (version,) = re.findall(r"^\S+: go(\S+)", text)
    yield component("golang", "stdlib", version)
    for name, version in re.findall(r"^\tdep\t(\S+)\t(\S+)", text, re.MULTILINE):
        yield component("golang", name, version)


if __name__ == "__main__":
    main()
