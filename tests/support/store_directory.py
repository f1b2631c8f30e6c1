"""A store engine for tests: an owner that syncs on request, a clock, and disks that fail."""

import errno
import os
import queue
import random
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from rockoon_broker.store.appender import Appended
from rockoon_broker.store.log.batch import AppendBatch
from rockoon_broker.store.settings import Flush, StoreSettings
from rockoon_broker.store.store import Store
from rockoon_core.disk import Disk, DiskUsage
from rockoon_format.batch import decode_columns, encode_batch
from rockoon_format.record import encode_host
from support import golden_store
from support.store_check import verify_store
from support.waiting import DEADLINE_SECONDS, wait_until

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

NOW_MS = 1_700_000_000_000
BORN_HOST = encode_host("127.0.0.1", 54321)
# A sync that takes longer than this has hung.


class FixedClock:
    """A clock that changes only when a test sets it."""

    def __init__(self, now_ms: int = NOW_MS, hour: int = 12) -> None:
        self.time_ms = now_ms
        self.hour = hour

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_seconds(self) -> float:
        return self.time_ms / 1000

    def local_hour(self, at_ms: int) -> int:
        assert at_ms
        return self.hour


def healthy(*_: object) -> int:
    """Default of the hooks of FailingDisk: no error."""
    return 0


class FailingDisk(Disk):
    """The real file system, with calls that fail when a test requests it.

    Each `fail_*` is called before the operation, with its path or position, and returns an errno or
    0.
    """

    def __init__(self) -> None:
        self.paths: dict[int, Path] = {}
        self.fail_sync: Callable[[Path], int] = healthy
        self.fail_read: Callable[[Path], int] = healthy
        self.fail_write: Callable[[Path, int], int] = healthy
        self.fail_allocate: Callable[[Path], int] = healthy
        self.fail_unlink: Callable[[Path], int] = healthy
        self.fail_move: Callable[[Path], int] = healthy
        self.write_bytes_max: int | None = None
        # Not that of the machine: if its disk were full, retention would delete files of the test.
        self.usage_percent = 50
        self.usage_failure = 0
        self.syncs: list[Path] = []

    def open(self, path: Path, *, create: bool = False) -> int:
        fd = super().open(path, create=create)
        self.paths[fd] = path
        return fd

    def open_or_create(self, path: Path) -> int:
        fd = super().open_or_create(path)
        self.paths[fd] = path
        return fd

    def duplicate(self, fd: int) -> int:
        copy = super().duplicate(fd)
        # Read-only descriptors are opened elsewhere.
        if fd in self.paths:
            self.paths[copy] = self.paths[fd]
        return copy

    def close(self, fd: int) -> None:
        self.paths.pop(fd, None)
        super().close(fd)

    def pread(self, fd: int, count: int, position: int) -> bytes:
        # Read-only descriptors are opened elsewhere.
        _raise(self.fail_read(self.paths[fd]) if fd in self.paths else 0)
        return super().pread(fd, count, position)

    def pread_cached(self, fd: int, count: int, position: int) -> bytes | None:
        # All pages count as cached, also evicted ones; a test of evicted pages replaces this
        # method.
        return self.pread(fd, count, position)

    def pwrite(self, fd: int, data: "ReadableBuffer", position: int) -> int:
        _raise(self.fail_write(self.paths[fd], position))
        view = memoryview(data).cast("B")
        if self.write_bytes_max is not None:
            view = view[: self.write_bytes_max]
        return super().pwrite(fd, view, position)

    def fdatasync(self, fd: int) -> None:
        _raise(self.fail_sync(self.paths[fd]))
        self.syncs.append(self.paths[fd])
        super().fdatasync(fd)

    def allocate(self, fd: int, count: int) -> None:
        _raise(self.fail_allocate(self.paths[fd]))
        super().allocate(fd, count)

    def unlink(self, path: Path) -> None:
        _raise(self.fail_unlink(path))
        super().unlink(path)

    def move_directory(self, source: Path, target: Path) -> None:
        _raise(self.fail_move(source))
        super().move_directory(source, target)

    def usage(self, path: Path) -> DiskUsage:
        del path
        _raise(self.usage_failure)
        return DiskUsage(self.usage_percent << 32, (100 - self.usage_percent) << 32)


class PowerCutDisk(FailingDisk):
    """Records which bytes were synced, so that a test can cut the power.

    A disk may write unsynced bytes in any order, one sector at a time; `cut` chooses.
    """

    SECTOR_BYTES = 512

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root
        # Guards `_durable`: the Syncer's thread syncs while the owner's writes.
        self._guard = threading.Lock()
        self._durable: dict[Path, bytes] = {}
        for path in root.rglob("*"):
            if path.is_file():
                self._durable[path] = path.read_bytes()

    def fdatasync(self, fd: int) -> None:
        path, status = self.paths[fd], os.fstat(fd)
        # A file may have been moved away with its deleted topic while it was open.
        with self._guard, suppress(FileNotFoundError):
            if os.path.samestat(status, path.stat()):
                self._durable[path] = os.pread(fd, status.st_size, 0)
        super().fdatasync(fd)

    def rename(self, source: Path, target: Path) -> None:
        with self._guard:
            self._moved(source, target)
            super().rename(source, target)

    def unlink(self, path: Path) -> None:
        with self._guard:
            self._durable.pop(path, None)
            super().unlink(path)

    def remove_directory(self, path: Path) -> None:
        with self._guard:
            super().remove_directory(path)

    def move_directory(self, source: Path, target: Path) -> None:
        with self._guard:
            self._moved(source, target)
            super().move_directory(source, target)

    def _moved(self, source: Path, target: Path) -> None:
        for path in [path for path in self._durable if path == source or source in path.parents]:
            self._durable[target / path.relative_to(source)] = self._durable.pop(path)

    def cut(self, target: Path, choose: random.Random) -> None:
        """Write a possible content of the disk after a power cut at this moment to another
        directory."""
        target.mkdir()
        with self._guard:
            for path in sorted(self._root.rglob("*")):
                copy = target / path.relative_to(self._root)
                if path.is_dir():
                    copy.mkdir(parents=True, exist_ok=True)
                else:
                    self._cut_file(path, copy, choose)

    def _cut_file(self, path: Path, copy: Path, choose: random.Random) -> None:
        now = path.read_bytes()
        durable = self._durable.get(path)
        if durable is None and in_queues(path) and choose.random() < 0.3:
            return
        before = bytes(len(now)) if durable is None else durable
        sectors = [
            choose.choice((now, before))[at : at + self.SECTOR_BYTES]
            for at in range(0, len(now), self.SECTOR_BYTES)
        ]
        copy.write_bytes(b"".join(sectors))


def _raise(number: int) -> None:
    if number:
        raise OSError(number, os.strerror(number))


def in_log(path: Path) -> bool:
    return path.parent.name == "commitlog"


def in_queues(path: Path) -> bool:
    return "consumequeue" in path.parts


def no_space_in(where: Callable[[Path], bool]) -> Callable[[Path, int], int]:
    return lambda path, _: errno.ENOSPC if where(path) else 0


def settings(root: Path, **changes: Any) -> StoreSettings:
    """Return settings with small files, so that tests reach every boundary."""
    values: dict[str, Any] = {
        "root": root,
        "commit_log_file_bytes": 4096,
        "consume_queue_file_entries": 10,
        "flush": Flush.ASYNC,
        "memory_bytes": 1 << 30,
        # Reads come from the disk.
        "tails_bytes_max": 0,
        # On a disk that is more than 75 % full, retention deletes each file except the last one.
        "reserved_hours": 0,
        **changes,
    }
    return StoreSettings(**values)


def batch_of(
    topic: str, queue_id: int, frames: bytes, lengths: ArrayLike, *, internal: bool = False
) -> AppendBatch:
    """Return records as `encode_batch` makes them, for `Store.append`."""
    packed = np.asarray(lengths, "<u4").tobytes()
    return AppendBatch(topic, queue_id, frames, packed, internal=internal)


# Retention deletes every file except the last, also on a disk that is half full.
DELETES_ALL = {"disk_used_percent_max": 40, "files_per_pass_max": 1000}


class Owner:
    """Owns a store as a broker's loop does, but does work only when a test requests it."""

    def __init__(
        self,
        configured: StoreSettings,
        disk: Disk | None = None,
        *,
        on_loss: Callable[[str], object] = healthy,
        by_quorum: bool = False,
        **clock: int,
    ) -> None:
        self.synced: queue.Queue[int] = queue.Queue()
        self.failed: queue.Queue[OSError] = queue.Queue()
        self.clock = FixedClock(**clock)
        self.store = Store.open(
            configured,
            disk=disk or FailingDisk(),
            clock=self.clock,
            on_synced=self.synced.put,
            on_failed=self.failed.put,
            on_loss=on_loss,
            by_quorum=by_quorum,
        )

    def append(
        self,
        topic: str = "T",
        queue_id: int = 0,
        bodies: Sequence[bytes] = (b"body",),
        tags: str | Sequence[str] = "TagA",
    ) -> Appended:
        each = [tags] * len(bodies) if isinstance(tags, str) else tags
        frames, lengths = encode_batch(
            topic.encode(),
            queue_id,
            list(bodies),
            [f"TAGS\x01{tag}\x02".encode() if tag else b"" for tag in each],
            NOW_MS - 1000,
            BORN_HOST,
        )
        return self.store.append(batch_of(topic, queue_id, frames, lengths), self.clock.time_ms)

    def confirm(self, end_offset: int) -> list[tuple[str, int]]:
        """Wait until the log is durable up to an offset, and confirm it."""
        advanced: list[tuple[str, int]] = []
        reached = 0
        while reached < end_offset:
            reached = self.synced.get(timeout=DEADLINE_SECONDS)
            advanced += self.store.confirm(reached)
        return advanced

    def append_durably(self, *args: Any, **kwargs: Any) -> Appended:
        appended = self.append(*args, **kwargs)
        self.confirm(appended.end_offset)
        return appended

    def write_point(self) -> None:
        """Write a recovery point now; the store may fail."""
        self.clock.time_ms += 10_000
        self.store.tick(self.clock.time_ms)
        self.wait_for_point()

    def wait_for_point(self) -> None:
        """Wait until no recovery point is being written, or the store has failed."""
        wait_until(lambda: not self.store.point_pending or self.store.failure, "a recovery point")

    def wait_for_removals(self) -> None:
        """Wait until the files to be deleted are deleted."""
        wait_until(lambda: not self.store.removals_pending, "files to go")

    def look_at_clock(self, set_by_ms: int = 0) -> None:
        """Set the clock, and run the store's regular work of that time."""
        self.clock.time_ms += set_by_ms
        self.store.tick(self.clock.time_ms)
        wait_until(lambda: not self.store.point_pending or self.store.failure, "a recovery point")

    def bodies(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        """Return all bodies of a queue, read from its start."""
        found: list[bytes] = []
        offset = self.store.min_offset(topic, queue_id)
        while offset < self.store.max_offset(topic, queue_id):
            result = self.store.get(topic, queue_id, offset)
            if result.count:
                found += decode_columns(result.frames, result.lengths).bodies
            assert result.next_offset > offset
            offset = result.next_offset
        return found


def crashed_copy(root: Path, target: Path) -> Path:
    """Copy a directory in use, with all written bytes, as a kill leaves it; return the copy."""
    try:
        shutil.copytree(root, target)
    except shutil.Error as failure:
        # Files of a deleted topic may be deleted during the copy.
        if any(Path(source).exists() for source, *_ in failure.args[0]):
            raise
    return target


def recovered(configured: StoreSettings, root: Path | None = None) -> Owner:
    """Open a directory, compare it with its own log, and return its open owner."""
    if root is not None:
        configured = replace(configured, root=root)
    owner = Owner(configured)
    problems = verify_store(configured.root)
    if problems:
        owner.store.close()
    assert problems == [], problems
    return owner


def unpack_golden(root: Path) -> StoreSettings:
    """Unpack the store that Apache RocketMQ wrote; return matching settings."""
    for path, content in golden_store.files().items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return settings(root)
