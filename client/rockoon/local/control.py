"""Control socket of a cluster in the foreground: DIR/control, accessible to its owner only.

Each connection carries one request and one reply, one line of JSON each:

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
# A node may need a minute to start, and earlier requests are served first.
ANSWER_SECONDS_MAX = 180.0


class Request:
    """A request from another terminal; must be answered once."""

    def __init__(self, action: str, node: str, connection: socket.socket) -> None:
        self.action = action
        self.node = node
        self._connection = connection

    def answer(self, *, done: str = "", error: str = "") -> None:
        """Send the result or the error; ignored if the client has disconnected."""
        reply = {"error": error} if error else {"done": done}
        with self._connection, contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(reply).encode() + b"\n")


class ControlSocket:
    """Accepts requests while it is entered.

    Args:
        directory: directory of the cluster, locked by this process.
        on_request: called with each request, on a separate thread.
    """

    def __init__(self, directory: Path, on_request: Callable[[Request], None]) -> None:
        self._directory = directory
        self._on_request = on_request
        self._listener = socket.socket(socket.AF_UNIX)

    def __enter__(self) -> "ControlSocket":
        # Left by a killed process: this process has the directory's lock.
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
            self._on_request(request)


def ask(directory: Path, action: str, node: str) -> str:
    """Send an action for a node to the cluster that runs on a directory; return a sentence.

    Raises:
        LocalClusterError: no cluster runs there, the node does not exist, or the action failed.
    """
    if not (directory / "cluster.json").exists():
        raise LocalClusterError(
            f"there is no cluster in {directory}: name its directory with --dir, or start one with "
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
                    f"--single`), so no node can be {PAST[action]} alone; `kill {holder}` stops it"
                ) from None
            raise LocalClusterError(
                f"no cluster runs on {directory}: start it with `rockoon up --dir {directory}`"
            ) from None
        except OSError as failure:
            raise LocalClusterError(f"{directory / SOCKET}: {failure.strerror}") from failure
        try:
            connection.sendall(json.dumps({"do": action, "node": node}).encode() + b"\n")
            reply = json.loads(read_line(connection))
        except (OSError, ValueError) as failure:
            raise LocalClusterError(f"the cluster on {directory} did not answer") from failure
    if "error" in reply:
        raise LocalClusterError(str(reply["error"]))
    return str(reply["done"])


def read_line(connection: socket.socket) -> bytes:
    """Read one line of at most LINE_BYTES_MAX. Raises OSError."""
    with connection.makefile("rb") as stream:
        return stream.readline(LINE_BYTES_MAX)


@contextmanager
def socket_path(directory: Path) -> Iterator[str]:
    """Return a path of the socket that fits into the system's limit of 107 bytes."""
    if not Path("/proc/self/fd").exists():
        yield str(directory / SOCKET)
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)
