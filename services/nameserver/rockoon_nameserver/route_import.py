"""Import of a backup's routes into a new, empty store of routes.

Brokers and the offset service identify topics, queues and groups by revisions. So each key gets the
revisions that it had: the changes are repeated, and changes whose keys do not exist any more are
replaced by changes of one other key.

Each log gets a new epoch, in which the restored store is its only copy. The stores of the former
cluster are refused as copies.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from google.protobuf.message import DecodeError

from rockoon_core.errors import StoreCorrupt
from rockoon_core.restored_stores import restored_store_id
from rockoon_nameserver.etcd_data import KeyValue, PutKey, RangeRead, only
from rockoon_nameserver.keyspace import (
    KIND_FOLDERS,
    Keyspace,
    LogKey,
    UnreadableKey,
    log_value,
    read_identity,
    read_log,
)
from rockoon_nameserver.log_membership import make_only_replica
from rockoon_nameserver.route_store import RouteStore
from rockoon_proto.v1.nameserver_pb2 import Node, ReadRoutesReply, StoredKey

log = logging.getLogger(__name__)

# Put at revisions whose own keys do not exist any more. Not part of the routes. After the import,
# the key has the mark of a complete import.
FILLER = PutKey("/rockoon-revisions", b"{}")
# A large etcd has millions of revisions; etcd syncs changes that arrive together once.
FILLERS_AT_ONCE_MAX = 512
PART_KEYS_MAX = 1000


def import_mark(last: int) -> PutKey:
    """Return the change that records a complete import up to a revision."""
    return PutKey(FILLER.key, b'{"restored":%d}' % last)


def without_nodes(items: Iterable[KeyValue]) -> list[KeyValue]:
    """Return the keys without a lease."""
    return [item for item in items if not item.lease_id]


def parts(found: RangeRead, keyspace: Keyspace, cluster_id: int) -> Iterator[ReadRoutesReply]:
    """Yield all keys of a cluster without its nodes, as replies of ReadRoutes."""
    items = without_nodes(found.items)
    # Leaving the nodes out is a change too.
    revision = found.header.revision + 1
    for at in range(0, max(1, len(items)), PART_KEYS_MAX):
        yield ReadRoutesReply(
            keys=[
                StoredKey(
                    key=item.key.removeprefix(keyspace.root),
                    value=item.value,
                    create_revision=item.create_revision,
                    modified_revision=item.mod_revision,
                )
                for item in items[at : at + PART_KEYS_MAX]
            ],
            revision=revision,
            cluster=keyspace.cluster,
            cluster_id=cluster_id,
        )


def read_routes(path: Path, keyspace: Keyspace) -> tuple[list[KeyValue], int]:
    """Read the routes of a restored backup: keys in which each log has its restored store as the
    only copy, and their revision.

    Raises:
        StoreCorrupt: the file is damaged, or no file of routes.
        OSError: it cannot be read.
    """
    try:
        routes = ReadRoutesReply.FromString(path.read_bytes())
        values = {each.key: each.value for each in routes.keys}
        cluster_id = read_identity(values["identity"])
        items = [
            KeyValue(
                keyspace.root + each.key,
                restored_value(keyspace, each.key, each.value, cluster_id),
                each.create_revision,
                each.modified_revision,
                0,
            )
            for each in routes.keys
        ]
    except (DecodeError, KeyError, UnreadableKey) as failure:
        reason = f"it has no routes of a backup: {failure!r}"
        raise StoreCorrupt(path=path, reason=reason) from failure
    return sorted(items), routes.revision


def restored_value(keyspace: Keyspace, name: str, value: bytes, cluster_id: int) -> bytes:
    """Return the value of a key after a restore: only the states of logs change."""
    if not name.startswith("logs/"):
        return value
    key = keyspace.parse(keyspace.root + name)
    assert isinstance(key, LogKey)
    state = read_log(key, value)
    store_id = restored_store_id(cluster_id, KIND_FOLDERS[key.kind], key.log)
    state.version += 1
    state.frozen, state.held = "", ""
    del state.moves[:], state.suspects[:]
    state.ClearField("copies_wish")
    return log_value(make_only_replica(state, Node(kind=key.kind, name=key.log, store_id=store_id)))


async def import_routes(store: RouteStore, keyspace: Keyspace, path: Path) -> bool:
    """Store a backup's routes, unless they are there already. Returns whether they were stored. An
    interrupted import continues.

    Args:
        store: new; it has had no other keys.
        path: the file that `rockoon backup restore` wrote.

    Raises:
        StoreCorrupt: the file is damaged, or the store has other keys or revisions.
        OSError: the file cannot be read.
        EtcdUnavailable: etcd does not answer.
    """
    items, last = read_routes(path, keyspace)
    marks = (await store.read(only(FILLER.key))).items
    if any(item.value == import_mark(last).value for item in marks):
        return False
    found = await store.read(keyspace.everything)
    revision = found.header.revision
    keys = {item.key for item in found.items}
    if keys != {item.key for item in items if item.create_revision <= revision}:
        raise StoreCorrupt(
            path=path,
            reason=f"the store of routes is at revision {revision} and has other keys: routes can "
            "only be restored into a new etcd, and by one nameserver",
        )
    log.warning("restoring routes from %s: revisions %d to %d", path, revision + 1, last)
    await replay(store, changes(items), last)
    after = await store.read(keyspace.everything)
    if (after.header.revision, sorted(after.items)) != (last, items):
        raise StoreCorrupt(
            path=path,
            reason="the store of routes differs from it after the import, because another process "
            "changed it: begin again with a new etcd and one nameserver",
        )
    # Without it, a restart after a failed import would serve wrong revisions.
    await store.transaction([], [import_mark(last)])
    return True


def changes(items: Iterable[KeyValue]) -> dict[int, list[PutKey]]:
    """Return the changes that make keys, by revision."""
    puts: dict[int, list[PutKey]] = {}
    for item in items:
        for revision in {item.create_revision, item.mod_revision}:
            puts.setdefault(revision, []).append(PutKey(item.key, item.value))
    return puts


async def replay(store: RouteStore, puts: Mapping[int, Sequence[PutKey]], last: int) -> None:
    """Repeat changes at their revisions, up to `last`. Raises EtcdUnavailable."""
    revision = (await store.header()).revision
    for wanted in sorted({*(each for each in puts if each > revision), last}):
        while revision < wanted - 1:
            count = min(wanted - 1 - revision, FILLERS_AT_ONCE_MAX)
            try:
                async with asyncio.TaskGroup() as tasks:
                    filled = [
                        tasks.create_task(store.transaction([], [FILLER])) for _ in range(count)
                    ]
            except BaseExceptionGroup as failures:
                raise failures.exceptions[0] from None
            revision = max(each.result().revision for each in filled)
        if revision < wanted:
            revision = (await store.transaction([], puts.get(wanted, [FILLER]))).revision
