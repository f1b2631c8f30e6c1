"""The identity of a service's store: by it a nameserver knows a service that comes back."""

import re
import secrets
from collections.abc import Callable
from pathlib import Path

from rockoon_core.errors import StoreCorrupt

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
STORE_ID_BYTES = 16
STORE_ID = re.compile(rb"[0-9a-f]{%d}" % (2 * STORE_ID_BYTES))


def read_or_make_store_id(path: Path, replace_file: Callable[[Path, bytes], None]) -> str:
    """Read a store's identity; it is made with the store and never changes.

    Args:
        path: the file that holds it, in a directory that exists.
        replace_file: durably gives a file its content: all of it, or none.

    Returns:
        32 hexadecimal digits.

    Raises:
        StoreCorrupt: the file holds something else.
        OSError: it can be neither read nor written.
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
    """What a service tells as `Node.place`: where its store is.

    Two processes with the same place cannot both hold the lock, so one that holds it proves that
    the other is over. A copy of the store, on this machine or another, is at another place.

    Args:
        lock_file: of the store, held by this process.

    Raises:
        OSError: the file is not there.
    """
    found = lock_file.stat()
    try:
        # Of the kernel: the same in all containers of a machine, another one after each boot.
        kernel = BOOT_ID.read_text().strip()
    except OSError:
        return ""
    return f"{kernel}/{found.st_dev}/{found.st_ino}"
