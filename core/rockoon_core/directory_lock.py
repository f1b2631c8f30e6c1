"""The lock of a store's directory: one owner at a time, Java brokers included.

RocketMQ holds a POSIX record lock on byte 0 of `lock`. This kind of lock does not exclude its own
process, which also loses it when it closes *any* descriptor of the file. So a table of this
process's locked directories is checked first, and the file is opened only once per entry.
"""

import fcntl
import os
import threading
from contextlib import suppress
from pathlib import Path

from rockoon_core.descriptors import in_reserved_range

LOCK_FILE = "lock"
LOCK_TEXT = b"lock"

_guard = threading.Lock()
# Guarded by `_guard`: real paths of the roots that this process has locked.
_held: set[Path] = set()


class DirectoryLocked(Exception):
    """Raised if another process, or another object of this process, holds the directory's lock."""


class DirectoryLock:
    """Holds the lock of one directory from construction to `release`.

    Raises:
        DirectoryLocked: the lock is already held.
        OSError: the lock's file cannot be opened.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        with _guard:
            if self._root in _held:
                raise DirectoryLocked(f"{root} is already open in this process")
            _held.add(self._root)
        try:
            fd = os.open(self._root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # Before locking: the lock is lost when any descriptor of the file is closed.
            self._fd = in_reserved_range(fd)
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            except OSError:
                os.close(self._fd)
                raise
            # Written like RocketMQ does; it is never read, so a full disk is no error.
            with suppress(OSError):
                os.pwrite(self._fd, LOCK_TEXT, 0)
        except BlockingIOError:
            self._unregister()
            raise DirectoryLocked(f"{root} is in use by another process") from None
        except OSError:
            self._unregister()
            raise

    def release(self) -> None:
        """Release the lock. The file stays, as with RocketMQ."""
        os.close(self._fd)
        self._unregister()

    def _unregister(self) -> None:
        with _guard:
            _held.discard(self._root)
