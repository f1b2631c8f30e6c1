"""Creates the nodes of a local cluster from their records: a process each, or a single one."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rockoon.local.cluster_secret import client_secrets
from rockoon.local.directory import NodeRecord
from rockoon.local.etcd import etcd_command, etcd_healthy, find_etcd
from rockoon.local.moved_routes import FILE as ROUTES_FILE
from rockoon.local.process import Node, NodeEnded, NodeKind
from rockoon.local.programs import MODULES, flags

if TYPE_CHECKING:
    from rockoon.local.encryption import Encryption
    from rockoon.net.access import AccessKey

# Runs all services in one process, whose node has this name.
TOGETHER = "rockoon_runtime.together"
SINGLE = "single"

# NumPy's linear algebra library starts a thread with buffers for each core when it is loaded. No
# service uses it; without the threads a start is a tenth faster.
THREADS = {"OPENBLAS_NUM_THREADS": "1"}

Settings = Mapping[str, object]


class NodeMaker:
    """Creates the nodes of one cluster.

    Args:
        directory: directory of the cluster.
        records: all nodes; the nameservers are fixed.
        settings: service, log or node → setting → value; read for each command.
        environment: service or node → environment variables.
        encryption: None for plain connections.
        access: the services' key; None for unsigned calls.
        durable: whether etcd syncs its writes.
        on_unexpected_end: as in `Node`.
    """

    def __init__(
        self,
        directory: Path,
        records: Sequence[NodeRecord],
        settings: Mapping[str, Settings],
        environment: Mapping[str, Mapping[str, str]],
        encryption: "Encryption | None",
        access: "AccessKey | None",
        durable: bool,
        on_unexpected_end: Callable[[NodeEnded], None],
    ) -> None:
        self._directory = directory
        self._records = tuple(records)
        self._settings = settings
        self._environment = environment
        self._encryption = encryption
        self._access = access
        self._durable = durable
        self._on_unexpected_end = on_unexpected_end
        self._ports = {record.name: record.port for record in records}
        self._nameserver_ports = [each.port for each in records if each.kind is NodeKind.NAMESERVER]
        self._nameservers = ",".join(f"127.0.0.1:{port}" for port in self._nameserver_ports)

    def node(self, record: NodeRecord, copies: int) -> Node:
        """Return a node that runs as its own process.

        Args:
            record: name, kind, port and log of the node.
            copies: number of copies of its log.

        Raises:
            LocalClusterError: the node is etcd, and there is no etcd program.
        """
        probe: Callable[[], bool] | None = None
        variables = self._variables(record)
        if record.kind is NodeKind.ETCD:
            # An idle etcd wakes up a hundred times a second; one thread halves the CPU time.
            variables = {"GOMAXPROCS": "1"} | variables
            encryption = self._encryption
            command = etcd_command(
                find_etcd(),
                self._directory / "etcd",
                record.port,
                durable=self._durable,
                tls_flags=encryption.etcd_flags() if encryption is not None else (),
            )
            context = encryption.context() if encryption is not None else None
            probe = partial(etcd_healthy, record.port, context)
        else:
            own = self._flags(record, copies)
            command = (sys.executable, "-m", MODULES[record.kind], "--stop-with-parent", *own)
        return self._node(record, command, variables, probe)

    def single(self) -> Node:
        """Return a node that runs all services in one process, on the first nameserver's port."""
        command = [sys.executable, "-m", TOGETHER, "--stop-with-parent"]
        variables: dict[str, str] = {}
        for record in self._records:
            command += [MODULES[record.kind], *self._flags(record, 1)]
            variables |= self._variables(record)
        return self._node(
            NodeRecord(SINGLE, NodeKind.SINGLE, self._nameserver_ports[0]), command, variables
        )

    def _node(
        self,
        record: NodeRecord,
        command: Sequence[str],
        variables: Mapping[str, str],
        probe: Callable[[], bool] | None = None,
    ) -> Node:
        return Node(
            record.name,
            record.kind,
            record.port,
            command,
            self._directory / "logs" / f"{record.name}.log",
            log=record.log,
            environment=variables,
            on_unexpected_end=self._on_unexpected_end,
            probe=probe,
        )

    def _variables(self, record: NodeRecord) -> dict[str, str]:
        name, kind = record.name, record.kind
        found = {}
        if kind is not NodeKind.ETCD:
            found = {each: os.environ.get(each, usual) for each, usual in THREADS.items()}
        if self._access is not None and kind is not NodeKind.ETCD:
            found = found | {f"ROCKOON_{kind.upper()}_CLUSTER_SECRET": self._access.secret}
        return {**found, **self._environment.get(kind, {}), **self._environment.get(name, {})}

    def _flags(self, record: NodeRecord, copies: int) -> list[str]:
        values: dict[str, object] = {"name": record.name, "listen": f"127.0.0.1:{record.port}"}
        if record.log:
            values |= {"name": record.log, "replica": record.name, "copies": copies}
        if record.kind is not NodeKind.NAMESERVER:
            values["nameservers"] = self._nameservers
            if record.kind is not NodeKind.GATEWAY:
                values["store_path"] = self._directory / record.name
        elif "etcd" in self._ports:
            values["etcd"] = f"127.0.0.1:{self._ports['etcd']}"
        else:
            values["routes_path"] = self._directory / ROUTES_FILE
        if self._encryption is not None:
            values |= self._encryption.service_settings(record.name, record.kind, record.log)
        if self._access is not None:
            values["access"] = "on"
            if record.kind is NodeKind.GATEWAY:
                values["client_secrets"] = client_secrets(self._directory)
        chosen: dict[str, object] = {}
        for each in (record.kind, record.log, record.name):
            chosen |= self._settings.get(each, {})
        if record.kind is NodeKind.GATEWAY and self._encryption is None and "tls" not in chosen:
            from rockoon.local.encryption import open_gateway_settings

            values |= open_gateway_settings(self._directory)
        return flags(values | chosen)
