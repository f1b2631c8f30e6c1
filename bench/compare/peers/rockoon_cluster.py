"""Rockoon in `make compare`: etcd, a nameserver, a broker, the offset service."""

import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from bench.compare.peer import ClientCommand, Peer, python_client
from rockoon.local import LocalCluster
from rockoon.local.ports import PortBlock

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
