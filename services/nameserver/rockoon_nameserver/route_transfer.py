"""Transfer of routes between etcd and an embedded store's file, with unchanged revisions.

    python -m rockoon_nameserver.route_transfer to-file ETCD FILE    into a new file
    python -m rockoon_nameserver.route_transfer to-etcd ETCD FILE    into a new etcd

Brokers and the offset service identify topics, queues and groups by revisions: with other
revisions, all would count as deleted and created again. During the transfer no nameserver
may run on either. Nodes are left out: they register again.
"""

import argparse
import asyncio
from pathlib import Path

from rockoon_core.errors import StoreCorrupt
from rockoon_nameserver.etcd import Etcd
from rockoon_nameserver.etcd_data import Header, under
from rockoon_nameserver.route_file import RouteFile, sync_directory
from rockoon_nameserver.route_import import changes, replay, without_nodes
from rockoon_nameserver.route_store import RouteStore

# Routes of all clusters.
ROUTES = under("/rockoon/")


async def to_file(etcd: RouteStore, path: Path) -> None:
    """Copy the routes into a file, which appears once it is complete."""
    (revision, cluster_id), items = await etcd.read(ROUTES)
    kept = without_nodes(items)
    if len(kept) < len(items):
        # Removing the nodes is a change.
        revision += 1
    partial = path.with_name(f"{path.name}.partial")
    for left in path.parent.glob(f"{partial.name}*"):
        left.unlink()
    file = RouteFile(partial, Header(revision, cluster_id))
    file.write(revision, {item.key: item for item in kept}, {})
    # Only the database file is renamed below, not its WAL.
    file.checkpoint()
    file.close()
    partial.replace(path)
    sync_directory(path.parent)


async def to_etcd(etcd: RouteStore, path: Path) -> None:
    """Repeat the remaining changes of each revision in a new etcd. Raises StoreCorrupt: etcd's
    contents differ from the file's after the transfer."""
    file = RouteFile(path)
    try:
        header, items = file.header, without_nodes(file.items)
        last = header.revision + (len(items) < len(file.items))
    finally:
        file.close()
    await replay(etcd, changes(items), last)
    if await etcd.read(ROUTES) != (Header(last, header.cluster_id), sorted(items)):
        raise StoreCorrupt(path=path, reason="etcd does not have the same routes afterwards")


async def transfer(direction: str, endpoint: str, path: Path) -> None:
    async with Etcd([endpoint]) as etcd:
        await (to_file if direction == "to-file" else to_etcd)(etcd, path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m rockoon_nameserver.route_transfer")
    parser.add_argument("direction", choices=("to-file", "to-etcd"))
    parser.add_argument("etcd", help="host:port")
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    asyncio.run(transfer(arguments.direction, arguments.etcd, arguments.file))


if __name__ == "__main__":
    main()
