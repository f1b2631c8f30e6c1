"""The identity of a service's store: by it a nameserver knows a service that comes back."""

import re
import secrets
from collections.abc import Callable
from pathlib import Path

from rockoon_proto.errors import StoreCorrupt

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
