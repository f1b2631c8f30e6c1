"""Layout of ConsumeQueues on disk: files of a wrong size and foreign names are moved away.

A power cut can leave a new file with any size up to its own. Entries can be made again from the
log, so none of this keeps a store from starting: what does not fit counts as missing, and recovery
makes again what it finds missing. It is moved to `lost` first, because it may be anybody's.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rockoon_broker.store.log.directory import move_to_lost
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.queues.queue_files import (
    ASIDE_DIRECTORY,
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
    """Something below `consumequeue` that is no file of a queue and stands where one belongs."""

    path: Path
    reason: str
    key: QueueKey | None = None
    """The queue whose file it should be."""
    end: int = 0
    """Queue offset behind the last entry that the file could hold."""


def find_misfits(root: Path, file_bytes: int, disk: Disk) -> list[Misfit]:
    """Look at every queue's directory; changes nothing.

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
    """Move everything to `lost`, empty files excepted, which are deleted. Raises OSError."""
    for misfit in misfits:
        path = misfit.path
        if path.is_file() and disk.facts(path).bytes == 0:
            disk.unlink(path)
            log.warning("%s: %s; deleted, its entries come from the log", path, misfit.reason)
        else:
            target = move_to_lost(path, lost, disk)
            log.warning(
                "%s: %s; moved to %s, its entries come from the log", path, misfit.reason, target
            )
        disk.sync_directory(path.parent)


def _in_the_way(root: Path) -> Iterator[Misfit]:
    """What stands where a topic's or a queue's directory belongs."""
    for topic in sorted(root.iterdir()) if root.is_dir() else ():
        if topic.name == ASIDE_DIRECTORY or topic_fault(topic.name) is not None:
            continue
        if not topic.is_dir():
            yield Misfit(topic, "no directory")
            continue
        for path in sorted(topic.iterdir()):
            if is_queue_name(path) and not path.is_dir():
                yield Misfit(path, "no directory")


def _misfit(path: Path, file_bytes: int, disk: Disk) -> Iterator[Misfit]:
    key = (path.parent.parent.name, int(path.parent.name))
    try:
        start = file_name_to_offset(path.name)
    except ValueError:
        if not path.is_dir():
            yield Misfit(path, "no file of a queue")
        return
    end = (start // file_bytes + 1) * file_bytes // ENTRY_BYTES
    found = disk.facts(path).bytes
    if path.is_dir():
        yield Misfit(path, "a directory in the place of a file", key, end)
    elif start % file_bytes:
        yield Misfit(path, f"its name is no multiple of {file_bytes}", key, end)
    elif found != file_bytes:
        yield Misfit(path, f"found {found} bytes, expected {file_bytes}", key, end)
