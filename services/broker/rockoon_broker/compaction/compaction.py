"""Compaction in the broker: uploads, publishing, upkeep.

upload → complete and synced → offered to the store → verified → active, or refused

Once a generation is offered, the store decides and the caller only waits. If the caller gives up or
the broker is killed, the generation is still verified. So a caller may repeat its request.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rockoon_broker.clock import Clock
from rockoon_broker.compaction.uploads import (
    CHUNK_BYTES_MAX,
    Threads,
    Uploads,
    check_upload_id,
)
from rockoon_broker.store.compacted.compaction import Compaction
from rockoon_broker.store.compacted.compaction import Compaction as StoreCompaction
from rockoon_broker.store.compacted.hold import Hold
from rockoon_broker.store.compacted.takeover import Verified, files_by_checksum
from rockoon_core.disk import LINKS_REFUSED, Disk
from rockoon_core.errors import Busy, GenerationRefused, NotReady, RockoonError
from rockoon_format.generation import (
    MANIFEST_FILE,
    GenerationError,
    Manifest,
)

PUBLICATIONS_MAX = 8
REFUSALS_REMEMBERED_MAX = 64
Outcome = RockoonError | None


@dataclass(slots=True)
class _Publication:
    upload_id: str
    text: bytes
    """Its manifest.json."""
    manifest: Manifest
    outcome: "asyncio.Future[Outcome]"


class Publishing:
    """Passes uploads to the store. Used by the event loop's thread.

    Args:
        store: verifies and activates generations.
        offered: called when the store has been offered a generation.
    """

    def __init__(
        self,
        store: Compaction,
        uploads: Uploads,
        disk: Disk,
        threads: Threads,
        offered: Callable[[], None],
    ) -> None:
        self._store = store
        self._uploads = uploads
        self._disk = disk
        self._threads = threads
        self._offered = offered
        self._queue: deque[_Publication] = deque()
        self._wake = asyncio.Event()
        self._ticked = asyncio.Event()
        # By the SHA-256 of the manifest: running publications, and reasons of the last refusals.
        self._pending: dict[bytes, _Publication] = {}
        self._refused: OrderedDict[bytes, str] = OrderedDict()
        self._ended = False

    async def publish(self, upload_id: str, text: bytes) -> None:
        """Publish a generation; returns when it is active.

        Cancelling the call does not cancel the publication.

        Raises:
            GenerationRefused: it was refused, with the reason.
            InvalidArgument: the id is invalid.
            Busy: too many publications are waiting.
            NotReady: the broker stops.
        """
        check_upload_id(upload_id)
        try:
            manifest = Manifest.from_json(text)
        except GenerationError as failure:
            raise GenerationRefused(generation=0, reason=str(failure)) from failure
        if manifest == self._store.manifest:
            await self.discard(upload_id)
            return
        key = _key(text)
        publication = self._pending.get(key)
        if publication is None:
            if key in self._refused and not self._uploads.has(upload_id):
                raise _refusal(manifest, self._refused[key])
            outcome = asyncio.get_running_loop().create_future()
            publication = _Publication(upload_id, text, manifest, outcome)
            self._enqueue(key, publication)
        refusal = await asyncio.shield(publication.outcome)
        if refusal is not None:
            raise refusal

    async def discard(self, upload_id: str) -> None:
        """Remove an upload's files, if it exists. Raises OSError."""
        directory = self._uploads.end(upload_id)
        if directory is not None:
            await self._threads.run(remove_upload, directory, self._disk)

    async def run(self) -> None:
        """Pass publications to the store one after the other, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                publication = self._queue.popleft()
                try:
                    await self._offer_to_store(publication)
                except OSError as failure:
                    self._refuse(publication, f"the disk refused: {failure}")

    def ticked(self) -> None:
        """Notify that the store has run its periodic work."""
        self._ticked.set()

    def end(self) -> None:
        """Fail waiting callers, because the broker stops."""
        self._ended = True
        for publication in list(self._pending.values()):
            self._complete(publication, _stopping())

    def _enqueue(self, key: bytes, publication: _Publication) -> None:
        if self._ended:
            raise _stopping()
        if len(self._pending) >= PUBLICATIONS_MAX:
            raise Busy(reason=f"{len(self._pending)} generations already wait to be published")
        self._pending[key] = publication
        self._queue.append(publication)
        self._wake.set()

    def _refuse(self, publication: _Publication, reason: str) -> None:
        self._refused[_key(publication.text)] = reason
        while len(self._refused) > REFUSALS_REMEMBERED_MAX:
            self._refused.popitem(last=False)
        self._complete(publication, _refusal(publication.manifest, reason))

    def _complete(self, publication: _Publication, outcome: Outcome) -> None:
        self._pending.pop(_key(publication.text), None)
        if not publication.outcome.done():
            publication.outcome.set_result(outcome)

    async def _offer_to_store(self, publication: _Publication) -> None:
        manifest = publication.manifest
        if not self._uploads.has(publication.upload_id) and await self._complete_if_offered(
            publication
        ):
            return
        source = self._uploads.end_or_create(publication.upload_id)
        try:
            missing = await self._threads.run(
                complete, source, publication.text, manifest, self._disk, self._store.active
            )
        except OSError:
            with contextlib.suppress(OSError):
                await self._threads.run(remove_upload, source, self._disk)
            raise
        if missing:
            active = self._store.manifest
            reason = f"{missing} in upload {publication.upload_id!r}"
            if active is not None and active.generation >= manifest.generation:
                # Another job's generation was published, which does not have the files to link.
                reason = f"generation {active.generation} is active"
            self._refuse(publication, reason)
            await self._threads.run(remove_upload, source, self._disk)
            return
        self._store.offer(source, manifest, partial(self._decided, publication))
        self._offered()

    async def _complete_if_offered(self, publication: _Publication) -> bool:
        """Complete a publication that an earlier process offered; return whether there is one."""
        manifest = publication.manifest
        target = self._store.directory_of(manifest.generation)
        if not await self._threads.run(is_of, target, publication.text):
            return False
        before = self._store.refusal
        while self._store.manifest != manifest:
            refusal = self._store.refusal
            if refusal not in (None, before) and refusal.generation == manifest.generation:
                self._refuse(publication, refusal.reason)
                return True
            if not target.exists():
                self._refuse(publication, "its directory was removed by another program")
                return True
            self._ticked.clear()
            await self._ticked.wait()
        self._complete(publication, None)
        return True

    def _decided(self, publication: _Publication, reason: str) -> None:
        if reason:
            self._refuse(publication, reason)
        else:
            self._complete(publication, None)


def complete(
    directory: Path, text: bytes, manifest: Manifest, disk: Disk, active: Verified | None = None
) -> str:
    """Write an upload's manifest durably, and remove files that it does not name. For threads.

    Files that were not uploaded become hard links to files of the active generation that have the
    same checksum.

    Args:
        active: the active generation, None if there is none.

    Returns:
        What is missing, as the beginning of a sentence; empty if the upload is complete.

    Raises:
        OSError: the disk.
    """
    wanted = {file.name: file for part in manifest.parts for file in part.files}
    found = {path.name: disk.facts(path).bytes for path in directory.iterdir()}
    held = files_by_checksum(active.directory, active.manifest) if active else {}
    for name, (_, size, sha256) in wanted.items():
        if name not in found and sha256 in held:
            with contextlib.suppress(FileNotFoundError):
                link_or_copy(held[sha256], directory / name, disk)
                found[name] = disk.facts(directory / name).bytes
        if name not in found:
            return f"there is no {name}, or it was removed,"
        if found[name] != size:
            return f"{name} has {found[name]} bytes, but {size} by the manifest,"
    for name in found.keys() - wanted.keys():
        disk.unlink(directory / name)
    fd = disk.open(directory / MANIFEST_FILE, create=True)
    try:
        disk.write_all(fd, text, 0)
        disk.fdatasync(fd)
    finally:
        disk.close(fd)
    disk.sync_directory(directory)
    return ""


def link_or_copy(source: Path, target: Path, disk: Disk) -> None:
    """Give a file a second name, or copy it if the file system has no hard links. For threads;
    raises OSError.
    """
    try:
        disk.link(source, target)
    except OSError as error:
        if error.errno not in LINKS_REFUSED:
            raise
        at = 0
        reading, writing = disk.open_reading(source), disk.open(target, create=True)
        try:
            while data := disk.pread(reading, CHUNK_BYTES_MAX, at):
                disk.write_all(writing, data, at)
                at += len(data)
        finally:
            disk.close(reading)
            disk.close(writing)


def is_of(directory: Path, text: bytes) -> bool:
    """Whether a directory holds the generation with this manifest. For threads; raises OSError."""
    try:
        return (directory / MANIFEST_FILE).read_bytes() == text
    except FileNotFoundError:
        return False


def remove_upload(directory: Path, disk: Disk) -> None:
    """Remove an upload's directory. For threads; raises OSError."""
    for path in directory.iterdir():
        disk.unlink(path)
    disk.remove_directory(directory)


def _refusal(manifest: Manifest, reason: str) -> GenerationRefused:
    return GenerationRefused(generation=manifest.generation, reason=reason)


def _key(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()


def _stopping() -> NotReady:
    return NotReady(service="the broker", reason="it is stopping")


UPKEEP_SECONDS = 60.0
# Computing the hold reads each compacted queue.
HOLD_SECONDS = 1.0

log = logging.getLogger(__name__)


class BrokerCompaction:
    """Generations received over the wire. Used by the event loop's thread.

    Args:
        store: compaction of the store.
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
            leader_marks: topic to the physical offset below which the leader shows nothing.

        Returns:
            Why it was refused; empty if it is active.

        Raises:
            OSError: the disk.
        """
        source = self.uploads.end_or_create(upload_id)
        missing = await self._threads.run(
            complete, source, text, manifest, self._disk, self._store.active
        )
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
