"""Uploads: files of generations that are received before verification.

    compacted/
      .incoming-<upload id>/      complete files, each synced before it got its name
      .incoming-_partial-.../     files being written
      .incoming-_taken-.../       files of an upload that has ended

Invariants:
1. A file in its upload's directory is complete and synced.
2. Once an upload has ended, to be published or removed, no file is added to its directory: ending
   it and naming a file are single steps on the event loop's thread, and its id is refused as long
   as it is remembered.
3. Threads access a file being written only under its lock, so that none is closed during a write.

Uploads continue after a restart. Parts lost in a power failure are noticed at publication, because
every byte is verified then.
"""

import asyncio
import contextlib
import hashlib
import re
import secrets
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rockoon_broker.clock import Clock
from rockoon_core.disk import Disk
from rockoon_core.errors import Busy, InvalidArgument, StoreNotWritable
from rockoon_format.generation import INCOMING_PREFIX, PART_BYTES_MAX

UPLOADS_MAX = 16
FILES_AT_ONCE_MAX = 32
CHUNK_BYTES_MAX = 4 << 20
IDLE_SECONDS_MAX = 3600.0
ABANDONED_MAX = 1024
# A sync of gigabytes would delay the log's syncs for seconds.
SYNC_BYTES = 32 << 20

_ENDED_IDS_MAX = 256
# Valid upload ids contain no underscore.
_PARTIAL = INCOMING_PREFIX + "_partial-"
_TAKEN = INCOMING_PREFIX + "_taken-"
_UPLOAD_ID = re.compile(r"[A-Za-z0-9-]{1,64}")
_FILE_NAME = re.compile(r"[0-9]{5}\.(records|entries|superseded)")


THREADS_MAX = 4

Result = TypeVar("Result")


class Threads:
    """Thread pool for files of generations. Running work is not cancelled with its caller."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="generations")

    async def run(self, work: Callable[..., Result], *arguments: object) -> Result:
        """Run a call on a thread; returns its result or raises its exception."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    def close(self) -> None:
        """Wait for running calls and discard queued ones."""
        self._pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True)
class ReceivedFile:
    file_bytes: int
    sha256: bytes


@dataclass(slots=True)
class _IncomingGeneration:
    directory: Path
    used_seconds: float
    """Monotonic time of the last activity."""
    files_open: int = 0


class _IncomingFile:
    """A file being written; its methods run on threads.

    Args:
        path: path of the file, which does not exist yet.
        used_percent_max: maximum fill of its disk.
    """

    def __init__(self, path: Path, disk: Disk, used_percent_max: int) -> None:
        self.path = path
        self.bytes = 0
        self._synced_bytes = 0
        self.sha256 = hashlib.sha256()
        self._disk = disk
        self._used_percent_max = used_percent_max
        self._lock = threading.Lock()
        self._fd = disk.open(path, create=True)

    def write(self, data: bytes) -> None:
        """Append bytes; OSError for the disk, StoreNotWritable if it would be too full."""
        with self._lock:
            self._check_room(len(data))
            self._disk.write_all(self._fd, data, self.bytes)
            self.bytes += len(data)
            self.sha256.update(data)
            if self.bytes - self._synced_bytes >= SYNC_BYTES:
                self._disk.fdatasync(self._fd)
                self._synced_bytes = self.bytes

    def finish(self) -> None:
        """Make the file durable and close it."""
        with self._lock:
            self._disk.fdatasync(self._fd)
            self._close()

    def discard(self) -> None:
        """Close the file and remove it, unless it has been renamed."""
        with self._lock:
            if self._fd >= 0:
                self._close()
            self._disk.unlink(self.path)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        self._disk.close(fd)

    def _check_room(self, count: int) -> None:
        usage = self._disk.usage(self.path.parent)
        whole = usage.used_bytes + usage.usable_bytes
        if count > usage.usable_bytes or (usage.used_bytes + count) * 100 > (
            self._used_percent_max * whole
        ):
            raise StoreNotWritable(
                f"no room for a generation's file: the disk of {self.path.parent} may be "
                f"{self._used_percent_max} % full, and {usage.usable_bytes} bytes are free"
            )


class Uploads:
    """Open uploads. Used by the event loop's thread.

    Args:
        directory: `<store>/compacted`; it need not exist.
        clock: measures how long an upload is idle.
        used_percent_max: maximum fill of the disk; may be replaced.
    """

    def __init__(
        self,
        directory: Path,
        disk: Disk,
        clock: Clock,
        threads: Threads,
        used_percent_max: int,
    ) -> None:
        self._directory = directory
        self._disk = disk
        self._clock = clock
        self._threads = threads
        self.used_percent_max = used_percent_max
        self._uploads = self._left()
        self._files_open = 0
        self._files_made = 0
        self._abandoned: deque[_IncomingFile] = deque()
        self._ended: deque[str] = deque(maxlen=_ENDED_IDS_MAX)
        self._ended_count = 0
        # Distinguishes names from those of an earlier process, which may not be removed yet.
        self._token = secrets.token_hex(8)
        self._partial = directory / f"{_PARTIAL}{self._token}"

    def __len__(self) -> int:
        return len(self._uploads)

    async def put(self, upload_id: str, name: str, chunks: AsyncIterator[bytes]) -> ReceivedFile:
        """Receive a file. If cancelled, nothing remains.

        Args:
            upload_id: a new one, or that of an open upload.
            name: name of a part's file; an existing one is replaced.
            chunks: its content.

        Raises:
            InvalidArgument: the id or the name is invalid, the content is too large, or the upload
                has ended.
            Busy: too many uploads or files are open.
            StoreNotWritable: the disk is too full.
            OSError: the disk refuses.
        """
        check_upload_id(upload_id)
        if not _FILE_NAME.fullmatch(name):
            raise InvalidArgument(reason=f"{name!r} is not a valid name of a part's file")
        upload = self._open_upload(upload_id)
        upload.files_open += 1
        self._files_open += 1
        try:
            return await self._write(upload_id, upload, name, chunks)
        finally:
            upload.files_open -= 1
            self._files_open -= 1
            upload.used_seconds = self._clock.monotonic_seconds()

    def has(self, upload_id: str) -> bool:
        return upload_id in self._uploads

    def size_of(self, upload_id: str, name: str) -> int | None:
        """Return the length of a received file; None if it does not exist. Raises OSError."""
        upload = self._uploads.get(upload_id)
        path = None if upload is None else upload.directory / name
        return self._disk.facts(path).bytes if path is not None and path.exists() else None

    def end(self, upload_id: str) -> Path | None:
        """End an upload; return the directory of its files, None if the upload does not exist.

        No more files are added to the directory, which then belongs to the caller.

        Raises:
            OSError: the disk; the upload stays open.
        """
        if upload_id not in self._uploads:
            return None
        taken = self._next_ended_path()
        is_there = True
        try:
            self._disk.move_directory(self._uploads[upload_id].directory, taken)
        except FileNotFoundError:
            # Another program removed it; end the upload; otherwise it would count forever.
            is_there = False
        del self._uploads[upload_id]
        self._ended.append(upload_id)
        return taken if is_there else None

    def has_ended(self, upload_id: str) -> bool:
        """Whether an upload with this id has ended, so that no more files are accepted."""
        return upload_id in self._ended

    def end_or_create(self, upload_id: str) -> Path:
        """Like `end`; creates an empty directory if the upload does not exist. Raises OSError."""
        taken = self.end(upload_id)
        if taken is None:
            taken = self._next_ended_path()
            self._disk.make_directory(taken)
        return taken

    def idle(self) -> list[str]:
        """Ids of uploads that are idle for too long."""
        before = self._clock.monotonic_seconds() - IDLE_SECONDS_MAX
        return [
            upload_id
            for upload_id, upload in self._uploads.items()
            if upload.used_seconds < before and not upload.files_open
        ]

    async def remove_abandoned(self) -> None:
        """Remove files of disconnected senders; after an OSError call it again."""
        while self._abandoned:
            await self._threads.run(self._abandoned[0].discard)
            self._abandoned.popleft()

    def close(self) -> None:
        """Remove files of disconnected senders; no thread may be writing."""
        for file in self._abandoned:
            with contextlib.suppress(OSError):
                file.discard()
        self._abandoned.clear()

    def _left(self) -> dict[str, _IncomingGeneration]:
        """Return the uploads of the previous process, each as old as its newest file."""
        now_ms, now = self._clock.now_ms(), self._clock.monotonic_seconds()
        left = {}
        for path in sorted(self._directory.glob(f"{INCOMING_PREFIX}*")):
            upload_id = path.name.removeprefix(INCOMING_PREFIX)
            if _UPLOAD_ID.fullmatch(upload_id):
                age_ms = max(now_ms - self._disk.facts(path).modified_ms, 0)
                left[upload_id] = _IncomingGeneration(path, now - age_ms / 1000)
        return left

    def _next_ended_path(self) -> Path:
        self._ended_count += 1
        return self._directory / f"{_TAKEN}{self._token}-{self._ended_count}"

    def _open_upload(self, upload_id: str) -> _IncomingGeneration:
        if self.has_ended(upload_id):
            raise _over(upload_id)
        if self._files_open >= FILES_AT_ONCE_MAX or len(self._abandoned) >= ABANDONED_MAX:
            raise Busy(reason=f"{self._files_open} files of generations are already being received")
        upload = self._uploads.get(upload_id)
        if upload is None:
            if len(self._uploads) >= UPLOADS_MAX:
                raise Busy(reason=f"{len(self._uploads)} generations are already being uploaded")
            directory = self._directory / f"{INCOMING_PREFIX}{upload_id}"
            self._disk.make_directory(directory)
            upload = _IncomingGeneration(directory, self._clock.monotonic_seconds())
            self._uploads[upload_id] = upload
        self._disk.make_directory(self._partial)
        return upload

    async def _write(
        self, upload_id: str, upload: _IncomingGeneration, name: str, chunks: AsyncIterator[bytes]
    ) -> ReceivedFile:
        self._files_made += 1
        path = self._partial / str(self._files_made)
        file = _IncomingFile(path, self._disk, self.used_percent_max)
        try:
            async for chunk in chunks:
                if len(chunk) > CHUNK_BYTES_MAX or file.bytes + len(chunk) > PART_BYTES_MAX:
                    raise InvalidArgument(
                        reason=f"{name} is larger than {PART_BYTES_MAX} bytes, or in chunks "
                        f"of more than {CHUNK_BYTES_MAX}"
                    )
                upload.used_seconds = self._clock.monotonic_seconds()
                self._check_open(upload_id, upload)
                await self._threads.run(file.write, chunk)
            await self._threads.run(file.finish)
            self._check_open(upload_id, upload)
            self._disk.rename(path, upload.directory / name)
        except BaseException:
            # A thread may still be writing to it.
            self._abandoned.append(file)
            raise
        return ReceivedFile(file.bytes, file.sha256.digest())

    def _check_open(self, upload_id: str, upload: _IncomingGeneration) -> None:
        if self._uploads.get(upload_id) is not upload:
            raise _over(upload_id)


def _over(upload_id: str) -> InvalidArgument:
    return InvalidArgument(reason=f"upload {upload_id!r} has already been published or discarded")


def check_upload_id(upload_id: str) -> None:
    """Raise InvalidArgument if an upload id is invalid."""
    if not _UPLOAD_ID.fullmatch(upload_id):
        raise InvalidArgument(
            reason=f"{upload_id[:80]!r} is not an upload id: 1 to 64 letters, digits and hyphens"
        )
