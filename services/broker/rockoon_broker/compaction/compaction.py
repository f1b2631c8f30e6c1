"""Compaction in the broker: uploads, publishing, upkeep."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from rockoon_broker.clock import Clock
from rockoon_broker.compaction.publishing import Publishing, complete, remove_upload
from rockoon_broker.compaction.uploads import Threads, Uploads
from rockoon_broker.store.compacted.compaction import Compaction as StoreCompaction
from rockoon_broker.store.compacted.hold import Hold
from rockoon_core.disk import Disk
from rockoon_format.generation import Manifest

UPKEEP_SECONDS = 60.0
# Computing the hold reads each compacted queue.
HOLD_SECONDS = 1.0

log = logging.getLogger(__name__)


class BrokerCompaction:
    """Generations received over the wire. Used by the event loop's thread.

    Args:
        store: compaction of the store.
        disk: the file layer.
        clock: measures how long an upload is idle.
        used_percent_max: maximum fill of the disk by uploads.
        offered: called when the store has been offered a generation.

    Attributes:
        uploads: incomplete generations.
        publishing: passes generations to the store.
    """

    def __init__(
        self,
        store: StoreCompaction,
        disk: Disk,
        clock: Clock,
        used_percent_max: int,
        offered: Callable[[], None],
    ) -> None:
        self._store = store
        self._disk = disk
        self._clock = clock
        self._threads = Threads()
        self.uploads = Uploads(store.home, disk, clock, self._threads, used_percent_max)
        self.publishing = Publishing(store, self.uploads, disk, self._threads, offered)
        self._hold: Hold | None = None
        self._hold_due_seconds = 0.0

    def hold(self) -> Hold | None:
        """Return the hold on log files, at most a second old; None if the disk refuses."""
        now = self._clock.monotonic_seconds()
        if now >= self._hold_due_seconds:
            self._hold_due_seconds = now + HOLD_SECONDS
            try:
                self._hold = self._store.hold()
            except OSError:
                self._hold = None
        return self._hold

    async def read(
        self, generation: int, name: str, position: int, bytes_max: int
    ) -> tuple[bytes, int]:
        """Return a range of a generation's file, and the file's length.

        Args:
            generation: number of the active generation or the one before.
            name: name of the file, without a path.
            position: first byte.
            bytes_max: length of the range.

        Raises:
            FileNotFoundError: the file does not exist.
            OSError: the disk.
        """
        path = self._store.directory_of(generation) / name
        return await self._threads.run(read_piece, path, position, bytes_max, self._disk)

    async def copy(
        self, upload_id: str, text: bytes, manifest: Manifest, leader_marks: Mapping[str, int]
    ) -> str:
        """Adopt a copy of the generation that is active on the log's leader; returns when it is
        active.

        Args:
            upload_id: upload with its files.
            text: its manifest.json.
            manifest: the decoded manifest.
            leader_marks: topic to the physical offset below which the leader shows nothing.

        Returns:
            Why it was refused; empty if it is active.

        Raises:
            OSError: the disk.
        """
        source = self.uploads.end_or_create(upload_id)
        missing = await self._threads.run(complete, source, text, manifest, self._disk)
        if missing:
            await self._threads.run(remove_upload, source, self._disk)
            return f"{missing} in upload {upload_id!r}"
        decided: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def done(reason: str) -> None:
            if not decided.done():
                decided.set_result(reason)

        self._store.offer(source, manifest, done, leader_marks)
        return await decided

    async def run(self) -> None:
        """Publish generations and remove idle uploads, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.publishing.run(), name="publish-generations")
            tasks.create_task(self._keep_up(), name="upkeep-of-uploads")

    def end(self) -> None:
        """Fail waiting callers, because the broker stops."""
        self.publishing.end()

    def close(self) -> None:
        """End the threads; `run` must have ended. Unpublished files stay until the next start."""
        self._threads.close()
        self.uploads.close()

    async def _keep_up(self) -> None:
        while True:
            await asyncio.sleep(UPKEEP_SECONDS)
            try:
                await self.uploads.remove_abandoned()
                for upload_id in self.uploads.idle():
                    log.warning("upload %s is idle for too long: removing its files", upload_id)
                    await self.publishing.discard(upload_id)
            except OSError as failure:
                log.warning("could not remove files of uploads, retrying: %s", failure)


def read_piece(path: Path, position: int, bytes_max: int, disk: Disk) -> tuple[bytes, int]:
    """Read a range of a file; return it and the file's length. For threads; raises OSError."""
    fd = disk.open_reading(path)
    try:
        return disk.pread(fd, bytes_max, position), disk.facts(path).bytes
    finally:
        disk.close(fd)
