"""Kafka in `make compare`: one node (broker and controller), Kafka's perf tools, two Python
clients."""

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from bench.compare import fetching
from bench.compare.peer import ClientCommand, Peer, python_client
from bench.compare.programs import Program, free_port
from rockoon.local.ports import PortBlock

POM = fetching.HERE / "kafka.xml"
JAVA, CONFLUENT, AIOKAFKA = "Kafka, Java", "Kafka, confluent-kafka", "Kafka, aiokafka"
CLIENT = "KafkaCompareClient"
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
    columns = (JAVA, CONFLUENT, AIOKAFKA)

    def __init__(self, ports: PortBlock) -> None:
        super().__init__(ports)
        self._libraries = self._classes = self._python = Path()
        self._server: Program | None = None

    def prepare(self) -> Mapping[str, str]:
        self._libraries = fetching.maven(POM, fetching.CACHE / "kafka")
        self._classes = fetching.compiled(CLIENT, self._libraries)
        self._python = fetching.python()
        named = {name: fetching.python_version(name) for name in ("confluent-kafka", "aiokafka")}
        return {"Kafka": pom_version(POM), **named}

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
        fetching.run([*java, "kafka.tools.StorageTool", *options])
        command = ["java", *SERVER_OPTIONS, *java[1:], "kafka.Kafka", settings]
        self._server = Program("Kafka", command, folder / "kafka.log")
        self._server.wait_listening(port)
        return f"127.0.0.1:{port}"

    def pids(self) -> Sequence[int]:
        assert self._server is not None
        return [self._server.pid]

    def clients(self) -> Sequence[ClientCommand]:
        path = f"{self._classes}:{self._libraries}/*"
        return [
            ClientCommand(JAVA, ["java", *CLIENT_OPTIONS, "-cp", path, CLIENT]),
            python_client(CONFLUENT, self._python, "confluent_client"),
            python_client(AIOKAFKA, self._python, "aiokafka_client"),
        ]

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None
