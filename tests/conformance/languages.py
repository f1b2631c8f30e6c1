"""RocketMQ's official clients: how each is installed, and how our program with it is run.

A client that a machine cannot run is named with the reason.
"""

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.compare.peer import pom_version
from bench.compare.programs import ROOT, NotHere, is_made, mark, maven, run

SOURCES = Path(__file__).parent / "clients"
CACHE = ROOT / ".conformance"
# Installation of the C++ client, which no package registry has.
CPP_PREFIX = "ROCKETMQ_CPP"


@dataclass(frozen=True)
class Prepared:
    """A client program that can be started.

    Attributes:
        language: title of its column.
        version: of the library.
        command: program and arguments.
    """

    language: str
    version: str
    command: Sequence[object]

    def environment(self, home: Path) -> Mapping[str, str]:
        """Return all variables of the program; its library writes logs below `home`."""
        home.mkdir(parents=True, exist_ok=True)
        return {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}


def java_classes(source: Path, libraries: Path, folder: Path) -> Path:
    """Compile one Java program, and return the directory of its classes."""
    marker = folder / source.name
    if not is_made(marker, source.read_bytes()):
        shutil.rmtree(folder, ignore_errors=True)
        run(["javac", "-nowarn", "-d", folder, "-cp", f"{libraries}/*", source])
        mark(marker, source.read_bytes())
    return folder


def python() -> Prepared:
    folder, wanted = CACHE / "python", SOURCES / "python" / "requirements.txt"
    program, marker = folder / "bin" / "python", folder / "requirements.txt"
    if not is_made(marker, wanted.read_bytes()):
        run([sys.executable, "-m", "venv", "--clear", folder])
        run([program, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", wanted])
        mark(marker, wanted.read_bytes())
    version = wanted.read_text().strip().partition("==")[2]
    return Prepared("Python", version, [program, SOURCES / "python" / "client.py"])


def node() -> Prepared:
    folder, wanted = CACHE / "node", SOURCES / "node" / "package.json"
    marker = folder / "made"
    if not is_made(marker, wanted.read_bytes()):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copy(wanted, folder)
        quiet = ("--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund", "--silent")
        run(["npm", "install", "--prefix", folder, *quiet])
        mark(marker, wanted.read_bytes())
    # The program finds its library in its own directory.
    shutil.copy(SOURCES / "node" / "client.js", folder)
    version = wanted.read_text().partition('nodejs": "')[2].partition('"')[0]
    return Prepared("Node.js", version, ["node", folder / "client.js"])


def java() -> Prepared:
    folder, pom = CACHE / "java", SOURCES / "java" / "pom.xml"
    libraries = maven(pom, folder)
    classes = java_classes(
        SOURCES / "java" / "ConformanceClient.java", libraries, folder / "classes"
    )
    options = ("-Xms32m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    path = f"{classes}:{libraries}/*"
    command = ["java", *options, "-cp", path, "ConformanceClient"]
    return Prepared("Java", pom_version(pom), command)


def _built(name: str, inputs: Sequence[str], build: Callable[[Path], None], more: str = "") -> Path:
    """Return a folder below the cache with copies of a client's sources, built if they changed.

    Args:
        more: further inputs of the build.
    """
    folder, sources = CACHE / name, SOURCES / name
    content = b"".join((sources / each).read_bytes() for each in inputs) + more.encode()
    marker = folder / "made"
    if not is_made(marker, content):
        for each in inputs:
            (folder / each).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(sources / each, folder / each)
        build(folder)
        mark(marker, content)
    return folder


def rust() -> Prepared:
    def build(folder: Path) -> None:
        manifest = folder / "Cargo.toml"
        run(["cargo", "build", "--quiet", "--release", "--manifest-path", manifest])

    folder = _built("rust", ("Cargo.toml", "src/main.rs"), build)
    manifest = (SOURCES / "rust" / "Cargo.toml").read_text()
    version = manifest.partition('rocketmq = "=')[2].partition('"')[0]
    return Prepared("Rust", version, [folder / "target" / "release" / "conformance-client"])


def go() -> Prepared:
    def build(folder: Path) -> None:
        run(["go", "-C", folder, "mod", "tidy"])
        run(["go", "-C", folder, "build", "-o", "client", "."])

    folder = _built("go", ("go.mod", "main.go"), build)
    version = (SOURCES / "go" / "go.mod").read_text().rpartition(" v")[2].strip()
    return Prepared("Go", version, [folder / "client"])


def cpp() -> Prepared:
    prefix = os.environ.get(CPP_PREFIX, "")
    if not prefix:
        raise NotHere(f"no registry has it; {CPP_PREFIX} may name its installation")
    library = Path(prefix).resolve() / "lib" / "librocketmq.so"
    if not library.exists():
        raise NotHere(f"{CPP_PREFIX}: there is no {library}")

    def build(folder: Path) -> None:
        paths = (f"-I{library.parents[1]}/include", f"-L{library.parent}")
        linked = (f"-Wl,-rpath,{library.parent}", "-lrocketmq", "-lprotobuf", "-pthread")
        program = ("-o", folder / "client", folder / "client.cpp")
        run(["c++", "-std=c++17", "-O1", "-w", *paths, *program, *linked])

    folder = _built("cpp", ("client.cpp",), build, str(library.resolve()))
    version = library.resolve().name.removeprefix("librocketmq.so").strip(".")
    return Prepared("C++", version, [folder / "client"])


def not_tried(reason: str) -> Callable[[], Prepared]:
    def prepare() -> Prepared:
        raise NotHere(reason)

    return prepare


LANGUAGES: Mapping[str, Callable[[], Prepared]] = {
    "Java": java,
    "Python": python,
    "Node.js": node,
    "Go": go,
    "Rust": rust,
    "C++": cpp,
    "C#": not_tried("it needs .NET, which this run does not install"),
}
