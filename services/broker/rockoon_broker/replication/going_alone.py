"""Starts a single-copy broker on a store that was one of several copies, after asking first.

If the store were opened directly, it would show and acknowledge records that no other copy
has, and that are cut when it is a copy again.
"""

from pathlib import Path

from rockoon_broker.broker import CONFIG_DIRECTORY, STORE_ID_FILE, Broker
from rockoon_broker.store.errors import StorageError
from rockoon_core.disk import DirectoryLock, DirectoryLocked, Disk
from rockoon_core.errors import StoreCorrupt
from rockoon_node.nameservers import Nameservers
from rockoon_node.store_directory import read_or_make_store_id
from rockoon_proto.v1.nameserver_pb2 import BROKER
from rockoon_replica.going_alone import leave_copies
from rockoon_replica.replica_facts import ReplicaFacts
from rockoon_replica.replica_file import ReplicaFile
from rockoon_runtime.process import ExitStatus, Fatal, Stop


async def leave_store_copies(
    store_path: Path, log_name: str, nameservers: Nameservers, stop: Stop, disk: Disk
) -> ReplicaFacts | None:
    """Make a store that was a copy the only one of its log; no effect if it never was a copy.

    Returns:
        The store's replica facts; None if it has none, or if `stop` was requested in between.

    Raises:
        Fatal: the store must stay a copy, or cannot be used.
    """
    config = store_path / CONFIG_DIRECTORY
    file = ReplicaFile(config, disk)
    try:
        # Before the lock, which creates a file: a store that is refused later stays unchanged.
        if not config.exists() or file.read() is None:
            return None
        # Prevents another process from leading with it.
        lock = DirectoryLock(store_path)
        try:
            store_id = read_or_make_store_id(config / STORE_ID_FILE, disk.replace_file)
            return await leave_copies(nameservers, BROKER, log_name, store_id, file, stop)
        finally:
            lock.release()
    except (DirectoryLocked, StoreCorrupt, OSError) as failure:
        raise Fatal(ExitStatus.STORE, f"the store cannot be opened: {failure}") from failure


def open_own_epoch(broker: Broker, facts: ReplicaFacts | None, now_ms: int) -> None:
    """Append the record of the epoch from which the log has only one copy.

    A former copy may have other bytes of the epoch before. If it returns, it is cut to the
    common part.

    Raises:
        Fatal: the record cannot be written.

    """
    if facts is None or facts.config is None:
        return
    boundaries = broker.store.boundaries()
    if not boundaries or boundaries[-1].epoch < facts.led:
        (itself,) = facts.config.in_sync
        try:
            broker.store.open_epoch(facts.led, itself, now_ms)
        except StorageError as failure:
            raise Fatal(ExitStatus.STORE, f"cannot open an epoch: {failure}") from failure
