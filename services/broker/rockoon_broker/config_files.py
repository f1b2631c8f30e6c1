"""Files under `config/`: reads RocketMQ's interrupted replacements, moves blocking directories."""

import logging
from collections.abc import Iterable
from pathlib import Path

from rockoon_broker.store.log.directory import move_to_lost
from rockoon_broker.store.recovery.cut import LOST_DIRECTORY
from rockoon_core.disk import NEW_SUFFIX, Disk

log = logging.getLogger(__name__)


def read_config(path: Path) -> bytes | None:
    """Return the content of a file that RocketMQ replaces; None if it does not exist.

    RocketMQ moves the file to `.bak` and then creates it again. If it is killed in between, the
    file is missing or empty, and its next start reads the other one.
    Source: ConfigManager#persist, #load.

    Raises:
        OSError: the disk.
    """
    content = path.read_bytes() if path.exists() else None
    former = path.with_name(f"{path.name}.bak")
    if not content and former.exists():
        content = former.read_bytes() or content
    return content


def move_directories_away(root: Path, config: Path, names: Iterable[str], disk: Disk) -> None:
    """Move directories that block the path of given files to `lost`.

    Only for files that may be missing, because the log or the nameserver has their content.

    Raises:
        OSError: the disk.
    """
    for name in names:
        for end in ("", ".bak", NEW_SUFFIX):
            path = config / (name + end)
            if path.is_dir():
                target = move_to_lost(path, root / LOST_DIRECTORY, disk)
                disk.sync_directory(config)
                log.warning(
                    "%s is a directory: moved to %s, the file is created again", path, target
                )
