"""Offset service on a replicated journal: opens the journal, and serves clients while it leads.

See `rockoon_replica.log_copy` for the life cycle.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from rockoon_core.errors import NotLeader, StoreCorrupt
from rockoon_format.checksums import crc32
from rockoon_node.store_directory import StoreCluster
from rockoon_offset.journal.journal_log import JournalLog
from rockoon_offset.replication.leader_store import LeaderStore
from rockoon_replica.replica import Replica
from rockoon_replica.replica_file import FILE, AcknowledgedEnd
from rockoon_runtime.process import ExitStatus, Fatal, Stop

if TYPE_CHECKING:
    from rockoon_core.disk import Disk
    from rockoon_offset.parts import OffsetParts
    from rockoon_offset.progress.progress_store import ProgressStore
    from rockoon_offset.replication.leader_endpoint import LeaderEndpoint
    from rockoon_offset.settings import OffsetSettings

JOURNAL = "journal"
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
            if (held := journal.held_end) != reported:
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
