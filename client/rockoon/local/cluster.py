"""`LocalCluster`: a cluster of real processes on this machine.

    etcd  ◀── nameservers ◀── brokers, offset service ◀── clients and gateway

All processes start at the same time, so that the Python programs load in parallel; a service waits
until the services it needs are up. Processes stop from right to left, each column in parallel.
"""

import asyncio
import contextlib
import importlib
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self

from rockoon.local.directory import ClusterDirectory, NodeRecord, PortBlock, can_listen
from rockoon.local.etcd import move_routes
from rockoon.local.node_maker import (
    NodeMaker,
    Settings,
    choose_copies,
    chosen_names,
    node_names,
    refuse_several,
    replica_names,
    require_services,
)
from rockoon.local.process import LocalClusterError, Node, NodeEnded, NodeKind, end

if TYPE_CHECKING:
    from rockoon.local.authority import Encryption
    from rockoon.net.access import AccessKey
    from rockoon.net.tls import Tls

READY_SECONDS_MAX = 60.0

# Name of the offset service's log, and of its node if it has one copy.
OFFSET = "offset"


class LocalCluster:
    """A Rockoon cluster on this machine, with one operating system process per node.

        async with LocalCluster(brokers=2) as cluster:
            client = await rockoon.connect(cluster.nameservers)

    `with` works as well. The methods that wait (`start`, `stop`, `restart`, `add_broker`) block
    their thread for some tenths of a second. To keep an event loop running, either pass
    `wait=False` and `await cluster.wait_ready(name)`, or call them through `asyncio.to_thread`.
    The nodes end with this process, even if it is killed.

    Args:
        directory: directory of data, logs and the list of nodes; an existing one is used again.
            None creates a temporary directory that is deleted with the cluster.
        nameservers: number of nameservers; None means as in the directory, else 1.
        brokers: number of brokers (broker-a, broker-b, ...); None as for `nameservers`.
        replicas: number of copies of each broker's log and of the offset service's log; None as
            for `nameservers`. With more than one, a broker is that many nodes (broker-a-0,
            broker-a-1, ...) with one leader; the offset service too. A log gets more or fewer
            copies once that is safe; data of removed copies stays on disk.
        port: port of the first nameserver; further ones use the next ports. None uses free ports.
        settings: service ("broker") or node ("broker-a") → setting → value, as on the service's
            command line: `{"broker": {"flush": "async"}}`; None for the service's default.
        environment: service or node → environment variables of its process.
        durable: whether etcd syncs its writes; by default only if `directory` is set.
        ready_seconds_max: timeout of the start of a node, in seconds.
        tls: "off", "on" or "mutual", as the services' setting. The cluster then has its own
            authority, in `directory`/tls. Clients need `cluster.tls`.
        access: whether calls must be signed with access keys. The cluster secret is generated
            and stored in `directory`/access. Clients need `cluster.access`, or a key
            created with it.
        single: run nameserver, broker and offset service as one process, the node "single",
            without etcd. The same directory can be used with and without `single`.
        gateway: port of a gateway for RocketMQ's 5.x clients; 0 uses a free port, None runs no
            gateway. With tls = "off" it accepts TLS and plain connections; its certificate is
            signed by the authority `directory`/tls/ca.pem.

    Raises:
        LocalClusterError: on start; the text has the end of the log of the node that failed. Also
            if another cluster uses the directory, or a port is in use.
    """

    def __init__(
        self,
        directory: Path | str | None = None,
        *,
        nameservers: int | None = None,
        brokers: int | None = None,
        replicas: int | None = None,
        port: int | None = None,
        settings: Mapping[str, Settings] | None = None,
        environment: Mapping[str, Mapping[str, str]] | None = None,
        durable: bool | None = None,
        ready_seconds_max: float = READY_SECONDS_MAX,
        tls: str = "off",
        access: bool = False,
        single: bool = False,
        gateway: int | None = None,
    ) -> None:
        self._single = single
        self._gateway_port = gateway
        self._directory = ClusterDirectory(Path(directory) if directory is not None else None)
        self._wanted = {NodeKind.NAMESERVER: nameservers, NodeKind.BROKER: brokers}
        self._copies_wanted = replicas
        self._copies = 1
        self._port = port
        self._settings = {name: dict(values) for name, values in (settings or {}).items()}
        self._environment = dict(environment or {})
        self._durable = durable if durable is not None else directory is not None
        self._ready_seconds_max = ready_seconds_max
        self._tls_mode = tls
        self._access_is_on = access
        # Set when the cluster starts.
        self._encryption: Encryption | None = None
        self._access: AccessKey | None = None
        self._maker: NodeMaker | None = None
        self._records: list[NodeRecord] = []
        # Held while the cluster runs.
        self._ports: PortBlock | None = None
        # Written by the thread that owns the cluster, in the order of dependencies. The nodes' own
        # threads only add to `_ended`.
        self._nodes: dict[str, Node] = {}
        self._ended: queue.SimpleQueue[NodeEnded] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        starting = asyncio.get_running_loop().run_in_executor(None, self.start)
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread cannot be interrupted, and the processes that it starts would remain.
            with contextlib.suppress(LocalClusterError):
                await starting
                await asyncio.to_thread(self.stop)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)

    # State

    @property
    def directory(self) -> Path:
        return self._directory.path

    @property
    def nodes(self) -> Sequence[Node]:
        """All nodes of the cluster, including stopped ones."""
        return tuple(self._nodes.values())

    @property
    def nameservers(self) -> list[str]:
        """Addresses of the nameservers, for `rockoon.connect`."""
        return [node.address for node in self._of(NodeKind.NAMESERVER, NodeKind.SINGLE)]

    @property
    def gateway(self) -> str | None:
        """Address for RocketMQ's 5.x clients; None without a gateway."""
        ports = [each.port for each in self._records if each.kind is NodeKind.GATEWAY]
        return f"127.0.0.1:{ports[0]}" if ports else None

    @property
    def tls(self) -> "Tls | None":
        """TLS files for `rockoon.connect(..., tls=cluster.tls)`; None for plain connections."""
        return self._encryption.client if self._encryption is not None else None

    @property
    def access(self) -> "AccessKey | None":
        """The services' key, which has all permissions, for `rockoon.connect(..., access=...)` and
        to create other keys; None if calls are not signed."""
        return self._access

    @property
    def brokers(self) -> list[str]:
        """Names of the brokers' nodes, one per copy."""
        return [node.name for node in self._of(NodeKind.BROKER)]

    @property
    def logs(self) -> list[str]:
        """Names of the brokers' logs; the copies of a log share its name."""
        return list(dict.fromkeys(node.log for node in self._of(NodeKind.BROKER)))

    def replicas_of(self, log: str) -> list[str]:
        """Return the names of the nodes with the copies of a log: a broker's, or "offset"."""
        return [node.name for node in self._of(NodeKind.BROKER, NodeKind.OFFSET) if node.log == log]

    def node(self, name: str) -> Node:
        """Return a node by its name: "etcd", "nameserver-a", "broker-b", "offset"."""
        try:
            return self._nodes[name]
        except KeyError:
            known = ", ".join(self._nodes) or "none: the cluster is not started"
            raise LocalClusterError(f"there is no node {name!r} (there are: {known})") from None

    def _of(self, *kinds: NodeKind) -> list[Node]:
        return [node for node in self._nodes.values() if node.kind in kinds]

    # Start and stop

    def start(self, name: str | None = None, *, wait: bool = True) -> None:
        """Start the whole cluster, or one node that is down.

        Args:
            name: the node; None for the whole cluster.
            wait: return when ready; otherwise once the processes are started.
        """
        if name is not None:
            self.node(name).launch()
            if wait:
                self.wait_ready_blocking(name)
            return
        self._directory.open()
        try:
            kept = self._make_nodes()
            for node in self._nodes.values():
                node.launch()
            settles = bool(kept) and self._copies_wanted is not None
            if wait or settles:
                self.wait_ready_blocking()
            if settles:
                self._settle_copies()
        except BaseException:
            self._end_all(signal.SIGKILL)
            self._nodes.clear()
            self._close()
            raise

    def check_directory(self) -> None:
        """Raise LocalClusterError if the directory cannot be used, or a cluster runs on it."""
        self._directory.check()

    def become(self, ready_text: Callable[[], str]) -> NoReturn:
        """Replace this program by a `single` cluster. Reuses this interpreter, because another one
        would load the same modules again.

        Args:
            ready_text: returns the text that the cluster prints when it is ready.

        Raises:
            LocalClusterError: as `start`.
        """
        self._directory.open()
        try:
            self._make_nodes()
            (node,) = self.nodes
            node.log_path.parent.mkdir(parents=True, exist_ok=True)
            own = (f"--log-file={node.log_path}", f"--ready-text={ready_text()}")
            _, _, program, _, *options = node.command
            os.environ.update(node.environment)
            sys.argv = [program, *own, *options]
            sys.exit(importlib.import_module(program).main())
        except BaseException:
            self._close()
            raise

    def stop(self, name: str | None = None, *, wait: bool = True) -> None:
        """Stop the whole cluster in order, or one node, cleanly (SIGTERM).

        A node that has not ended after ten seconds is killed.

        Args:
            name: the node; None for the whole cluster.
            wait: return when the node has ended; stopping the cluster always waits.
        """
        if name is not None:
            node = self.node(name)
            node.signal(signal.SIGTERM)
            if wait:
                end([node])
            return
        try:
            self._end_all(signal.SIGTERM)
        finally:
            self._close()

    def kill(self, name: str) -> None:
        """Kill a node's process (SIGKILL), which has the effect of a crash."""
        node = self.node(name)
        node.signal(signal.SIGKILL)
        end([node])

    def restart(self, name: str, *, wait: bool = True) -> None:
        """Stop a node cleanly if it runs, and start it again on the same address."""
        self.stop(name)
        self.start(name, wait=wait)

    def add_broker(self, name: str | None = None, *, wait: bool = True, **settings: object) -> str:
        """Start one more broker.

        Args:
            name: name of the broker; None uses the next free one, for example "broker-c".
            wait: return when it is ready.
            settings: as on the broker's command line, with underscores: `flush="async"`.

        Returns:
            Its name.
        """
        names = set(self._nodes)
        chosen = name or next(each for each in node_names(NodeKind.BROKER) if each not in names)
        if chosen in names:
            raise LocalClusterError(f"there is a node {chosen!r} already")
        self._settings[chosen] = self._settings.get(chosen, {}) | settings
        port = self._choose_port(node.port for node in self.nodes)
        record = NodeRecord(chosen, NodeKind.BROKER, port)
        self._nodes[chosen] = self._make(record)
        self._save()
        self.start(chosen, wait=wait)
        return chosen

    async def wait_ready(self, name: str | None = None) -> None:
        """Wait until a node, or all running nodes, are ready.

        Args:
            name: the node; None for all running nodes.

        Raises:
            LocalClusterError: a node ended or timed out; the text has the end of its log.
        """
        await asyncio.to_thread(self.wait_ready_blocking, name)

    def wait_ready_blocking(self, name: str | None = None) -> None:
        """Same as `wait_ready`, for code without an event loop."""
        # Imported after the launch: nodes start while gRPC is loaded.
        from rockoon.local.listing import wait_listed

        nodes = [self.node(name)] if name is not None else [n for n in self.nodes if n.running]
        deadline = time.monotonic() + self._ready_seconds_max
        for node in nodes:
            node.wait_ready(deadline)
        # The only copy of a log is listed by the log's name, whatever its node's name is.
        listed = {
            node.log if self._copies == 1 else node.name: node
            for node in nodes
            if node.kind in (NodeKind.BROKER, NodeKind.OFFSET)
        }
        # A single process lists its services before it reports ready.
        if not self._single and self.node("etcd").running:
            for nameserver in self._of(NodeKind.NAMESERVER):
                wait_listed(nameserver, listed, deadline, self.tls, self.access)

    def wait_node_ended(self, seconds: float | None = None) -> NodeEnded | None:
        """Wait until a node ends without a stop or kill through this object.

        Args:
            seconds: timeout; None for no timeout, 0 returns immediately.

        Returns:
            The node's end, or None after a timeout. Each end is returned once.
        """
        try:
            return self._ended.get(seconds != 0, seconds)
        except queue.Empty:
            return None

    # Implementation

    def _make_nodes(self) -> list[NodeRecord]:
        """Create the nodes to run; return those that the directory had."""
        require_services(gateway=self._gateway_port is not None)
        self._encryption = self._make_encryption()
        self._access = self._make_access()
        kept = self._directory.load()
        records = self._records = self._plan(kept)
        self._maker = NodeMaker(
            self.directory,
            records,
            self._settings,
            self._environment,
            self._encryption,
            self._access,
            self._durable,
            self._ended.put,
        )
        if self._single:
            refuse_several(records)
        used_ports = (record.port for record in records)
        move_routes(self.directory, self._choose_port(used_ports), single=self._single)
        nodes = [self._maker.single()] if self._single else map(self._make, records)
        self._nodes = {node.name: node for node in nodes}
        self._directory.save(records)
        return kept

    def _plan(self, found: Sequence[NodeRecord]) -> list[NodeRecord]:
        """Return the nodes to run: those of the directory, then new ones."""
        kept = {record.name: record for record in found}
        self._copies = choose_copies(kept.values(), self._copies_wanted)
        kept_ports = {record.port for record in found}
        self._ports = PortBlock(around=min(kept_ports, default=None))
        used_ports: set[int] = set()
        records: list[NodeRecord] = []

        def add_record(
            name: str, kind: NodeKind, fixed_port: int | None = None, log: str = ""
        ) -> None:
            port = fixed_port or (kept[name].port if name in kept else None)
            if fixed_port is not None and not can_listen(fixed_port):
                raise LocalClusterError(
                    f"port {fixed_port} is in use (for {name}): choose another with --port, "
                    "or stop the program that listens there"
                )
            if port is None or port in used_ports or not can_listen(port):
                # Clients know the address of a nameserver: a new node must not have it.
                port = self._choose_port(used_ports | kept_ports)
            used_ports.add(port)
            records.append(self._record(name, kind, port, log))
            if name not in kept and records[-1].log:
                self._directory.move_to_former(name)

        if not self._single:
            add_record("etcd", NodeKind.ETCD)
        for index, name in enumerate(
            chosen_names(NodeKind.NAMESERVER, kept.values(), self._wanted[NodeKind.NAMESERVER])
        ):
            add_record(
                name, NodeKind.NAMESERVER, self._port + index if self._port is not None else None
            )
        for log in chosen_names(NodeKind.BROKER, kept.values(), self._wanted[NodeKind.BROKER]):
            for name in replica_names(log, kept.values(), self._copies):
                add_record(name, NodeKind.BROKER, log=log)
        for name in replica_names(OFFSET, kept.values(), self._copies):
            add_record(name, NodeKind.OFFSET, log=OFFSET)
        if self._gateway_port is not None:
            add_record("gateway", NodeKind.GATEWAY, self._gateway_port or None)
        return records

    def _record(self, name: str, kind: NodeKind, port: int, log: str) -> NodeRecord:
        is_replica = bool(log) and (name != log or self._copies > 1)
        return NodeRecord(name, kind, port, log if is_replica else "")

    def _settle_copies(self) -> None:
        """Change each log to the wanted number of copies, and remove the nodes of surplus copies.

        If this is interrupted at any point, the next start finds all replicas that are in sync.
        """
        from rockoon.local.listing import settle_copies

        assert self._copies_wanted is not None, "a number of copies is wanted"
        names = {node.log for node in self._of(NodeKind.BROKER, NodeKind.OFFSET)}
        logs = {log: self.replicas_of(log) for log in sorted(names)}
        stay = settle_copies(
            self.nameservers,
            logs,
            self._copies_wanted,
            self._ready_seconds_max,
            self.tls,
            self.access,
        )
        nodes = [node for node in self._of(NodeKind.BROKER, NodeKind.OFFSET) if node.log in stay]
        if not nodes:
            return
        self._copies = self._copies_wanted
        for node in nodes:
            node.signal(signal.SIGTERM)
        end(nodes)
        for node in nodes:
            if node.name in stay[node.log]:
                record = self._record(node.name, node.kind, node.port, node.log)
                self._nodes[node.name] = self._make(record)
            else:
                del self._nodes[node.name]
        # Saved before the launch: the next start must not create the removed copies again.
        self._save()
        for node in nodes:
            if node.name in self._nodes:
                self._nodes[node.name].launch()
        self.wait_ready_blocking()

    def _make_encryption(self) -> "Encryption | None":
        if self._tls_mode == "off":
            return None
        from rockoon.local.authority import FOLDER, Encryption

        return Encryption(self.directory / FOLDER, self._tls_mode)

    def _make_access(self) -> "AccessKey | None":
        if not self._access_is_on:
            return None
        from rockoon.local.directory import cluster_key

        return cluster_key(self.directory)

    def _make(self, record: NodeRecord) -> Node:
        assert self._maker is not None, "the cluster is not started"
        return self._maker.node(record, self._copies)

    def _choose_port(self, used_ports: Iterable[int]) -> int:
        assert self._ports is not None, "the cluster is not started"
        return self._ports.choose(set(used_ports))

    def _save(self) -> None:
        self._directory.save(
            NodeRecord(n.name, n.kind, n.port, n.log if n.log != n.name else "")
            for n in self._nodes.values()
        )

    def _close(self) -> None:
        if self._ports is not None:
            self._ports.close()
        self._directory.close()

    def _end_all(self, number: signal.Signals) -> None:
        served = (NodeKind.BROKER, NodeKind.OFFSET, NodeKind.SINGLE)
        for kinds in ((NodeKind.GATEWAY,), served, (NodeKind.NAMESERVER,), (NodeKind.ETCD,)):
            nodes = self._of(*kinds)
            for node in nodes:
                node.signal(number)
            end(nodes)
