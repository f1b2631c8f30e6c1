"""Directory of a local cluster: its lock, its list of nodes, its ports and secrets.

cluster.lock     held while a cluster runs on the directory; contains the process id
cluster.json     the nodes and their ports, so that addresses survive a restart
etcd/  broker-a/  offset/        data; a single process has routes.db instead of etcd/
logs/broker-a.log
access/                          files that only their owner can read: the generated secret of the
                                 services, the access keys of the gateway's clients
former/                          earlier data under the name of a new copy of a log

Ports stay reserved for a node while it is down. The system uses ports of its ephemeral range (from
32768 on Linux, 49152 elsewhere) for outgoing connections: a node that listened there could find its
port in use after a restart. Clusters divide the ports below that range into blocks. A block belongs
to the process that has its first port bound, until that process ends. So two clusters that start at
the same moment never choose the same port, although they listen only a second later, and no cluster
uses a port that another one keeps for a node that is down.
"""

import atexit
import dataclasses
import fcntl
import itertools
import json
import os
import random
import shutil
import socket
import tempfile
import threading
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from typing import Self

from rockoon.local.process import LocalClusterError, NodeKind
from rockoon.net.access import AccessKey, new_secret
from rockoon_core.secret_files import read_secrets
from rockoon_core.signature import CLUSTER_KEY_ID

LOWEST, HIGHEST = 20_000, 32_000
# More than the nodes of the largest cluster.
BLOCK_PORTS = 64
# Random numbers of the system: programs with equal seeds must not choose equal ports.
CHANCE = random.SystemRandom()


def can_listen(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections of the last run in TIME_WAIT are ignored.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            # Linux lets two sockets with SO_REUSEADDR bind while neither listens.
            probe.listen(1)
        except OSError:
            return False
        return True


class PortBlock:
    """A block of ports that owners of other blocks do not use, until `close`. `around`: prefer the
    block of this port; None for any block. Raises OSError: no block is free."""

    def __init__(self, around: int | None = None) -> None:
        first, self._guard = claim(around)
        # Several threads may choose at the same time.
        self._changes = threading.Lock()
        # In random order: the block's next owner should not choose ports of a stopped node.
        self._ports = CHANCE.sample(range(first + 1, first + BLOCK_PORTS), BLOCK_PORTS - 1)

    def choose(self, excluded: Collection[int] = ()) -> int:
        """Return a free port of the block, the one that was chosen least recently. `excluded`:
        ports that are not chosen. Raises OSError: no port is free."""
        with self._changes:
            for port in self._ports:
                if port not in excluded and can_listen(port):
                    self._ports.remove(port)
                    self._ports.append(port)
                    return port
        raise OSError(f"no free port between {min(self._ports)} and {max(self._ports)}")

    def close(self) -> None:
        """Release the block. May be called twice."""
        self._guard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def claim(around: int | None) -> tuple[int, socket.socket]:
    """Claim a free block; return its first port, and the socket that is bound to it."""
    firsts = list(range(LOWEST, HIGHEST - BLOCK_PORTS + 1, BLOCK_PORTS))
    CHANCE.shuffle(firsts)
    if around is not None:
        firsts.sort(key=lambda first: not first <= around < first + BLOCK_PORTS)
    for first in firsts:
        # Without SO_REUSEADDR only one socket can be bound. It does not listen, so a connection to
        # it is refused.
        guard = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            guard.bind(("127.0.0.1", first))
        except OSError:
            guard.close()
            continue
        return first, guard
    raise OSError(f"no free block of {BLOCK_PORTS} ports between {LOWEST} and {HIGHEST}")


@cache
def process_block() -> PortBlock:
    block = PortBlock()
    atexit.register(block.close)
    return block


def choose_port(excluded: Collection[int] = ()) -> int:
    """Return a free port of a block that this process keeps until its end. `excluded`: ports that
    are not chosen."""
    return process_block().choose(excluded)


LAYOUT = 1


@dataclasses.dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node in `cluster.json`."""

    name: str
    kind: NodeKind
    port: int
    log: str = ""
    """Name of its log, if the node is one of several replicas; else empty."""


def running_process(directory: Path) -> int | None:
    """Return the process that runs a cluster on a directory; None if there is none."""
    try:
        lock = os.open(directory / "cluster.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 64).decode(errors="replace").strip()
        return int(holder) if holder.isdecimal() else None
    else:
        return None
    finally:
        os.close(lock)


class ClusterDirectory:
    """Directory of a cluster; locked by at most one running cluster. `path`: None creates a
    temporary directory in `open` and deletes it in `close`."""

    def __init__(self, path: Path | None) -> None:
        self._path = path.expanduser().absolute() if path is not None else None
        self._temporary = path is None
        self._lock: int | None = None

    @property
    def path(self) -> Path:
        if self._path is None:
            raise LocalClusterError("the cluster has no directory before it is started")
        return self._path

    def open(self) -> None:
        """Create the directory if it is missing, and lock it. Raises LocalClusterError: another
        cluster runs on it, or it cannot be created."""
        if self._temporary:
            self._path = Path(tempfile.mkdtemp(prefix="rockoon-"))
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.path / "cluster.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as failure:
            raise LocalClusterError(f"{self.path} cannot be used: {failure.strerror}") from failure
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(lock, 64).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise LocalClusterError(
                f"a cluster runs on {self.path} already (process {holder}): stop it first, "
                "or use another directory"
            ) from None
        self._lock = lock
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        except OSError as failure:
            self.close()
            raise LocalClusterError(f"{self.path} cannot be used: {failure.strerror}") from failure

    def check(self) -> None:
        """Raise the errors of `open`."""
        self.open()
        self.close()

    def close(self) -> None:
        """Unlock the directory and delete a temporary one. May be called twice."""
        if self._lock is None:
            return
        os.close(self._lock)
        self._lock = None
        if self._temporary:
            shutil.rmtree(self.path, ignore_errors=True)

    def load(self) -> list[NodeRecord]:
        """Return the nodes of the last run; none for a new directory. Raises LocalClusterError: the
        list is invalid or cannot be read."""
        path = self.path / "cluster.json"
        try:
            content = json.loads(path.read_text())
            if content["layout"] != LAYOUT:
                raise LocalClusterError(f"{path} was written by another version of Rockoon")
            return [
                NodeRecord(
                    str(each["name"]),
                    NodeKind(each["kind"]),
                    int(each["port"]),
                    str(each.get("log", "")),
                )
                for each in content["nodes"]
            ]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as failure:
            raise LocalClusterError(f"{path} cannot be read: {failure}") from failure

    def move_to_former(self, name: str) -> None:
        """Move away old data that a new copy of a log would find under its name: the copy must
        start empty.

        The old data belongs to a removed copy, which is no longer in sync. Raises
        LocalClusterError: the data cannot be moved.
        """
        data_path, former = self.path / name, self.path / "former"
        if not data_path.exists():
            return
        try:
            former.mkdir(mode=0o700, exist_ok=True)
            numbers = itertools.count(1)
            target = next(
                path for number in numbers if not (path := former / f"{name}.{number}").exists()
            )
            data_path.rename(target)
        except OSError as failure:
            raise LocalClusterError(f"{data_path} cannot be moved: {failure.strerror}") from failure

    def save(self, records: Iterable[NodeRecord]) -> None:
        """Replace the list of nodes. Gateways are not listed: they have no data."""
        kept = [record for record in records if record.kind is not NodeKind.GATEWAY]
        nodes = [dataclasses.asdict(record) for record in kept]
        unfinished = self.path / "cluster.json.new"
        unfinished.write_text(json.dumps({"layout": LAYOUT, "nodes": nodes}, indent=2) + "\n")
        unfinished.replace(self.path / "cluster.json")


SECRET_FILE = "cluster-secret"
CLIENT_SECRETS = "client-secrets"
CLIENT_SECRETS_HEAD = "# Access keys of the gateway's clients, a line each: NAME SECRET\n"


def secret_file(directory: Path) -> Path:
    return directory / "access" / SECRET_FILE


def cluster_key(directory: Path) -> AccessKey:
    """Return the services' access key. `directory`: directory of the cluster; a missing secret is
    generated. Raises InvalidArgument: the file contains no secret; OSError: the file can be neither
    read nor created."""
    path = secret_file(directory)
    _written(path, new_secret() + "\n")
    return AccessKey(CLUSTER_KEY_ID, read_secrets(path)[0])


def client_secrets(directory: Path) -> Path:
    """Return the file for the gateway's setting `client_secrets`; create it if missing. Raises
    OSError: the file cannot be created."""
    path = directory / "access" / CLIENT_SECRETS
    _written(path, CLIENT_SECRETS_HEAD)
    return path


def _written(path: Path, text: str) -> None:
    """Create a file unless it exists."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".new")
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        partial.replace(path)
