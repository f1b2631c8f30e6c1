"""Directory of a local cluster: its lock, its list of nodes, its data and logs.

cluster.lock     held while a cluster runs on the directory; contains the process id
cluster.json     the nodes and their ports, so that addresses survive a restart
etcd/  broker-a/  offset/        data; a single process has routes.db instead of etcd/
logs/broker-a.log
former/                          earlier data under the name of a new copy of a log
"""

import dataclasses
import fcntl
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from rockoon.local.process import LocalClusterError, NodeKind

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
    """Directory of a cluster; locked by at most one running cluster.

    Args:
        path: None creates a temporary directory in `open` and deletes it in `close`.
    """

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
        """Create the directory if it is missing, and lock it.

        Raises:
            LocalClusterError: another cluster runs on it, or it cannot be created.
        """
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
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        self._lock = lock

    def close(self) -> None:
        """Unlock the directory and delete a temporary one. May be called twice."""
        if self._lock is None:
            return
        os.close(self._lock)
        self._lock = None
        if self._temporary:
            shutil.rmtree(self.path, ignore_errors=True)

    def load(self) -> list[NodeRecord]:
        """Return the nodes of the last run; none for a new directory.

        Raises:
            LocalClusterError: the list is invalid or cannot be read.
        """
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

        The old data belongs to a removed copy, which is no longer in sync.

        Raises:
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
