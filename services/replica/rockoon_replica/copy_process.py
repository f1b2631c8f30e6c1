"""Process of a service with a replicated log: runs replicas of the log until it stops.

If its log cannot be made equal to the leader's and it is no voter, its store is moved to another
directory, and the process continues as another replica with an empty store.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rockoon_core.channels import Channels
from rockoon_core.disk import LOCK_FILE, Disk
from rockoon_node.frontend import AsReplica, NodeFrontend
from rockoon_node.registration import Registration
from rockoon_node.store_directory import read_or_make_store_id, store_place
from rockoon_proto.v1.nameserver_pb2 import NodeKind
from rockoon_replica.actions import Remake
from rockoon_replica.log_copy import LogCopy, LogService
from rockoon_replica.replica_file import ReplicaFile
from rockoon_replica.service import ReplicationService
from rockoon_replica.settings import CopySettings
from rockoon_runtime.process import ExitStatus, Fatal, Stop
from rockoon_runtime.tls import client_tls
from rockoon_runtime.wire import GrpcServer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyProcess:
    """Runs the replicas of a service's log in its process, one after the other.

    Attributes:
        kind, service: kind of the node, and short name of its service, for example "broker".
        replication: serves followers.
        address: as registered at nameservers.
        now_ms: wall clock.
        config: directory of the replica's own files, in the store's.
        id_file: name of the file in it with the store's id.
        moved_last: see `set_aside`.
        announce: called with service, replica name and address when the replica participates.
        follow: called with each replica, so that observers can refer to it.
    """

    kind: NodeKind
    service: str
    settings: CopySettings
    frontend: NodeFrontend
    server: GrpcServer
    replication: ReplicationService
    address: str
    stop: Stop
    disk: Disk
    now_ms: Callable[[], int]
    config: Path
    id_file: str
    moved_last: Sequence[str]
    announce: Callable[[str, str, str], None]
    follow: Callable[[LogCopy[Any]], None]

    async def run(self, service_of: Callable[[str], LogService]) -> None:
        """Run replicas until the process stops.

        Args:
            service_of: returns the `LogService` for a replica's id.

        Raises:
            Fatal: a rule was broken, or the store cannot be moved.
        """
        settings = self.settings
        channels = Channels(client_tls(settings), self.frontend.credentials)
        try:
            while not self.stop.requested:
                for changed in self.disk.make_directory(self.config):
                    self.disk.sync_directory(changed)
                store_id = read_or_make_store_id(self.config / self.id_file, self.disk.replace_file)
                copy = LogCopy(
                    self.kind,
                    settings,
                    store_id,
                    self.frontend.nameservers,
                    channels,
                    service_of(store_id),
                    self.replication,
                    ReplicaFile(self.config, self.disk),
                    self.stop,
                )
                self.follow(copy)
                remake = await self._run_replica(copy)
                if remake is not None:
                    await self._set_aside(store_id, remake)
        finally:
            await channels.close()

    async def _run_replica(self, copy: LogCopy[Any]) -> Remake | None:
        """Run one replica until `stop`, or until its log must be remade; return the reason."""
        stop, server = self.stop, self.server
        async with asyncio.TaskGroup() as tasks:
            over = asyncio.Event()
            living = tasks.create_task(copy.run(), name="replica")
            living.add_done_callback(lambda _: over.set())
            await stop.or_event(copy.opened)
            registration = self.frontend.registration(
                self.kind,
                self.address,
                copy.replica_id,
                store_place(self.settings.store_path / LOCK_FILE),
                self.now_ms(),
                lambda: 0,
                AsReplica(copy.log_name, "", copy.facts, copy.replica_name),
            )
            others = [tasks.create_task(registration.run(stop), name="registration")]
            if (keys := self.frontend.key_follower(self.address)) is not None:
                others.append(tasks.create_task(keys.run(stop), name="access-keys"))
            others.append(tasks.create_task(register_runs(copy, registration), name="starts"))
            readiness = tasks.create_task(publish_readiness(copy, server), name="readiness")
            self.announce(self.service, copy.replica_name, self.address)
            if not await stop.or_event(over):
                log.info("stopping: %s", await stop.wait())
                readiness.cancel()
                server.start_drain()
                await copy.hand_over()
            await registration.leave()
            for task in (*others, readiness):
                task.cancel()
            copy.close()
        return living.result()

    async def _set_aside(self, store_id: str, remake: Remake) -> None:
        path = self.settings.store_path
        try:
            kept = await asyncio.to_thread(set_aside, path, store_id, self.moved_last, self.disk)
        except OSError as failure:
            reason = f"the store cannot be moved to another directory: {failure}"
            raise Fatal(ExitStatus.STORE, reason) from failure
        log.error("starting with an empty copy: %s; the former one is in %s", remake.reason, kept)


async def register_runs(copy: LogCopy[Any], registration: Registration) -> None:
    """Renew the registration after each counted start, because the copy waits for it."""
    while True:
        await copy.record.run_raised.wait()
        copy.record.run_raised.clear()
        registration.renew_now()


async def publish_readiness(copy: LogCopy[Any], server: GrpcServer) -> None:
    """Report by gRPC's health service whether this copy leads, or has the leader's records."""
    while True:
        await server.set_serving(copy.record.is_ready)
        await copy.readiness_news.wait()
        copy.readiness_news.clear()


LOST = "lost"


def set_aside(store_path: Path, replica_id: str, last: Sequence[str], disk: Disk) -> Path:
    """Move a closed store's content to `lost/replica-{its id}`; returns that directory.

    The lock and `lost` itself stay. If a crash interrupts the move and the same replica continues,
    its later content is moved to `replica-{its id}.1`, and so on: moved files are never replaced.

    Args:
        last: names in it that are moved last, in this order: the log, because derived files need
            it, then the replica's facts and id. So after a crash in between it is still the same
            replica, which does not vote, with a part of its log.
        disk: the file layer.

    Raises:
        OSError: the disk.
    """
    names = {path.name for path in store_path.iterdir()} - {LOST, LOCK_FILE}
    target = _free_directory(store_path / LOST, f"replica-{replica_id}", names)
    for changed in disk.make_directory(target):
        disk.sync_directory(changed)
    for name in [*sorted(names - set(last)), *(each for each in last if each in names)]:
        disk.rename(store_path / name, target / name)
        disk.sync_directory(target)
        disk.sync_directory(store_path)
    return target


def _free_directory(lost: Path, name: str, names: set[str]) -> Path:
    """Return a directory in `lost` in which these names are free."""
    target = lost / name
    number = 0
    while any((target / each).exists() for each in names):
        number += 1
        target = lost / f"{name}.{number}"
    return target
