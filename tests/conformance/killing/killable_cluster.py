"""A cluster with a gateway; each process can be killed by the name of its task."""

import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from faults.workload import Stored, read_topic

from conformance.rockoon_gateway_cluster import BROKER, RockoonGateway
from conformance.scene import LOOK_SECONDS
from rockoon.errors import RockoonError
from rockoon.local import LocalCluster
from rockoon.local.directory import PortBlock

GATEWAY = "gateway"
# These tests do not limit the disk space.
OWN = {**BROKER, "disk_full_percent": 100, "disk_forced_percent": 100}
SETTINGS = {"broker": {**OWN, "commit_log_file_bytes": "16MiB"}}
LOGS = {"broker": "broker-a", "offset": "offset"}
ALL = "all"
CALL_SECONDS_MAX = 120.0

Answer = TypeVar("Answer")


class KillableCluster(RockoonGateway):
    """One nameserver, one gateway, a broker and an offset service with copies.

    Args:
        folder: for stores and logs.
        ports: one of them is the gateway's.
        copies: of both logs, 1 or 3.
    """

    def __init__(self, folder: Path, ports: PortBlock, copies: int) -> None:
        super().__init__(folder, ports)
        self.copies = copies

    def _made_cluster(self) -> LocalCluster:
        return LocalCluster(
            self._folder / "cluster",
            replicas=self.copies,
            gateway=int(self.endpoint.rpartition(":")[2]),
            settings=SETTINGS,
        )

    def _start_gateway(self) -> None:
        """Start the gateway as a node of the cluster."""

    def restart(self) -> None:
        assert self._cluster is not None
        self._cluster.restart(GATEWAY)

    def ask(self, make: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """Call a service, repeatedly until it answers."""
        deadline = time.monotonic() + CALL_SECONDS_MAX
        while True:
            try:
                return self._connected().call(make())
            except RockoonError as error:
                if not error.retriable or time.monotonic() > deadline:
                    raise
            time.sleep(LOOK_SECONDS)

    def lag(self, group: str, topic: str) -> int:
        """Return the number of messages that a group has not settled."""
        return self.ask(lambda: self._connected().admin.lag(group, topic)).total_lag

    def stored(self, topic: str) -> Stored:
        """Return all messages of a topic."""
        return self.ask(lambda: read_topic(self._connected().asyncio, topic))

    def kill(self, victim: str) -> None:
        """Kill a process and start it again; of a log with copies, kill the leader, and start it
        when another replica leads.

        Args:
            victim: GATEWAY, a key of LOGS, or ALL: these and all copies at the same time.
        """
        assert self._cluster is not None
        for name in (doomed := self._nodes(victim)):
            self._cluster.kill(name)
        if victim in LOGS and self.copies > 1:
            self._leader(LOGS[victim], other_than=doomed[0])
        for name in doomed:
            self._cluster.start(name, wait=False)
        for name in doomed:
            self._cluster.wait_ready_blocking(name)

    def _nodes(self, victim: str) -> Sequence[str]:
        assert self._cluster is not None
        if victim == GATEWAY:
            return [GATEWAY]
        if victim == ALL:
            return [GATEWAY, *(name for log in LOGS.values() for name in self._replicas(log))]
        log = LOGS[victim]
        return self._replicas(log) if self.copies == 1 else [self._leader(log)]

    def _replicas(self, log: str) -> list[str]:
        assert self._cluster is not None
        return self._cluster.replicas_of(log)

    def _leader(self, log: str, other_than: str = "") -> str:
        deadline = time.monotonic() + CALL_SECONDS_MAX
        while True:
            leader = self.ask(lambda: self._connected().admin.logs.describe(log)).leader
            if leader is not None and leader.name != other_than:
                return str(leader.name)
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody leads {log}")
            time.sleep(LOOK_SECONDS)
