"""A store is for its owner: no other account of the machine reads messages past the broker."""

import logging
import os
import stat
from pathlib import Path

log = logging.getLogger(__name__)

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def keep_private(root: Path) -> None:
    """Let nobody else into a directory of this process's user.

    What an earlier version left in it may be readable for everybody: behind a closed directory
    nobody reaches that, so no file of a large store is touched. The directory of another owner,
    such as the root of a volume that its group may use, is left as it is.

    Raises:
        OSError: it cannot be looked at, or changed.
    """
    status = root.stat()
    if status.st_uid == os.geteuid() and status.st_mode & _OTHERS:
        root.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS)
        log.info("%s was open to others: from now on to its owner alone", root)
