"""The socket by which another terminal plays with a cluster: DIR/control, for its owner alone.

A connection carries one request and one answer, a line of JSON each:

    {"do": "kill", "node": "broker-a"}   →   {"done": "broker-a is killed"} or {"error": "..."}
"""

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from rockoon.local.directory import running_process
from rockoon.local.process import LocalClusterError

SOCKET = "control"
PAST = {"stop": "stopped", "start": "started", "kill": "killed"}
ACTIONS = tuple(PAST)
LINE_BYTES_MAX = 4096
ASK_SECONDS_MAX = 2.0
# A node may take a minute to get ready, and others may be asked for first.
ANSWER_SECONDS_MAX = 180.0


class Request:
    """What somebody in another terminal wants; to be answered once."""

    def __init__(self, action: str, node: str, connection: socket.socket) -> None:
        self.action = action
        self.node = node
        self._connection = connection

    def answer(self, *, done: str = "", error: str = "") -> None:
        """Say what was done, or why not. Whoever has gone away does not hear it."""
        said = {"error": error} if error else {"done": done}
        with self._connection, contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(said).encode() + b"\n")


class ControlSocket:
    """Listens while entered, and hands over requests.

    Args:
        directory: of the cluster, which this process has locked.
        hand_over: is given each, on a thread of its own.
    """

    def __init__(self, directory: Path, hand_over: Callable[[Request], None]) -> None:
        self._directory = directory
        self._hand_over = hand_over
        self._listener = socket.socket(socket.AF_UNIX)

    def __enter__(self) -> "ControlSocket":
        # One that was left by a process that was killed; nobody else has the directory.
        (self._directory / SOCKET).unlink(missing_ok=True)
        with socket_path(self._directory) as path:
            before = os.umask(0o177)
            try:
                self._listener.bind(path)
            finally:
                os.umask(before)
        self._listener.listen()
        threading.Thread(target=self._listen, name="control socket", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        (self._directory / SOCKET).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            try:
                connection.settimeout(ASK_SECONDS_MAX)
                wanted = json.loads(read_line(connection))
                request = Request(str(wanted["do"]), str(wanted["node"]), connection)
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                connection.close()
                continue
            self._hand_over(request)


def ask(directory: Path, action: str, node: str) -> str:
    """Have the cluster that runs on a directory do something with a node; returns what it did.

    Raises:
        LocalClusterError: no cluster runs there, it has no such node, or it could not do it.
    """
    if not (directory / "cluster.json").exists():
        raise LocalClusterError(
            f"there is no cluster in {directory}: say with --dir where it is, or start one with "
            "`rockoon up`"
        )
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_SECONDS_MAX)
        try:
            with socket_path(directory) as path:
                connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            if (holder := running_process(directory)) is not None:
                raise LocalClusterError(
                    f"the cluster on {directory} runs in one process ({holder}, `rockoon up "
                    f"--single`), so no node can be {PAST[action]} alone; `kill {holder}` ends it"
                ) from None
            raise LocalClusterError(
                f"no cluster runs on {directory}: start it with `rockoon up --dir {directory}`"
            ) from None
        except OSError as failure:
            raise LocalClusterError(f"{directory / SOCKET}: {failure.strerror}") from failure
        try:
            connection.sendall(json.dumps({"do": action, "node": node}).encode() + b"\n")
            said = json.loads(read_line(connection))
        except (OSError, ValueError) as failure:
            raise LocalClusterError(f"the cluster on {directory} has not answered") from failure
    if "error" in said:
        raise LocalClusterError(str(said["error"]))
    return str(said["done"])


def read_line(connection: socket.socket) -> bytes:
    """One line, without more than a line may have. Raises OSError."""
    with connection.makefile("rb") as stream:
        return stream.readline(LINE_BYTES_MAX)


@contextmanager
def socket_path(directory: Path) -> Iterator[str]:
    """A name for the socket that fits into the 107 bytes which the system allows for one."""
    if not Path("/proc/self/fd").exists():
        yield str(directory / SOCKET)
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)
