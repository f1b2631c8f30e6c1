"""One owner per store directory, Java brokers included.

RocketMQ holds a POSIX record lock on byte 0 of `lock`. Such a lock does not exclude the process
that holds it, and the process loses it when it closes *any* descriptor of the file; so a table of
the directories this process has open comes first, and the file is opened only by who is in it.
"""

import fcntl
import os
import threading
from pathlib import Path

from rockoon_broker.store.errors import StoreLocked

LOCK_FILE = "lock"
LOCK_TEXT = b"lock"

_guard = threading.Lock()
# Guarded by `_guard`: real paths of the roots that this process has locked.
_held: set[Path] = set()


class ProcessLock:
    """Holds the lock of one store directory from construction to `release`.

    Raises:
        StoreLocked: another process or another object of this process holds it.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        with _guard:
            if self._root in _held:
                raise StoreLocked(f"{root} is already open in this process")
            _held.add(self._root)
        try:
            self._fd = os.open(self._root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
                os.pwrite(self._fd, LOCK_TEXT, 0)
            except OSError:
                os.close(self._fd)
                raise
        except BlockingIOError:
            self._forget()
            raise StoreLocked(f"{root} is in use by another process") from None
        except OSError:
            self._forget()
            raise

    def release(self) -> None:
        """Let the next owner in. The file stays, as RocketMQ leaves it."""
        os.close(self._fd)
        self._forget()

    def _forget(self) -> None:
        with _guard:
            _held.discard(self._root)
