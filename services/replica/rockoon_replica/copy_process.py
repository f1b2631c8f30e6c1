"""A process that is a replica of its service's log, until it is to stop.

When its log cannot be made equal to the others' and does not count, its store is set aside, and it
goes on as another replica, with an empty one.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rockoon_core.channels import Channels
from rockoon_core.directory_lock import LOCK_FILE
from rockoon_core.disk import Disk
from rockoon_node.frontend import AsReplica, NodeFrontend
from rockoon_node.registration import Registration
from rockoon_node.store_id import read_or_make_store_id, store_place
from rockoon_proto.v1.nameserver_pb2 import NodeKind
from rockoon_replica.actions import Remake
from rockoon_replica.log_copy import LogCopy, LogService
from rockoon_replica.replica_file import ReplicaFile
from rockoon_replica.service import ReplicationService
from rockoon_replica.set_aside import set_aside
from rockoon_replica.settings import CopySettings
from rockoon_runtime.process import ExitStatus, Fatal, Stop
from rockoon_runtime.tls import client_tls
from rockoon_runtime.wire import GrpcServer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyProcess:
    """What such a process is made of.

    Attributes:
        kind, service: of the service, and its short name.
        settings, frontend, server, stop, disk: the service's.
        replication: answers followers.
        address: as nameservers are told.
        now_ms: wall clock.
        config: directory of the replica's own files, in the store's.
        id_file: name in it of the store's id.
        moved_last: see `set_aside`.
        announce: called with the service, the replica's name and its address when it takes part.
        follow: called with each replica, for whoever looks at it.
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
        """Be a replica until the process is to stop.

        Args:
            service_of: makes what is around the log of a replica, by its id.

        Raises:
            Fatal: a rule was broken, or the store cannot be set aside.
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
                remake = await self._be(copy)
                if remake is not None:
                    await self._set_aside(store_id, remake)
        finally:
            await channels.close()

    async def _be(self, copy: LogCopy[Any]) -> Remake | None:
        """Be one replica until `stop` is requested, or until it has to be made anew: says why."""
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
            others.append(tasks.create_task(tell_runs(copy, registration), name="starts"))
            readiness = tasks.create_task(tell_readiness(copy, server), name="readiness")
            self.announce(self.service, copy.replica_name, self.address)
            if not await stop.or_event(over):
                log.info("stopping: %s", await stop.wait())
                readiness.cancel()
                server.begin_drain()
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
            reason = f"the store cannot be set aside: {failure}"
            raise Fatal(ExitStatus.STORE, reason) from failure
        log.error("the copy is made anew: %s; the former one is in %s", remake.reason, kept)


async def tell_runs(copy: LogCopy[Any], registration: Registration) -> None:
    """Register each raised count of starts immediately: the copy waits for its registration."""
    while True:
        await copy.record.run_raised.wait()
        copy.record.run_raised.clear()
        registration.renew_now()


async def tell_readiness(copy: LogCopy[Any], server: GrpcServer) -> None:
    """Say through grpc.health.v1 whether this copy leads, or is level with who does."""
    while True:
        await server.set_serving(copy.record.is_ready)
        await copy.readiness_news.wait()
        copy.readiness_news.clear()
