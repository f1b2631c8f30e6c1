"""Store id: identifies a restarted service to the nameservers."""

import re
import secrets
from collections.abc import Callable
from pathlib import Path

from rockoon_core.errors import StoreCorrupt

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
STORE_ID_BYTES = 16
STORE_ID = re.compile(rb"[0-9a-f]{%d}" % (2 * STORE_ID_BYTES))


def read_or_make_store_id(path: Path, replace_file: Callable[[Path, bytes], None]) -> str:
    """Read the id of a store; a new store gets a random id, which never changes.

    Args:
        path: file of the id, in an existing directory.
        replace_file: replaces a file atomically and durably.

    Returns:
        32 hexadecimal digits.

    Raises:
        StoreCorrupt: the file has no store id.
        OSError: the file cannot be read or written.
    """
    if path.exists():
        content = path.read_bytes().strip()
        if not STORE_ID.fullmatch(content):
            raise StoreCorrupt(path=path, reason="it does not hold 32 hexadecimal digits")
        return content.decode()
    store_id = secrets.token_hex(STORE_ID_BYTES)
    replace_file(path, store_id.encode() + b"\n")
    return store_id


def store_place(lock_file: Path) -> str:
    """Value of `Node.place`: identifies the directory of a store on a machine.

    Two processes cannot hold the same lock file, so a process with the lock proves that the other
    process with the same value has ended. A copy of the store, on any machine, has another value.

    Args:
        lock_file: lock file of the store, held by this process.

    Raises:
        OSError: the file is missing.
    """
    found = lock_file.stat()
    try:
        # The boot id is the same in all containers of a machine, and changes with each boot.
        kernel = BOOT_ID.read_text().strip()
    except OSError:
        return ""
    return f"{kernel}/{found.st_dev}/{found.st_ino}"
