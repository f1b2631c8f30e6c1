"""Files under `config/`: what RocketMQ leaves when it is killed, directories in their places."""

import logging
from collections.abc import Iterable
from pathlib import Path

from rockoon_broker.store.log.directory import move_to_lost
from rockoon_broker.store.recovery.cut import LOST_DIRECTORY
from rockoon_core.disk import NEW_SUFFIX, Disk

log = logging.getLogger(__name__)


def read_config(path: Path) -> bytes | None:
    """The content of a file that RocketMQ replaces; None if there is none.

    RocketMQ moves the file to `.bak` and then makes it again. Killed in between, it leaves none, or
    an empty one, and reads the other at its next start. Source: ConfigManager#persist, #load.

    Args:
        path: of the file itself.

    Raises:
        OSError: the disk.
    """
    content = path.read_bytes() if path.exists() else None
    former = path.with_name(f"{path.name}.bak")
    if not content and former.exists():
        content = former.read_bytes() or content
    return content


def move_directories_away(root: Path, config: Path, names: Iterable[str], disk: Disk) -> None:
    """Move to `lost` whatever is a directory and stands where one of these files belongs.

    Only for files that may be missing: what they hold is had from the log or the nameserver again.

    Args:
        root: the store's directory.
        config: where the files belong.
        names: of the files.
        disk: the file layer.

    Raises:
        OSError: the disk.
    """
    for name in names:
        for end in ("", ".bak", NEW_SUFFIX):
            path = config / (name + end)
            if path.is_dir():
                target = move_to_lost(path, root / LOST_DIRECTORY, disk)
                disk.sync_directory(config)
                log.warning("%s is a directory: moved to %s, the file is made again", path, target)
