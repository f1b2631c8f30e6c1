"""Supervision of a cluster in the foreground: restarts nodes, and serves control requests.

The control socket of the cluster, DIR/control, is accessible to its owner only. Each connection
carries one request and one reply, one line of JSON each:

    {"do": "kill", "node": "broker-a"}   →   {"done": "broker-a is killed"} or {"error": "..."}
"""

import contextlib
import json
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from difflib import get_close_matches
from pathlib import Path

from rockoon.local.cluster import LocalCluster
from rockoon.local.directory import running_process
from rockoon.local.process import LocalClusterError, NodeEnded

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

    def __exit__(self, *_: object) -> None:
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
    """Send an action for a node to the cluster that runs on a directory; return a sentence. Raises
    LocalClusterError: no cluster runs there, the node does not exist, or the action failed."""
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


PAUSE_SECONDS = 0.5
PAUSE_SECONDS_MAX = 30.0
# After this uptime, the pause before a restart is short again.
STEADY_SECONDS = 60.0


class Pauses:
    """Computes pauses before restarts of a node; they grow until the node runs steadily."""

    def __init__(self) -> None:
        self._next: dict[str, tuple[float, float]] = {}

    def ended(self, node: str, now_seconds: float) -> float:
        """Record that a node has ended unexpectedly; return the pause before its restart."""
        pause, last = self._next.get(node, (PAUSE_SECONDS, now_seconds))
        if now_seconds - last > STEADY_SECONDS + pause:
            pause = PAUSE_SECONDS
        self._next[node] = (min(2 * pause, PAUSE_SECONDS_MAX), now_seconds)
        return pause


class Supervisor:
    """Supervises a cluster, on the thread that owns it. `cluster`: a started cluster."""

    def __init__(self, cluster: LocalCluster, report: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._report = report
        self._events: queue.SimpleQueue[NodeEnded | Request] = queue.SimpleQueue()
        self._pauses = Pauses()
        # Node → time of its restart, on the monotonic clock.
        self._due: dict[str, float] = {}

    def control_socket(self) -> AbstractContextManager[object]:
        """Return the control socket, a context manager to enter while `run` runs."""
        return ControlSocket(self._cluster.directory, self._events.put)

    def run(self) -> None:
        """Supervise the cluster until an exception, for example of a signal handler, ends it."""
        threading.Thread(target=self._watch, name="ends of nodes", daemon=True).start()
        while True:
            next_due = min(self._due.values(), default=None)
            left = None if next_due is None else max(next_due - time.monotonic(), 0.0)
            try:
                event = self._events.get(timeout=left)
            except queue.Empty:
                self._start_due()
                continue
            if isinstance(event, NodeEnded):
                self._ended(event.name, str(event))
            else:
                self._answer(event)

    def _watch(self) -> None:
        while (ended := self._cluster.wait_node_ended()) is not None:
            self._events.put(ended)

    def _ended(self, node: str, reason: str) -> None:
        now = time.monotonic()
        pause = self._pauses.ended(node, now)
        self._due[node] = now + pause
        self._report(f"{reason}\nrestarting {node} in {pause:g} s")

    def _start_due(self) -> None:
        now = time.monotonic()
        for node in [node for node, at in self._due.items() if at <= now]:
            del self._due[node]
            try:
                self._cluster.start(node)
            except LocalClusterError as failure:
                self._ended(node, str(failure))
            else:
                self._report(f"{node} runs again, as process {self._cluster.node(node).pid}")

    def _answer(self, request: Request) -> None:
        try:
            done = self._do(request.action, request.node)
        except LocalClusterError as failure:
            request.answer(error=str(failure))
            return
        except BaseException:
            request.answer(error="the cluster is stopping")
            raise
        self._report(f"{done}, as requested from another terminal")
        request.answer(done=done)

    def _do(self, action: str, name: str) -> str:
        if action not in ACTIONS:
            raise LocalClusterError(f"{action!r} is not one of {', '.join(ACTIONS)}")
        names = [node.name for node in self._cluster.nodes]
        if name not in names:
            nearest = get_close_matches(name, names, n=1)
            meant = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(names)}"
            raise LocalClusterError(f"there is no node {name!r}: {meant}")
        if action == "start":
            self._cluster.start(name)
            self._due.pop(name, None)
            return f"{name} runs, as process {self._cluster.node(name).pid}"
        waits = self._due.pop(name, None) is not None
        if not self._cluster.node(name).running:
            if waits:
                return f"{name} is down and will not be restarted"
            raise LocalClusterError(f"{name} is down already: `rockoon up start {name}`")
        if action == "stop":
            self._cluster.stop(name)
            return f"{name} is stopped"
        self._cluster.kill(name)
        return f"{name} is killed"
