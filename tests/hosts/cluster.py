"""A cluster and its clients, each process on a host of its own."""

import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hosts.network import Network

from rockoon.local.cluster import MODULES, end, flag_text
from rockoon.local.etcd import etcd_healthy, find_etcd
from rockoon.local.process import Kind, Node, NodeEnded

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS_MAX = 60.0
LEAVE_SECONDS_MAX = 60.0

NAMESERVERS = ("nameserver-a", "nameserver-b")
BROKERS = ("broker-a", "broker-b")
OFFSET = "offset"
ETCD = "etcd"
# The first calls, the second and third have members of groups.
CLIENTS = ("client-a", "client-b", "client-c")
HOSTS = (ETCD, *NAMESERVERS, *BROKERS, OFFSET, *CLIENTS)

PORTS = {Kind.ETCD: 2379, Kind.NAMESERVER: 9876, Kind.BROKER: 10911, Kind.OFFSET: 10912}
TOPIC = "hosts"
GROUPS = ("plain", "orderly")

Settings = Mapping[str, Mapping[str, object]]


class HostsCluster:
    """Servers and clients on their hosts; a context manager.

    Args:
        network: made.
        directory: for stores and logs.
        settings: service → setting → value, for others than the defaults.
    """

    def __init__(self, network: Network, directory: Path, settings: Settings) -> None:
        self._network = network
        self._directory = directory
        self._settings = settings
        self._ended: queue.SimpleQueue[NodeEnded] = queue.SimpleQueue()
        self._clients: dict[str, subprocess.Popen[bytes]] = {}
        self._nodes = [
            self._etcd(),
            *(self._service(name, Kind.NAMESERVER) for name in NAMESERVERS),
            *(self._service(name, Kind.BROKER) for name in BROKERS),
            self._service(OFFSET, Kind.OFFSET),
        ]

    @property
    def nameservers(self) -> list[str]:
        return [self._address(name, Kind.NAMESERVER) for name in NAMESERVERS]

    def __enter__(self) -> "HostsCluster":
        deadline = time.monotonic() + READY_SECONDS_MAX
        for node in self._nodes:
            node.launch()
        for node in self._nodes:
            node.wait_ready(deadline)
        return self

    def __exit__(self, *failure: object) -> None:
        for process in self._clients.values():
            process.kill()
            process.wait()
        for node in reversed(self._nodes):
            node.signal(signal.SIGKILL)
        end(self._nodes)

    def start_clients(self) -> None:
        """The caller, and two members of each group; the topic has to exist."""
        addresses = ",".join(self.nameservers)
        caller, *members = CLIENTS
        self._start_client(caller, "hosts.caller", addresses, TOPIC, str(self.log(caller)), caller)
        for host in members:
            names = [f"{group}:{host}" for group in GROUPS]
            self._start_client(
                host, "torture.member", addresses, TOPIC, str(self.log(host)), *names
            )

    def stop_caller(self) -> None:
        """Let the caller end its calls, and wait until it has."""
        self._stop_clients(CLIENTS[:1])

    def stop_members(self) -> None:
        """Let members leave their groups, and wait until they have."""
        self._stop_clients(CLIENTS[1:])

    def _stop_clients(self, hosts: Sequence[str]) -> None:
        for host in hosts:
            self._clients[host].send_signal(signal.SIGTERM)
        for host in hosts:
            self._clients[host].wait(LEAVE_SECONDS_MAX)

    def log(self, host: str) -> Path:
        """Where a client tells what it did."""
        return self._directory / f"{host}.log"

    def faults(self) -> list[str]:
        """What ended that nobody has ended, and errors of clients that nobody foresaw."""
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
        for node in self._nodes:
            text = node.log_path.read_text()
            if "Traceback" in text:
                found.append(f"{node.name}: {text[text.index('Traceback') :][:4000]}")
        return found

    def resident_bytes(self) -> dict[str, int]:
        """Host → memory that its process holds, as long as it runs."""
        pids = {node.name: node.pid for node in self._nodes}
        pids |= {host: process.pid for host, process in self._clients.items()}
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        return {
            host: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page_bytes
            for host, pid in pids.items()
            if pid is not None
        }

    def _address(self, host: str, kind: Kind) -> str:
        return f"{self._network.addresses[host]}:{PORTS[kind]}"

    def _etcd(self) -> Node:
        address = self._address(ETCD, Kind.ETCD)
        client, peer = f"http://{address}", "http://127.0.0.1:0"
        flags = {
            "name": "one",
            "data-dir": str(self._directory / ETCD),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"one={peer}",
            "heartbeat-interval": "100",
            "election-timeout": "1000",
            "log-level": "warn",
        }
        command = [str(find_etcd()), *(f"--{name}={value}" for name, value in flags.items())]
        return self._node(ETCD, Kind.ETCD, [*command, "--unsafe-no-fsync"])

    def _service(self, name: str, kind: Kind) -> Node:
        values: dict[str, object] = {"name": name, "listen": self._address(name, kind)}
        if kind is Kind.NAMESERVER:
            values["etcd"] = self._address(ETCD, Kind.ETCD)
        else:
            values["nameservers"] = ",".join(self.nameservers)
            values["store_path"] = self._directory / name
        values |= self._settings.get(kind, {})
        flags = [f"--{key.replace('_', '-')}={flag_text(value)}" for key, value in values.items()]
        return self._node(name, kind, [sys.executable, "-m", MODULES[kind], *flags])

    def _node(self, name: str, kind: Kind, command: Sequence[str]) -> Node:
        host = self._network.addresses[name]
        return Node(
            name,
            kind,
            PORTS[kind],
            self._network.on(name, command),
            self._directory / "logs" / f"{name}.log",
            environment={"GRPC_VERBOSITY": "NONE"},
            on_unexpected_end=self._ended.put,
            probe=(lambda: etcd_healthy(PORTS[kind], host=host)) if kind is Kind.ETCD else None,
        )

    def _errors(self, host: str) -> Path:
        return self._directory / "logs" / f"{host}.err"

    def _start_client(self, host: str, module: str, *arguments: str) -> None:
        command = self._network.on(host, [sys.executable, "-m", module, *arguments])
        self.log(host).touch()
        with self._errors(host).open("wb") as errors:
            self._clients[host] = subprocess.Popen(
                command,
                stderr=errors,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join((str(ROOT / "tests"), *sys.path)),
                    "GRPC_VERBOSITY": "NONE",
                },
            )
