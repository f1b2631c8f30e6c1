"""Rockoon: a cluster on this machine, with a gateway."""

import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import rockoon.sync
from bench.compare.programs import Program
from conformance.target import Guard, Target
from rockoon.admin.access_keys import Permission
from rockoon.local import LocalCluster
from rockoon.local.authority import Authority
from rockoon.local.directory import PortBlock
from rockoon_proto.v1.nameserver_pb2 import CONSUME_FROM_FIRST, GroupConfig, StartPolicy

# Orphaned transactions are checked as soon as by the reference.
BROKER = {"transaction_timeout_ms": "1000", "transaction_check_interval_ms": "2000"}


class RockoonGateway(Target):
    """A nameserver, a broker and the offset service, each a process, and a gateway.

    Args:
        folder: for its store, the gateway's certificate and logs.
        ports: to listen on.
        tls: see `Target`.
    """

    name = "Rockoon's gateway"

    def __init__(self, folder: Path, ports: PortBlock, *, tls: bool = False) -> None:
        self._folder = folder
        self.tls = tls
        authority = Authority(folder / "authority")
        self.authority = authority.ca
        self._own = authority.issue("gateway")
        self.endpoint = f"127.0.0.1:{ports.choose()}"
        self._ports = ports
        self._guarding = threading.Lock()
        self._guarded: GuardedRockoonGateway | None = None
        self._cluster: LocalCluster | None = None
        self._gateway: Program | None = None
        self._opened = ExitStack()
        self._connection: rockoon.sync.Cluster | None = None

    def versions(self) -> Mapping[str, str]:
        return {self.name: version("rockoon")}

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._cluster = self._made_cluster()
        self._cluster.start()
        connection = rockoon.sync.connect(self._cluster.nameservers, access=self._cluster.access)
        self._connection = self._opened.enter_context(connection)
        self._start_gateway()

    def _made_cluster(self) -> LocalCluster:
        return LocalCluster(self._folder / "cluster", settings={"broker": BROKER})

    def _settings(self) -> Mapping[str, object]:
        """Settings of the gateway, beside its nameservers."""
        return {
            "listen": self.endpoint,
            "tls": "on",
            "plain_connections": "true",
            "cluster_tls": "off",
            "tls_certificate": self._own.certificate,
            "tls_key": self._own.key,
        }

    def _environment(self) -> Mapping[str, str]:
        return {}

    def _start_gateway(self) -> None:
        assert self._cluster is not None
        settings = {"nameservers": ",".join(self._cluster.nameservers), **self._settings()}
        given = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        command = [sys.executable, "-m", "rockoon_gateway", *given]
        log = self._folder / "gateway.log"
        self._gateway = Program("the gateway", command, log, self._environment())
        self._gateway.wait_listening(int(self.endpoint.rpartition(":")[2]))

    def _connected(self) -> rockoon.sync.Cluster:
        assert self._connection is not None
        return self._connection

    def make_topic(self, topic: str, message_type: str) -> None:
        attributes = {"message.type": message_type}
        connection = self._connected()
        connection.call(connection.admin.create_topic(topic, attributes=attributes))

    def make_group(
        self, group: str, *, fifo: bool, retries_max: int | None, lite_parent: str = ""
    ) -> None:
        config = GroupConfig(name=group, fifo=fifo)
        config.start_policy.CopyFrom(StartPolicy(consume_from=CONSUME_FROM_FIRST))
        if lite_parent:
            config.attributes["lite.bind.topic"] = lite_parent
        if retries_max is not None:
            config.retry_attempts_max = retries_max
        connection = self._connected()
        connection.call(connection.admin.create_group(config))

    def guarded(self) -> Target:
        with self._guarding:
            if self._guarded is None:
                self._guarded = GuardedRockoonGateway(
                    self._folder / "guarded", self._ports, tls=self.tls
                )
                self._guarded.start()
            return self._guarded

    def restart(self) -> None:
        """Restart the gateway; tests/cluster restarts brokers."""
        assert self._gateway is not None
        self._gateway.stop()
        self._start_gateway()

    def kill(self) -> None:
        """Do nothing: all calls have timeouts, so `stop` is enough."""

    def stop(self) -> None:
        if self._guarded is not None:
            self._guarded.stop()
            self._guarded = None
        if self._gateway is not None:
            self._gateway.stop()
            self._gateway = None
        self._opened.close()
        if self._cluster is not None:
            self._cluster.stop()
            self._cluster = None


class GuardedRockoonGateway(RockoonGateway):
    """A gateway that requires signatures.

    Args:
        folder, ports, tls: see `RockoonGateway`.
    """

    def __init__(self, folder: Path, ports: PortBlock, *, tls: bool = False) -> None:
        super().__init__(folder, ports, tls=tls)
        self._secrets = folder / "secrets"
        # The secret is created with the cluster.
        self.guard = Guard("conformance", "")

    def start(self) -> None:
        super().start()
        assert self.guard is not None
        connection = self._connected()
        everything = [Permission.parse("topic:*=read,write"), Permission.parse("group:*=read")]
        key = connection.call(
            connection.admin.access_keys.create(self.guard.access_key, permissions=everything)
        )
        self.guard = replace(self.guard, secret_key=key.secret)
        self._secrets.write_text(f"{key.id} {key.secret}\n")
        # The gateway reads the secrets at its start.
        self.restart()

    def _made_cluster(self) -> LocalCluster:
        return LocalCluster(self._folder / "cluster", single=True, access=True)

    def _settings(self) -> Mapping[str, object]:
        self._secrets.touch()
        return {**super()._settings(), "access": "on", "client_secrets": self._secrets}

    def _environment(self) -> Mapping[str, str]:
        assert self._cluster is not None
        assert self._cluster.access is not None
        return {"ROCKOON_GATEWAY_CLUSTER_SECRET": self._cluster.access.secret}
