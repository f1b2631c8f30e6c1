"""Rockoon: a cluster of this machine, and a gateway before it."""

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import rockoon.sync
from bench.compare.programs import Program
from conformance.target import Target
from rockoon.local import LocalCluster
from rockoon.local.ports import PortBlock
from rockoon_proto.v1.nameserver_pb2 import CONSUME_FROM_FIRST, GroupConfig, StartPolicy

# Orphans are asked about soon, as the judge is told to.
BROKER = {"transaction_timeout_ms": "1000", "transaction_check_interval_ms": "2000"}


class RockoonGateway(Target):
    """A nameserver, a broker and the offset service, each a process, and a gateway.

    Args:
        folder: for its store and logs.
        ports: to listen on.
    """

    name = "Rockoon's gateway"

    def __init__(self, folder: Path, ports: PortBlock) -> None:
        self._folder = folder
        self.endpoint = f"127.0.0.1:{ports.choose()}"
        self._cluster: LocalCluster | None = None
        self._gateway: Program | None = None
        self._opened = ExitStack()
        self._connection: rockoon.sync.Cluster | None = None

    def versions(self) -> Mapping[str, str]:
        return {self.name: version("rockoon")}

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._cluster = LocalCluster(self._folder / "cluster", settings={"broker": BROKER})
        self._cluster.start()
        connection = rockoon.sync.connect(self._cluster.nameservers)
        self._connection = self._opened.enter_context(connection)
        self._start_gateway()

    def _start_gateway(self) -> None:
        assert self._cluster is not None
        given = [
            f"--listen={self.endpoint}",
            f"--nameservers={','.join(self._cluster.nameservers)}",
        ]
        command = [sys.executable, "-m", "rockoon_gateway", *given]
        self._gateway = Program("the gateway", command, self._folder / "gateway.log")
        self._gateway.wait_listening(int(self.endpoint.rpartition(":")[2]))

    def _connected(self) -> rockoon.sync.Cluster:
        assert self._connection is not None
        return self._connection

    def make_topic(self, topic: str, message_type: str) -> None:
        attributes = {"message.type": message_type}
        connection = self._connected()
        connection.call(connection.admin.create_topic(topic, attributes=attributes))

    def make_group(self, group: str, *, fifo: bool, retries_max: int | None) -> None:
        config = GroupConfig(name=group, fifo=fifo)
        config.start_policy.CopyFrom(StartPolicy(consume_from=CONSUME_FROM_FIRST))
        if retries_max is not None:
            config.retry_attempts_max = retries_max
        connection = self._connected()
        connection.call(connection.admin.create_group(config))

    def restart(self) -> None:
        """Restart the gateway; brokers have restarts of their own in tests/cluster."""
        assert self._gateway is not None
        self._gateway.stop()
        self._start_gateway()

    def stop(self) -> None:
        if self._gateway is not None:
            self._gateway.stop()
            self._gateway = None
        self._opened.close()
        if self._cluster is not None:
            self._cluster.stop()
            self._cluster = None
