"""Layout check of ConsumeQueues on disk: moves away files of wrong size or with foreign names.

A power failure can leave a new file with any size up to the full one. Entries can be rebuilt from
the log, so a misfit never prevents a start: it counts as missing, and recovery rebuilds it. It is
first moved to `lost`, because it may belong to another program.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rockoon_broker.store.log.directory import move_to_lost
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.queues.queue_files import (
    DROPPED_DIRECTORY,
    is_queue_name,
    queue_directories,
)
from rockoon_core.disk import Disk
from rockoon_format.consume_queue import ENTRY_BYTES
from rockoon_format.file_names import file_name_to_offset
from rockoon_format.names import topic_fault

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
    """Check every queue's directory; changes nothing.

    Args:
        root: the `consumequeue` directory.
        file_bytes: size of each file.
    """
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
