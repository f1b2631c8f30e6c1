"""Nodes of a local cluster: their names, those of the directory and new ones, the programs of the
services, and a process for each node or a single one.
"""

import importlib.util
import os
import string
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rockoon.local.directory import NodeRecord, client_secrets, secret_file
from rockoon.local.etcd import ROUTES_FILE, etcd_command, etcd_healthy, find_etcd
from rockoon.local.process import LocalClusterError, Node, NodeEnded, NodeKind

if TYPE_CHECKING:
    from rockoon.local.authority import Encryption
    from rockoon.net.access import AccessKey


MODULES = {
    NodeKind.NAMESERVER: "rockoon_nameserver",
    NodeKind.BROKER: "rockoon_broker",
    NodeKind.OFFSET: "rockoon_offset",
    NodeKind.GATEWAY: "rockoon_gateway",
}


def flag_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return ",".join(str(part) for part in value)
    return str(value)


def flags(values: Mapping[str, object]) -> list[str]:
    """Return command line options; a setting whose value is None has none."""
    return [
        f"--{name.replace('_', '-')}={flag_text(value)}"
        for name, value in values.items()
        if value is not None
    ]


def require_services(*, gateway: bool) -> None:
    """Raises LocalClusterError if a program is missing; `gateway` includes the gateway's."""
    wanted = [name for kind, name in MODULES.items() if gateway or kind is not NodeKind.GATEWAY]
    missing = [module for module in wanted if importlib.util.find_spec(module) is None]
    if missing:
        raise LocalClusterError(
            f"{', '.join(missing)} is not installed here: `pip install 'rockoon[local]'`"
        )


NODES_MAX = 26
REPLICAS_MAX = 7


def chosen_names(kind: NodeKind, kept: Collection[NodeRecord], wanted: int | None) -> list[str]:
    """Return the names of nameservers, or of brokers' logs: existing ones, then new ones."""
    names = list(dict.fromkeys(record.log or record.name for record in kept if record.kind is kind))
    count = wanted if wanted is not None else (len(names) or 1)
    if not 1 <= count <= NODES_MAX:
        raise LocalClusterError(f"{count} {kind}s: it must be between 1 and {NODES_MAX}")
    if kind is NodeKind.BROKER and count < len(names):
        raise LocalClusterError(
            f"the directory has data of {len(names)} brokers: start all of them, "
            "or use another directory"
        )
    new_names = (name for name in node_names(kind) if name not in names)
    while len(names) < count:
        names.append(next(new_names))
    return names[:count]


def choose_copies(kept: Iterable[NodeRecord], wanted: int | None) -> int:
    """Return how many copies of each log to start: all existing ones, or more if requested.

    Only the leader of a log can reduce the number of copies, so it must be started first.
    """
    copies = Counter(
        each.log or each.name for each in kept if each.kind in (NodeKind.BROKER, NodeKind.OFFSET)
    )
    if wanted is not None and (not 1 <= wanted <= REPLICAS_MAX or wanted == 2):
        raise LocalClusterError(
            f"{wanted} replicas: it must be 1, or 3 to {REPLICAS_MAX} (2 copies would both be "
            "needed for each message)"
        )
    return max([*copies.values(), wanted or 1])


def replica_names(log: str, kept: Iterable[NodeRecord], copies: int) -> list[str]:
    """Return the names of the nodes with a log's copies: existing ones, then new ones."""
    names = [record.name for record in kept if log in (record.log, record.name)]
    if copies == 1:
        return names or [log]
    new_names = (name for number in range(REPLICAS_MAX) if (name := f"{log}-{number}") not in names)
    return names + [next(new_names) for _ in range(copies - len(names))]


def node_names(kind: NodeKind) -> Iterable[str]:
    return (f"{kind}-{letter}" for letter in string.ascii_lowercase)


def refuse_several(records: Iterable[NodeRecord]) -> None:
    """Raises LocalClusterError if a single process cannot run these nodes."""
    for kind in (NodeKind.NAMESERVER, NodeKind.BROKER, NodeKind.OFFSET):
        names = [record.name for record in records if record.kind is kind]
        if len(names) > 1:
            raise LocalClusterError(
                f"a single process has one {kind}, but this cluster has {len(names)} "
                f"({', '.join(names)}): start it without --single"
            )


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
        return {**found, **self._environment.get(kind, {}), **self._environment.get(name, {})}

    def _flags(self, record: NodeRecord, copies: int) -> list[str]:
        values: dict[str, object] = {"name": record.name, "listen": f"127.0.0.1:{record.port}"}
        if record.log:
            values |= {"name": record.log, "replica": record.name, "copies": copies}
        if record.kind is not NodeKind.NAMESERVER:
            values["nameservers"] = self._nameservers
            if record.kind is not NodeKind.GATEWAY:
                values["store_path"] = self._directory / record.name
            else:
                values["admin_listen"] = "127.0.0.1:0"
        elif "etcd" in self._ports:
            values["etcd"] = f"127.0.0.1:{self._ports['etcd']}"
        else:
            values["routes_path"] = self._directory / ROUTES_FILE
        if self._encryption is not None:
            values |= self._encryption.service_settings(record.name, record.kind, record.log)
        if self._access is not None:
            values["access"] = "on"
            values["cluster_secret_file"] = secret_file(self._directory)
            if record.kind is NodeKind.GATEWAY:
                values["client_secrets"] = client_secrets(self._directory)
        chosen: dict[str, object] = {}
        for each in (record.kind, record.log, record.name):
            chosen |= self._settings.get(each, {})
        if record.kind is NodeKind.GATEWAY and self._encryption is None and "tls" not in chosen:
            from rockoon.local.authority import open_gateway_settings

            values |= open_gateway_settings(self._directory)
        return flags(values | chosen)
