"""Supervision of a cluster in the foreground: restarts nodes, and serves control requests."""

import queue
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from difflib import get_close_matches

from rockoon.local.cluster import LocalCluster
from rockoon.local.control import ACTIONS, ControlSocket, Request
from rockoon.local.process import LocalClusterError, NodeEnded

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
    """Supervises a cluster, on the thread that owns it.

    Args:
        cluster: a started cluster.
        report: prints a message for the operator.
    """

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
