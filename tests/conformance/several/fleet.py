"""A cluster with several gateways. Each gateway can be killed and drained."""

import signal
import threading
import time
from pathlib import Path

from faults.workload import Stored, read_topic

from conformance.rockoon_gateway_cluster import RockoonGateway
from gateway.gateways import gateway_program
from rockoon.errors import RockoonError
from rockoon.local import LocalCluster
from rockoon.local.directory import PortBlock
from rockoon.local.process import Node

READY_SECONDS_MAX = 60.0
DRAINED_SECONDS_MAX = 60.0
ROOMY = {"disk_full_percent": 100, "disk_forced_percent": 100}


class Fleet(RockoonGateway):
    """A nameserver, a broker, the offset service, and gateways.

    Args:
        folder: for its store and logs.
        ports: to listen on.
        count: of gateways.
    """

    def __init__(self, folder: Path, ports: PortBlock, count: int) -> None:
        super().__init__(folder, ports)
        self.gateway_ports = [ports.choose() for _ in range(count)]
        self._gateways: list[Node] = []
        # One gateway at a time is away.
        self._one = threading.Lock()

    def _made_cluster(self) -> LocalCluster:
        return LocalCluster(self._folder / "cluster", settings={"broker": ROOMY})

    def _start_gateway(self) -> None:
        assert self._cluster is not None
        for number, port in enumerate(self.gateway_ports):
            name = f"gateway-{number}"
            self._gateways.append(gateway_program(self._cluster, name, port, self._folder))
        for node in self._gateways:
            node.launch()
        for node in self._gateways:
            node.wait_ready(time.monotonic() + READY_SECONDS_MAX)

    def away(self, number: int, how: signal.Signals) -> None:
        """Kill (SIGKILL) or drain (SIGTERM) a gateway, and start it again."""
        with self._one:
            node = self._gateways[number]
            node.signal(how)
            if node.wait_ended(DRAINED_SECONDS_MAX) is None:
                raise TimeoutError(f"{node.name} has not ended {DRAINED_SECONDS_MAX:.0f} s later")
            node.launch()
            node.wait_ready(time.monotonic() + READY_SECONDS_MAX)

    def lag(self, group: str, topic: str) -> int:
        """Messages that a group has not acknowledged."""
        return self._connected().call(self._connected().admin.lag(group, topic)).total_lag

    def stored(self, topic: str) -> Stored | None:
        """All messages of a topic; None if the topic does not exist."""
        connection = self._connected()
        try:
            return connection.call(read_topic(connection.asyncio, topic))
        except RockoonError as error:
            if error.retriable:
                raise
            return None

    def stop(self) -> None:
        for node in self._gateways:
            if node.running:
                node.signal(signal.SIGKILL)
        for node in self._gateways:
            node.wait_ended(DRAINED_SECONDS_MAX)
        super().stop()
