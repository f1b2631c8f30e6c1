"""Fetches the programs of the compared message queues with the ordinary clients of registries.

Programs are stored in .compare (RocketMQ in .rocketmq, shared with `make rocketmq`) at the top of
the
checkout, and used again until the file with their versions changes.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
CACHE = ROOT / ".compare"
FETCH_SECONDS_MAX = 1800
SAID_CHARACTERS = 300


class NotHere(Exception):
    """Raised if this machine cannot run a message queue or a client; the text has the reason."""


def run(command: Sequence[object], **environment: str) -> str:
    """Run a command and return its output.

    Raises:
        NotHere: the command does not exist, failed, or did not end.
    """
    words = [str(word) for word in command]
    if shutil.which(words[0]) is None:
        raise NotHere(f"there is no {words[0]} on this machine")
    given = [f"{name}={value}" for name, value in environment.items()]
    try:
        done = subprocess.run(
            ["env", *given, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=FETCH_SECONDS_MAX,
        )
    except subprocess.TimeoutExpired:
        raise NotHere(f"{words[0]} did not end in {FETCH_SECONDS_MAX} s") from None
    if done.returncode:
        said = " ".join((done.stdout + done.stderr).split())
        raise NotHere(f"{Path(words[0]).name} failed: {said[-SAID_CHARACTERS:]}")
    return done.stdout


def maven(pom: Path, folder: Path) -> Path:
    """Fetch the jars of a pom and their dependencies into `lib` of a folder."""
    libraries, marker = folder / "lib", folder / "pom.xml"
    if not is_made(marker, pom.read_bytes()):
        shutil.rmtree(libraries, ignore_errors=True)
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={libraries}"]
        run(["mvn", "-q", "-B", "-f", pom, *goal])
        mark(marker, pom.read_bytes())
    return libraries


def compiled(name: str, libraries: Path) -> Path:
    """Compile the Java client with this name; return the directory of its classes."""
    folder = CACHE / "classes" / name
    marker, sources = folder / "sources", sorted((HERE / "java").glob("*.java"))
    content = b"".join(path.read_bytes() for path in sources)
    if not is_made(marker, content):
        shutil.rmtree(folder, ignore_errors=True)
        options = ["-nowarn", "-d", folder, "-cp", f"{libraries}/*", "-sourcepath", HERE / "java"]
        run(["javac", *options, HERE / "java" / f"{name}.java"])
        mark(marker, content)
    return folder


def python() -> Path:
    """Create a Python environment with the client libraries of Kafka and NATS; return its
    interpreter."""
    folder, wanted = CACHE / "python", HERE / "requirements.txt"
    program, marker = folder / "bin" / "python", folder / "requirements.txt"
    if not is_made(marker, wanted.read_bytes()):
        run([sys.executable, "-m", "venv", "--clear", folder])
        run([program, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", wanted])
        mark(marker, wanted.read_bytes())
    return program


def go(module: str, version: str) -> Path:
    """Install a Go module and return its program."""
    folder = CACHE / "bin"
    program = folder / next(part for part in reversed(module.split("/")) if part[:1] != "v")
    marker = folder / f"{program.name}.version"
    if not is_made(marker, version.encode()):
        run(["go", "install", f"{module}@{version}"], GOBIN=str(folder))
        mark(marker, version.encode())
    return program


def python_version(name: str) -> str:
    """Return the version of a Python package in `requirements.txt`."""
    lines = (HERE / "requirements.txt").read_text().splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith(f"{name}=="))


def is_made(marker: Path, content: bytes) -> bool:
    return marker.exists() and marker.read_bytes() == content


def mark(marker: Path, content: bytes) -> None:
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.write_bytes(content)
