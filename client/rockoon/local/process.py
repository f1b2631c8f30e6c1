"""One child process: start, wait until ready, watch, and end.

    LAUNCHED ──ready line──▶ READY ──▶ ENDED      (LAUNCHED ──▶ ENDED if it cannot start)

A thread per child reads its standard output and waits for its end. Callers only wait for the
condition that this thread notifies. The thread ends with the child.
"""

import dataclasses
import enum
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

LOG_TAIL_LINES = 15
LOG_TAIL_BYTES = 16 << 10
PROBE_SECONDS = 0.01
STOP_SECONDS_MAX = 10.0


class LocalClusterError(Exception):
    """A local cluster cannot be started or changed as requested; the text has the reason."""


class NodeKind(enum.StrEnum):
    """Kind of a node; the value is the service's name on its ready line."""

    ETCD = "etcd"
    NAMESERVER = "nameserver"
    BROKER = "broker"
    OFFSET = "offset"
    GATEWAY = "gateway"
    # All services in one process, without etcd.
    SINGLE = "single"


@dataclasses.dataclass(frozen=True, slots=True)
class NodeEnded:
    """Report of a child process that ended without a request to stop."""

    name: str
    # Exit status as in subprocess: negative for a signal.
    status: int
    log_path: Path

    def __str__(self) -> str:
        return f"{self.name} ended unexpectedly ({status_text(self.status)})\n{tail(self.log_path)}"


def status_text(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def tail(log_path: Path) -> str:
    """Return the end of a log file, indented, after a line with the file's path."""
    try:
        with log_path.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            text = stream.read().decode(errors="replace")
    except OSError as failure:
        return f"its log cannot be read: {failure}"
    lines = text.splitlines()[-LOG_TAIL_LINES:]
    if not lines:
        return f"its log {log_path} is empty"
    return "\n".join([f"the end of its log {log_path}:", *("    " + line for line in lines)])


class Node:
    """A node of a local cluster, and the process that runs it, if any.

    Args:
        name: unique name in the cluster.
        kind: kind of the node.
        port: port on 127.0.0.1; it stays the same over restarts.
        command: program and arguments.
        log_path: file to which its standard error is appended.
        log: for a replica, the name of its log; by default the node's name.
        environment: variables added to this process's environment.
        probe: returns whether the node is ready, for a program that prints no ready line.
        on_unexpected_end: called in the node's thread.
    """

    def __init__(
        self,
        name: str,
        kind: NodeKind,
        port: int,
        command: Sequence[str],
        log_path: Path,
        *,
        log: str = "",
        environment: Mapping[str, str],
        on_unexpected_end: Callable[[NodeEnded], None],
        probe: Callable[[], bool] | None = None,
    ) -> None:
        self.name = name
        self.log = log or name
        self.kind = kind
        self.port = port
        self.command = tuple(command)
        self.log_path = log_path
        self.environment = dict(environment)
        self._probe = probe
        self._on_unexpected_end = on_unexpected_end
        # Guards the four fields below and is notified when `_ready` or `_status` changes. `launch`
        # and `signal` write `_process` and `_end_wanted`, the node's thread the other two.
        self._changed = threading.Condition()
        self._process: subprocess.Popen[bytes] | None = None
        self._end_wanted = False
        self._ready = False
        self._status: int | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        with self._changed:
            return self._process.pid if self._process is not None and self._running() else None

    @property
    def running(self) -> bool:
        with self._changed:
            return self._running()

    @property
    def ready(self) -> bool:
        with self._changed:
            return self._ready and self._running()

    def _running(self) -> bool:
        return self._process is not None and self._status is None

    def launch(self) -> None:
        """Start the process without waiting until it is ready.

        Raises:
            LocalClusterError: it runs already, or the program cannot be executed.
        """
        with self._changed:
            if self._running():
                raise LocalClusterError(f"{self.name} is running already")
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with self.log_path.open("ab") as log:
                    self._process = start_program(self.command, log, os.environ | self.environment)
            except OSError as failure:
                raise LocalClusterError(f"{self.name} cannot be started: {failure}") from failure
            self._end_wanted = self._ready = False
            self._status = None
            thread = threading.Thread(
                target=self._watch, args=(self._process,), name=f"watch {self.name}", daemon=True
            )
        thread.start()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        assert process.stdin is not None
        for line in process.stdout:
            if is_ready_line(line, self.kind):
                with self._changed:
                    self._ready = True
                    self._changed.notify_all()
        status = process.wait()
        # Also kills processes that the child left in its session, for example etcd's watcher.
        signal_group(process.pid, signal.SIGKILL)
        process.stdin.close()
        process.stdout.close()
        with self._changed:
            unexpected = self._ready and not self._end_wanted
            self._status = status
            self._changed.notify_all()
        if unexpected:
            self._on_unexpected_end(NodeEnded(self.name, status, self.log_path))

    def wait_ready(self, deadline: float) -> None:
        """Wait until the node is ready.

        Args:
            deadline: on `time.monotonic`'s clock.

        Raises:
            LocalClusterError: it ended or timed out; the text has the end of its log.
        """
        with self._changed:
            while not (self._ready and self._running()):
                if self._process is None:
                    raise LocalClusterError(f"{self.name} has not been started")
                if self._status is not None:
                    raise LocalClusterError(
                        f"{self.name} did not start ({status_text(self._status)}); "
                        + tail(self.log_path)
                    )
                left = deadline - time.monotonic()
                if left <= 0:
                    raise LocalClusterError(
                        f"{self.name} was not ready in time; " + tail(self.log_path)
                    )
                if self._probe is not None:
                    self._ready = self._probe()
                    left = 0.0 if self._ready else min(left, PROBE_SECONDS)
                self._changed.wait(left)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal that ends the process; its end is expected from now on."""
        with self._changed:
            if not self._running() or self._process is None:
                return
            self._end_wanted = True
            if number is signal.SIGKILL:
                signal_group(self._process.pid, number)
            else:
                self._process.send_signal(number)

    def wait_ended(self, seconds: float) -> int | None:
        """Wait for the end of the process, at most `seconds`; return its exit status, or None if it
        still runs or never ran."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running(), seconds)
            return self._status


def start_program(
    command: Sequence[str], log: IO[bytes], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a node's program, with pipes for standard input and output.

    The program has a session of its own, so that Ctrl-C in a terminal reaches only this process,
    which stops the nodes in the right order.

    Args:
        command: program and arguments.
        log: receives standard error.
        environment: all variables of the program.

    Raises:
        OSError: the program cannot be executed.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=environment,
        start_new_session=True,
    )


def end(nodes: Iterable[Node]) -> None:
    """Wait until signalled nodes have ended; kill those that do not end in time."""
    for node in nodes:
        if node.wait_ended(STOP_SECONDS_MAX) is None and node.running:
            node.signal(signal.SIGKILL)
            node.wait_ended(STOP_SECONDS_MAX)


def signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        # The group is empty (macOS reports EPERM while its last process is a zombie).
        return


def is_ready_line(line: bytes, kind: NodeKind) -> bool:
    try:
        content = json.loads(line)
    except ValueError:
        return False
    return isinstance(content, dict) and content.get("ready") == kind.value
