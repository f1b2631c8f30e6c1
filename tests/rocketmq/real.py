"""A real RocketMQ broker, nameserver and clients in one JVM, which executes commands line by line.

The jars come from Maven into `.rocketmq` at the top of the checkout, once; `java/RocketMq.java` is
the program in the JVM. It needs Maven and a JDK, and says so if they are missing.
"""

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CACHE = HERE.parent.parent / ".rocketmq"
LIBRARIES = CACHE / "lib"
CLASSES = CACHE / "classes"
SOURCE = HERE / "java" / "RocketMq.java"

# A file of this name selects the components of a broker for copies.
HA_SERVICE = "org.apache.rocketmq.store.ha.HAService"

BROKER = "broker-a"
CLUSTER = "DefaultCluster"
LOG_FILE_BYTES = 1 << 20
QUEUE_FILE_ENTRIES = 1000
READS_MAX = 5

# Small files, and checks of transactions every few seconds. A run's own settings follow.
_CONFIGURATION: Mapping[str, Any] = {
    "brokerName": BROKER,
    "brokerClusterName": CLUSTER,
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "autoCreateTopicEnable": "false",
    "mappedFileSizeCommitLog": LOG_FILE_BYTES,
    "mappedFileSizeConsumeQueue": QUEUE_FILE_ENTRIES * 20,
    "mapperFileSizeBatchConsumeQueue": QUEUE_FILE_ENTRIES * 46,
    "mappedFileSizeConsumeQueueExt": 1 << 16,
    "mappedFileSizeTimerLog": 1 << 20,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "flushDiskType": "SYNC_FLUSH",
    # Ends are recorded before the next check; otherwise a busy machine would check without end.
    "transactionCheckInterval": 3000,
    "transactionOpBatchInterval": 300,
    "transactionTimeOut": 500,
    "transactionCheckMax": 1000,
    # No reports of a busy machine.
    "brokerFastFailureEnable": "false",
    "flushConsumerOffsetInterval": 500,
    "diskMaxUsedSpaceRatio": 95,
    "batchDispatchRequestThreadNums": 1,
    "enableCompaction": "false",
}
IPV6: Mapping[str, Any] = {"brokerIP1": "::1", "bindAddress": "::"}
# As in bin/runserver.sh for a JDK above 8.
_OPENED = ("java.base/sun.nio.ch", "java.base/java.nio", "java.base/jdk.internal.ref")


class NoRocketMq(Exception):
    """This machine cannot run RocketMQ; the text is the reason."""


class CallFailed(AssertionError):
    """An operation failed; the text ends with RocketMQ's output."""


class BrokerRefused(Exception):
    """The broker ended instead of starting.

    Attributes:
        status: exit status of its process.
    """

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"exit status {status}: {said[-2000:]}")
        self.status = status


def prepare() -> None:
    """Install the jars and the compiled program.

    Raises:
        NoRocketMq: no Maven, no JDK, or no source for downloads.
    """
    for command in ("mvn", "javac", "java"):
        if shutil.which(command) is None:
            raise NoRocketMq(f"there is no {command} on this machine")
    pom = HERE / "pom.xml"
    marker = CACHE / "pom.xml"
    if not marker.exists() or marker.read_bytes() != pom.read_bytes():
        shutil.rmtree(LIBRARIES, ignore_errors=True)
        fetch = ["mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies"]
        done = subprocess.run(
            [*fetch, f"-DoutputDirectory={LIBRARIES}"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise NoRocketMq(f"Maven did not fetch it: {done.stdout[-1000:]}")
        shutil.copy(pom, marker)
    compiled = CLASSES / "RocketMq.java"
    if not compiled.exists() or compiled.read_bytes() != SOURCE.read_bytes():
        shutil.rmtree(CLASSES, ignore_errors=True)
        CLASSES.mkdir(parents=True)
        subprocess.run(
            ["javac", "-nowarn", "-d", CLASSES, "-cp", f"{LIBRARIES}/*", SOURCE],
            check=True,
            capture_output=True,
        )
        chosen = CLASSES / "META-INF" / "service" / HA_SERVICE
        chosen.parent.mkdir(parents=True)
        chosen.write_text("RocketMq$NoCopies\n")
        shutil.copy(SOURCE, compiled)


def message(body: bytes, **more: Any) -> dict[str, Any]:
    """Return a message as `RocketMq` sends it: tags, keys, queue, level, deliver_ms, properties."""
    return {"body": base64.b64encode(body).decode(), **more}


def transaction(body: bytes, key: str, local: str, check: str = "unknown", checked_from: int = 1):
    """Return a message of a transaction: its sender's decision, and the replies from a check on."""
    said = {"local": local, "check": check, "from": str(checked_from)}
    return message(body, keys=key, properties=said)


class RocketMq:
    """A running broker. Use `running`.

    Attributes:
        port: port on which it listens.
        pid: its process.
    """

    def __init__(self, process: subprocess.Popen[str], port: int, said: Path) -> None:
        self._process = process
        self._said = said
        self.port = port
        self.pid = process.pid
        self.answer()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("> "):
                found: dict[str, Any] = json.loads(line[2:])
                return found
        raise BrokerRefused(self._process.wait(), self._said.read_text(errors="replace"))

    def do(self, what: str, **more: Any) -> Any:
        """Execute a command; see `answer` in the Java program."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **more}) + "\n")
        self._process.stdin.flush()
        found = self.answer()
        if "error" in found:
            raise CallFailed(f"{found['error']}\n{self._said.read_text()[-3000:]}")
        return found["result"]

    def topic(self, topic: str, queues: int = 1, **attributes: str) -> None:
        named = {name.replace("_", "."): value for name, value in attributes.items()}
        self.do("topic", topic=topic, queues=queues, attributes=named)

    def send(self, topic: str, *messages: Mapping[str, Any], **more: Any) -> list[Any]:
        found: list[Any] = self.do("send", topic=topic, messages=messages, **more)
        return found

    def read(self, topic: str) -> list[dict[str, Any]]:
        """Return all messages of a topic; bodies are bytes. Clients give up early on busy
        machines."""
        for _ in range(READS_MAX - 1):
            with suppress(CallFailed):
                found: list[dict[str, Any]] = self.do("read", topic=topic)
                break
        else:
            found = self.do("read", topic=topic)
        for each in found:
            each["body"] = base64.b64decode(each["body"])
        return found

    def bodies(self, topic: str) -> list[bytes]:
        return [each["body"] for each in self.read(topic)]

    def kill(self) -> None:
        """kill -9."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Stop it in order; a killed process has already ended."""
        assert self._process.stdin is not None
        if self._process.poll() is None:
            self._process.stdin.close()
            self._process.wait(60)


@contextmanager
def running(root: Path, **configuration: Any) -> Iterator[RocketMq]:
    """Run a broker on a store directory until the block ends.

    Args:
        root: the store; its configuration and its logs are beside it.
        configuration: the broker's properties.

    Raises:
        BrokerRefused: it does not start.
    """
    beside = root.parent / f"{root.name}-rocketmq"
    beside.mkdir(parents=True, exist_ok=True)
    names, port = free_ports()
    values = {**_CONFIGURATION, "namesrvAddr": f"127.0.0.1:{names}", "listenPort": port}
    values |= {"storePathRootDir": root, "storePathCommitLog": root / "commitlog", **configuration}
    path = beside / "broker.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    said = beside / "said.log"
    with said.open("a") as log:
        process = subprocess.Popen(
            [
                *("java", "-Xms64m", "-Xmx256m", "-XX:MaxDirectMemorySize=1g", "-XX:+UseSerialGC"),
                *(
                    f"--add-{kind}={name}=ALL-UNNAMED"
                    for name in _OPENED
                    for kind in ("exports", "opens")
                ),
                *(f"-Duser.home={beside}", f"-Drocketmq.home.dir={beside}"),
                *("-cp", f"{CLASSES}:{LIBRARIES}/*", "RocketMq", str(path), str(names)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "ROCKETMQ_HOME": str(beside)},
        )
    try:
        broker = RocketMq(process, port, said)
        yield broker
        broker.stop()
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


def free_ports() -> tuple[int, int]:
    """Return a port for the nameserver, and one for the broker, which also uses its neighbours."""
    while True:
        with socket.socket() as names, socket.socket() as broker:
            names.bind(("127.0.0.1", 0))
            broker.bind(("127.0.0.1", 0))
            port = broker.getsockname()[1]
            if _are_free((port - 2, port + 1)):
                return names.getsockname()[1], port


def _are_free(ports: Sequence[int]) -> bool:
    for port in ports:
        with socket.socket() as other:
            try:
                other.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True
