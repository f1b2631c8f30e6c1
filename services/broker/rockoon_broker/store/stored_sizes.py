"""File sizes of a store that exists: they hold, whatever the settings say for new ones."""

import logging
from collections import Counter
from dataclasses import replace
from pathlib import Path

from rockoon_broker.store.queues.queue_files import queue_directories
from rockoon_broker.store.recovery.recovery import LOG_DIRECTORY, QUEUES_DIRECTORY
from rockoon_broker.store.settings import StoreSettings
from rockoon_core.disk import Disk
from rockoon_format.consume_queue import ENTRY_BYTES

log = logging.getLogger(__name__)


def with_stored_sizes(settings: StoreSettings, disk: Disk) -> StoreSettings:
    """The settings with the file sizes of the store that is there.

    Only sizes that no accident leaves are taken over: of two files or more, all alike but the last
    of the log, which may have been cut off while it was made. Anything else is for the start to
    judge.

    Raises:
        OSError: the disk.
    """
    log_bytes = _size_of(_files(settings.root / LOG_DIRECTORY)[:-1], disk)
    queues = settings.root / QUEUES_DIRECTORY
    queue_files = [path for each in queue_directories(queues) for path in _files(each)]
    queue_bytes = _size_of(queue_files, disk) if len(queue_files) > 1 else 0
    if log_bytes:
        settings = _changed(settings, "commit_log_file_bytes", log_bytes)
    if queue_bytes and queue_bytes % ENTRY_BYTES == 0:
        settings = _changed(settings, "consume_queue_file_entries", queue_bytes // ENTRY_BYTES)
    return settings


def _files(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if not path.is_dir())


def _size_of(files: list[Path], disk: Disk) -> int:
    """The size that all of some files have; 0 if there is none, or there are several."""
    sizes = Counter(disk.facts(path).bytes for path in files)
    return next(iter(sizes)) if len(sizes) == 1 else 0


def _changed(settings: StoreSettings, name: str, value: int) -> StoreSettings:
    configured = getattr(settings, name)
    if configured == value:
        return settings
    try:
        changed = replace(settings, **{name: value})  # type: ignore[arg-type]
    except ValueError:
        # No store of ours or RocketMQ's has such files: the start says so.
        return settings
    log.warning(
        "%s is %s in this store and stays so: the setting, %s, is for new stores",
        name,
        value,
        configured,
    )
    return changed
