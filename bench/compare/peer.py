"""The compared message queues ("peers"): Rockoon, Kafka, RocketMQ and NATS, with their clients."""

import abc
import os
import secrets
import sys
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

from bench.compare import programs
from bench.compare.programs import ROOT, Program, free_port
from rockoon.local import LocalCluster
from rockoon.local.directory import PortBlock


@dataclass(frozen=True)
class ClientCommand:
    """Command line of a client program that implements `clients/protocol.py`.

    Attributes:
        name: heading of its column in the table.
        environment: added to the environment of this process.
    """

    name: str
    command: Sequence[object]
    environment: Mapping[str, str] = field(default_factory=dict)


class Peer(abc.ABC):
    """A compared message queue. Only one runs at a time.

    Args:
        ports: ports on which its servers listen, on the loopback address.

    Attributes:
        name: name of the message queue.
        columns: names of its client programs.
    """

    name: str
    columns: Sequence[str]

    def __init__(self, ports: PortBlock) -> None:
        self.ports = ports
        # The servers that run.
        self._programs: list[Program] = []

    @abc.abstractmethod
    def prepare(self) -> Mapping[str, str]:
        """Fetch and build the programs; return their versions by name. Raises NotHere: this machine
        cannot run the programs."""

    @abc.abstractmethod
    def start(self, folder: Path, *, sync: bool) -> str:
        """Start servers with an empty store, and return the address for clients.

        Args:
            folder: directory for stores and logs.
            sync: True to sync messages to disk before they are acknowledged.
        """

    def pids(self) -> Sequence[int]:
        return [program.pid for program in self._programs]

    @abc.abstractmethod
    def clients(self) -> Sequence[ClientCommand]:
        """Return the client programs; call `prepare` before."""

    def stop(self) -> None:
        """Stop all servers that were started; may be called again after an interruption."""
        while self._programs:
            self._programs[-1].stop()
            self._programs.pop()

    def _run(
        self,
        name: str,
        command: Sequence[object],
        log: Path,
        port: int,
        environment: Mapping[str, str] = {},
    ) -> None:
        """Start a server, and wait until it listens on a port."""
        self._programs.append(Program(name, command, log, environment))
        self._programs[-1].wait_listening(port)


def python_client(name: str, python: Path | str, module: str) -> ClientCommand:
    environment = {"PYTHONPATH": str(ROOT)}
    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] += f":{os.environ['PYTHONPATH']}"
    return ClientCommand(name, [python, "-m", f"bench.compare.clients.{module}"], environment)


KAFKA_POM = programs.HERE / "kafka.xml"
KAFKA_JAVA, CONFLUENT, AIOKAFKA = "Kafka, Java", "Kafka, confluent-kafka", "Kafka, aiokafka"
KAFKA_CLIENT = "KafkaCompareClient"

# As bin/kafka-server-start.sh and bin/kafka-run-class.sh have them.
SERVER_OPTIONS = (
    *("-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
)

CLIENT_OPTIONS = ("-Xms256m", "-Xmx512m")


def pom_version(pom: Path) -> str:
    """Return the Kafka version in one of this repository's pom files."""
    namespace = {"m": "http://maven.apache.org/POM/4.0.0"}
    properties = ElementTree.parse(pom).getroot().find("m:properties", namespace)
    assert properties is not None
    return str(properties[0].text)


class KafkaPeer(Peer):
    name = "Kafka"
    columns = (KAFKA_JAVA, CONFLUENT, AIOKAFKA)

    def __init__(self, ports: PortBlock) -> None:
        super().__init__(ports)
        self._libraries = self._classes = self._python = Path()

    def fetch(self) -> Path:
        """Fetch the broker; return the directory of its jars. Raises NotHere: this machine cannot
        fetch it."""
        self._libraries = programs.maven(KAFKA_POM, programs.CACHE / "kafka")
        return self._libraries

    def prepare(self) -> Mapping[str, str]:
        self._classes = programs.compiled(KAFKA_CLIENT, self.fetch())
        self._python = programs.python()
        named = {name: programs.python_version(name) for name in ("confluent-kafka", "aiokafka")}
        return {"Kafka": pom_version(KAFKA_POM), **named}

    def start(self, folder: Path, *, sync: bool) -> str:
        port, controller = free_port(self.ports), free_port(self.ports)
        settings = folder / "server.properties"
        values = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},"
            f"CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": folder / "store",
            # As config/server.properties has them, for one node.
            "offsets.topic.replication.factor": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
        }
        if sync:
            values["log.flush.interval.messages"] = 1
        settings.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        java = ["java", "-cp", f"{self._libraries}/*"]
        cluster_id = urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=").lstrip("-")
        cluster_id = cluster_id.rjust(22, "A")
        options = ["format", "--standalone", "-t", cluster_id, "-c", settings]
        programs.run([*java, "kafka.tools.StorageTool", *options])
        command = ["java", *SERVER_OPTIONS, *java[1:], "kafka.Kafka", settings]
        self._run("Kafka", command, folder / "kafka.log", port)
        return f"127.0.0.1:{port}"

    def clients(self) -> Sequence[ClientCommand]:
        path = f"{self._classes}:{self._libraries}/*"
        return [
            ClientCommand(KAFKA_JAVA, ["java", *CLIENT_OPTIONS, "-cp", path, KAFKA_CLIENT]),
            python_client(CONFLUENT, self._python, "confluent_client"),
            python_client(AIOKAFKA, self._python, "aiokafka_client"),
        ]


MODULE = "github.com/nats-io/nats-server/v2"
VERSION = "v2.15.2"
NATS_PY = "NATS, nats-py"


class NatsPeer(Peer):
    name = "NATS"
    columns = (NATS_PY,)

    def __init__(self, ports: PortBlock) -> None:
        super().__init__(ports)
        self._program = Path()
        self._python = Path()

    def prepare(self) -> Mapping[str, str]:
        self._program = programs.go(MODULE, VERSION)
        self._python = programs.python()
        return {"nats-server": VERSION, "nats-py": programs.python_version("nats-py")}

    def start(self, folder: Path, *, sync: bool) -> str:
        port = self.ports.choose()
        settings = folder / "nats.conf"
        settings.write_text(
            f'listen: "127.0.0.1:{port}"\n'
            f'jetstream {{ store_dir: "{folder / "store"}"\n'
            + ("  sync_interval: always\n" if sync else "")
            + "}\n"
        )
        command = [self._program, "-c", settings]
        self._run("nats-server", command, folder / "nats.log", port)
        return f"nats://127.0.0.1:{port}"

    def clients(self) -> Sequence[ClientCommand]:
        return [python_client(NATS_PY, self._python, "nats_client")]


# Shared with `make rocketmq`.
ROCKETMQ_POM = programs.ROOT / "tests" / "rocketmq" / "pom.xml"
ROCKETMQ_FOLDER = programs.ROOT / ".rocketmq"
ROCKETMQ_JAVA = "RocketMQ, Java"
ROCKETMQ_CLIENT = "RocketMqCompareClient"
# The broker's replication service, disabled because it listens on every address.
HA_SERVICE = "org.apache.rocketmq.store.ha.HAService"
BROKER_OPTIONS = ("-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=1g")
NAMESERVER_OPTIONS = ("-Xms256m", "-Xmx256m", "-server", "-XX:+UseG1GC")

# The same as in bin/runserver.sh for a JDK above 8.
OPENED = tuple(
    f"--add-{kind}=java.base/{name}=ALL-UNNAMED"
    for name in ("sun.nio.ch", "java.nio", "jdk.internal.ref")
    for kind in ("exports", "opens")
)


class RocketMqPeer(Peer):
    name = "RocketMQ"
    columns = (ROCKETMQ_JAVA,)

    def __init__(self, ports: PortBlock) -> None:
        super().__init__(ports)
        self._libraries = self._classes = Path()

    def prepare(self) -> Mapping[str, str]:
        self._libraries = programs.maven(ROCKETMQ_POM, ROCKETMQ_FOLDER)
        self._classes = programs.compiled(ROCKETMQ_CLIENT, self._libraries)
        chosen = self._classes / "META-INF" / "service" / HA_SERVICE
        chosen.parent.mkdir(parents=True, exist_ok=True)
        chosen.write_text(f"{ROCKETMQ_CLIENT}$NoCopies\n")
        return {"RocketMQ": pom_version(ROCKETMQ_POM)}

    def start(self, folder: Path, *, sync: bool) -> str:
        # The broker also listens on neighbours of its port.
        port, names = free_port(self.ports, -2), free_port(self.ports)
        address = f"127.0.0.1:{names}"
        nameserver = {"listenPort": names, "bindAddress": "127.0.0.1"}
        broker = {
            "brokerName": "broker-a",
            "brokerClusterName": "DefaultCluster",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "namesrvAddr": address,
            "listenPort": port,
            "storePathRootDir": folder / "store",
            "storePathCommitLog": folder / "store" / "commitlog",
            "flushDiskType": "SYNC_FLUSH" if sync else "ASYNC_FLUSH",
            "diskMaxUsedSpaceRatio": 95,
            # So that a saturated broker does not refuse requests.
            "brokerFastFailureEnable": "false",
            # The default of 32 messages per pull would limit the measure.
            "maxTransferCountOnMessageInMemory": 1024,
            "maxTransferBytesOnMessageInMemory": 2 << 20,
        }
        self._start(folder, "namesrv.NamesrvStartup", NAMESERVER_OPTIONS, nameserver, names)
        self._start(folder, "broker.BrokerStartup", BROKER_OPTIONS, broker, port)
        return address

    def _start(
        self,
        folder: Path,
        main: str,
        options: Sequence[str],
        settings: Mapping[str, object],
        port: int,
    ) -> None:
        home = folder / main
        home.mkdir()
        path = home / "settings.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        own = (f"-Duser.home={home}", f"-Drocketmq.home.dir={home}", *OPENED)
        command = ("java", *options, *own, "-cp", f"{self._classes}:{self._libraries}/*")
        command += (f"org.apache.rocketmq.{main}", "-c", str(path))
        self._run(main, command, home / "log", port, {"ROCKETMQ_HOME": str(home)})

    def clients(self) -> Sequence[ClientCommand]:
        home = programs.CACHE / "home"
        own = [f"-Duser.home={home}", *OPENED]
        path = f"{self._classes}:{self._libraries}/*"
        return [
            ClientCommand(
                ROCKETMQ_JAVA, ["java", *CLIENT_OPTIONS, *own, "-cp", path, ROCKETMQ_CLIENT]
            )
        ]


ROCKOON = "Rockoon"


class RockoonPeer(Peer):
    name = ROCKOON
    columns = (ROCKOON,)

    def __init__(self, ports: PortBlock) -> None:
        super().__init__(ports)
        self._local: LocalCluster | None = None

    def prepare(self) -> Mapping[str, str]:
        return {ROCKOON: version("rockoon")}

    def start(self, folder: Path, *, sync: bool) -> str:
        broker = {"flush": "sync" if sync else "async", "commit_log_file_bytes": "1GiB"}
        self._local = LocalCluster(folder, brokers=1, settings={"broker": broker})
        self._local.start()
        return ",".join(self._local.nameservers)

    def pids(self) -> Sequence[int]:
        assert self._local is not None
        return [node.pid for node in self._local.nodes if node.pid is not None]

    def clients(self) -> Sequence[ClientCommand]:
        return [python_client(ROCKOON, sys.executable, "rockoon_client")]

    def stop(self) -> None:
        if self._local is not None:
            self._local.stop()
            self._local = None
