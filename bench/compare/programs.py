"""Child processes of a comparison: servers and clients."""

import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from rockoon.local.directory import PortBlock
from rockoon.local.etcd import ENDS_WITH_US
from rockoon.local.process import tail

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
        command: program and arguments.
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
        """Wait until the server listens on a port.

        Raises:
            ProgramFailed: the server ended, or did not listen in time.
        """
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
        command: program and arguments.
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
