"""Moves the routes of a local cluster between etcd and the file of a single process.

DIR/etcd/         routes of `rockoon up`
DIR/routes.db     routes of `rockoon up --single`; while it exists, an etcd next to it is an
                  incomplete copy, or is about to be deleted
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
from rockoon.local.process import LocalClusterError, Node, NodeKind
from rockoon_core.disk import Disk

FILE = "routes.db"
READY_SECONDS_MAX = 60.0
MOVE_SECONDS_MAX = 600.0
MODULE = "rockoon_nameserver.route_transfer"


def move_routes(directory: Path, port: int, *, single: bool) -> None:
    """Move the routes to where the cluster reads them; their revisions do not change.

    Args:
        directory: directory of the cluster, locked.
        port: port for a temporary etcd.
        single: whether the cluster runs as a single process.

    Raises:
        LocalClusterError: there is no etcd program, or the move failed; nothing is lost.
    """
    file, etcd, copy = directory / FILE, directory / "etcd", directory / "etcd.new"
    if single:
        if etcd.exists() and not file.exists():
            # Until the file exists, this etcd has the only copy.
            with running_etcd(etcd, port, durable=True) as node:
                transfer("to-file", node, file)
        shutil.rmtree(etcd, ignore_errors=True)
    elif file.exists():
        shutil.rmtree(copy, ignore_errors=True)
        with running_etcd(copy, port, durable=False) as node:
            transfer("to-etcd", node, file)
        # This etcd has not synced its writes; they must be on disk before the file is deleted.
        os.sync()
        shutil.rmtree(etcd, ignore_errors=True)
        copy.rename(etcd)
        # In this order: without both, the next start would create new routes.
        Disk().sync_directory(directory)
        file.unlink()
        Disk().sync_directory(directory)


@contextmanager
def running_etcd(data: Path, port: int, *, durable: bool) -> Iterator[Node]:
    node = Node(
        "etcd",
        NodeKind.ETCD,
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
        last_line = (getattr(failure, "stderr", None) or str(failure)).strip().splitlines()[-1:]
        raise LocalClusterError(f"the routes cannot be moved: {''.join(last_line)}") from failure
