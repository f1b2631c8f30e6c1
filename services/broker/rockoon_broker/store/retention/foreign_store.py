"""Recognition of a store that RocketMQ wrote: retention leaves its files alone.

RocketMQ's `fileReservedTime` is not in the store. A store that is older than the default of
`reserved_hours` would lose all files but one at the first clean pass. The mark is a file, because
the first start writes Rockoon's own files and the store looks like any other from then on.
"""

import json
from pathlib import Path

from rockoon_broker.store.recovery.checkpoint_files import RECOVERY_POINT_FILE
from rockoon_broker.store.recovery.recovery import LOG_DIRECTORY
from rockoon_core.disk import Disk

MARK_FILE = "config/foreignStore.json"
KEEPS_ALL_FILES = (
    "the store was written by RocketMQ, and retention deletes no file of it: set reserved_hours to "
    "the age at which files are to be deleted (RocketMQ's fileReservedTime, 72 by default)"
)
# The recovery point may be missing: operators delete it so that a start reads the whole log.
OWN_FILES = (
    RECOVERY_POINT_FILE,
    "config/droppedTopics.json",
    "config/producerSequences",
    "config/settledQueues",
    "config/replica",
)


def is_foreign(root: Path) -> bool:
    """Whether RocketMQ wrote the first files of a store; asked before the store is recovered.

    Rockoon's `abort` does not count: recovery writes it before `mark_foreign` is called.
    """
    if (root / MARK_FILE).exists():
        return True
    directory = root / LOG_DIRECTORY
    if not directory.is_dir() or not any(path.name.isdigit() for path in directory.iterdir()):
        return False
    return not any((root / name).exists() for name in OWN_FILES)


def mark_foreign(root: Path, disk: Disk, now_ms: int) -> None:
    """Remember durably that RocketMQ wrote the store, before one of `OWN_FILES` is written.

    Args:
        root: the store directory, which recovery has accepted.
        disk: the file layer.
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
