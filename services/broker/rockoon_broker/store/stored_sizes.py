"""File sizes of an existing store, which override the settings for new ones."""

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
    """Return the settings with the file sizes of an existing store.

    Only unambiguous sizes are used: of two files or more, all equal except the last log file,
    whose creation may have been interrupted. The start checks all other cases.

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
    """Return the common size of all files; 0 if there are none or sizes differ."""
    sizes = Counter(disk.facts(path).bytes for path in files)
    return next(iter(sizes)) if len(sizes) == 1 else 0


def _changed(settings: StoreSettings, name: str, value: int) -> StoreSettings:
    configured = getattr(settings, name)
    if configured == value:
        return settings
    try:
        changed = replace(settings, **{name: value})  # type: ignore[arg-type]
    except ValueError:
        # Neither Rockoon nor RocketMQ has such files; the start reports it.
        return settings
    log.warning(
        "%s is %s in this store and cannot change: the setting, %s, applies to new stores",
        name,
        value,
        configured,
    )
    return changed
