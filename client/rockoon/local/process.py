"""One child process: launched, waited for, watched, ended.

    LAUNCHED ──ready line──▶ READY ──▶ ENDED      (LAUNCHED ──▶ ENDED when it cannot start)

A thread per child reads its standard output and waits for its end, so that nothing else has to:
callers only wait for the condition it notifies. The thread ends with the child.
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

LOG_TAIL_LINES = 15
LOG_TAIL_BYTES = 16 << 10
PROBE_SECONDS = 0.01
STOP_SECONDS_MAX = 10.0


class LocalClusterError(Exception):
    """A local cluster cannot be started or changed as asked; the text says why and what to do."""


class Kind(enum.StrEnum):
    """What a node is; the value is the service's name on its ready line."""

    ETCD = "etcd"
    NAMESERVER = "nameserver"
    BROKER = "broker"
    OFFSET = "offset"
    GATEWAY = "gateway"
    # All of these but etcd in one process.
    SINGLE = "single"


@dataclasses.dataclass(frozen=True, slots=True)
class NodeEnded:
    """A child ended although nobody had asked it to."""

    name: str
    # As subprocess has it: negative for a signal.
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
    """The end of a log file, indented, under a line that says where all of it is."""
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
    """A node of a local cluster and the process that runs it now, if any.

    Args:
        name: unique in the cluster.
        kind: what it is.
        port: where it listens, on 127.0.0.1; the same over all restarts.
        command: program and arguments.
        log_path: its standard error is appended here.
        log: of a replica, the name of its log in the cluster; by default the node's.
        environment: added to ours.
        probe: asks whether it is ready, for a program that prints no ready line.
        on_unexpected_end: called from the node's thread.
    """

    def __init__(
        self,
        name: str,
        kind: Kind,
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
        # Guards the four fields below and is notified when `_ready` or `_status` change. The
        # callers of launch and end write `_process` and `_end_wanted`, the node's thread the rest.
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
        """Start the process, without waiting until it serves.

        Raises:
            LocalClusterError: it runs already, or the program cannot be executed.
        """
        with self._changed:
            if self._running():
                raise LocalClusterError(f"{self.name} is running already")
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with self.log_path.open("ab") as log:
                    # A session of its own: Ctrl-C in a terminal reaches us alone, and we stop the
                    # nodes in the right order.
                    self._process = subprocess.Popen(
                        self.command,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=log,
                        env=os.environ | self.environment,
                        start_new_session=True,
                    )
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
        # What the child may have left in its session (etcd's watcher) goes with it.
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
        """Wait until the node serves.

        Args:
            deadline: on `time.monotonic`'s clock.

        Raises:
            LocalClusterError: it ended, or did not get ready in time; with the end of its log.
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
        """Ask the process to end: from now on its end is expected."""
        with self._changed:
            if not self._running() or self._process is None:
                return
            self._end_wanted = True
            if number is signal.SIGKILL:
                signal_group(self._process.pid, number)
            else:
                self._process.send_signal(number)

    def wait_ended(self, seconds: float) -> int | None:
        """Its exit status, or None when it has not ended within the time (or never ran)."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running(), seconds)
            return self._status


def end(nodes: Iterable[Node]) -> None:
    """Wait until nodes that were told to end have done so; kill those that do not."""
    for node in nodes:
        if node.wait_ended(STOP_SECONDS_MAX) is None and node.running:
            node.signal(signal.SIGKILL)
            node.wait_ended(STOP_SECONDS_MAX)


def signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        # Nobody is left in it (macOS says so with EPERM while the last one is a zombie).
        return


def is_ready_line(line: bytes, kind: Kind) -> bool:
    try:
        said = json.loads(line)
    except ValueError:
        return False
    return isinstance(said, dict) and said.get("ready") == kind.value
