"""The reference: RocketMQ's own proxy in local mode, with a broker in the same process."""

import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.compare import programs
from bench.compare.peer import OPENED, pom_version
from bench.compare.programs import ended, free_port
from conformance.languages import java_classes
from conformance.target import Guard, Target
from rockoon.local.authority import Authority
from rockoon.local.directory import PortBlock

HERE = Path(__file__).parent
POM = HERE / "judge" / "pom.xml"
SOURCE = HERE / "judge" / "RocketMqProxy.java"
BROKER: Mapping[str, Any] = {
    "brokerName": "broker-a",
    "brokerClusterName": "DefaultCluster",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "autoCreateTopicEnable": "false",
    "autoCreateSubscriptionGroup": "true",
    "mappedFileSizeCommitLog": 64 << 20,
    "diskMaxUsedSpaceRatio": 95,
    "brokerFastFailureEnable": "false",
    # Both are off by default.
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "enableLmq": "true",
    "enableMultiDispatch": "true",
    # Orphaned transactions are checked soon; the default is 30 s.
    "transactionCheckInterval": 2000,
    "transactionTimeOut": 1000,
}
PROXY_USERS = "org.apache.rocketmq.proxy.auth.ProxyAuthenticationMetadataProvider"
QUEUES = 4
KEY, SECRET = "conformance", "a-secret-of-conformance"


class RocketMqProxy(Target):
    """RocketMQ's nameserver, broker and proxy in one process, controlled by lines of text.

    Args:
        cache: directory of its jars.
        folder: for its store, its certificate and logs.
        ports: to listen on.
        tls: see `Target`.
    """

    name = "RocketMQ's proxy"

    def __init__(self, cache: Path, folder: Path, ports: PortBlock, *, tls: bool = False) -> None:
        self.tls = tls
        self.authority = folder.absolute() / "authority" / "ca.pem"
        self._cache = cache / "judge"
        # The broker creates paths without a setting in its working directory.
        self._folder = folder.absolute()
        self._process: subprocess.Popen[bytes] | None = None
        # Scenarios of several languages send requests at the same time; answers have no names.
        self._asking = threading.Lock()
        self._names, self._broker, self._proxy, self._remoting = self._choose(ports)
        self.endpoint = f"127.0.0.1:{self._proxy}"
        self._ports = ports
        self._guarding = threading.Lock()
        self._guarded: GuardedRocketMqProxy | None = None

    @staticmethod
    def _choose(ports: PortBlock) -> list[int]:
        chosen: list[int] = []
        while len(chosen) < 4:
            # A broker also uses the ports beside its own, which may be of another block.
            port = free_port(ports, -2, 1)
            if all(abs(port - other) > 2 for other in chosen):
                chosen.append(port)
        return chosen

    def versions(self) -> Mapping[str, str]:
        return {self.name: pom_version(POM)}

    @property
    def pid(self) -> int:
        """Return the process id; the process must run."""
        assert self._process is not None
        return self._process.pid

    def prepare(self) -> str:
        """Fetch and compile the program; return its class path. Raises NotHere."""
        libraries = programs.maven(POM, self._cache)
        return f"{java_classes(SOURCE, libraries, self._cache / 'classes')}:{libraries}/*"

    def start(self) -> None:
        path = self.prepare()
        self._folder.mkdir(parents=True, exist_ok=True)
        broker = self._folder / "broker.properties"
        store = self._folder / "store"
        settings = {
            **BROKER,
            "namesrvAddr": f"127.0.0.1:{self._names}",
            "listenPort": self._broker,
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            **self._broker_settings(),
        }
        broker.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        proxy = self._folder / "proxy.json"
        proxy.write_text(
            json.dumps(
                {
                    "rocketMQClusterName": "DefaultCluster",
                    "namesrvAddr": f"127.0.0.1:{self._names}",
                    "grpcServerPort": self._proxy,
                    "remotingListenPort": self._remoting,
                    "localServeAddr": "127.0.0.1",
                    **self._proxy_settings(),
                }
            )
        )
        own = (f"-Duser.home={self._folder}", f"-Drocketmq.home.dir={self._folder}", *OPENED)
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *("java", *self._java_options(), *own, "-cp", path, "RocketMqProxy"),
                    *(str(proxy), str(broker), str(self._names), str(self._broker)),
                    *(() if self.guard is None else (KEY, SECRET)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._folder,
                env={"PATH": "/usr/bin:/bin", "RMQ_PROXY_HOME": str(self._folder)},
                start_new_session=True,
            )
        self._answer()

    def _java_options(self) -> Sequence[str]:
        return ("-Xms256m", "-Xmx768m", "-XX:+UseSerialGC", "-XX:MaxDirectMemorySize=1g")

    def _broker_settings(self) -> Mapping[str, object]:
        return {}

    def _proxy_settings(self) -> Mapping[str, object]:
        own = Authority(self.authority.parent).issue("proxy")
        return {
            "tlsTestModeEnable": False,
            "tlsCertPath": str(own.certificate),
            "tlsKeyPath": str(own.key),
        }

    def _answer(self) -> Mapping[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"> "):
                answer: Mapping[str, Any] = json.loads(line[2:])
                if "error" in answer:
                    raise programs.NotHere(f"the judge refuses: {answer['error']}")
                return answer
        said = (self._folder / "log").read_text(errors="replace")
        raise programs.NotHere(f"the judge ended: {' '.join(said.split())[-500:]}")

    def _ask(self, **what: Any) -> Mapping[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        with self._asking:
            self._process.stdin.write(json.dumps(what).encode() + b"\n")
            self._process.stdin.flush()
            return self._answer()

    def make_topic(self, topic: str, message_type: str, queues: int = QUEUES) -> None:
        self._ask(do="topic", name=topic, queues=queues, type=message_type)

    def stored(self, topic: str) -> int:
        """Return the sum of the end offsets of a topic's queues."""
        return int(self._ask(do="stored", name=topic)["stored"])

    def make_group(
        self, group: str, *, fifo: bool, retries_max: int | None, lite_parent: str = ""
    ) -> None:
        more: dict[str, Any] = {} if retries_max is None else {"retries": retries_max}
        if lite_parent:
            more["lite"] = lite_parent
        self._ask(do="group", name=group, fifo=fifo, **more)

    def guarded(self) -> Target:
        with self._guarding:
            if self._guarded is None:
                cache, folder = self._cache.parent, self._folder / "guarded"
                self._guarded = GuardedRocketMqProxy(cache, folder, self._ports, tls=self.tls)
                self._guarded.start()
            return self._guarded

    def restart(self) -> None:
        self._end()
        self.start()

    def kill(self) -> None:
        if self._guarded is not None:
            self._guarded.kill()
        if (process := self._process) is not None:
            process.kill()

    def stop(self) -> None:
        if self._guarded is not None:
            self._guarded.stop()
            self._guarded = None
        self._end()

    def _end(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            ended(self._process)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None


class GuardedRocketMqProxy(RocketMqProxy):
    """The reference with authentication."""

    guard = Guard(KEY, SECRET)

    def _users(self) -> Mapping[str, object]:
        providers = "org.apache.rocketmq.auth.authentication.provider"
        return {
            "authenticationEnabled": True,
            "authenticationProvider": f"{providers}.DefaultAuthenticationProvider",
            "authenticationMetadataProvider": f"{providers}.LocalAuthenticationMetadataProvider",
            "initAuthenticationUser": json.dumps({"username": KEY, "password": SECRET}),
            "innerClientAuthenticationCredentials": json.dumps(
                {"accessKey": KEY, "secretKey": SECRET}
            ),
        }

    def _broker_settings(self) -> Mapping[str, object]:
        return {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in self._users().items()
        }

    def _proxy_settings(self) -> Mapping[str, object]:
        return {
            **super()._proxy_settings(),
            **self._users(),
            # The proxy asks its broker for the user.
            "authenticationMetadataProvider": PROXY_USERS,
        }
