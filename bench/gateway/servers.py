"""The compared servers, gateway and proxy, each with an empty store, and their common interface."""

import abc
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path

import rockoon.sync
from bench.compare.peer import BROKER_OPTIONS
from bench.compare.programs import run
from bench.gateway.clients import Turns, by_protocol, by_sdk
from conformance.languages import CACHE
from conformance.rocketmq_proxy import RocketMqProxy
from gateway.gateways import gateway_program
from rockoon.local import LocalCluster
from rockoon.local.directory import PortBlock
from rockoon.local.process import Node, end
from rockoon_proto.v1.nameserver_pb2 import CONSUME_FROM_FIRST, GroupConfig, StartPolicy

SDK = "Python SDK on Rockoon"
QUEUES = 8
FILE_BYTES = 256 << 20
READY_SECONDS_MAX = 60.0


class Side(abc.ABC):
    """A server of RocketMQ's gRPC protocol and its broker: the gateway or the proxy.

    Attributes:
        name: heading of the server's column.
        endpoint: "host:port", set by `start`.
    """

    name: str
    endpoint: str

    @abc.abstractmethod
    def prepare(self) -> Mapping[str, str]:
        """Fetch and build the programs; return their versions by name. Raises NotHere."""

    @abc.abstractmethod
    def start(self, folder: Path, *, sync: bool) -> None:
        """Start the server; with `sync`, messages are synced to disk before they are
        acknowledged."""

    @abc.abstractmethod
    def make_topic(self, topic: str) -> None: ...

    @abc.abstractmethod
    def make_group(self, group: str) -> None:
        """Create a consumer group that reads from the beginning."""

    @abc.abstractmethod
    def stored(self, topic: str) -> int:
        """Return the number of messages in a topic: the sum of its queues' end offsets."""

    @abc.abstractmethod
    def processes(self) -> Mapping[str, int]:
        """Return the process ids of the server and its broker by name."""

    def turns(self) -> Mapping[str, Turns]:
        """Return the kinds of clients to measure, by the heading of their column."""
        return {self.name: partial(by_protocol, self.endpoint)}

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop all processes that were started."""


class GatewaySide(Side):
    """The gateway with etcd, a nameserver, a broker and the offset service, each in its own
    process."""

    name = "Rockoon's gateway"

    def __init__(self) -> None:
        self._local: LocalCluster | None = None
        self._opened = ExitStack()
        self._second: Node | None = None

    def prepare(self) -> Mapping[str, str]:
        return {"Rockoon": version("rockoon")}

    def start(self, folder: Path, *, sync: bool) -> None:
        flush = "sync" if sync else "async"
        settings = {
            "broker": {
                "flush": flush,
                "commit_log_file_bytes": str(FILE_BYTES),
                # So that the broker does not refuse messages on a nearly full disk.
                "disk_full_percent": "99",
            },
            "gateway": {"reuse_port": "true"},
        }
        self._local = LocalCluster(folder, brokers=1, settings=settings, gateway=0)
        self._local.start()
        assert self._local.gateway is not None
        self.endpoint = self._local.gateway
        self._connection = self._opened.enter_context(rockoon.sync.connect(self._local.nameservers))

    def make_topic(self, topic: str) -> None:
        admin = self._connection.admin
        self._connection.call(admin.create_topic(topic, queues_per_broker=QUEUES))

    def make_group(self, group: str) -> None:
        config = GroupConfig(name=group)
        config.start_policy.CopyFrom(StartPolicy(consume_from=CONSUME_FROM_FIRST))
        self._connection.call(self._connection.admin.create_group(config))

    def stored(self, topic: str) -> int:
        described = self._connection.call(self._connection.admin.describe_topic(topic))
        return sum(each.state.max_offset for each in described.queues if each.state is not None)

    def processes(self) -> Mapping[str, int]:
        assert self._local is not None
        nodes: Sequence[Node] = [*self._local.nodes, *([self._second] if self._second else [])]
        return {node.name: node.pid for node in nodes if node.pid is not None}

    def turns(self) -> Mapping[str, Turns]:
        assert self._local is not None
        return {**super().turns(), SDK: partial(by_sdk, self._local.nameservers)}

    def start_second(self, folder: Path) -> None:
        """Start a second gateway on the same port."""
        assert self._local is not None
        port = self._local.node("gateway").port
        self._second = gateway_program(self._local, "second-gateway", port, folder)
        self._second.launch()
        self._second.wait_ready(time.monotonic() + READY_SECONDS_MAX)

    def stop_second(self) -> None:
        if self._second is not None:
            self._second.signal(signal.SIGTERM)
            end([self._second])
            self._second = None

    def stop(self) -> None:
        self.stop_second()
        self._opened.close()
        if self._local is not None:
            self._local.stop()
            self._local = None


class MeasuredProxy(RocketMqProxy):
    """RocketMQ's proxy with the memory and the flush mode of brokers in `make compare`. `sync`:
    True to sync messages to disk before they are acknowledged."""

    def __init__(self, cache: Path, folder: Path, ports: PortBlock, *, sync: bool) -> None:
        super().__init__(cache, folder, ports)
        self._sync = sync

    def _java_options(self) -> Sequence[str]:
        return (*BROKER_OPTIONS, "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99")

    def _broker_settings(self) -> Mapping[str, object]:
        return {
            "flushDiskType": "SYNC_FLUSH" if self._sync else "ASYNC_FLUSH",
            "mappedFileSizeCommitLog": FILE_BYTES,
        }


class ProxySide(Side):
    """RocketMQ's nameserver, broker and proxy in local mode: one process."""

    name = "RocketMQ's proxy"

    def __init__(self) -> None:
        self._ports = PortBlock()
        self._proxy: MeasuredProxy | None = None

    def prepare(self) -> Mapping[str, str]:
        run(["java", "-version"])
        proxy = MeasuredProxy(CACHE, Path(), self._ports, sync=False)
        proxy.prepare()
        return {"RocketMQ": proxy.versions()[self.name]}

    def start(self, folder: Path, *, sync: bool) -> None:
        self._proxy = MeasuredProxy(CACHE, folder, self._ports, sync=sync)
        self._proxy.start()
        self.endpoint = self._proxy.endpoint

    def make_topic(self, topic: str) -> None:
        assert self._proxy is not None
        self._proxy.make_topic(topic, "NORMAL", QUEUES)

    def make_group(self, group: str) -> None:
        assert self._proxy is not None
        self._proxy.make_group(group, fifo=False, retries_max=None)

    def stored(self, topic: str) -> int:
        assert self._proxy is not None
        return self._proxy.stored(topic)

    def processes(self) -> Mapping[str, int]:
        assert self._proxy is not None
        return {"the JVM": self._proxy.pid}

    def stop(self) -> None:
        if self._proxy is not None:
            self._proxy.stop()
            self._proxy = None
