"""A cluster and its clients, each process on its own host."""

import os
import queue
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hosts.disks import Disks
from hosts.network import Network
from hosts.shape import CLIENTS, OFFSET_LOG, Shape

from rockoon.local.etcd import careful_flags, etcd_healthy, find_etcd
from rockoon.local.node_maker import MODULES, flag_text
from rockoon.local.process import Node, NodeEnded, NodeKind, end

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS_MAX = 60.0
LEAVE_SECONDS_MAX = 60.0

PEER_PORT = 2380
PORTS = {
    NodeKind.ETCD: 2379,
    NodeKind.NAMESERVER: 9876,
    NodeKind.BROKER: 10911,
    NodeKind.OFFSET: 10912,
}
TOPIC = "hosts"
GROUPS = ("plain", "orderly")
# Processes that only read → their hosts.
READERS = {"reader-b": CLIENTS[1]}

Settings = Mapping[str, Mapping[str, object]]


class HostsCluster:
    """Servers and clients on their hosts; a context manager.

    Args:
        network: created.
        shape: numbers of the processes.
        directory: for stores and logs.
        settings: service → setting → value, if other than the defaults.
        disks: of replicas whose power may be cut.
    """

    def __init__(
        self,
        network: Network,
        shape: Shape,
        directory: Path,
        settings: Settings,
        disks: Disks | None = None,
    ) -> None:
        self._network = network
        self._shape = shape
        self._directory = directory
        self._settings = settings
        self._disks = disks
        self._ended: queue.SimpleQueue[NodeEnded] = queue.SimpleQueue()
        self._clients: dict[str, subprocess.Popen[bytes]] = {}
        nodes = [self._etcd(name) for name in shape.etcd_hosts]
        nodes += [self._service(name, NodeKind.NAMESERVER) for name in shape.nameserver_hosts]
        for log, hosts in shape.broker_logs.items():
            nodes += [self._service(name, NodeKind.BROKER, log, shape.copies) for name in hosts]
        nodes += [
            self._service(name, NodeKind.OFFSET, OFFSET_LOG, shape.offsets)
            for name in shape.offset_hosts
        ]
        self._nodes = {node.name: node for node in nodes}

    @property
    def nameservers(self) -> list[str]:
        return [self._address(name, NodeKind.NAMESERVER) for name in self._shape.nameserver_hosts]

    @property
    def etcds(self) -> Mapping[str, str]:
        """Return host → address for clients."""
        return {name: self._address(name, NodeKind.ETCD) for name in self._shape.etcd_hosts}

    def __enter__(self) -> "HostsCluster":
        deadline = time.monotonic() + READY_SECONDS_MAX
        for node in self._nodes.values():
            node.launch()
        for node in self._nodes.values():
            node.wait_ready(deadline)
        return self

    def __exit__(self, *failure: object) -> None:
        for process in self._clients.values():
            process.kill()
            process.wait()
        nodes = list(reversed(self._nodes.values()))
        for node in nodes:
            node.signal(signal.SIGKILL)
        end(nodes)

    # Acts on servers.

    def kill(self, hosts: Iterable[str]) -> None:
        """Send SIGKILL to all at once."""
        nodes = [self._nodes[host] for host in hosts]
        for node in nodes:
            node.signal(signal.SIGKILL)
        end(nodes)

    def start(self, hosts: Iterable[str]) -> None:
        """Start stopped ones, and wait until they serve or participate."""
        nodes = [self._nodes[host] for host in hosts]
        for node in nodes:
            node.launch()
        deadline = time.monotonic() + READY_SECONDS_MAX
        for node in nodes:
            node.wait_ready(deadline)

    def pause(self, hosts: Iterable[str]) -> None:
        self._signal_all(hosts, signal.SIGSTOP)

    def go_on(self, hosts: Iterable[str]) -> None:
        self._signal_all(hosts, signal.SIGCONT)

    def wipe(self, host: str) -> None:
        """Empty the disk of a stopped one."""
        shutil.rmtree(self._directory / host)
        if self._disks is not None:
            self._disks.begin(host)

    def cut_power(self, hosts: Iterable[str]) -> None:
        """Send SIGKILL to all at once; bytes that were not on their disks are lost."""
        names = list(hosts)
        self.kill(names)
        assert self._disks is not None
        for name in names:
            self._disks.cut(name)

    def _signal_all(self, hosts: Iterable[str], number: signal.Signals) -> None:
        # Not by Node.signal: none of them should end.
        for host in hosts:
            pid = self._nodes[host].pid
            assert pid is not None, f"{host} does not run"
            os.kill(pid, number)

    # Operations of clients.

    def start_clients(self) -> None:
        """Start the caller, and two members of each group; the topic must exist."""
        addresses = ",".join(self.nameservers)
        caller, *members = CLIENTS
        self._start_client(caller, "hosts.caller", addresses, TOPIC, str(self.log(caller)), caller)
        for host in members:
            names = [f"{group}:{host}" for group in GROUPS]
            self._start_client(
                host, "torture.member", addresses, TOPIC, str(self.log(host)), *names
            )
        # Beside the members of the first of them, which is cut off most often.
        for name, host in READERS.items():
            log = str(self.log(name))
            self._start_client(host, "hosts.caller", addresses, TOPIC, log, name, "read", name=name)

    def stop_caller(self) -> None:
        """Let the caller and the pure readers end their calls, and wait until they have."""
        self._stop_clients([*CLIENTS[:1], *READERS])

    def stop_members(self) -> None:
        """Let members leave their groups, and wait until they have."""
        self._stop_clients(CLIENTS[1:])

    def _stop_clients(self, hosts: Sequence[str]) -> None:
        for host in hosts:
            self._clients[host].send_signal(signal.SIGTERM)
        for host in hosts:
            self._clients[host].wait(LEAVE_SECONDS_MAX)

    def log(self, host: str) -> Path:
        """Return the log of a client."""
        return self._directory / f"{host}.log"

    def faults(self) -> list[str]:
        """Return processes that ended without a request, and unforeseen errors of clients."""
        found: list[str] = []
        while not self._ended.empty():
            found.append(str(self._ended.get()))
        for host, process in self._clients.items():
            status = process.poll()
            if status:
                found.append(f"{host} ended with {status}")
            text = self._errors(host).read_text()
            if "Traceback" in text:
                found.append(f"{host}: {text[text.index('Traceback') :][:4000]}")
        for node in self._nodes.values():
            text = node.log_path.read_text()
            if "Traceback" in text:
                found.append(f"{node.name}: {text[text.index('Traceback') :][:4000]}")
        return found

    def resident_bytes(self) -> dict[str, int]:
        """Return host → memory of its process, if it runs."""
        pids = {node.name: node.pid for node in self._nodes.values()}
        pids |= {host: process.pid for host, process in self._clients.items()}
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        return {
            host: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page_bytes
            for host, pid in pids.items()
            if pid is not None
        }

    def _address(self, host: str, kind: NodeKind) -> str:
        return f"{self._network.addresses[host]}:{PORTS[kind]}"

    def _etcd(self, name: str) -> Node:
        client = f"http://{self._address(name, NodeKind.ETCD)}"
        peers = {
            each: f"http://{self._network.addresses[each]}:{PEER_PORT}"
            for each in self._shape.etcd_hosts
        }
        flags = {
            "name": name,
            "data-dir": str(self._directory / name),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peers[name],
            "initial-advertise-peer-urls": peers[name],
            "initial-cluster": ",".join(f"{each}={url}" for each, url in peers.items()),
            "heartbeat-interval": "100",
            "election-timeout": "1000",
            "log-level": "warn",
        }
        program = find_etcd()
        command = [str(program), *(f"--{name}={value}" for name, value in flags.items())]
        command += [*careful_flags(program), "--unsafe-no-fsync"]
        return self._node(name, NodeKind.ETCD, command)

    def _service(self, name: str, kind: NodeKind, log: str = "", copies: int = 1) -> Node:
        values: dict[str, object] = {"name": name, "listen": self._address(name, kind)}
        if copies > 1:
            values |= {"name": log, "replica": name, "copies": copies}
        if kind is NodeKind.NAMESERVER:
            values["etcd"] = ",".join(self.etcds.values())
        else:
            values["nameservers"] = ",".join(self.nameservers)
            values["store_path"] = self._directory / name
        values |= self._settings.get(kind, {})
        flags = [f"--{key.replace('_', '-')}={flag_text(value)}" for key, value in values.items()]
        return self._node(name, kind, [sys.executable, "-m", MODULES[kind], *flags])

    def _node(self, name: str, kind: NodeKind, command: Sequence[str]) -> Node:
        host = self._network.addresses[name]
        environment: Mapping[str, str] = {}
        if self._disks is not None and name in self._disks.hosts:
            environment = self._disks.environment(name)
        return Node(
            name,
            kind,
            PORTS[kind],
            self._network.on(name, command),
            self._directory / "logs" / f"{name}.log",
            environment={"GRPC_VERBOSITY": "NONE", **environment},
            on_unexpected_end=self._ended.put,
            probe=(lambda: etcd_healthy(PORTS[kind], host=host)) if kind is NodeKind.ETCD else None,
        )

    def _errors(self, host: str) -> Path:
        return self._directory / "logs" / f"{host}.err"

    def _start_client(self, host: str, module: str, *arguments: str, name: str = "") -> None:
        name = name or host
        command = self._network.on(host, [sys.executable, "-m", module, *arguments])
        self.log(name).touch()
        with self._errors(name).open("wb") as errors:
            self._clients[name] = subprocess.Popen(
                command,
                stderr=errors,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join((str(ROOT / "tests"), *sys.path)),
                    "GRPC_VERBOSITY": "NONE",
                },
            )
