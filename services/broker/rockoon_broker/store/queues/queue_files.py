"""Files of ConsumeQueues: a bounded set of open ones, and those to be synced.

A power failure can leave a new file with any size up to the full one. Entries can be rebuilt from
the log, so a misfit (a file of wrong size, or with a foreign name) never prevents a start: it
counts as missing, and recovery rebuilds it. It is first moved to `lost`, because it may belong to
another program.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rockoon_broker.store.log.directory import move_to_lost
from rockoon_broker.store.log.file_reads import pread
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_core.disk import Disk
from rockoon_format.consume_queue import ENTRY_BYTES
from rockoon_format.file_names import file_name_to_offset, offset_to_file_name
from rockoon_format.names import topic_fault

# Below `consumequeue`: topics to be deleted. No topic can have this name.
DROPPED_DIRECTORY = ".dropped"

FileKey = tuple[str, int, int]
"""Topic, queue id and number of the file."""


class QueueFiles:
    """The files of all queues of a store. Used by the store's owner."""

    def __init__(self, root: Path, file_bytes: int, open_files_max: int, disk: Disk) -> None:
        self._root = root
        self.file_bytes = file_bytes
        self._open_files_max = open_files_max
        self._disk = disk
        # Next number for a name below DROPPED_DIRECTORY.
        self._detached_count = 0
        # Least recently used first.
        self._open: OrderedDict[FileKey, int] = OrderedDict()
        self._unsynced: set[FileKey] = set()
        self._unsynced_directories: set[Path] = set()

    def path(self, key: FileKey) -> Path:
        topic, queue_id, number = key
        name = offset_to_file_name(number * self.file_bytes)
        # One call: each `/` costs as much, and a recovery point computes thousands of paths.
        return self._root.joinpath(topic, str(queue_id), name)

    def create(self, key: FileKey) -> None:
        path = self.path(key)
        self._unsynced_directories.update(self._disk.make_directory(path.parent))
        fd = self._disk.open(path, create=True)
        try:
            # Not reserved like a CommitLog file: most queues stay small, and holes cost nothing.
            self._disk.set_size(fd, self.file_bytes)
        except OSError:
            self._disk.close(fd)
            self._disk.unlink(path)
            raise
        self._unsynced_directories.add(path.parent)
        self._unsynced.add(key)
        self._remember(key, fd)

    def read(self, key: FileKey, count: int, position: int) -> bytes:
        """Read up to `count` bytes; FileNotFoundError if another program deleted the file."""
        return pread(self._disk, self._descriptor(key), count, position)

    def write(self, key: FileKey, data: bytes | memoryview, position: int) -> None:
        self._disk.write_all(self._descriptor(key), data, position)
        self._unsynced.add(key)

    def clear_after(self, key: FileKey, position: int) -> None:
        """Zero all bytes from a position to the file's end."""
        if self._disk.write_zeros(self._descriptor(key), position, self.file_bytes):
            self._unsynced.add(key)

    def close_file(self, key: FileKey) -> None:
        """Close a file that is about to be deleted."""
        self._unsynced.discard(key)
        fd = self._open.pop(key, None)
        if fd is not None:
            self._disk.close(fd)

    def delete(self, key: FileKey) -> None:
        self.close_file(key)
        self._disk.unlink(self.path(key))
        self._unsynced_directories.add(self.path(key).parent)

    def detach(self, directory: Path) -> Path | None:
        """Rename a topic's directory so that its files are not found; atomic, even in a crash.

        Returns the new path; None if there were no files.
        """
        if not directory.is_dir():
            return None
        dropped = self._root / DROPPED_DIRECTORY
        self._disk.make_directory(dropped)
        while (place := dropped / f"topic-{self._detached_count}").exists():
            self._detached_count += 1
        self._detached_count += 1
        self._disk.move_directory(directory, place)
        self.directory_changed(self._root)
        return place

    def left_detached(self) -> list[Path]:
        """Return directories of `detach` that are not deleted yet."""
        dropped = self._root / DROPPED_DIRECTORY
        return sorted(dropped.iterdir()) if dropped.is_dir() else []

    def directory_changed(self, directory: Path) -> None:
        """Record that a directory has to be synced."""
        self._unsynced_directories.add(directory)

    def pop_unsynced(self) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        """Return and reset the files and directories changed since the last call; the caller syncs
        them."""
        files = tuple(self.path(key) for key in self._unsynced)
        taken = files, tuple(self._unsynced_directories)
        self._unsynced.clear()
        self._unsynced_directories.clear()
        return taken

    def close(self) -> None:
        for fd in self._open.values():
            self._disk.close(fd)
        self._open.clear()

    def _descriptor(self, key: FileKey) -> int:
        fd = self._open.get(key)
        if fd is None:
            fd = self._disk.open(self.path(key))
            self._remember(key, fd)
        else:
            self._open.move_to_end(key)
        return fd

    def _remember(self, key: FileKey, fd: int) -> None:
        self._open[key] = fd
        while len(self._open) > self._open_files_max:
            _, oldest = self._open.popitem(last=False)
            self._disk.close(oldest)


def queue_directories(root: Path) -> list[Path]:
    """Return the queue directories below `consumequeue`: {topic}/{queue id}.

    Ignores other names, as RocketMQ does (ConsumeQueueStore#loadConsumeQueues).
    """
    if not root.is_dir():
        return []
    return [
        directory
        for directory in sorted(root.glob("*/*"))
        if directory.is_dir() and is_queue_name(directory)
    ]


def is_queue_name(directory: Path) -> bool:
    """Return whether a path ends in a valid topic and a queue id in canonical form."""
    name = directory.name
    number = name.isascii() and name.isdigit() and str(int(name)) == name
    return number and topic_fault(directory.parent.name) is None


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Misfit:
    """Something below `consumequeue` that blocks the path of a queue file or directory."""

    path: Path
    reason: str
    key: QueueKey | None = None
    """The queue to which the file would belong."""
    end: int = 0
    """Queue offset after the last entry that the file could contain."""


def find_misfits(root: Path, file_bytes: int, disk: Disk) -> list[Misfit]:
    """Check every queue's directory below `consumequeue`; changes nothing."""
    if root.exists() and not root.is_dir():
        return [Misfit(root, "no directory")]
    found = list(_in_the_way(root))
    for directory in queue_directories(root):
        for path in sorted(directory.iterdir()):
            found += _misfit(path, file_bytes, disk)
    return found


def move_misfits(misfits: list[Misfit], lost: Path, disk: Disk) -> None:
    """Move misfits to `lost`; empty files are deleted. Raises OSError."""
    for misfit in misfits:
        path = misfit.path
        if path.is_file() and disk.facts(path).bytes == 0:
            disk.unlink(path)
            log.warning(
                "%s: %s; deleted, its entries are rebuilt from the log", path, misfit.reason
            )
        else:
            target = move_to_lost(path, lost, disk)
            log.warning(
                "%s: %s; moved to %s, its entries are rebuilt from the log",
                path,
                misfit.reason,
                target,
            )
        disk.sync_directory(path.parent)


def _in_the_way(root: Path) -> Iterator[Misfit]:
    """Yield non-directories at the path of a topic's or a queue's directory."""
    for topic in sorted(root.iterdir()) if root.is_dir() else ():
        if topic.name == DROPPED_DIRECTORY or topic_fault(topic.name) is not None:
            continue
        if not topic.is_dir():
            yield Misfit(topic, "not a directory")
            continue
        for path in sorted(topic.iterdir()):
            if is_queue_name(path) and not path.is_dir():
                yield Misfit(path, "not a directory")


def _misfit(path: Path, file_bytes: int, disk: Disk) -> Iterator[Misfit]:
    key = (path.parent.parent.name, int(path.parent.name))
    try:
        start = file_name_to_offset(path.name)
    except ValueError:
        if not path.is_dir():
            yield Misfit(path, "not a queue file")
        return
    end = (start // file_bytes + 1) * file_bytes // ENTRY_BYTES
    found = disk.facts(path).bytes
    if path.is_dir():
        yield Misfit(path, "a directory instead of a file", key, end)
    elif start % file_bytes:
        yield Misfit(path, f"its name is not a multiple of {file_bytes}", key, end)
    elif found != file_bytes:
        yield Misfit(path, f"found {found} bytes, expected {file_bytes}", key, end)
