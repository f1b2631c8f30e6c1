"""Private store directories: other accounts of the machine must not read the files."""

import logging
import os
import stat
from pathlib import Path

log = logging.getLogger(__name__)

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def keep_private(root: Path) -> None:
    """Remove the permissions of other users from a directory of this process's user.

    Files of former versions in it may be readable by all users, but a closed directory protects
    them, so the files of a large store need no change. The directory of another owner is not
    changed, such as the root of a volume that its group may use.

    Raises:
        OSError: the directory cannot be read or changed.
    """
    status = root.stat()
    if status.st_uid == os.geteuid() and status.st_mode & _OTHERS:
        root.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS)
        log.info("removed the permissions of other users from %s", root)
