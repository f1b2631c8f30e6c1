"""gRPC's clients of each language: how each is fetched, and how the program over it is started."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from bench.compare.peer import pom_version
from bench.compare.programs import ROOT, is_made, mark, maven, run
from conformance.languages import java_classes

SOURCES = Path(__file__).parent / "clients"
CACHE = ROOT / ".conformance" / "grpc"
PYTHON = (sys.executable, SOURCES / "python" / "client.py")


@dataclass(frozen=True)
class Program:
    """A client program.

    Attributes:
        name: heads its column.
        version: of the library.
        command: program and arguments.
    """

    name: str
    version: str
    command: Sequence[object]


def environment() -> Mapping[str, str]:
    """Environment of client programs; Rockoon's channel is found below `tests`."""
    return {**os.environ, "PYTHONPATH": str(ROOT / "tests")}


def python() -> Program:
    return Program("Python", version("grpcio"), PYTHON)


def rockoon() -> Program:
    return Program("Rockoon", "", (*PYTHON, "--rockoon"))


def go() -> Program:
    folder, files = CACHE / "go", ("go.mod", "main.go", "server.go")
    content = b"".join((SOURCES / "go" / each).read_bytes() for each in files)
    if not is_made(folder / "made", content):
        folder.mkdir(parents=True, exist_ok=True)
        for each in files:
            shutil.copy(SOURCES / "go" / each, folder / each)
        run(["go", "-C", folder, "mod", "tidy"])
        run(["go", "-C", folder, "build", "-o", "peer", "."])
        mark(folder / "made", content)
    found = (SOURCES / "go" / "go.mod").read_text().rpartition(" v")[2].strip()
    return Program("Go", found, [folder / "peer"])


def java() -> Program:
    folder, pom = CACHE / "java", SOURCES / "java" / "pom.xml"
    libraries = maven(pom, folder)
    classes = java_classes(SOURCES / "java" / "GrpcPeer.java", libraries, folder / "classes")
    options = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    command = ["java", *options, "-cp", f"{classes}:{libraries}/*", "GrpcPeer"]
    return Program("Java", pom_version(pom), command)


def node() -> Program:
    folder, wanted = CACHE / "node", SOURCES / "node" / "package.json"
    if not is_made(folder / "made", wanted.read_bytes()):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copy(wanted, folder)
        quiet = ("--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund", "--silent")
        run(["npm", "install", "--prefix", folder, *quiet])
        mark(folder / "made", wanted.read_bytes())
    # It finds its library beside itself.
    shutil.copy(SOURCES / "node" / "client.js", folder)
    found = wanted.read_text().partition('grpc-js": "')[2].partition('"')[0]
    return Program("Node.js", found, ["node", folder / "client.js"])


LANGUAGES: Mapping[str, Callable[[], Program]] = {
    "Python": python,
    "Go": go,
    "Java": java,
    "Node.js": node,
}
