"""Routes of a local cluster, moved between its etcd and the file of a single process.

DIR/etcd/         where `rockoon up` has them
DIR/routes.db     where `rockoon up --single` has them; while it is there, an etcd beside it is a
                  copy that was not finished, or has not been removed yet
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rockoon.local.etcd import etcd_command, etcd_healthy, find_etcd
from rockoon.local.process import Kind, LocalClusterError, Node
from rockoon_core.disk import Disk

FILE = "routes.db"
READY_SECONDS_MAX = 60.0
MOVE_SECONDS_MAX = 600.0
MODULE = "rockoon_nameserver.route_transfer"


def move_routes(directory: Path, port: int, *, single: bool) -> None:
    """Have the routes where a cluster looks for them, with the revisions that they have.

    Args:
        directory: the cluster's, locked.
        port: that an etcd may listen on meanwhile.
        single: whether it runs as a single process.

    Raises:
        LocalClusterError: there is no etcd program, or it could not be done; nothing is lost.
    """
    file, etcd, copy = directory / FILE, directory / "etcd", directory / "etcd.new"
    if single:
        if etcd.exists() and not file.exists():
            # Until the file is there, this etcd has the only copy.
            with running_etcd(etcd, port, durable=True) as node:
                transfer("to-file", node, file)
        shutil.rmtree(etcd, ignore_errors=True)
    elif file.exists():
        shutil.rmtree(copy, ignore_errors=True)
        with running_etcd(copy, port, durable=False) as node:
            transfer("to-etcd", node, file)
        # It has synced nothing, and the file is not to go before.
        os.sync()
        shutil.rmtree(etcd, ignore_errors=True)
        copy.rename(etcd)
        # One after the other: with neither the next start would make routes that are new.
        Disk().sync_directory(directory)
        file.unlink()
        Disk().sync_directory(directory)


@contextmanager
def running_etcd(data: Path, port: int, *, durable: bool) -> Iterator[Node]:
    node = Node(
        "etcd",
        Kind.ETCD,
        port,
        etcd_command(find_etcd(), data, port, durable=durable),
        data.parent / "logs" / "etcd.log",
        environment={},
        on_unexpected_end=lambda _: None,
        probe=partial(etcd_healthy, port),
    )
    node.launch()
    try:
        node.wait_ready(time.monotonic() + READY_SECONDS_MAX)
        yield node
    finally:
        node.signal(signal.SIGTERM)
        node.wait_ended(READY_SECONDS_MAX)


def transfer(direction: str, etcd: Node, file: Path) -> None:
    command = (sys.executable, "-m", MODULE, direction, etcd.address, str(file))
    try:
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=MOVE_SECONDS_MAX
        )
    except subprocess.SubprocessError as failure:
        said = (getattr(failure, "stderr", None) or str(failure)).strip().splitlines()[-1:]
        raise LocalClusterError(f"the routes cannot be moved: {''.join(said)}") from failure
