"""Leaving replication: a replica becomes the only copy of its log.

Unless it is the only voter, its store may have records that were never acknowledged, and lack
acknowledged ones. Only nameservers know the voters; so the store is not opened before they agree.
"""

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from rockoon_core.clock import Backoff, wait_at_most
from rockoon_core.disk import DirectoryLock, DirectoryLocked, Disk
from rockoon_core.errors import RockoonError, StoreCorrupt
from rockoon_node.nameservers import Nameservers
from rockoon_node.store_directory import read_or_make_store_id
from rockoon_proto.v1 import logs_pb2 as pb
from rockoon_proto.v1.logs_pb2_grpc import LogsStub
from rockoon_replica.log_state import StateVersion
from rockoon_replica.replica_facts import ReplicaFacts, facts_alone
from rockoon_replica.replica_file import ReplicaFile
from rockoon_runtime.process import ExitStatus, Fatal, Stop

if TYPE_CHECKING:
    from grpc import aio

    from rockoon_proto.v1.logs_pb2_grpc import LogsAsyncStub
    from rockoon_proto.v1.nameserver_pb2 import NodeKind

log = logging.getLogger(__name__)

CALL_SECONDS_MAX = 2.0


async def leave_copies(
    nameservers: Nameservers,
    kind: "NodeKind",
    log_name: str,
    store_path: Path,
    id_file: Path,
    disk: Disk,
    stop: Stop,
) -> ReplicaFacts | None:
    """Turn a store that was a replica into the only copy of its log, before the log is opened; no
    effect if it never was a replica.

    Args:
        nameservers, kind, log_name, stop: see `go_on_alone`.
        id_file: file in it with the store's id, beside the replica's files.

    Returns:
        The store's facts, durable; None if it has none, or if `stop` was requested in between.

    Raises:
        Fatal: the store must stay a replica, or cannot be used.
    """
    file = ReplicaFile(id_file.parent, disk)
    try:
        # Before the lock, which creates a file: a store that is refused later stays unchanged.
        facts = file.read()
        if facts is None:
            return None
        # Prevents another process from leading with it.
        lock = DirectoryLock(store_path)
        try:
            replica_id = read_or_make_store_id(id_file, disk.replace_file)
            after = await go_on_alone(nameservers, kind, log_name, replica_id, facts, stop)
            if after is not None and after != facts:
                await asyncio.to_thread(file.write, after)
            return after
        finally:
            lock.release()
    except (DirectoryLocked, StoreCorrupt, OSError) as failure:
        raise Fatal(ExitStatus.STORE, f"the store cannot be opened: {failure}") from failure


async def go_on_alone(
    nameservers: Nameservers,
    kind: "NodeKind",
    log_name: str,
    replica_id: str,
    facts: ReplicaFacts,
    stop: Stop,
) -> ReplicaFacts | None:
    """Ask nameservers until one replies whether this replica may become the only copy; the service
    must not run before.

    Returns:
        The new facts, to be written before the store is opened; None: `stop` was requested.

    Raises:
        Fatal: the nameservers refuse.
    """
    if facts.is_alone(replica_id):
        # Only this replica as leader could have changed that.
        return facts
    caller = pb.ReplicaCall(
        kind=kind,
        log=log_name,
        replica_id=replica_id,
        epoch=facts.promised,
        version=facts.version.number,
        history=facts.version.history,
    )

    async def asked(channel: "aio.Channel") -> pb.LogReply:
        stub: LogsAsyncStub = LogsStub(channel)
        return await stub.GoOnAlone(
            pb.GoOnAloneRequest(caller=caller),
            timeout=CALL_SECONDS_MAX,
            metadata=nameservers.metadata,
        )

    backoff = Backoff()
    while not stop.requested:
        try:
            reply = await nameservers.call_channel(asked)
        except RockoonError as reason:
            if not reason.retriable:
                raise Fatal(ExitStatus.CONFIGURATION, f"log {log_name}: {reason}") from reason
            log.warning(
                "log %s: the nameservers did not say whether it has other copies: %s; retrying",
                *(log_name, reason),
            )
            await wait_at_most(backoff.next_seconds(), stop.wait())
            continue
        state = reply.state
        if not reply.done:
            raise Fatal(ExitStatus.CONFIGURATION, refusal(state, replica_id))
        log.warning("log %s has one copy from now on, in epoch %d", log_name, state.epoch)
        version = StateVersion(state.history, state.version)
        return facts_alone(replica_id, state.epoch, version, facts.run)
    return None


def refusal(state: pb.LogState, replica_id: str) -> str:
    """Reason why a replica may not become the only copy, and how to proceed."""
    if state.frozen:
        return f"log {state.log} is frozen: {state.frozen}"
    names = {each.replica_id: each.name for each in state.replicas}
    counting = ", ".join(names.get(who, who) for who in state.in_sync)
    return (
        f"log {state.log} is stored by {counting}, and this process is started as its only copy: "
        f"start {names.get(replica_id, replica_id)} with as many copies as before; to go back to "
        f"one, request it first (rockoon log copies {state.log} 1)"
    )
