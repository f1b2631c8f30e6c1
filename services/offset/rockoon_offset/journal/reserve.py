"""Reserved room on the disk, so that accepted changes can still be written to a full disk."""

import contextlib
from pathlib import Path

from rockoon_core.disk import SHORTAGES, Disk

RESERVE_FILE = "reserve"
RESERVE_BYTES = 1 << 20


class Reserve:
    """File that reserves RESERVE_BYTES of disk space in a directory.

    Attributes:
        shortage: reason why the disk has no room; empty while it has.
    """

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._path = directory / RESERVE_FILE
        self._directory = directory
        self._disk = disk
        self.shortage = ""
        self.allocate()

    def allocate(self) -> None:
        """Create the reserve file, and set `shortage` if the disk has no room for it."""
        try:
            fd = self._disk.open_or_create(self._path)
            try:
                self._disk.allocate(fd, RESERVE_BYTES)
            finally:
                self._disk.close(fd)
        except OSError as failure:
            with contextlib.suppress(OSError):
                self._disk.unlink(self._path)
            # Other errors: some file systems cannot allocate, and changes are still accepted.
            if is_shortage(failure):
                self.shortage = f"{failure.strerror or failure} on {self._directory}"
                return
        self.shortage = ""

    def check(self, count: int) -> None:
        """If the disk was full, check again and update `shortage`.

        Args:
            count: bytes that must be free besides the reserve.
        """
        if not self._path.exists():
            self.allocate()
            return
        try:
            fd = self._disk.open_or_create(self._path)
            try:
                self._disk.allocate(fd, RESERVE_BYTES + count)
            finally:
                self._disk.set_size(fd, RESERVE_BYTES)
                self._disk.close(fd)
        except OSError as failure:
            if is_shortage(failure):
                self.set_shortage(failure)
                return
        self.shortage = ""

    def set_shortage(self, failure: OSError) -> None:
        """Set `shortage`, because a write found no room on the disk."""
        self.shortage = f"{failure.strerror or failure} on {self._directory}"

    def release(self, failure: OSError) -> bool:
        """Delete the reserve file after a shortage. Returns False if it was deleted before."""
        self.set_shortage(failure)
        if not self._path.exists():
            return False
        self._disk.unlink(self._path)
        return True


def is_shortage(failure: OSError) -> bool:
    """True if a write failed because the disk is full; it may be retried."""
    return failure.errno in SHORTAGES
