"""Programs of a comparison: fetched with ordinary clients of registries, run as child processes.

Programs are stored in .compare (RocketMQ in .rocketmq, shared with `make rocketmq`) at the top of
the checkout, and used again until the file with their versions changes.
"""

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from rockoon.local.directory import PortBlock
from rockoon.local.etcd import ENDS_WITH_US
from rockoon.local.process import tail

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
CACHE = ROOT / ".compare"
FETCH_SECONDS_MAX = 1800
SAID_CHARACTERS = 300


class NotHere(Exception):
    """Raised if this machine cannot run a message queue or a client; the text has the reason."""


def run(command: Sequence[object], **environment: str) -> str:
    """Run a command and return its output. Raises NotHere: the command does not exist, failed, or
    did not end."""
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


READY_SECONDS_MAX = 90.0
STOP_SECONDS_MAX = 30.0
LOOK_SECONDS = 0.02


class ProgramFailed(Exception):
    """Raised if a server or a client ended, failed, or did not reply; the text has name and
    cause."""


class MeasureFailed(Exception):
    """Raised if an operation of a client failed; the client can run other operations."""


class NoSuchWay(Exception):
    """Raised if a client library does not have an operation; the text has the reason."""


class Program:
    """A server process; it ends when this process ends, even if this process is killed.

    Args:
        name: name of the server in error texts.
        log: file for its output.
        environment: added to the environment of this process.
    """

    def __init__(
        self, name: str, command: Sequence[object], log: Path, environment: Mapping[str, str] = {}
    ) -> None:
        self.name = name
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                ["sh", "-c", ENDS_WITH_US, "sh", *map(str, command)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                cwd=log.parent,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_listening(self, port: int) -> None:
        """Wait until the server listens on a port. Raises ProgramFailed: the server ended, or did
        not listen in time."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise ProgramFailed(f"{self.name} ended: {tail(self._log)}")
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                return
            time.sleep(LOOK_SECONDS)
        raise ProgramFailed(f"{self.name} does not listen: {tail(self._log)}")

    def stop(self) -> None:
        """Stop the server and all its children."""
        ended(self._process)


class ClientProgram:
    """A client process that implements `clients/protocol.py`.

    Args:
        log: file for its error output.
        environment: added to the environment of this process.
    """

    def __init__(
        self, command: Sequence[object], log: Path, environment: Mapping[str, str]
    ) -> None:
        self._log = log
        self._unread = b""
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, do: str, seconds_max: float, **given: object) -> dict[str, float]:
        """Request an operation from the client; return its result.

        Raises:
            NoSuchWay: the client has no such operation.
            MeasureFailed: the operation failed.
            ProgramFailed: the client ended, or did not answer in time.
        """
        assert self._process.stdin is not None
        line = " ".join([do, *(f"{name}={value}" for name, value in given.items())])
        with suppress(BrokenPipeError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        kind, _, said = self._answer(time.monotonic() + seconds_max).partition(" ")
        if kind == "-":
            raise NoSuchWay(said)
        if kind == "!":
            raise MeasureFailed(said)
        return {name: float(value) for name, value in (word.split("=") for word in said.split())}

    def _answer(self, deadline: float) -> str:
        while True:
            line = self._line(deadline)
            if line[:2] in ("> ", "- ", "! "):
                return line

    def _line(self, deadline: float) -> str:
        assert self._process.stdout is not None
        while b"\n" not in self._unread:
            left = max(deadline - time.monotonic(), 0.0)
            if not select.select([self._process.stdout], [], [], left)[0]:
                raise ProgramFailed("no answer in time")
            if not (read := os.read(self._process.stdout.fileno(), 1 << 16)):
                raise ProgramFailed(f"it ended: {tail(self._log)}")
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")

    def stop(self) -> None:
        """Ask the client to close its connections, and stop it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS_MAX)
        ended(self._process)
        self._process.stdout.close()


def ended(process: subprocess.Popen[bytes]) -> None:
    """Stop a child process and its process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS_MAX)
            break
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()


class Interrupts:
    """Handler of Ctrl-C and SIGTERM that can defer the first signal (`held`)."""

    def __init__(self) -> None:
        self._is_held = False
        self._came = False
        self._is_told = False

    def handle(self) -> None:
        """Install handlers for both signals, on the main thread."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Context manager that defers signals to the end of the block, for code that stops
        processes.

        Blocking the signals is not enough: another thread would receive them, and Python would
        still call the handler in this thread.
        """
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        self._tell()

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._came = True
        if not self._is_held:
            self._tell()

    def _tell(self) -> None:
        if self._came and not self._is_told:
            self._is_told = True
            raise KeyboardInterrupt


def free_port(ports: PortBlock, *offsets: int) -> int:
    """Return a free port; the ports at the given offsets from it are free too."""
    while True:
        port = ports.choose()
        if all(is_free(port + offset) for offset in offsets):
            return port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
