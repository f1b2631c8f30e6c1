"""Offset service on a replicated journal: opens the journal, and serves clients while it leads.

See `rockoon_replica.log_copy` for the life cycle.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

from grpc import aio

from rockoon_core.clock import wall_clock_ms
from rockoon_core.disk import DirectoryLock, DirectoryLocked, Disk
from rockoon_core.errors import NotLeader, StoreCorrupt, StoreLocked
from rockoon_format.checksums import crc32
from rockoon_node.frontend import NodeFrontend
from rockoon_node.store_directory import StoreCluster, keep_private
from rockoon_offset.journal.journal_log import JournalLog
from rockoon_offset.metrics import TABLE, of_process
from rockoon_offset.parts import SERVICE_NAMES, OffsetParts, assembled
from rockoon_offset.progress.progress_store import ProgressStore
from rockoon_offset.replication.leader_endpoint import LeaderEndpoint
from rockoon_offset.replication.leader_store import LeaderStore
from rockoon_offset.settings import OffsetSettings
from rockoon_proto.v1.in_flight_pb2_grpc import (
    InFlightServiceServicer,
    add_InFlightServiceServicer_to_server,
)
from rockoon_proto.v1.nameserver_pb2 import OFFSET_SERVICE
from rockoon_proto.v1.offset_pb2_grpc import (
    OffsetServiceServicer,
    add_OffsetServiceServicer_to_server,
)
from rockoon_replica.copy_process import CopyProcess
from rockoon_replica.log_copy import LogCopy
from rockoon_replica.metrics import TABLE as TABLE_OF_COPIES
from rockoon_replica.metrics import of_copy
from rockoon_replica.replica import Replica
from rockoon_replica.replica_file import FILE, MARKER, AcknowledgedEnd
from rockoon_replica.service import ReplicationService
from rockoon_replica.service import add_to_server as add_replication
from rockoon_replica.settings import replica_identities
from rockoon_runtime.process import ExitStatus, Fatal, Stop
from rockoon_runtime.telemetry.metrics import Measurement

JOURNAL = "journal"
STORE_ID_FILE = "store_id"
HELD_CHECK_SECONDS = 1.0


class OffsetCopy:
    """The offset service on one replica (`LogService`): opens the journal, serves clients while
    this replica leads.

    Attributes:
        parts: parts of the service; None while this replica does not lead.
    """

    log_failures = (StoreCorrupt,)
    crc32 = staticmethod(crc32)

    def __init__(
        self,
        settings: "OffsetSettings",
        replica_id: str,
        endpoint: "LeaderEndpoint",
        stop: Stop,
        disk: "Disk",
        assembled: "Callable[[ProgressStore], OffsetParts]",
    ) -> None:
        self._settings = settings
        self._replica_id = replica_id
        self._endpoint = endpoint
        self._stop = stop
        self._disk = disk
        self._assembled = assembled
        self._journal: JournalLog | None = None
        self._replica: Replica | None = None
        self.parts: OffsetParts | None = None

    # Methods of `LogService`.

    def open_log(self, lost: Callable[[str], None]) -> JournalLog:
        directory = self._settings.store_path / JOURNAL
        for changed in self._disk.make_directory(directory):
            self._disk.sync_directory(changed)
        root = self._settings.store_path
        # A store that never was a replica has no other copy to read lost records from.
        is_only = not (root / FILE).exists()
        self._journal = JournalLog(
            directory,
            self._replica_id,
            failed=self._failed,
            lost=None if is_only else lost,
            synced=AcknowledgedEnd(root, self._disk).end if is_only else 0,
            disk=self._disk,
            bytes_max=self._settings.journal_bytes_max,
        )
        return self._journal

    def damage_of(self, failure: Exception) -> int | None:
        """Return None: an unreadable frame may be uncommitted, so none is known as damaged."""
        del failure
        return None

    def rewrite(self, position: int, data: bytes) -> None:
        """Never called, because `damage_of` reports no damaged record."""
        raise NotImplementedError

    async def run_service(self, replica: Replica, leads: asyncio.Event) -> None:
        journal = self._journal
        assert journal is not None, "`open_log` was called before"
        self._replica = replica
        try:
            await leads.wait()
            await self._lead(journal, replica)
        finally:
            self._journal = self._replica = None

    def hold_calls(self) -> None:
        self._endpoint.hold_calls()

    def refuse(self, refusal: NotLeader) -> None:
        self._endpoint.refuse(refusal)

    def committed(self, end: int) -> None:
        del end
        if self._journal is not None and self._replica is not None and self._replica.epoch:
            self._journal.retain_from = self._replica.retention_end

    def may_delete(self, min_offset: int) -> None:
        if self._journal is not None:
            self._journal.retain_from = min_offset

    async def _hold(self, journal: JournalLog, replica: Replica) -> None:
        """Log when files are kept for absent replicas. An absent replica loses its vote, as with a
        broker's log, so that the kept files do not fill this disk.
        """
        reported = 0
        while True:
            await asyncio.sleep(HELD_CHECK_SECONDS)
            journal.retain_from = replica.retention_end
            if (held := journal.kept_for_followers_end) != reported:
                replica.retention_held(held)
                reported = held

    async def _lead(self, journal: JournalLog, replica: Replica) -> None:
        """Serve clients as the leader until cancelled."""
        settings = self._settings
        root = settings.store_path
        cluster = StoreCluster(root / "cluster_id", self._disk.replace_file)
        store = LeaderStore(journal, replica, root, cluster, settings.name)
        refusal = NotLeader(replica=settings.replica or settings.name, log=settings.name)
        parts = self._assembled(store)
        try:
            async with asyncio.TaskGroup() as tasks:
                for name, loop in (
                    ("progress on copies", store.run()),
                    ("follow the routes", parts.routes.run(self._stop)),
                    ("expire members", parts.groups.run()),
                    ("export files", parts.export_files.run()),
                    ("members at the end", self._write_members(parts)),
                    ("files kept for copies", self._hold(journal, replica)),
                ):
                    tasks.create_task(loop, name=name)
                await parts.routes.loaded.wait()
                await store.durable_unbounded()
                # Leases start now: no former leader can answer members any more.
                parts.groups.open()
                self.parts = parts
                self._endpoint.serve(parts.servicer, parts.in_flight)
                await asyncio.Event().wait()
        finally:
            self.parts = None
            store.end(refusal)
            self._endpoint.refuse(refusal)
            # Members find the next leader in the routes.
            parts.watch.close()
            await parts.brokers.close()

    async def _write_members(self, parts: "OffsetParts") -> None:
        """Write changed members when the process stops, before the next leader takes over.

        Otherwise members that have left would be listed again by the next leader.
        """
        await self._stop.wait()
        parts.groups.write_members()

    def _failed(self, failure: OSError) -> None:
        reason = f"the journal in {self._settings.store_path} cannot be written: {failure}"
        self._stop.fail(Fatal(ExitStatus.DISK_FAILED, reason))
        if self._replica is not None:
            self._replica.close()


class CopyMetrics:
    """Measures the metrics of a replica, and of its service while it leads."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._copy: LogCopy[OffsetCopy] | None = None

    def follow(self, copy: LogCopy[OffsetCopy]) -> None:
        """Set the replica to measure, after an earlier one."""
        self._copy = copy

    async def measure(self) -> Iterable[Measurement]:
        """Return the metrics of the replica, and of the service if the replica leads."""
        if self._copy is None:
            return of_process(self._root, is_ready=False)
        parts = self._copy.service.parts
        led = [] if parts is None else await parts.metrics.measure()
        is_ready = self._copy.record.is_ready
        return [*of_process(self._root, is_ready=is_ready), *of_copy(self._copy), *led]


async def serve_copy(
    settings: OffsetSettings,
    frontend: NodeFrontend,
    stop: Stop,
    disk: Disk,
    announce: Callable[[str, str, str], None],
) -> None:
    """Run a replica of the offset service's journal until `stop` is requested.

    Raises:
        SettingsError, ListenError: a setting cannot be used.
        Fatal: the store cannot be used.
    """
    replication = ReplicationService(replica_identities(settings))
    metrics, root = CopyMetrics(settings.store_path), settings.store_path
    endpoint = LeaderEndpoint()

    def register(server: aio.Server) -> None:
        # LeaderEndpoint creates its methods from the service descriptors.
        add_OffsetServiceServicer_to_server(cast("OffsetServiceServicer", endpoint), server)
        add_InFlightServiceServicer_to_server(cast("InFlightServiceServicer", endpoint), server)
        add_replication(replication, server)

    def parts_over(store: ProgressStore) -> OffsetParts:
        return assembled(settings, store, frontend.nameservers)

    with locked(root):
        async with (
            frontend.telemetry(
                TABLE + TABLE_OF_COPIES, metrics.measure, settings.process_name
            ) as telemetry,
            frontend.server(register, SERVICE_NAMES, tracer=telemetry.tracer) as server,
        ):
            await CopyProcess(
                kind=OFFSET_SERVICE,
                service="offset",
                settings=settings,
                frontend=frontend,
                server=server,
                replication=replication,
                address=frontend.address(server),
                stop=stop,
                disk=disk,
                now_ms=wall_clock_ms,
                config=root,
                id_file=STORE_ID_FILE,
                # These files last: an id without its promises could break a promise.
                moved_last=(JOURNAL, STORE_ID_FILE, MARKER, FILE),
                announce=announce,
                follow=metrics.follow,
            ).run(lambda store_id: OffsetCopy(settings, store_id, endpoint, stop, disk, parts_over))


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Lock the directory of a store for this process. Raises Fatal."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = DirectoryLock(root)
    except DirectoryLocked:
        raise Fatal(ExitStatus.STORE, str(StoreLocked(path=root))) from None
    except OSError as failure:
        raise Fatal(ExitStatus.STORE, f"cannot open {root}: {failure}") from failure
    with suppress(OSError):
        keep_private(root)
    try:
        yield
    finally:
        lock.release()
