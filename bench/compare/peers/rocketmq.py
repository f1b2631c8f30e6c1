"""Apache RocketMQ in `make compare`: a nameserver, a broker, and the Java client."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.compare import fetching
from bench.compare.peer import ClientCommand, Peer
from bench.compare.peers.kafka import CLIENT_OPTIONS, pom_version
from bench.compare.programs import Program, free_port
from rockoon.local.ports import PortBlock

# Shared with `make rocketmq`.
POM = fetching.ROOT / "tests" / "rocketmq" / "pom.xml"
FOLDER = fetching.ROOT / ".rocketmq"
JAVA = "RocketMQ, Java"
CLIENT = "RocketMqCompareClient"
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
    columns = (JAVA,)

    def __init__(self, ports: PortBlock) -> None:
        super().__init__(ports)
        self._libraries = self._classes = Path()
        self._programs: list[Program] = []

    def prepare(self) -> Mapping[str, str]:
        self._libraries = fetching.maven(POM, FOLDER)
        self._classes = fetching.compiled(CLIENT, self._libraries)
        chosen = self._classes / "META-INF" / "service" / HA_SERVICE
        chosen.parent.mkdir(parents=True, exist_ok=True)
        chosen.write_text(f"{CLIENT}$NoCopies\n")
        return {"RocketMQ": pom_version(POM)}

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
        self._run(folder, "namesrv.NamesrvStartup", NAMESERVER_OPTIONS, nameserver, names)
        self._run(folder, "broker.BrokerStartup", BROKER_OPTIONS, broker, port)
        return address

    def _run(
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
        program = Program(
            main,
            [*command, f"org.apache.rocketmq.{main}", "-c", path],
            home / "log",
            {"ROCKETMQ_HOME": str(home)},
        )
        self._programs.append(program)
        program.wait_listening(port)

    def pids(self) -> Sequence[int]:
        return [program.pid for program in self._programs]

    def clients(self) -> Sequence[ClientCommand]:
        home = fetching.CACHE / "home"
        own = [f"-Duser.home={home}", *OPENED]
        path = f"{self._classes}:{self._libraries}/*"
        return [ClientCommand(JAVA, ["java", *CLIENT_OPTIONS, *own, "-cp", path, CLIENT])]

    def stop(self) -> None:
        while self._programs:
            self._programs[-1].stop()
            self._programs.pop()
