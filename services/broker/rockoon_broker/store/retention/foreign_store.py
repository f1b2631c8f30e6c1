"""Detects a store written by RocketMQ, whose files retention must not delete.

RocketMQ's `fileReservedTime` is not in the store. With the default of `reserved_hours`, an older
store would lose all files but one in the first clean pass. The mark is a file, because after the
first start with Rockoon's own files the store can no longer be recognized.
"""

import json
from pathlib import Path

from rockoon_broker.store.recovery.recovery import LOG_DIRECTORY
from rockoon_core.disk import Disk
from rockoon_format.recovery_point import RECOVERY_POINT_FILE

MARK_FILE = "config/foreignStore.json"
KEEPS_ALL_FILES = (
    "RocketMQ wrote this store, so retention deletes no files: set reserved_hours to the age at "
    "which files are to be deleted (RocketMQ's fileReservedTime, 72 by default)"
)
# The recovery point may be missing: operators delete it to force a scan of the whole log.
OWN_FILES = (
    RECOVERY_POINT_FILE,
    "config/droppedTopics.json",
    "config/producerSequences",
    "config/settledQueues",
    "config/replica",
)


def is_foreign(root: Path) -> bool:
    """Return whether RocketMQ wrote the first files of a store; call it before recovery.

    Rockoon's `abort` does not count, because recovery writes it before `mark_foreign` is called.
    """
    if (root / MARK_FILE).exists():
        return True
    directory = root / LOG_DIRECTORY
    if not directory.is_dir() or not any(path.name.isdigit() for path in directory.iterdir()):
        return False
    return not any((root / name).exists() for name in OWN_FILES)


def mark_foreign(root: Path, disk: Disk, now_ms: int) -> None:
    """Mark the store durably as written by RocketMQ, before one of `OWN_FILES` is written.

    Args:
        root: the store directory, after a successful recovery.
        now_ms: epoch milliseconds.

    Raises:
        OSError: the disk.
    """
    mark = root / MARK_FILE
    if mark.exists():
        return
    text = {"foundMs": now_ms, "meaning": "RocketMQ wrote this store: see reserved_hours"}
    for changed in disk.make_directory(mark.parent):
        disk.sync_directory(changed)
    disk.replace_file(mark, json.dumps(text, indent=1).encode())
