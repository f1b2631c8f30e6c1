"""Offset service whose journal has copies: what is around the journal while it copies, and while it
leads.

See `rockoon_replica.log_copy` for its lives.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from rockoon_core.errors import NotLeader, StoreCorrupt
from rockoon_format.checksums import crc32
from rockoon_node.store_cluster import StoreCluster
from rockoon_offset.replication.journal_log import JournalLog
from rockoon_offset.replication.led_store import LedStore
from rockoon_replica.replica import Replica
from rockoon_runtime.process import ExitStatus, Fatal, Stop

if TYPE_CHECKING:
    from rockoon_core.disk import Disk
    from rockoon_offset.parts import Parts
    from rockoon_offset.progress.progress_store import ProgressStore
    from rockoon_offset.replication.leader_door import LeaderDoor
    from rockoon_offset.settings import OffsetSettings

JOURNAL = "journal"
HELD_LOOK_SECONDS = 1.0


class OffsetCopy:
    """What is around one replica of the journal: a `LogService`.

    Args:
        settings: as loaded; `copies` is more than one.
        replica_id: of the store.
        door: answers clients while this replica leads.
        stop: the process's.
        disk: the file layer.
        assembled: makes the parts of a service over a store.

    Attributes:
        parts: what serves clients; None while another replica leads.
    """

    log_failures = (StoreCorrupt,)
    crc32 = staticmethod(crc32)

    def __init__(
        self,
        settings: "OffsetSettings",
        replica_id: str,
        door: "LeaderDoor",
        stop: Stop,
        disk: "Disk",
        assembled: "Callable[[ProgressStore], Parts]",
    ) -> None:
        self._settings = settings
        self._replica_id = replica_id
        self._door = door
        self._stop = stop
        self._disk = disk
        self._assembled = assembled
        self._journal: JournalLog | None = None
        self._replica: Replica | None = None
        self.parts: Parts | None = None

    # A `LogService`.

    def open_log(self, lost: Callable[[str], None]) -> JournalLog:
        directory = self._settings.store_path / JOURNAL
        for changed in self._disk.make_directory(directory):
            self._disk.sync_directory(changed)
        self._journal = JournalLog(
            directory,
            self._replica_id,
            failed=self._failed,
            lost=lost,
            disk=self._disk,
            bytes_max=self._settings.journal_bytes_max,
        )
        return self._journal

    def damage_of(self, failure: Exception) -> int | None:
        """None: a frame that a start cannot read may not be committed."""
        del failure
        return None

    def rewrite(self, position: int, data: bytes) -> None:
        """Never asked for."""
        raise NotImplementedError

    async def live(self, replica: Replica, leads: asyncio.Event) -> None:
        journal = self._journal
        assert journal is not None, "it was opened before"
        self._replica = replica
        try:
            await leads.wait()
            await self._lead(journal, replica)
        finally:
            self._journal = self._replica = None

    def expect(self) -> None:
        self._door.expect()

    def refuse(self, refusal: NotLeader) -> None:
        self._door.refuse(refusal)

    def committed(self, end: int) -> None:
        del end
        if self._journal is not None and self._replica is not None and self._replica.epoch:
            self._journal.retain_from = self._replica.retention_end

    def may_delete(self, min_offset: int) -> None:
        if self._journal is not None:
            self._journal.retain_from = min_offset

    async def _hold(self, journal: JournalLog, replica: Replica) -> None:
        """Let no copy that is away fill this disk: it votes no longer, as of a broker's log."""
        told = 0
        while True:
            await asyncio.sleep(HELD_LOOK_SECONDS)
            journal.retain_from = replica.retention_end
            if (held := journal.held_end) != told:
                replica.retention_held(held)
                told = held

    async def _lead(self, journal: JournalLog, replica: Replica) -> None:
        """Be the offset service until cancelled."""
        settings = self._settings
        root = settings.store_path
        cluster = StoreCluster(root / "cluster_id", self._disk.replace_file)
        store = LedStore(journal, replica, root, cluster, settings.name)
        refusal = NotLeader(replica=settings.replica or settings.name, log=settings.name)
        parts = self._assembled(store)
        try:
            async with asyncio.TaskGroup() as tasks:
                for name, loop in (
                    ("progress on copies", store.run()),
                    ("follow the routes", parts.routes.run(self._stop)),
                    ("expire members", parts.groups.run()),
                    ("export files", parts.export_files.run()),
                    ("members at the end", self._remember(parts)),
                    ("files kept for copies", self._hold(journal, replica)),
                ):
                    tasks.create_task(loop, name=name)
                await parts.routes.loaded.wait()
                await store.written_down()
                # Members' leases begin now: no former leader answers any more.
                parts.groups.open()
                self.parts = parts
                self._door.serve(parts.servicer, parts.in_flight)
                await asyncio.Event().wait()
        finally:
            self.parts = None
            store.end(refusal)
            self._door.refuse(refusal)
            # Members learn from the routes where to come again.
            parts.watch.close()
            await parts.brokers.close()

    async def _remember(self, parts: "Parts") -> None:
        """Before an orderly end hands over: who has left is not to come back with the next one."""
        await self._stop.wait()
        parts.groups.write_members()

    def _failed(self, failure: OSError) -> None:
        reason = f"the journal in {self._settings.store_path} cannot be written: {failure}"
        self._stop.fail(Fatal(ExitStatus.DISK_FAILED, reason))
        if self._replica is not None:
            self._replica.close()
